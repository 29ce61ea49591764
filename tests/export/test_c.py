"""Exported kernels called from C: a shared library, object code, several versions in one; and what their checks refuse."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import attngen as ag
from attngen.backends.cpu.target import find
from attngen.cli import main
from tests.export.kernels import EXAMPLES
from tests.export.tools import WARNINGS, call_from_c, needs, run
from tests.hygiene.test_docs import blocks
from tests.hygiene.tree import ROOT

HOSTED = ("calloc", "free", "ldexp", "memcpy", "memmove", "memset", "pthread_create", "pthread_join")


@needs("cc", "nm")
@pytest.mark.parametrize("name", EXAMPLES)
def test_shared_library(name: str, tmp_path: Path) -> None:
    example = EXAMPLES[name]
    kernel, given = example.kernel(), example.arrays()
    kernel.export(tmp_path / f"lib{name}.so")
    kernel.export(tmp_path / f"{name}.h")
    outputs = {n: (shape, example.dtype) for n, shape in example.outputs.items()}
    build = ["cc", "-L.", f"-l{name}", "-Wl,-rpath,."]
    example.check(call_from_c(tmp_path, name, given, outputs, build=build, threads=3), given)
    lines = [line.split() for line in run(["nm", "-D", "-u", f"lib{name}.so"], tmp_path).splitlines()]
    strong = {fields[1].partition("@")[0] for fields in lines if fields[0] == "U"}
    assert strong <= {*HOSTED, "__stack_chk_fail", "__memcpy_chk"}
    shown = {line.split()[-1] for line in run(["nm", "-D", "--defined-only", f"lib{name}.so"], tmp_path).splitlines()}
    assert shown == {name, *(f"{name}_{part}" for part in ("init", "workspace_bytes", "message", "selftest", "info"))}


@needs("cc", "c++")
def test_header_and_source_are_plain_c_and_the_header_is_cpp(tmp_path: Path) -> None:
    kernel = EXAMPLES["attention"].kernel()
    kernel.export(tmp_path / "attention.h")
    kernel.export(tmp_path / "attention.c")
    (tmp_path / "both.c").write_text('#include "attention.h"\n#include "attention.h"\nint main(void) { return ATTNGEN_OK; }\n')
    for standard in ("c99", "c17"):
        run(["cc", f"-std={standard}", *WARNINGS, "-c", "attention.c"], tmp_path)
        run(["cc", f"-std={standard}", *WARNINGS, "-c", "both.c"], tmp_path)
    run(["c++", "-std=c++11", *WARNINGS, "-x", "c++", "-c", "both.c"], tmp_path)


@needs("cc")
def test_the_program_in_the_readme(tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text("".join(blocks("c")))
    commands = [line for line in "".join(blocks("sh")).splitlines() if line.startswith("attngen compile")]
    for command in commands:
        run([sys.executable, "-m", *command.split()], tmp_path)
    assert "cc main.c -L. -lattention -Wl,-rpath,. -o main" in (ROOT / "README.md").read_text()
    run(["cc", *WARNINGS, "main.c", "-L.", "-lattention", "-Wl,-rpath,.", "-o", "main"], tmp_path)
    assert run(["./main"], tmp_path) == "no error\n"


SELFTEST = (
    '#include <stdio.h>\n#include "attention.h"\nint main(void) { puts(attention_message(attention_selftest())); return 0; }\n'
)


def selftest(folder: Path, source: str) -> str:
    (folder / "edited.c").write_text(source)
    (folder / "self.c").write_text(SELFTEST)
    run(
        ["cc", "-std=c99", "self.c", "edited.c", *(p.name for p in folder.glob("*.o")), "-pthread", "-lm", "-o", "self"], folder
    )
    return run(["./self"], folder).strip()


@needs("cc")
def test_the_self_test_sees_a_wrong_result(tmp_path: Path) -> None:
    """The library's own numbers are altered, one after the other: each is looked at."""
    kernel = EXAMPLES["attention"].kernel()
    for suffix in (".o", ".c", ".h"):
        kernel.export(tmp_path / f"attention{suffix}")
    source = (tmp_path / "attention.c").read_text()
    assert selftest(tmp_path, source) == "no error"
    for table in ("samples_0", "samples_1"):
        start = source.index(f"Sample {table}[]")
        assert source[start:].count("{3, ") >= 24
        altered = re.sub(r"\{3, (\d+), (?:-?)([0-9.e-]+),", r"{3, \1, 1\2,", source[start:], count=1)
        wrong = selftest(tmp_path, source[:start] + altered)
        assert wrong == "the self test found a wrong result"


@needs("cc")
def test_versions_for_several_targets(tmp_path: Path) -> None:
    """The first one that the processor can run is taken; without any the library says so instead of crashing."""
    example = EXAMPLES["attention"]
    targets = ["cpu:x86-64-v4", "cpu:x86-64-v3", "cpu:x86-64-v2"]
    if why := find("x86-64-v2").why_not_here():
        pytest.skip(f"hardware: {why}")
    first, *others = [example.kernel(target) for target in targets]
    for suffix in (".so", ".h", ".c"):
        first.export(tmp_path / f"attention{suffix}", versions=others)
    given, outputs = example.arrays(), {n: (shape, example.dtype) for n, shape in example.outputs.items()}
    example.check(call_from_c(tmp_path, "attention", given, outputs, build=["cc", "attention.so", "-Wl,-rpath,."]), given)
    source = (tmp_path / "attention.c").read_text()
    assert [source.index(f"/* {target} */") for target in targets] == sorted(source.index(f"/* {t} */") for t in targets)
    none = re.sub(r"(static int runs_here_\d\(void\)) \{.*\}", r"\1 { return 0; }", source)
    kernels = "".join(
        f"void {name}(const int64_t *a) {{ (void)a; }}\n" for name in re.findall(r"^extern void (\w+)", source, re.M)
    )
    assert selftest(tmp_path, none + kernels) == "this processor lacks instructions that the kernel needs"


def test_what_is_exported_twice_is_the_same(tmp_path: Path) -> None:
    for suffix in (".o", ".ll", ".c"):
        first, second = (tmp_path / f"{name}{suffix}" for name in ("first", "second"))
        for file in (first, second):
            replace(EXAMPLES["grouped_softcap"]).kernel("cpu:x86-64-v3").export(file)  # a copy, so compiled anew
        assert first.read_bytes() == second.read_bytes()


def test_several_versions_must_belong_together(tmp_path: Path) -> None:
    example = EXAMPLES["attention"]
    first = example.kernel("cpu:x86-64-v3")
    with pytest.raises(ag.Error, match=r"cpu:x86-64-v3 and cpu:neoverse-n1: they differ in more than instructions"):
        first.export(tmp_path / "a.so", versions=[example.kernel("cpu:neoverse-n1")])
    with pytest.raises(ag.Error, match="kernels of one program for the same shapes"):
        first.export(tmp_path / "a.so", versions=[EXAMPLES["causal_alibi"].kernel("cpu:x86-64-v2")])
    with pytest.raises(ag.Error, match="two versions have the same target"):
        first.export(tmp_path / "a.so", versions=[first])
    with pytest.raises(ag.Error, match=r"several targets go into one \.so"):
        first.export(tmp_path / "a.o", versions=[example.kernel("cpu:x86-64-v2")])


@pytest.mark.parametrize("names", [("size", "linux", "double"), ("threads", "CALL", "INFO"), ("q_extents", "q", "ä")])
@needs("cc")
def test_names_that_mean_something_in_c(names: tuple[str, str, str], tmp_path: Path) -> None:
    """Whatever inputs are called, the struct has a field for each."""
    a, b, c = names
    body: dict[str, Any] = {"contract": ag.contract}
    exec(f"def double({a}, {b}, {c}):\n    return contract({a} * {c}, {b}, over='d')\n", body)
    layouts: dict[str, Any] = {a: "i d", b: "j d", c: "i d"}
    shapes: dict[str, Any] = {a: (5, 8), b: (6, 8), c: (5, 8)}
    kernel = ag.compile(ag.program(body["double"], **layouts, out="i j"), **shapes)
    for suffix in (".c", ".o"):
        kernel.export(tmp_path / f"double{suffix}")
    (tmp_path / "main.c").write_text("int double__selftest(void);\nint main(void) { return double__selftest(); }\n")
    run(["cc", "-std=gnu99", "main.c", "double.c", "double.o", "-pthread", "-lm", "-o", "main"], tmp_path)
    run(["./main"], tmp_path)


def test_wrong_requests(tmp_path: Path) -> None:
    kernel = EXAMPLES["attention"].kernel()
    with pytest.raises(ag.Error, match=r"the suffix says what to write: \.so is a shared library"):
        kernel.export(tmp_path / "attention.dll")
    with pytest.raises(ag.Error, match=r"no C compiler 'no-such-cc'.*apt-get install"):
        kernel.export(tmp_path / "attention.so", cc="no-such-cc -O2")
    with pytest.raises(ag.Error, match="cannot write"):
        kernel.export(tmp_path / "none" / "attention.s")
    with pytest.raises(ag.Error, match="numpy has no machine code"):
        EXAMPLES["attention"].kernel("numpy").export(tmp_path / "attention.o")
    with pytest.raises(ag.Error, match="has an axis of extent 0"):
        ag.compile(ag.attention, q=(1, 1, 0, 4), k=(1, 1, 3, 4), v=(1, 1, 3, 4)).export(tmp_path / "attention.o")
    assert list(tmp_path.iterdir()) == []


@needs("cc")
def test_what_the_c_compiler_says_is_shown(tmp_path: Path) -> None:
    with pytest.raises(ag.Error, match=r"cc failed with exit code \d+:[\s\S]*no-such-flag"):
        EXAMPLES["attention"].kernel().export(tmp_path / "attention.so", cc="cc --no-such-flag")


@needs("cc")
def test_command(tmp_path: Path) -> None:
    """Files by suffix, from the shell; the module runs in a process that has no attngen."""
    command = [sys.executable, "-m", "attngen", "compile", "--shape", "1,2,7,9,8", "--target", "cpu", "--name", "small"]
    outs = [tmp_path / name for name in ("libsmall.so", "small.h", "small.py", "small.s", "small.ll")]
    done = subprocess.run([*command, *(f"--out={out}" for out in outs)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.partition(": ")[0] for line in done.stdout.splitlines()] == list(map(str, outs))
    assert "small_kernel" in outs[3].read_text() and "define hidden void @small_kernel(" in outs[4].read_text()
    run([sys.executable, "-c", "import small; small.selftest()"], tmp_path)


def test_wrong_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile"]) == 2 and "Missing option '--out'" in capsys.readouterr().err
    assert main(["compile", "-o", "attention.dll"]) == 2 and ".so .h .py .o .c .ll .s" in capsys.readouterr().err
    assert main(["compile", "--shape", "1,1,4,4,8", "--target", "cpu:apple-m1", "-o", "attention.so"]) == 1
    assert "write .o, .c and .h files and link them there" in capsys.readouterr().err
    assert main(["compile", "--help"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100

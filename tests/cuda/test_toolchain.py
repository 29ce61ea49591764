"""From Numba source to PTX and cubin with no GPU: names, what the machine code holds, errors that say what to do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attngen.backends import Unsupported
from attngen.backends.cuda.build import Built, machine_code
from attngen.backends.cuda.ptx import parse
from attngen.backends.cuda.runtime.kernels import Kernels
from attngen.backends.cuda.target import KNOWN, find
from attngen.backends.cuda.toolchain import assembler, reports, tools
from attngen.backends.cuda.toolchain import compiler as toolchain
from attngen.ir.diagnostics import Error
from tests.cuda import entries
from tests.cuda.launching import HEAD
from tests.hygiene.tree import ROOT


@pytest.mark.parametrize("name", KNOWN)
def test_every_architecture(name: str) -> None:
    """Two kernels become one cubin, and no local memory, double precision or call slips in."""
    kernels = Kernels.compiled(entries.program(name))
    for text in kernels.ptx:
        assert re.search(r"^\.version 9\.0$", text, re.MULTILINE)
        assert re.search(rf"^\.target {name}$", text, re.MULTILINE)
        assert reports.forbidden(text) == []
    assembled = reports.assembled(kernels.ptx, kernels.program.target)
    usage = assembled.usage
    assert assembled.cubin == kernels.cubin and not assembled.complaints
    assert set(usage) == {"add", "turn"}
    assert all(0 < u.registers < 40 and not (u.stack or u.spill_stores or u.spill_loads) for u in usage.values())
    assert usage["turn"].barriers == 1 and usage["turn"].shared % 1024 == 512
    assert usage["add"].barriers == 0 and usage["add"].shared == 0
    counts = reports.instructions(kernels.cubin)
    assert counts["add"]["FADD"] == 1 and counts["add"]["LDG"] == 2 and not counts["add"]["BAR"]
    assert counts["turn"]["BAR"] == 2 and counts["turn"]["STS"] == 2 and not counts["turn"]["FADD"]


def test_launch_bounds() -> None:
    texts = [toolchain.ptx(entry, find("sm_80")) for entry in (entries.ADDING, entries.TURNING)]
    assert all(re.search(r"^\.maxntid 128", text, re.MULTILINE) for text in texts)
    assert ["minnctapersm 2" in text for text in texts] == [False, True]


def test_the_text_depends_on_the_kernel_alone() -> None:
    """Numba's names hold hashes and count what the process has compiled; no name of two kernels may be the same."""
    texts = [toolchain.ptx(entry, find("sm_80")) for entry in (entries.ADDING, entries.TURNING)]
    assert texts == [toolchain.ptx(entry, find("sm_80")) for entry in (entries.ADDING, entries.TURNING)]
    assert not re.search(r"_Z|numba|cudapy", "".join(texts), re.IGNORECASE)
    assert "turn_shared_0" in texts[1] and "turn_shared_1" in texts[1]


@pytest.mark.parametrize("length", [512, 300, 1])
def test_what_was_compiled_computes(length: int) -> None:
    x, y = np.random.default_rng(length).standard_normal((2, length), np.float32)
    out = np.zeros_like(x)
    Built(Kernels.compiled(entries.program("sm_80,emulated")))([x, y], [out])
    assert np.array_equal(out, entries.expected(x, y))


def test_one_module_of_several() -> None:
    target = find("sm_90a")
    texts = [toolchain.ptx(entry, target) for entry in (entries.ADDING, entries.TURNING)]
    made = toolchain.module(texts)
    assert [f.name for f in parse(made).entries()] == ["add", "turn"]
    assert reports.assembled([made], target) == reports.assembled(texts, target)
    assert toolchain.module(texts[:1]) == texts[0]


BODIES = {
    "f64": "    store(c, load(a) * 0.1)\n",
    "local": "    m = cuda.local.array(99, float32)\n    m[n] = load(a)\n    m[n // 2] = load(c)\n    store(c, m[n // 3])\n",
}


@pytest.mark.parametrize("word", BODIES)
def test_what_fast_kernels_must_not_hold(word: str) -> None:
    entry = replace(entries.TURNING, text=f"def turn(a, c, n):\n{BODIES[word]}")
    text = toolchain.ptx(entry, find("sm_80"))
    assert {line.split(": ")[1] for line in reports.forbidden(text)} == {word}
    assert reports.forbidden(text, allow=[word]) == []
    assert [line.split(": ")[1] for line in reports.forbidden("// a .f64 is called\ncall.uni f, (x);")] == ["call"]


def test_spills_are_reported() -> None:
    """A kernel with a local array has a stack."""
    entry = replace(entries.TURNING, text=f"def turn(a, c, n):\n{BODIES['local']}")
    target = find("sm_80")
    assert reports.assembled([toolchain.ptx(entry, target)], target).usage["turn"].stack >= 99 * 4


IGNORED = f"""{HEAD.replace("sm_80", "sm_90a")}.visible .entry kernel() {{
setmaxnreg.inc.sync.aligned.u32 240;
ret; }}
"""


def test_what_the_assembler_could_not_do_is_reported() -> None:
    """It says so in a note and goes on; the kernel would be slow."""
    said = reports.assembled([IGNORED], find("sm_90a")).complaints
    assert len(said) == 1 and "setmaxnreg' ignored" in said[0]
    assert reports.complaints("ptxas warning : Registers are spilled\nptxas info    : 0 bytes gmem\n") == (
        "ptxas warning : Registers are spilled",
    )


# ---- errors


@pytest.mark.parametrize(
    ("old", "new", "said", "help"),
    [
        ("add.f32", "add.f3", "line [0-9]+; error   : Unknown modifier '.f3'", "kernel.stages"),
        (".version 9.0", ".version 9.9", "Unsupported .version 9.9", "pip install 'attngen"),
        (".target sm_80", ".target sm_90", "SM version specified by .target is higher", "another target"),
    ],
)
def test_ptx_that_cannot_be_assembled(old: str, new: str, said: str, help: str) -> None:
    text = toolchain.ptx(entries.ADDING, find("sm_80"))
    assert old in text
    with pytest.raises(Unsupported, match=r"ptxas cannot make code for sm_80 of this PTX") as caught:
        assembler.cubin([text.replace(old, new)], find("sm_80"))
    assert re.search(said, str(caught.value)) and help in caught.value.help
    assert "/proc" not in str(caught.value)


@pytest.fixture
def first_use() -> Generator[None]:
    """As if nothing had been looked for before."""
    cached = (toolchain.numba_cuda, assembler.ptxas)
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


@pytest.mark.usefixtures("first_use")
@pytest.mark.parametrize("case", ["no package", "Numba's own", "no library", "simulator"])
def test_a_toolchain_that_is_not_there(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each says what it is, and what to type."""
    wanted, help = "numba-cuda is not installed", toolchain.INSTALL
    if case == "no package":
        monkeypatch.setattr(toolchain, "find_spec", lambda name: None)
    elif case == "Numba's own":
        wanted = "finds Numba's own module"
        monkeypatch.delattr("numba.cuda.implementation")
    elif case == "no library":
        wanted = "Failure finding"

        def absent(name: str) -> None:
            raise RuntimeError(f'Failure finding "lib{name}.so": No such file: lib{name}.so')

        monkeypatch.setattr("cuda.pathfinder.load_nvidia_dynamic_lib", absent)
    else:
        wanted, help = "NUMBA_ENABLE_CUDASIM is set", "unset NUMBA_ENABLE_CUDASIM"
        monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    with pytest.raises(Unsupported, match=wanted) as caught:
        toolchain.ptx(entries.ADDING, find("sm_80"))
    assert caught.value.help == help
    assert "No such file" not in str(caught.value)


VERSION = "echo Cuda compilation tools, release {}, V{}.1; exit"
LATER = f"test $1 != --version || {{ {VERSION.format('13.9', '13.9')}; }}"


@pytest.mark.usefixtures("first_use")
@pytest.mark.parametrize(
    ("script", "wanted"),
    [
        (None, "there is no ptxas, which makes machine code"),
        (VERSION.format("12.4", "12.4"), r"there is no ptxas of CUDA 13: .*/bin/ptxas is 12\.4"),
        ("exit 1", "/bin/ptxas is of no known release"),
        ("", "/bin/ptxas is not to be run: Exec format error"),
        (f"{LATER}; kill -9 $$", "(?s)cannot make code.*signal 9 ended it"),
        (f"{LATER}; exit 3", "(?s)cannot make code.*exit code 3"),
    ],
)
def test_an_assembler_that_does_not_work(
    script: str | None, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is found in CUDA_HOME, since there is none elsewhere."""
    if script is not None:
        program = tmp_path / "bin" / "ptxas"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n{script}\n" if script else "\x7fELF")
        program.chmod(0o755)
    monkeypatch.setattr(tools, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(Unsupported, match=wanted) as caught:
        assembler.cubin([IGNORED], find("sm_90a"))
    assert ("pip install 'attngen[cuda]'" in caught.value.help) == ("cannot make code" not in wanted)


NOWHERE = """
from attngen.backends.cuda.toolchain import assembler, reports
from attngen.backends.cuda.target import find
from tests.cuda.test_toolchain import IGNORED
cubin = assembler.cubin([IGNORED], find("sm_90a"))
print(reports.instructions(cubin)["kernel"]["EXIT"])
"""


def test_no_folder_has_to_be_writable(tmp_path: Path) -> None:
    """Nothing is written to any, so nothing is left behind either."""
    env = {**os.environ, "TMPDIR": str(tmp_path / "none"), "HOME": "/proc", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", NOWHERE], cwd="/proc", env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_no_disassembler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "DISASSEMBLER", "nvdisasm-that-is-not-there")
    with pytest.raises(Error, match="pip install nvidia-cuda-nvdisasm"):
        reports.instructions(b"")
    assert "pip install nvidia-cuda-nvdisasm" in machine_code(b"code")["sass"]


def test_a_file_that_is_no_cubin() -> None:
    with pytest.raises(Error, match="nvdisasm: "):
        reports.instructions(b"nothing")


BESIDE = """
import warnings
import numpy as np, attngen as ag
from attngen.backends.cuda.toolchain import compiler as toolchain
from attngen.backends.cuda.target import find
from tests.cuda import entries
before = ag.compile(ag.attention, q=(1, 2, 40, 8), k=(1, 2, 40, 8), v=(1, 2, 40, 8))
warnings.simplefilter("error")
toolchain.ptx(entries.ADDING, find("sm_80"))
after = ag.compile(ag.attention, q=(1, 2, 40, 16), k=(1, 2, 40, 16), v=(1, 2, 40, 16))
expected = ag.compile(ag.attention, q=(1, 2, 40, 16), k=(1, 2, 40, 16), v=(1, 2, 40, 16), target="numpy")
x = np.random.default_rng(0).standard_normal((3, 1, 2, 40, 16), np.float32)
np.testing.assert_allclose(after(*x), expected(*x), atol=1e-5)
"""


def test_beside_the_backend_for_the_cpu() -> None:
    """In one process, with no warning and not a word."""
    done = subprocess.run([sys.executable, "-c", BESIDE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_threads() -> None:
    """Several may compile at once; filters of warnings are what they were, and no file stays open."""
    files = len(os.listdir("/proc/self/fd"))
    before = list(warnings.filters)
    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(lambda entry: toolchain.ptx(entry, find("sm_80")), [entries.ADDING, entries.TURNING] * 4))
        cubins = list(pool.map(lambda _: assembler.cubin(texts[:2], find("sm_80")), range(8)))
    assert texts == texts[:2] * 4 and cubins == cubins[:1] * 8
    assert len(os.listdir("/proc/self/fd")) == files
    assert warnings.filters == before

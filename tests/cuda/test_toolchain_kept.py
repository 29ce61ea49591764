"""Built programs come back from disk as they were, without a compiler; what is anything else is refused."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attngen.backends import Saved
from attngen.backends.cuda.program import Address, Copyable, Entry, Length, Map, Part, Program, Stride, Workspace
from attngen.backends.cuda.runtime.kernels import Kernels
from attngen.backends.cuda.target import find
from attngen.backends.cuda.toolchain import facts, kept
from attngen.ir.types import BF16, TensorType, UpTo
from tests.cuda import entries

EVERY = (Address(0), Stride(1, "i"), Length("i"), Workspace(4096), Copyable(2, "i"), Map(3, ("d", "i"), (64, 128), 64))


def program(target: str = "sm_90a") -> Program:
    """One that has everything that can be saved."""
    plain = entries.program(target)
    whole = Entry("whole", "", dict, EVERY, (Part("i", UpTo(512), 64), Part("d", 64, 32)), 256, 1 << 16, 132, 1)
    temporary = TensorType((("i", UpTo(512)), ("d", 64)), BF16)
    return replace(plain, entries=(*plain.entries, whole), temporaries=(temporary,), otherwise=lambda: plain)


CUBIN = kept.ELF + b"code"
TEXTS = ("first", "second", "third")


def saved(target: str = "sm_90a") -> Saved:
    """Through JSON, as on disk."""
    made = kept.save(program(target), cubin=CUBIN, ptx=TEXTS)
    return Saved(made.code, json.loads(json.dumps(made.facts)))


def restore(given: Saved, target: str = "sm_90a") -> kept.Restored:
    return kept.restore(program().func, find(target), given, program)


@pytest.mark.parametrize(("target", "cubin", "ptx"), [("sm_90a", CUBIN, ()), ("sm_90a,emulated", b"", TEXTS)])
def test_what_is_saved_comes_back(target: str, cubin: bytes, ptx: tuple[str, ...]) -> None:
    found = restore(saved(target), target)
    assert (found.cubin, found.ptx) == (cubin, ptx)
    before = program(target)
    without_text = [replace(entry, text="", namespace=dict) for entry in before.entries]
    assert found.program == replace(before, entries=tuple(without_text))
    assert found.program.otherwise is not None
    assert found.program.otherwise().entries == entries.program("sm_90a").entries


def changed(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[str, Callable[[Any], None]]]:
    """Each place in a JSON value, and ways to change it: another type, gone, one more."""
    if not path:
        yield "one more", lambda top: top.update(more=1)
    for key in value if isinstance(value, dict) else range(len(value)):
        place = (*path, key)

        def within(top: Any, path: tuple[Any, ...] = path) -> Any:
            for key in path:
                top = top[key]
            return top

        shown = "/".join(map(str, place))
        for other in (None, "none of these", [1, 2], -7, True, 1.0):
            if other != value[key] or type(other) is not type(value[key]):
                yield f"{shown} = {other}", lambda top, other=other, key=key, within=within: within(top).__setitem__(key, other)
        yield f"no {shown}", lambda top, key=key, within=within: within(top).__delitem__(key)
        if isinstance(value[key], dict | list):
            yield from changed(value[key], place)


def test_facts_that_are_not_those_of_a_program() -> None:
    """Every value of another type and every missing or further key is noticed, with the errors that mean `build it again`."""
    right, tried, accepted = saved(), 0, list[str]()
    for what, change in changed(right.facts):
        wrong = copy.deepcopy(dict(right.facts))
        change(wrong)
        tried += 1
        try:
            restore(Saved(right.code, wrong))
        except (LookupError, TypeError, ValueError):
            continue
        accepted.append(what)
    assert tried > 500
    # Another value of the same type may be right, and so may a list with one element fewer.
    assert [what for what in accepted if what.endswith(("None", "True", "1.0"))] == []
    assert [what for what in accepted if what.startswith("no ") and not what.rpartition("/")[2].isdigit()] == []
    assert "one more" not in accepted


@pytest.mark.parametrize(
    ("target", "code"),
    [("sm_90a", b""), ("sm_90a", b"text"), ("sm_90a,emulated", CUBIN), ("sm_90a,emulated", b"[]"), ("sm_90a,emulated", b"[1]")],
)
def test_code_of_another_kind(target: str, code: bytes) -> None:
    with pytest.raises((LookupError, TypeError, ValueError)):
        restore(replace(saved(target), code=code), target)


@pytest.mark.parametrize(
    "parameter", [Address(9), Address(-1), Stride(0, "d"), Copyable(1, "j"), Length("d"), Map(3, ("d", "j"), (64, 1), 0)]
)
def test_parameters_of_what_is_not_there(parameter: Any) -> None:
    entry = replace(entries.ADDING, parameters=(parameter,))
    given = facts.written(replace(program(), entries=(entry,)))
    with pytest.raises((LookupError, ValueError)):
        restore(Saved(CUBIN, given))


AGAIN = """
import sys, json, pathlib, numpy as np
from attngen.backends import Saved
from attngen.backends.cuda.build import Built
from tests.cuda import entries
code, facts = json.loads(pathlib.Path(sys.argv[1]).read_text())
func = entries.program("sm_80,emulated").func
built = Built.restored(func, "sm_80,emulated", Saved(code.encode(), facts), lambda: None)
x, y = np.random.default_rng(0).standard_normal((2, 300), np.float32)
out = np.zeros_like(x)
built([x, y], [out])
assert np.array_equal(out, entries.expected(x, y))
print(*(name for name in ("numba", "llvmlite", "cuda", "networkx") if name in sys.modules))
"""


def test_a_restored_program_needs_no_compiler(tmp_path: Path) -> None:
    made = Kernels.compiled(entries.program("sm_80,emulated")).saved()
    file = tmp_path / "kernel.json"
    file.write_text(json.dumps([made.code.decode(), made.facts]))
    done = subprocess.run([sys.executable, "-c", AGAIN, file], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


def test_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Target, versions and settings of what makes the code."""
    found = kept.fingerprint("sm_80")
    assert found["nvidia-nvvm"].startswith("13.0.") and found["numba-cuda"][0].isdigit()
    assert found != kept.fingerprint("sm_80,emulated") != kept.fingerprint("sm_90")
    monkeypatch.setenv("NUMBA_OPT", "0")
    assert kept.fingerprint("sm_80") != found


def test_an_assembler_that_pip_did_not_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has no version that could be asked for without running it: another file is another one."""
    program = tmp_path / "ptxas"
    monkeypatch.setattr(kept, "versions", lambda: {kept.ASSEMBLER: "none"})
    monkeypatch.setattr("attngen.backends.cuda.toolchain.tools.places", lambda name: [str(program)])
    found: list[Mapping[str, str]] = []
    for content in ("one", "another"):
        program.write_text(content)
        kept.assemblers.cache_clear()
        found.append(kept.assemblers())
    kept.assemblers.cache_clear()
    assert [*found[0]] == [*found[1]] == [str(program)] and found[0] != found[1]

"""Every target by name: what it makes, whether it runs here, and that it is right where it does."""

from __future__ import annotations

import re
from typing import Any, cast

import numpy as np
import pytest

import attngen as ag
from attngen.backends import Unsupported
from attngen.backends.cpu import target as targets
from attngen.backends.cpu.target import NAMED, find
from attngen.cli import main
from attngen.ir.diagnostics import Error
from tests.derivation.programs import CASES, SHAPES, inputs
from tests.kernels.reference import attention

WIDE = {"cpu:x86-64-v3,vector_bits=512": "twice as wide as its registers", "cpu:,vector_bits=128": "narrow"}
SHAPE: dict[str, Any] = {"q": (1, 4, 21, 40), "k": (1, 2, 77, 40), "v": (1, 2, 77, 24)}
"""Grouped heads; no extent is a multiple of a vector."""

COPIES = {"memcpy", "memmove", "memset"}


def arrays(dtype: str) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in SHAPE.items()}


@ag.program(q="b (g r) i d", k="b g j d", v="b g j e", out="b (g r) i e")
def grouped(q: ag.Tensor, k: ag.Tensor, v: ag.Tensor) -> ag.Tensor:
    s = ag.contract(q, k, over="d") / q.extent("d") ** 0.5
    return ag.contract(ag.softmax(s, over="j"), v, over="j")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("target", [f"cpu:{name}" for name in NAMED] + list(WIDE))
def test_every_target(target: str, dtype: str) -> None:
    """Right where it runs, refused with the reason where it does not; and whole: nothing but copies is called outside."""
    given = arrays(dtype)
    kernel = ag.compile(grouped, dtype=dtype, target=target, **given)
    called = set(re.findall(r"^\s+(?:callq?|bl)\s+\"?([\w.]+)", kernel.stages["asm"], re.MULTILINE))
    inside = set(re.findall(r"^\"?([\w.]+)\"?:", kernel.stages["asm"], re.MULTILINE))
    assert {name for name in called - inside if name.lstrip("_") not in COPIES} == set()
    why = find(target.partition(":")[2]).why_not_here()
    if why:
        with pytest.raises(Unsupported, match=f"@grouped cannot run here: {re.escape(why)}"):
            kernel(**given)
        return
    rtol = 2e-5 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(kernel(**given), attention(given["q"], given["k"], given["v"])[0], rtol=rtol, atol=rtol)


@pytest.mark.parametrize("target", WIDE)
@pytest.mark.parametrize("name", ["standard", "differential", "softcap", "windowed"])
def test_vectors_of_another_width(name: str, target: str) -> None:
    """What is in sixteen lanes is right on registers of eight: LLVM splits it."""
    if why := find(target.partition(":")[2]).why_not_here():
        pytest.skip(f"hardware: {why}")
    case = CASES[name]
    given = cast(dict[str, Any], inputs(name, seed=5))
    shapes: dict[str, Any] = {n: SHAPES[n] for n in case.inputs}
    kernel = ag.compile(case.program, target=target, **shapes)
    found = kernel(**given)
    for got, want in zip(found if isinstance(found, tuple) else (found,), case.oracle(given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5)
    bits = target.rpartition("=")[2]
    assert f"vectors of {bits} bits" in kernel.stages["python"]
    assert f"<{int(bits) // 32} x float>" in kernel.stages["llvm"]


def test_why_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "host_features", lambda: {"sse4.2": True, "popcnt": True, "avx2": True, "neon": True})
    monkeypatch.setattr(targets.llvm, "get_process_triple", lambda: "x86_64-pc-linux-gnu")
    assert find("x86-64-v2").why_not_here() == ""
    assert find("x86-64-v3").why_not_here() == "this machine's processor lacks fma, bmi2, f16c"
    assert find("neoverse-n1").why_not_here() == "this machine is x86_64 linux, the code is for aarch64 linux"
    monkeypatch.setattr(targets.llvm, "get_process_triple", lambda: "x86_64-pc-windows-msvc")
    assert find("x86-64-v2").why_not_here() == "this machine is x86_64 windows, the code is for x86_64 linux"
    monkeypatch.setattr(targets.llvm, "get_process_triple", lambda: "arm64-apple-darwin23.5.0")
    assert find("apple-m1").why_not_here() == ""
    assert find("neoverse-n1").why_not_here() == "this machine is arm64 darwin, the code is for aarch64 linux"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("cpu:pentium", r"no variant 'pentium'; known: cpu, cpu:x86-64-v2, .*cpu:neoverse-n1, cpu:apple-m1"),
        ("cpu:x86-64-v3,vector_bits=96", r"cannot set 'vector_bits=96'[\s\S]*vector_bits=128 or 256 or 512"),
        ("cpu:x86-64-v3,lanes=8", r"cannot set 'lanes=8'[\s\S]*vector_bits=.*vector_registers="),
        ("cpu:x86-64-v3,", r"cannot set ''"),
        ("cpu:,vector_bits", r"cannot set 'vector_bits'"),
    ],
)
def test_wrong_names(target: str, message: str) -> None:
    with pytest.raises(Error, match=message):
        ag.compile(grouped, target=target, **SHAPE)


def test_an_override_changes_what_it_names() -> None:
    base = find("x86-64-v4")
    changed = find("x86-64-v4,vector_bits=256,vector_registers=16")
    assert (changed.vector_bits, changed.vector_registers, changed.scales) == (256, 16, False)
    assert (changed.name, changed.triple, changed.needs) == (base.name, base.triple, base.needs)
    assert find("x86-64-v4,vector_registers=16").scales


def test_targets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "targets"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 100 for line in lines)
    for name in NAMED:
        assert [line for line in lines if line.split()[:1] == [f"cpu:{name}"] and len(line.split()) >= 2]

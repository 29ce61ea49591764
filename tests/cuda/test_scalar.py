"""Scalar kernels: programs of every kind, in the interpreter of PTX with all of its checks."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attngen as ag
from attngen.backends import Unsupported
from attngen.backends.cuda.ptx import Defect
from attngen.backends.cuda.scalar import writer as scalar
from attngen.ir.core import REGISTRY
from attngen.ir.elementwise import Unary
from attngen.ir.func import Func
from attngen.ir.parser import parse
from attngen.ir.passes import PIPELINE
from attngen.ir.pipeline import run_pipeline
from attngen.ir.types import BF16, F16, F32, F64, ElementType, TensorType, UpTo
from tests.cuda.scalar_kernels import check, compiled, execute, made
from tests.derivation.programs import CASES, inputs


def tiled(program: Any, types: dict[str, TensorType], tiles: str) -> Func:
    axes = {axis for t in types.values() for axis in t.names}
    chosen = " ".join(word for word in tiles.split() if word.split("=")[0] in axes)
    return run_pipeline(program.trace(types), PIPELINE.replace("tile", f"tile{{{chosen}}}", 1)).func


RAGGED, ROWS, WHOLE, EACH = "h=1 i=16 j=8", "h=1 i=1 j=32", "h=2 i=37 j=53", "h=1 i=1 j=1"
SOME = [
    *(("with_lse", RAGGED), ("windowed", RAGGED), ("differential", RAGGED), ("entropy", ROWS), ("probabilities", ROWS)),
    *(("quantised", "d=3 i=16 j=16"), ("talking_heads", EACH), ("two_sources", WHOLE), ("sigmoid", WHOLE)),
]


@pytest.mark.parametrize(("name", "tiles"), SOME)
def test_program(name: str, tiles: str) -> None:
    case, arrays = CASES[name], inputs(name, seed=7)
    got = execute(made(tiled(case.program, case.types(), tiles)), list(arrays.values()))
    for x, want in zip(got, case.oracle(arrays), strict=True):
        np.testing.assert_allclose(x, want, rtol=1e-4, atol=2e-5 if name != "quantised" else 0.5)


def test_double_precision() -> None:
    case, arrays = CASES["with_sink"], inputs("with_sink", seed=8, dtype="float64")
    (got,) = execute(made(tiled(case.program, case.types(F64), RAGGED)), list(arrays.values()))
    np.testing.assert_allclose(got, case.oracle(arrays)[0], rtol=1e-12, atol=1e-13)


@ag.program(q="h i d", k="h j d", v="h j e", out=("h i e", "h i"))
def causal(q: ag.Tensor, k: ag.Tensor, v: ag.Tensor) -> Any:
    """The mask is of the products too; the first rows keep nothing."""
    keep: Any = ag.index("j") <= ag.index("i") - 3
    s = ag.where(keep, ag.contract(q, k, over="d"), -math.inf)
    return ag.contract(ag.softmax(s, over="j"), v, over="j", where=keep), ag.logsumexp(s, over="j")


@pytest.mark.parametrize("element", [F32, F16, BF16], ids=str)
def test_runtime_extents_and_what_a_mask_hides(element: ElementType) -> None:
    i, j = UpTo(40), UpTo(64)
    types = {
        name: TensorType((("h", 2), axis, ("d" if name != "v" else "e", 8)), element)
        for name, axis in (("q", ("i", i)), ("k", ("j", j)), ("v", ("j", j)))
    }
    func = tiled(causal, types, "h=1 i=8 j=16")
    program, rng = made(func), np.random.default_rng(0)
    texts = compiled(program)
    for rows, columns in ((30, 41), (1, 1), (9, 64)):
        q, k, v = ((rng.integers(-8, 8, (2, n, 8)) / 4).astype(np.float32) for n in (rows, columns, columns))
        v[:, -1], k[:, -1] = np.nan, np.inf
        check(func, [q, k, v], 1e-5 if element is F32 else 1e-2, program, texts)


def test_registers_hold_several_elements_of_a_product() -> None:
    """Static and ragged tiles that are large enough for it."""
    types = {n: TensorType((("i" if n == "q" else "j", 70), ("d" if n != "v" else "e", 24)), F32) for n in "qkv"}

    @ag.program(q="i d", k="j d", v="j e", out="i e")
    def attention(q: ag.Tensor, k: ag.Tensor, v: ag.Tensor) -> ag.Tensor:
        return ag.contract(ag.softmax(ag.contract(q, k, over="d"), over="j"), v, over="j")

    func = tiled(attention, types, "i=32 j=35")
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal((70, 24)).astype(np.float32)[::-1] for _ in range(3)]
    program = made(func)
    assert "i_1 = i + " in program.text
    check(func, arrays, 2e-5, program)


def test_what_shared_memory_cannot_hold_is_in_global_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then fewer blocks than parts, each of which does several."""
    monkeypatch.setattr(scalar, "WORKSPACE", 8 * 1024)
    case, arrays = CASES["standard"], inputs("standard")
    program = made(tiled(case.program, case.types(), RAGGED), shared_bytes=400)
    (entry,) = program.entries
    assert 0 < entry.most_blocks < entry.parts({}) and entry.shared_bytes <= 400
    (got,) = execute(program, list(arrays.values()))
    np.testing.assert_allclose(got, case.oracle(arrays)[0], rtol=1e-4, atol=2e-5)


def test_each_barrier_is_needed() -> None:
    """A kernel that lacks one is found out."""
    case, arrays = CASES["standard"], inputs("standard")
    program = made(tiled(case.program, case.types(), "h=1 i=32 j=8"))
    (text,) = compiled(program)
    pieces = text.split("barrier.sync 0;")
    assert len(pieces) > 4
    for k in range(1, len(pieces)):
        without = "barrier.sync 0;".join(pieces[:k]) + "barrier.sync 0;".join(pieces[k:])
        with pytest.raises(Defect, match="race"):
            execute(program, list(arrays.values()), [without])


SWAPPED = """\
func @swapped(%x: tensor<j=11, f32> "j", %n: tensor<i64> "") -> (tensor<j=11, f32> "j", tensor<j=11, f32> "j", tensor<f32> "") {
  %o, %p, %q = loop.parallel out (%d, %e, %f) : (tensor<j=11, f32>, tensor<j=11, f32>, tensor<f32>) {
    %end = nd.cast %n to index : tensor<index>
    %one = nd.constant value 1.0 element f32 : tensor<f32>
    %two = nd.constant value 2.0 element f32 : tensor<f32>
    %y = nd.add %x, %one : tensor<j=11, f32>
    %a, %b, %s, %t = loop.for %i: i = 0 to 9 step 1 until %end carry (%u = %x, %v = %y, %g = %one, %h = %two)
        : (tensor<j=11, f32>, tensor<j=11, f32>, tensor<f32>, tensor<f32>) {
      %k = nd.add %g, %h : tensor<f32>
      loop.yield %v, %u, %h, %k
    }
    %c = nd.mul %a, %s : tensor<j=11, f32>
    %1 = tile.store %c, %d : tensor<j=11, f32>
    %2 = tile.store %b, %e : tensor<j=11, f32>
    %3 = tile.store %t, %f : tensor<f32>
    loop.yield %1, %2, %3
  }
  return %o, %p, %q
}
"""


def test_carried_values_that_change_places() -> None:
    func = parse(SWAPPED)
    program = made(func)
    texts = compiled(program)
    for trips in (0, 1, 4, 20):
        check(func, [np.arange(11, dtype=np.float32), np.array(trips)], 0, program, texts)


NEW = """\
func @f(%x: tensor<i=4, f32> "i") -> (tensor<i=4, f32> "i") {
  %y = test.explode %x : tensor<i=4, f32>
  return %y
}
"""


def test_what_is_not_known_is_refused() -> None:
    class Explode(Unary, name="test.explode"):
        """`%1 = test.explode %0 : tensor<i=4, f32>`"""

    try:
        func = parse(NEW)
        with pytest.raises(Unsupported, match=r"does not know test\.explode"):
            made(run_pipeline(func, "tile{i=2}").func)
        with pytest.raises(Unsupported, match=r"an output is not stored(.|\n)*run the pass `tile`"):
            made(func)
    finally:
        del REGISTRY[Explode.name]


def test_the_source_is_python_too() -> None:
    """Numba's simulator runs it with other functions to call, without any compiler."""
    root = Path(__file__).parents[2]
    env = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-m", "tests.cuda.simulated"], cwd=root, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

"""An op from outside is fused through the facts it declares; no pass knows it."""

from __future__ import annotations

import numpy as np
import pytest

from attngen.ir.build import add, constant, div, folded, maximum, mul, reduce, unary
from attngen.ir.core import Value, argument
from attngen.ir.diagnostics import Remark
from attngen.ir.elementwise import Abs, Binary
from attngen.ir.facts import Facts, Interval, Ratio
from attngen.ir.func import Func, Param
from attngen.ir.interpreter import run
from attngen.ir.loop import loops
from attngen.ir.passes import PIPELINE
from attngen.ir.pipeline import run_pipeline
from attngen.ir.rewrite import place
from attngen.ir.types import F32, Layout, TensorType

FLOOR = 1e-20


def prominence(y: np.ndarray, r: np.ndarray) -> np.ndarray:
    return (y / r) ** 3


def cubed(x: Value) -> Value:
    return mul(x, mul(x, x))


class Prominence(Binary, name="test.prominence"):
    """(y / r)³ for 0 < y <= r: how far y stands out among values of which r is the largest. No exponential in it:
    f(y, r') = f(y, r) · (r / r')³, finite as long as r stays away from 0."""

    numpy = prominence
    facts = Facts(ratio=Ratio(value=0, reference=1, factor=lambda old, new: cubed(div(old, new)), floor=lambda r: FLOOR))

    def interval(self, operands: tuple[Interval, ...]) -> Interval:
        return Interval(0)


class Undeclared(Binary, name="test.undeclared"):
    """The same function, with nothing declared."""

    numpy = prominence


def program(op: type[Binary], reference: str = "max") -> Func:
    """Σ_j f(y, max_j y) · w, with y > 0."""
    x, w = (argument(TensorType((("i", 11), ("j", 29)), F32), n) for n in "xw")
    y = add(unary(Abs, x), constant(0.01, F32))
    r = reduce(reference, y, ("j",))
    weights = folded(op(lhs=y, rhs=maximum(r, FLOOR)))
    total = reduce("sum", mul(weights, w), ("j",))
    layout = Layout.parse("i j")
    return Func("prominent", (Param("x", layout), Param("w", layout)), place((x, w), (total, r)), (Layout.parse("i"),) * 2)


def derive(func: Func) -> tuple[Func, list[Remark]]:
    result = run_pipeline(func, PIPELINE.replace("tile", "tile{i=4 j=8}", 1), verify_each="run")
    return result.func, result.remarks


def expected(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    y = np.abs(x) + 0.01
    return ((y / y.max(-1, keepdims=True)) ** 3 * w).sum(-1)


@pytest.mark.parametrize("op, count", [(Prominence, 1), (Undeclared, 2)])
def test_fused_by_the_declared_ratio_alone(op: type[Binary], count: int) -> None:
    func, remarks = derive(program(op))
    assert len(loops(func.body)) == count
    assert any("needs another loop" in r.message and op.name in r.message for r in remarks) == (count == 2)
    rng = np.random.default_rng(3)
    # The largest value comes late in some rows and early in others, so that corrections matter.
    x, w = rng.standard_normal((2, 11, 29))
    x *= np.linspace(0.1, 30, 29)[None, :: 1 if rng.integers(2) else -1]
    np.testing.assert_allclose(run(func, x, w, wide=True)[0], expected(x, w), rtol=1e-10)


def test_not_fused_where_the_bound_cannot_be_proven() -> None:
    """A reference that is not above the values would let the correction overflow: the sum is no upper bound the pass knows."""
    func, remarks = derive(program(Prominence, reference="sum"))
    assert len(loops(func.body)) == 2
    assert any("not known to be above" in r.message for r in remarks)

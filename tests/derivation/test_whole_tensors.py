"""The passes before `tile` on programs at their limits: long, deeply shared, over nothing, with factors out of range."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from attngen.ir import build as b
from attngen.ir.core import Value, argument, constant_value
from attngen.ir.elementwise import Tanh
from attngen.ir.func import Func, Param
from attngen.ir.interpreter import run
from attngen.ir.passes import PIPELINE
from attngen.ir.pipeline import run_pipeline
from attngen.ir.rewrite import place
from attngen.ir.types import F32, F64, I1, I8, I64, Layout, TensorType

J = ("j",)


def row(n: int) -> Value:
    return argument(TensorType((("i", 2), ("j", n)), F32), "x")


def func(x: Value, out: Value) -> Func:
    return Func("f", (Param("x", Layout.parse("i j")),), place((x,), (out,)), (Layout.parse("i"),))


def test_a_sum_over_nothing_is_zero_whatever_its_factors_are() -> None:
    x = row(0)
    p = b.exp(b.sub(x, b.maximum(b.reduce("max", x, J), F32.lowest)))
    f = func(x, b.reduce("sum", b.div(p, b.reduce("sum", p, J)), J))
    for stage in run_pipeline(f, PIPELINE).stages.values():
        np.testing.assert_array_equal(run(stage, np.zeros((2, 0)))[0], 0)


@pytest.mark.parametrize("factors", [(1e30, 1e30), (1e-30, 1e-30, 1e30, 1e30)])
def test_factors_meet_only_where_their_product_is_a_float(factors: tuple[float, ...]) -> None:
    x = row(3)
    z = x
    for c in factors:
        z = b.mul(z, c)
    f = func(x, b.reduce("sum", z, J))
    folded = run_pipeline(f, "fold-scale").func
    np.testing.assert_array_equal(run(folded, np.zeros((2, 3)))[0], 0)


def test_long_programs_need_no_deep_recursion() -> None:
    x = row(3)
    z = x
    for k in range(600):
        z = b.add(z, x) if k % 2 else b.mul(b.unary(Tanh, z), 0.5)
    f = func(x, b.reduce("sum", b.exp(b.sub(z, b.reduce("max", z, J))), J))
    array = np.random.default_rng(0).standard_normal((2, 3))
    new = run_pipeline(f, "canonicalize,fold-scale,hoist-invariant-factors,canonicalize").func
    np.testing.assert_allclose(run(new, array, wide=True)[0], run(f, array, wide=True)[0], rtol=1e-9)


@pytest.mark.parametrize("combine", [b.add, b.mul])
def test_what_is_read_twice_is_multiplied_out_once(combine: Callable[[Value, Value], Value]) -> None:
    x = row(3)
    z = b.sub(x, b.reduce("sum", x, J))
    for _ in range(40):
        z = combine(z, z)
    run_pipeline(func(x, b.reduce("sum", z, J)), "canonicalize,fold-scale,hoist-invariant-factors,canonicalize")


def test_integers_are_folded_exactly() -> None:
    large = b.constant(2**53 + 1, I64)
    assert constant_value(b.add(large, 2)) == 2**53 + 3
    assert constant_value(b.compare("eq", large, 2**53)) == 0
    assert constant_value(b.cast(b.constant(0.5, F32), I1)) == 1
    assert constant_value(b.cast(b.constant(300.0, F64), I8)) is None, "what does not fit is left to run time"

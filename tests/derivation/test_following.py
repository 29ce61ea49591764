"""A later reduction follows a running maximum only where that keeps the meaning on every prefix of the loop."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from attngen.ir import build as b
from attngen.ir.core import Value, argument
from attngen.ir.elementwise import Abs, Sigmoid, Sqrt
from attngen.ir.func import Func, Param
from attngen.ir.interpreter import run
from attngen.ir.passes import PIPELINE
from attngen.ir.pipeline import run_pipeline
from attngen.ir.rewrite import place
from attngen.ir.types import F32, Layout, TensorType

J = ("j",)
INF = math.inf
PROGRAMS: dict[str, Callable[[Value, Value, Value], Value]] = {}
Program = Callable[[Value, Value, Value], Value]


def top(x: Value) -> Value:
    return b.reduce("max", x, J)


def low(x: Value) -> Value:
    return b.maximum(x, x.element.lowest)


def total(x: Value) -> Value:
    return b.reduce("sum", x, J)


def program(f: Program) -> Program:
    PROGRAMS[f.__name__] = f
    return f


@program
def square_root(x: Value, y: Value, u: Value) -> Value:
    """The root of the maximum of nothing is no number."""
    a = b.unary(Abs, x)
    return total(b.exp(b.sub(b.unary(Sqrt, a), b.unary(Sqrt, top(a)))))


@program
def logarithm(x: Value, y: Value, u: Value) -> Value:
    a = b.unary(Abs, x)
    return total(b.exp(b.sub(b.log(a), b.log(top(a)))))


@program
def factor_that_may_be_zero(x: Value, y: Value, u: Value) -> Value:
    c = b.unary(Abs, u)
    return total(b.exp(b.sub(b.mul(x, c), b.mul(top(x), c))))


@program
def factor_that_may_vanish(x: Value, y: Value, u: Value) -> Value:
    c = b.unary(Sigmoid, u)
    return total(b.exp2(b.sub(b.mul(x, c), b.mul(top(x), c))))


@program
def masked_after_the_exponential(x: Value, y: Value, u: Value) -> Value:
    """+inf in a masked score makes the others 0, not NaN. (A NaN there makes its row NaN.)"""
    p = b.exp(b.sub(x, low(top(x))))
    return total(b.select(b.compare("ge", y, 0.0), p, 0.0))


@program
def shifted_by_another_maximum(x: Value, y: Value, u: Value) -> Value:
    return total(b.exp(b.sub(b.minimum(x, y), low(top(x)))))


@program
def largest_weight(x: Value, y: Value, u: Value) -> Value:
    """Over nothing it is -inf."""
    return top(b.exp(b.sub(x, low(top(x)))))


@program
def one_more_score(x: Value, y: Value, u: Value) -> Value:
    z = b.select(b.compare("ge", y, 0.0), x, -INF)
    return total(b.exp2(b.sub(z, low(b.maximum(top(z), u)))))


@program
def smallest(x: Value, y: Value, u: Value) -> Value:
    return b.reduce("min", x, J)


@pytest.mark.parametrize("steps", ["tile{i=2 j=3},fuse-cascaded-reductions", PIPELINE.replace("tile", "tile{i=2 j=3}", 1)])
@pytest.mark.parametrize("n", [0, 1, 3, 10])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_stage_has_the_same_numbers(name: str, n: int, steps: str) -> None:
    x, y = (argument(TensorType((("i", 3), ("j", n)), F32), v) for v in "xy")
    u = argument(TensorType((("i", 3),), F32), "u")
    params = tuple(Param(v, Layout.parse(t)) for v, t in (("x", "i j"), ("y", "i j"), ("u", "i")))
    body = place((x, y, u), (PROGRAMS[name](x, y, u),))
    result = run_pipeline(Func("f", params, body, (Layout.parse("i"),)), steps)
    rng = np.random.default_rng(0)
    for special in (0.5, 0.0, INF, -INF, 100.0):
        for place_of in range(0, max(n, 1), 4):
            xs, ys, us = rng.standard_normal((3, n)), rng.standard_normal((3, n)), np.full(3, special)
            xs[0, place_of : place_of + 1], ys[0, place_of : place_of + 1] = special, -1
            ys[1, :4] = -1
            for wide in (False, True):
                want, *stages = (run(f, xs, ys, us, wide=wide)[0] for f in result.stages.values())
                for got in stages:
                    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-30)


def test_a_power_of_a_weight_needs_no_endless_correction() -> None:
    x = argument(TensorType((("i", 3), ("j", 10)), F32), "x")
    p = b.exp(b.sub(x, low(top(x))))
    for _ in range(40):
        p = b.mul(p, p)
    func = Func("f", (Param("x", Layout.parse("i j")),), place((x,), (total(p),)), (Layout.parse("i"),))
    run_pipeline(func, "tile{i=2 j=3},fuse-cascaded-reductions")

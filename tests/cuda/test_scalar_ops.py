"""Every elementwise op on every element type as a scalar kernel, with infinities, NaN, negative and zero divisors; reductions,
products and look-ups of every kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attngen.ir import build as b
from attngen.ir.core import REGISTRY, Value, argument
from attngen.ir.elementwise import PREDICATES, Abs, Binary, Cast, Compare, Select, Unary
from attngen.ir.func import Func, Param
from attngen.ir.nd import Constant, Contract, Expand, Gather, Index, Reduce
from attngen.ir.pipeline import run_pipeline
from attngen.ir.rewrite import place
from attngen.ir.types import BF16, F16, F32, F64, I1, I8, I32, I64, INDEX, ElementType, Layout, TensorType, round_bf16
from tests.cuda.scalar_kernels import check

FLOATS, INTEGERS = [F64, F32, F16, BF16], [I64, I32, I8]
OPS = [op for op in REGISTRY.values() if issubclass(op, Unary | Binary) and op.__module__ == "attngen.ir.elementwise"]
TOLERANCE = {F64: 1e-13, F32: 2e-6, F16: 1e-3, BF16: 8e-3}
"""Of 16 bits: the interpreter rounds some intermediate results too."""


def function(params: dict[str, tuple[str, Value]], outputs: list[tuple[str, Value]], tiles: str = "tile") -> Func:
    body = place(tuple(v for _, v in params.values()), tuple(v for _, v in outputs))
    layouts = tuple(Layout.parse(layout) for layout, _ in outputs)
    func = Func("f", tuple(Param(n, Layout.parse(layout)) for n, (layout, _) in params.items()), body, layouts)
    return run_pipeline(func, tiles).func


def tensor(element: ElementType, **axes: int) -> Value:
    return argument(TensorType(tuple(axes.items()), element))


def numbers(element: ElementType, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if not element.is_float:
        return rng.integers(-9 if element is not I1 else 0, 9 if element is not I1 else 2, shape).astype(element.numpy)
    x = (rng.standard_normal(shape) * 3).astype(np.float16)
    special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, 1.5, 2.5, -0.5, 1.0]
    x.flat[rng.choice(x.size, len(special), replace=False)] = special
    return (round_bf16(x) if element is BF16 else x).astype(element.numpy)


@pytest.mark.parametrize("element", [*FLOATS, *INTEGERS, I1, INDEX], ids=str)
def test_every_elementwise_op(element: ElementType) -> None:
    kinds = {"float": element.is_float, "number": element is not I1, "integer": element.is_integer, "logic": element is I1}
    x, y = tensor(element, i=6, j=7), tensor(element, j=7, i=6)
    outputs: list[Value] = []
    for op in OPS:
        cls: Any = op
        if not kinds.get(op.accepts, True):
            continue
        if issubclass(op, Compare):
            outputs += [Compare(lhs=x, rhs=y, predicate=name).result for name in PREDICATES]
        else:
            outputs.append(cls(value=x).result if issubclass(op, Unary) else cls(lhs=x, rhs=y).result)
    outputs.append(Select(condition=Compare(lhs=x, rhs=y, predicate="lt").result, lhs=x, rhs=y).result)
    func = function({"x": ("i j", x), "y": ("j i", y)}, [("j i", v) for v in outputs])
    check(func, [numbers(element, (6, 7)), numbers(element, (7, 6), 1)], TOLERANCE.get(element, 0))


@pytest.mark.parametrize("source", [*FLOATS, *INTEGERS, I1], ids=str)
def test_every_cast(source: ElementType) -> None:
    x = tensor(source, i=80)
    func = function(
        {"x": ("i", x)}, [("i", Cast(value=x, to=to).result) for to in (*FLOATS, *INTEGERS, I1) if to is not source]
    )
    values = numbers(source, (80,)).astype(float)
    values = np.nan_to_num(values * (1 if source is I1 else 5), nan=3, posinf=77, neginf=-8)
    check(func, [round_bf16(values) if source is BF16 else values], 0)


def test_16_bits_round_to_nearest_even() -> None:
    """Ties, subnormal numbers, what is too large, NaN."""
    bits = np.arange(0, 1 << 16, 37, dtype=np.uint32)
    between = np.concatenate([(bits << 16) + 0x8000, (bits << 16) + 0x7FFF, (bits << 16) + 0x8001]).astype(np.uint32)
    halves = np.concatenate([np.arange(-0.03, 0.03, 7e-5), 2.0**-24 * np.arange(0, 40, 0.25), [65519.0, 65520.0, -1e9]])
    values = np.concatenate([between.view(np.float32), halves.astype(np.float32)])
    x = tensor(F32, i=values.size)
    func = function({"x": ("i", x)}, [("i", Cast(value=x, to=to).result) for to in (BF16, F16)], "tile{i=1024}")
    check(func, [values], 0)


@pytest.mark.parametrize("tiles", ["tile{i=4}", "tile{i=1 d=3}", "tile{i=6 d=24}"])
def test_reductions_products_and_look_ups(tiles: str) -> None:
    x, y, keep = tensor(F32, i=6, d=24), tensor(F32, j=20, d=24), tensor(I1, j=20, i=6)
    table, small, whole, one = tensor(F32, n=9, e=2), tensor(I8, j=20, i=6), tensor(I32, i=6, j=20), tensor(F32)
    at = b.add(Index(axis="i", extent=6).result, Constant(value=2, element=INDEX).result)
    masked = Contract(lhs=x, rhs=y, where=keep, over=("d",), acc=F32).result
    chosen = b.select(keep, masked, Constant(value=-np.inf, element=F32).result)
    outputs = [
        ("i e", Gather(table=table, at=(at,), over=("n",)).result),
        (
            "i e",
            Gather(
                table=table, at=(Cast(value=b.reduce("max", Abs(value=whole).result, ("j",)), to=I64).result,), over=("n",)
            ).result,
        ),
        ("j i", masked),
        ("i", b.reduce("max", chosen, ("j",))),
        ("i", Reduce(value=small, kind="min", over=("j",), acc=I8).result),
        ("i", Reduce(value=keep, kind="max", over=("j",), acc=I1).result),
        ("", b.reduce("sum", x, ("i", "d"))),
        ("", Contract(lhs=x, rhs=x, over=("i", "d"), acc=F64).result),
        ("i d", b.mul(x, one)),
        ("e i", b.reduce("min", Expand(value=x, axes=(("e", 2),)).result, ("d",))),
        ("j", b.cast(Index(axis="j", extent=20).result, F64)),
    ]
    given = {"x": ("i d", x), "y": ("d j", y), "keep": ("i j", keep), "table": ("n e", table)}
    func = function({**given, "small": ("j i", small), "whole": ("i j", whole), "one": ("", one)}, outputs, tiles)
    rng = np.random.default_rng(3)
    inputs: list[np.ndarray] = [
        *(rng.standard_normal(shape).astype(np.float32) for shape in ((6, 24), (24, 20))),
        *(rng.random((6, 20)) < 0.4, rng.standard_normal((9, 2)).astype(np.float32)),
        *(
            rng.integers(-100, 100, (20, 6)).astype(np.int8),
            rng.integers(-8, 8, (6, 20)).astype(np.int32),
            np.asarray(3, np.float32),
        ),
    ]
    inputs[2][3] = False
    check(func, inputs, 1e-5)


def test_masked_products_do_not_exist() -> None:
    x, y, keep = tensor(F32, i=2, d=3), tensor(F32, j=2, d=3), tensor(I1, d=3)
    func = function(
        {"x": ("i d", x), "y": ("j d", y), "keep": ("d", keep)},
        [("i j", Contract(lhs=x, rhs=y, where=keep, over=("d",), acc=F32).result)],
    )
    check(func, [np.ones((2, 3)), np.array([[1, 2, np.nan]] * 2), np.array([True, True, False])], 0)

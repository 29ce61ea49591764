"""The NumPy backend against the interpreter: the same function, the same arrays, every element type, any strides."""

from __future__ import annotations

import traceback
from typing import Any

import numpy as np
import pytest

from attngen.backends import Unsupported, get_backend
from attngen.ir import build as b
from attngen.ir.attn import Score, Softmax, Weigh
from attngen.ir.core import REGISTRY, Arrays, Block, Env, Op, Value, argument
from attngen.ir.elementwise import Binary, Compare, Elementwise, Sigmoid, Unary
from attngen.ir.func import Func, Param
from attngen.ir.interpreter import run
from attngen.ir.loop import For, Load, Parallel, Store
from attngen.ir.nd import Constant, Contract, Expand, Gather, Index
from attngen.ir.resize import example_inputs
from attngen.ir.rewrite import place
from attngen.ir.types import (
    BF16,
    F16,
    F32,
    F64,
    I1,
    I8,
    I32,
    I64,
    INDEX,
    ElementType,
    Layout,
    RangeType,
    TensorType,
    Type,
    UpTo,
    tile_extent,
)
from attngen.ir.verify import verify
from tests.ir.generate import random_func

FLOATS = [F64, F32, F16, BF16]


def function(params: dict[str, tuple[str, Value]], *outputs: tuple[str, Value]) -> Func:
    """A function from its outputs; every op goes where what it reads is bound."""
    values = tuple(v for _, v in outputs)
    func = Func(
        "f",
        tuple(Param(name, Layout.parse(layout)) for name, (layout, _) in params.items()),
        place(tuple(v for _, v in params.values()), values),
        tuple(Layout.parse(layout) for layout, _ in outputs),
    )
    verify(func)
    return func


def tensor(element: ElementType, **axes: int | UpTo) -> Value:
    return argument(TensorType(tuple(axes.items()), element))


def arrays(func: Func, seed: int = 0, lengths: dict[str, int] | None = None) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    made: list[np.ndarray] = []
    for param, value in zip(func.params, func.args, strict=True):
        extents = {n: e if isinstance(e, int) else (lengths or {})[n] for n, e in value.tensor.axes}
        shape = [int(np.prod([extents[n] for n in group])) for group in param.layout.groups]
        drawn = rng.standard_normal(shape) * 2 if value.element.is_float else rng.integers(0, 3, shape)
        made.append(drawn.astype(value.element.numpy))
    return made


def compiled(func: Func, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Outputs of the backend, written into reversed views: strides must not matter."""
    backend = get_backend("numpy")
    kernel = backend.build(backend.emit(func, ""))
    shapes = [(x.shape, v.element.numpy) for x, v in zip(run(func, *inputs), func.outputs, strict=True)]
    outputs = [np.zeros(shape, dtype)[(..., *[slice(None, None, -1)] * len(shape))] for shape, dtype in shapes]
    kernel(inputs, outputs)
    return outputs


def check(func: Func, inputs: list[np.ndarray], tolerance: float = 1e-6) -> None:
    for got, want in zip(compiled(func, inputs), run(func, *inputs), strict=True):
        assert got.dtype == want.dtype
        assert np.array_equal(np.isnan(got.astype(float)), np.isnan(want.astype(float)))
        np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=tolerance, atol=tolerance)


def tolerance(element: ElementType) -> float:
    return {F64: 1e-13, F32: 1e-5, F16: 4e-3, BF16: 2e-2}.get(element, 0)


def online_softmax(i: int | UpTo, j: int | UpTo, element: ElementType = F32) -> Func:
    """A loop over i around a loop over j that carries a running maximum, sum and weighted sum."""
    q, k, v = tensor(element, h=3, i=i, d=5), tensor(element, j=j, h=3, d=5), tensor(element, h=3, j=j, e=4)
    acc = element.accumulator
    h_range, i_range, out = (
        argument(t) for t in (range_type("h", 3, 2), range_type("i", i, 4), TensorType((("h", 3), ("i", i), ("e", 4)), element))
    )
    query = Load(source=q, ranges=(h_range, i_range)).result
    start = [Expand(value=b.constant(x, acc), ranges=(h_range, i_range)).result for x in (acc.lowest, 0.0)]
    start.append(Expand(value=b.constant(0.0, acc), ranges=(h_range, i_range), axes=(("e", 4),)).result)
    j_range, m, total, o = (argument(t) for t in (range_type("j", j, 3), *(x.type for x in start)))
    s = b.contract(query, Load(source=k, ranges=(h_range, j_range)).result, ("d",))
    top = b.maximum(m, b.reduce("max", s, ("j",)))
    p, scale = b.exp(b.sub(s, top)), b.exp(b.sub(m, top))
    weighted = b.contract(p, b.cast(Load(source=v, ranges=(h_range, j_range)).result, acc), ("j",))
    yields = (top, b.add(b.mul(total, scale), b.reduce("sum", p, ("j",))), b.add(b.mul(o, scale), weighted))
    inner = For(inits=tuple(start), axis="j", extent=j, step=3, body=Block((j_range, m, total, o), (), yields))
    tile = b.cast(b.div(inner.results[2], b.maximum(inner.results[1], b.constant(acc.tiny, acc))), element)
    written = Store(value=tile, target=out, ranges=(h_range, i_range)).result
    nest = Parallel(axes=("h", "i"), extents=(3, i), steps=(2, 4), body=Block((h_range, i_range, out), (), (written,)))
    return function({"q": ("h i d", q), "k": ("j (h d)", k), "v": ("h j e", v)}, ("i (h e)", nest.result))


def range_type(axis: str, extent: int | UpTo, step: int) -> Type:
    return RangeType(axis, tile_extent(extent, step))


@pytest.mark.parametrize("element", FLOATS, ids=str)
def test_a_loop_nest_with_carried_values(element: ElementType) -> None:
    func = online_softmax(10, 11, element)
    check(func, arrays(func), tolerance(element))


@pytest.mark.parametrize(("i", "j"), [(1, 1), (9, 20), (4, 0), (0, 7)])
def test_runtime_extents_are_read_off_the_arrays(i: int, j: int) -> None:
    func = online_softmax(UpTo(9), UpTo(20))
    check(func, arrays(func, lengths={"i": i, "j": j}), 1e-5)


def test_generated_functions() -> None:
    """Every op, element type and kind of loop, in programs that no person would write."""
    compared = 0
    for seed in range(150):
        func = random_func(seed)
        inputs = list(example_inputs(func, seed))
        try:
            run(func, *inputs)
        except KeyError:  # a runtime extent that no array tells
            with pytest.raises(Unsupported, match="no parameter tells"):
                compiled(func, inputs)
        else:
            check(func, inputs, 2e-2)
            compared += 1
    assert compared > 100


def test_regions_of_other_ops_are_refused() -> None:
    class Twice(Op, name="test.twice"):
        """`%1 = test.twice %0 { … } : tensor<i=4, f32>`"""

        value: Value
        body: Block

        def infer(self) -> tuple[Type, ...]:
            return (self.value.type,)

    try:
        x, y = tensor(F32, i=2), tensor(F32, i=2)
        func = function({"x": ("i", x)}, ("i", Twice(value=x, body=Block((y,), (), (y,))).result))
        with pytest.raises(Unsupported, match=r"cannot run test\.twice(.|\n)*loop\.parallel or loop\.if"):
            get_backend("numpy").emit(func, "")
    finally:
        del REGISTRY["test.twice"]


def test_any_strides() -> None:
    func = online_softmax(10, 11)
    q, k, v = arrays(func)
    wide = np.zeros((3, 20, 10), np.float32)
    wide[:, ::2, ::2] = q
    check(func, [wide[:, ::2, ::2], np.asfortranarray(k), v[::-1, :, ::-1]], 1e-5)


ELEMENTWISE = sorted(
    name for name, op in REGISTRY.items() if issubclass(op, Unary | Binary) and op.__module__ == "attngen.ir.elementwise"
)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_every_elementwise_op_on_every_element_type(name: str) -> None:
    cls = REGISTRY[name]
    assert issubclass(cls, Elementwise)
    accepted = {
        "float": FLOATS,
        "number": [*FLOATS, I64, I32, I8, INDEX],
        "integer": [I64, I32, I8, INDEX],
        "logic": [I1],
        "any": [*FLOATS, I64, I1],
    }[cls.accepts]
    for element in accepted:
        x, y = tensor(element, i=6, j=7), tensor(element, j=7, i=6)
        extra = {"predicate": "le"} if cls is Compare else {}
        make: Any = cls
        value = make(value=x).result if issubclass(cls, Unary) else make(lhs=x, rhs=y, **extra).result
        func = function({"x": ("i j", x), "y": ("j i", y)}, ("j i", value))
        check(func, arrays(func), 1e-12)


def test_broadcasting_by_name_and_everything_else_of_nd() -> None:
    x, table, keep = tensor(F32, i=6, d=4), tensor(F32, n=9, e=2), tensor(I1, j=5, i=6)
    y, scalar = tensor(F32, j=5, d=4), tensor(F32)
    at = b.add(Index(axis="j", extent=5).result, Constant(value=2, element=INDEX).result)
    picked = Gather(table=table, at=(at,), over=("n",)).result
    masked = Contract(lhs=x, rhs=y, where=keep, over=("d",), acc=F32).result
    chosen = b.select(keep, masked, Constant(value=-np.inf, element=F32).result)
    outputs = [
        ("j e", picked),
        ("i j", masked),
        ("i", b.reduce("max", chosen, ("j",))),
        ("", b.reduce("sum", x, ("i", "d"))),
        ("i d", b.mul(x, scalar)),
        ("e i d", Expand(value=x, axes=(("e", 2),)).result),
        ("j", b.cast(at, F64)),
        ("i d", b.cast(x, I8)),
    ]
    names = {"x": ("d i", x), "y": ("j d", y), "table": ("n e", table), "keep": ("i j", keep), "scalar": ("", scalar)}
    func = function(names, *outputs)
    check(func, arrays(func), 1e-5)


def test_masked_products_do_not_exist() -> None:
    x, y, keep = tensor(F32, i=2, d=3), tensor(F32, j=2, d=3), tensor(I1, d=3)
    func = function(
        {"x": ("i d", x), "y": ("j d", y), "keep": ("d", keep)},
        ("i j", Contract(lhs=x, rhs=y, where=keep, over=("d",), acc=F32).result),
    )
    (out,) = compiled(func, [np.ones((2, 3)), np.array([[1, 2, np.nan]] * 2), np.array([True, True, False])])
    assert np.array_equal(out, [[3, 3], [3, 3]])


def test_ops_without_text_of_their_own_use_their_numpy_meaning() -> None:
    q, k, v = tensor(F64, i=3, d=2), tensor(F64, j=4, d=2), tensor(F64, j=4, e=2)
    weights = Softmax(value=Score(query=q, key=k, over=("d",)).result, over=("j",)).result
    func = function(
        {"q": ("i d", q), "k": ("j d", k), "v": ("j e", v)}, ("i e", Weigh(weights=weights, value=v, over=("j",)).result)
    )
    check(func, arrays(func), 1e-12)


def test_an_op_from_outside_and_a_traceback_that_shows_the_generated_line() -> None:
    class Explode(Unary, name="test.explode"):
        """`%1 = test.explode %0 : tensor<i=4, f32>`"""

        def evaluate(self, args: Arrays, env: Env) -> Any:
            raise RuntimeError("as asked")

    try:
        x = tensor(F32, i=2)
        func = function({"x": ("i", x)}, ("i", Explode(value=x).result))
        with pytest.raises(RuntimeError, match="as asked") as error:
            backend = get_backend("numpy")
            backend.build(backend.emit(func, ""))([np.zeros(2, np.float32)], [np.zeros(2, np.float32)])
        shown = "".join(traceback.format_exception(error.value))
        assert "explode = test_explode_" in shown
    finally:
        del REGISTRY["test.explode"]


def test_names_that_python_reserves() -> None:
    x = argument(TensorType((("i", 2),), F32), "lambda")
    func = function({"np": ("i", x)}, ("i", Sigmoid(value=x).result))
    check(func, arrays(func))


def test_the_text_is_one_line_per_op() -> None:
    text = get_backend("numpy").emit(online_softmax(10, 11), "").text["python"]
    assert 'np.einsum("abc,dac->abd"' in text
    assert "for j in parts(11, 3):" in text
    assert len(text.splitlines()) < 50


def test_memory_counts_tiles_and_not_views() -> None:
    backend = get_backend("numpy")
    short, long = (backend.build(backend.emit(online_softmax(n, n), "")) for n in (10, 1000))
    assert short.scratch_bytes == long.scratch_bytes > 0
    assert long.temporary_bytes == 0

"""The CPU backend against the interpreter, and against NumPy in float64."""

from __future__ import annotations

import difflib
import math
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from attngen.backends import Emitted, Executable, Unsupported, get_backend
from attngen.backends.cpu.chains import form_chains
from attngen.backends.cpu.fuse import fuse_nests
from attngen.backends.cpu.layouts import choose_layouts
from attngen.backends.cpu.ops import Map
from attngen.backends.cpu.single_trips import inline_single_trips
from attngen.backends.cpu.source import Writer
from attngen.backends.cpu.target import Target
from attngen.ir import build as b
from attngen.ir import elementwise as ew
from attngen.ir.core import Block, Op, Value, argument
from attngen.ir.func import Func, Param
from attngen.ir.interpreter import Interpreter
from attngen.ir.loop import For, Load, Parallel, Store
from attngen.ir.nd import Contract, Index, Reduce
from attngen.ir.parser import parse
from attngen.ir.passes import PIPELINE
from attngen.ir.pipeline import run_pipeline
from attngen.ir.rewrite import place
from attngen.ir.types import F32, F64, I1, INDEX, ElementType, Layout, RangeType, TensorType, bound, tile_extent
from attngen.ir.verify import verify

CPU = get_backend("cpu")


def lower(func: Func, layouts: bool = True) -> Func:
    func = inline_single_trips(func)
    verify(func)
    func = form_chains(func)
    verify(func)
    func = choose_layouts(func) if layouts else func
    verify(func)
    func = fuse_nests(func)
    verify(func)
    return func


def compiled(func: Func, target: Target | None = None) -> Executable:
    if target is None:
        return CPU.build(CPU.emit(func, ""))
    program = Writer(func, target).program()
    return CPU.build(Emitted(func, "", {"python": program.text}, payload=program))


def outputs(func: Func) -> list[np.ndarray]:
    def length(v: Value, group: tuple[str, ...]) -> int:
        return math.prod(bound(v.tensor.extents[n]) for n in group)

    each = zip(func.out_layouts, func.outputs, strict=True)
    return [np.full([length(v, g) for g in layout.groups], 7, v.element.numpy) for layout, v in each]


def run(func: Func, *arrays: np.ndarray, layouts: bool = True) -> list[np.ndarray]:
    """The outputs of the built function, after checking that the passes kept the meaning."""
    low = lower(func, layouts)
    for got, want in zip(Interpreter(wide=True).run(low, *arrays), Interpreter(wide=True).run(func, *arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
    outs = outputs(low)
    compiled(low)(arrays, outs)
    return outs


def check(func: Func, *arrays: np.ndarray, rtol: float = 2e-5, layouts: bool = True) -> list[np.ndarray]:
    outs = run(func, *arrays, layouts=layouts)
    for got, want in zip(outs, Interpreter().run(func, *arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol)
    return outs


# ---------------------------------------------------------------- whole programs


def program(
    axes: Mapping[str, int | str], element: str = "f32", rows: str = "b h", masked: bool = False, log: bool = False
) -> Func:
    """Scores over d, optionally masked by j <= i, exponentials over j, weighted sums."""

    def t(names: str, e: str = element) -> str:
        return f"tensor<{', '.join(f'{n}={axes[n]}' for n in names.split())}, {e}>"

    shared = " ".join(n for n in rows.split() if n != "r")
    s, row, out, scores = t(f"{rows} i j"), t(f"{rows} i"), t(f"{rows} i e"), "s2" if masked else "s1"
    full, half = ("b (g r)", "b g") if "r" in rows else ("b h", "b h")
    second = f', {row} "{full} i"' if log else ""
    lines = [
        f'func @f(%p: {t(f"{rows} i d")} "{full} i d", %q: {t(f"{shared} j d")} "{half} j d",',
        f'    %w: {t(f"{shared} j e")} "{half} j e") -> ({out} "{full} i e"{second}) {{',
        f"  %s0 = attn.score %p, %q over [d] : {s}",
        f"  %s1 = attn.scale %s0 by 0.3 : {s}",
    ]
    if masked:
        lines += [
            f"  %x = nd.index axis i extent {axes['i']} : {t('i', 'index')}",
            f"  %y = nd.index axis j extent {axes['j']} : {t('j', 'index')}",
            f"  %keep = nd.compare %y, %x predicate le : {t('i j', 'i1')}",
            f"  %s2 = attn.mask %s1, %keep : {s}",
        ]
    lines += [f"  %a = attn.softmax %{scores} over [j] : {s}", f"  %o = attn.weigh %a, %w over [j] : {out}"]
    if log:
        lines.append(f"  %m = nd.reduce %{scores} kind max over [j] acc {element} : {row}")
    return parse("\n".join([*lines, f"  return %o{', %m' if log else ''}", "}", ""]))


def tiled(func: Func, steps: str, fused: bool = True) -> Func:
    pipeline = PIPELINE.replace("tile,", f"tile{{{steps}}},")
    return run_pipeline(func, pipeline if fused else pipeline.replace("fuse-cascaded-reductions,", "")).func


def reference(p: np.ndarray, q: np.ndarray, w: np.ndarray, *, masked: bool = False) -> np.ndarray:
    p, q, w = (np.asarray(x, np.float64) for x in (p, q, w))
    groups = p.shape[1] // q.shape[1]
    q, w = np.repeat(q, groups, 1), np.repeat(w, groups, 1)
    s = p @ q.swapaxes(-1, -2) * 0.3
    if masked:
        rows, columns = np.triu_indices(s.shape[-2], 1, s.shape[-1])
        s[..., rows, columns] = -np.inf
    e = np.exp(s - s.max(-1, keepdims=True))
    return e @ w / e.sum(-1, keepdims=True)


def inputs(axes: dict[str, int], dtype: str = "f4", seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    heads = axes.get("h", axes.get("g", 1))
    full = heads * axes.get("r", 1)
    rest = (axes["b"], heads, axes["j"])
    shapes = [(axes["b"], full, axes["i"], axes["d"]), (*rest, axes["d"]), (*rest, axes["e"])]
    return [rng.standard_normal(s).astype(dtype) for s in shapes]


RAGGED = [
    (1, 1, 1, 1),
    (7, 63, 8, 5),
    (63, 7, 5, 9),
    (65, 65, 16, 16),
    (333, 65, 33, 40),
    (1, 333, 64, 64),
    (16, 16, 3, 17),
]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("i", "j", "d", "e"), RAGGED)
def test_ragged_extents(i: int, j: int, d: int, e: int, masked: bool) -> None:
    axes = {"b": 1, "h": 2, "i": i, "j": j, "d": d, "e": e}
    func = tiled(program(axes, masked=masked), "b=1 h=1 i=32 j=16")
    arrays = inputs(axes)
    (out,) = check(func, *arrays)
    np.testing.assert_allclose(out, reference(*arrays, masked=masked), rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("length", [0, 1, 37, 100])
def test_runtime_extents(length: int) -> None:
    axes = {"b": 1, "h": 2, "i": 21, "j": length, "d": 8, "e": 12}
    func = tiled(program({**axes, "j": "?<=100"}), "b=1 h=1 i=8 j=16")
    arrays = inputs(axes)
    (out,) = check(func, *arrays)
    np.testing.assert_allclose(out, reference(*arrays) if length else 0, rtol=1e-4, atol=2e-6)


def test_doubles() -> None:
    axes = {"b": 2, "h": 1, "i": 45, "j": 70, "d": 11, "e": 6}
    arrays = inputs(axes, "f8")
    (out,) = check(tiled(program(axes, "f64"), "b=1 h=1 i=16 j=32"), *arrays, rtol=1e-12)
    np.testing.assert_allclose(out, reference(*arrays), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("steps", ["b=1 g=1 r=1 i=16 j=16", "b=1 g=1 r=3 i=8 j=16", "i=16 j=32", "j=40"])
def test_extra_axes_of_any_extent(steps: str) -> None:
    axes = {"b": 2, "g": 2, "r": 3, "i": 21, "j": 40, "d": 9, "e": 7}
    arrays = inputs(axes)
    (out,) = check(tiled(program(axes, rows="b g r"), steps), *arrays)
    np.testing.assert_allclose(out, reference(*arrays), rtol=1e-4, atol=2e-6)


def test_any_memory_order_is_right() -> None:
    """Without the layout pass nothing is packed: operands are user memory with any strides."""
    axes = {"b": 1, "h": 2, "i": 37, "j": 53, "d": 12, "e": 10}
    check(tiled(program(axes, masked=True, log=True), "b=1 h=1 i=16 j=8"), *inputs(axes), layouts=False)


def test_outputs_of_different_ranks() -> None:
    axes = {"b": 1, "h": 2, "i": 37, "j": 53, "d": 12, "e": 10}
    _, top = check(tiled(program(axes, log=True), "b=1 h=1 i=16 j=8"), *inputs(axes))
    assert top.shape == (1, 2, 37)


def strided(array: np.ndarray, how: str) -> np.ndarray:
    """The same values in memory of another shape."""
    if how == "negative":
        return np.ascontiguousarray(array[:, :, ::-1, ::-1])[:, :, ::-1, ::-1]
    if how == "transposed":
        return np.ascontiguousarray(array.transpose(3, 1, 0, 2)).transpose(2, 1, 3, 0)
    if how == "spaced":
        wide = np.zeros((*array.shape[:-1], array.shape[-1] * 3), array.dtype)
        wide[..., ::3] = array
        return wide[..., ::3]
    record = np.zeros(array.shape, np.dtype([("tag", "i1"), ("x", array.dtype)]))  # 5 bytes apart
    record["x"] = array
    return record["x"]


@pytest.mark.parametrize("how", ["negative", "transposed", "spaced", "record"])
def test_strides(how: str) -> None:
    axes = {"b": 2, "h": 2, "i": 33, "j": 41, "d": 18, "e": 20}
    func = lower(tiled(program(axes), "b=1 h=1 i=16 j=16"))
    arrays = inputs(axes)
    kernel, expected = compiled(func), reference(*arrays)
    out = strided(np.zeros(expected.shape, np.float32), how)
    assert not out.flags.c_contiguous
    kernel([strided(x, how) for x in arrays], [out])
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=2e-6)


def test_zero_stride() -> None:
    axes = {"b": 1, "h": 3, "i": 20, "j": 18, "d": 4, "e": 6}
    p, q, w = inputs(axes)
    q, w = (np.broadcast_to(x[:, :1], x.shape) for x in (q, w))
    (out,) = check(tiled(program(axes), "b=1 h=1 i=8 j=8"), p, q, w)
    np.testing.assert_allclose(out, reference(p, q, w), rtol=1e-4, atol=2e-6)


def test_a_nan_stays_in_its_row() -> None:
    axes = {"b": 1, "h": 1, "i": 40, "j": 50, "d": 8, "e": 8}
    p, q, w = inputs(axes)
    p[0, 0, 17, 3] = np.nan
    p[0, 0, 30, 2] = np.inf
    (out,) = run(tiled(program(axes), "b=1 h=1 i=16 j=16"), p, q, w)
    rows = np.isnan(out[0, 0]).any(1)
    assert rows[17] and rows[30] and rows.sum() == 2
    assert np.isnan(out[0, 0, 17]).all()


def test_empty_rows_and_empty_axes() -> None:
    axes = {"b": 1, "h": 1, "i": 5, "j": 0, "d": 3, "e": 4}
    (out,) = run(tiled(program(axes), "b=1 h=1 i=4 j=8"), *inputs(axes))
    assert (out == 0).all()
    axes = {"b": 0, "h": 2, "i": 5, "j": 6, "d": 3, "e": 4}
    (out,) = run(tiled(program(axes), "b=1 h=1 i=4 j=8"), *inputs(axes))
    assert out.size == 0


def test_scratch_depends_on_tiles_only() -> None:
    sizes = [
        compiled(lower(tiled(program({"b": 1, "h": 1, "i": n, "j": n, "d": 8, "e": 8}), "b=1 h=1 i=16 j=16"))).scratch_bytes
        for n in (32, 512)
    ]
    assert sizes[0] == sizes[1] < 16 * 1024


# ---------------------------------------------------------------- elementwise ops


def elementwise(make: Callable[..., Value], *elements: ElementType, n: int = 203, step: int = 64) -> Func:
    """out[x] = make(a0[x], a1[x], …), by tiles of x."""
    args = tuple(argument(TensorType((("x", n),), e), f"a{k}") for k, e in enumerate(elements))
    at = argument(RangeType("x", tile_extent(n, step)), "x")
    value = make(*(Load(source=v, ranges=(at,)).result for v in args))
    out = argument(TensorType((("x", n),), value.element), "out")
    body = place((at, out), (Store(value=value, target=out, ranges=(at,)).result,))
    result = Parallel(axes=("x",), extents=(n,), steps=(step,), body=body).result
    layout = Layout.parse("x")
    params = tuple(Param(f"a{k}", layout) for k in range(len(elements)))
    return Func("f", params, Block(args, tuple(op for op in (result.op,) if op), (result,)), (layout,))


ORDINARY = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5]
EXTREME = [np.inf, -np.inf, np.nan, 1e-40, 3e38, -3e38, 127.5, 128.0, -126.0, -125.9, 88.7, -87.3, 89.0]


def floats(element: ElementType, seed: int, n: int = 203) -> np.ndarray:
    x = (np.random.default_rng(seed).standard_normal(n) * 4).astype(element.numpy)
    special = ORDINARY + EXTREME
    x[: len(special)] = np.roll(special, 3 * seed)
    return x


def unary(cls: type[ew.Unary]) -> Callable[[Value], Value]:
    return lambda v: cls(value=v).result


def binary(cls: type[ew.Binary]) -> Callable[[Value, Value], Value]:
    return lambda x, y: cls(lhs=x, rhs=y).result


UNARY: Sequence[type[ew.Unary]] = (
    *(ew.Neg, ew.Abs, ew.Floor, ew.Round, ew.Exp, ew.Exp2, ew.Log, ew.Log2),
    *(ew.Tanh, ew.Sigmoid, ew.Sqrt, ew.Rsqrt),
)
BINARY: Sequence[type[ew.Binary]] = (ew.Add, ew.Sub, ew.Mul, ew.Div, ew.Max, ew.Min, ew.FloorDiv, ew.Mod)


@pytest.mark.parametrize("element", [F32, F64])
@pytest.mark.parametrize("cls", UNARY, ids=lambda c: c.name)
def test_functions_of_one_float(cls: type[ew.Unary], element: ElementType) -> None:
    x = floats(element, 0)
    (got,) = run(elementwise(unary(cls), element), x)
    low, step = element.tiny, 2.0 ** (-52 if element is F64 else -23)
    with np.errstate(all="ignore"):
        want = np.asarray(cls.numpy(x.astype(np.float64)))
        if cls in (ew.Exp, ew.Exp2):
            want = np.where(np.abs(want) < low, 0, want)
        want = want.astype("f8" if element is F64 else "f4")
    np.testing.assert_allclose(got, want, rtol=6 * step, atol=low)


@pytest.mark.parametrize("element", [F32, F64])
@pytest.mark.parametrize("cls", BINARY, ids=lambda c: c.name)
def test_functions_of_two_floats(cls: type[ew.Binary], element: ElementType) -> None:
    x, y = floats(element, 0), floats(element, 1)
    func = elementwise(binary(cls), element, element)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(run(func, x, y)[0], cls.numpy(x, y), rtol=1e-6)


@pytest.mark.parametrize("cls", [ew.Add, ew.Mul, ew.Max, ew.Min, ew.FloorDiv, ew.Mod], ids=lambda c: c.name)
def test_functions_of_two_integers(cls: type[ew.Binary]) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(-40, 40, 203), rng.integers(-5, 5, 203)
    func = elementwise(binary(cls), ElementType.I64, ElementType.I64)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(run(func, x, y)[0], cls.numpy(x, y))


@pytest.mark.parametrize("predicate", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons(predicate: str) -> None:
    def make(x: Value, y: Value) -> Value:
        return b.compare(predicate, x, y)

    x, y = floats(F32, 0), floats(F32, 0)
    y[50:] = floats(F32, 1)[50:]
    np.testing.assert_array_equal(run(elementwise(make, F32, F32), x, y)[0], ew.PREDICATES[predicate](x, y))


def test_logic_casts_and_coordinates() -> None:
    def make(a: Value, m: Value) -> Value:
        at = next(v for v in a.op.operands if isinstance(v.type, RangeType)) if a.op else a
        number = b.cast(Index(range=at).result, F32)
        inside = ew.And(lhs=m, rhs=ew.Not(value=b.compare("lt", number, 20.0)).result).result
        chosen = b.select(ew.Or(lhs=inside, rhs=b.compare("gt", a, 3.0)).result, a, number)
        return b.add(chosen, b.cast(b.cast(m, INDEX), F32))

    rng = np.random.default_rng(0)
    check(elementwise(make, F32, I1), rng.standard_normal(203).astype(np.float32), rng.random(203) < 0.5)


@pytest.mark.parametrize(("element", "limit"), [(F32, 1e-7), (F64, 1e-15)])
def test_exponentials_are_accurate(element: ElementType, limit: float) -> None:
    low = -125.0 if element is F32 else -1020.0
    for cls, scale in ((ew.Exp2, 1.0), (ew.Exp, math.log(2))):
        x = (np.linspace(low, -low, 100_003) * scale).astype("f8" if element is F64 else "f4")
        (got,) = run(elementwise(unary(cls), element, n=len(x), step=4096), x)
        want = np.asarray(cls.numpy(x.astype(np.longdouble)))
        assert float(np.max(np.abs(got / want - 1))) < limit


# ---------------------------------------------------------------- several loops and nests


@pytest.mark.parametrize("steps", ["b=1 h=1 i=16 j=16", "d=5 i=16 j=16", "b=1 h=1 d=4 e=3 i=8 j=24"])
def test_loops_in_sequence_and_nested(steps: str) -> None:
    axes = {"b": 1, "h": 2, "i": 21, "j": 40, "d": 9, "e": 7}
    arrays = inputs(axes)
    (out,) = check(tiled(program(axes), steps, fused=False), *arrays)
    np.testing.assert_allclose(out, reference(*arrays), rtol=1e-4, atol=2e-6)


def test_a_stored_temporary() -> None:
    """The column sums of exp(x - row maximum): the maximum is stored by a nest of its own."""
    func = parse("""func @f(%x: tensor<i=50, j=70, f32> "i j") -> (tensor<j=70, f32> "j") {
  %m = nd.reduce %x kind max over [j] acc f32 : tensor<i=50, f32>
  %y = nd.sub %x, %m : tensor<i=50, j=70, f32>
  %e = nd.exp %y : tensor<i=50, j=70, f32>
  %s = nd.reduce %e kind sum over [i] acc f32 : tensor<j=70, f32>
  return %s
}
""")
    func = tiled(func, "i=16 j=16")
    assert sum(isinstance(op, Parallel) for op in func.body.ops) == 2
    x = np.random.default_rng(0).standard_normal((50, 70)).astype(np.float32)
    (s,) = check(func, x)
    np.testing.assert_allclose(s, np.exp(x.astype(float) - x.max(1, keepdims=True)).sum(0), rtol=1e-5)
    assert compiled(lower(func)).temporary_bytes == 256


def test_a_masked_product_does_not_exist() -> None:
    axes = ("i", 20), ("j", 23)
    types = (TensorType((*axes, ("d", 6)), F32), TensorType((("j", 23), ("e", 9)), F32), TensorType(axes, I1))
    args = tuple(map(argument, types))
    at = argument(RangeType("i", tile_extent(20, 8)), "i")
    weights, keep = (Load(source=v, ranges=(at,)).result for v in (args[0], args[2]))
    weights = Reduce(value=weights, kind="sum", over=("d",), acc=F32).result
    value = Contract(lhs=weights, rhs=args[1], where=keep, over=("j",), acc=F32).result
    out = argument(TensorType((("i", 20), ("e", 9)), F32), "out")
    body = place((at, out), (Store(value=value, target=out, ranges=(at,)).result,))
    result = Parallel(axes=("i",), extents=(20,), steps=(8,), body=body).result
    params = tuple(Param(n, Layout.parse(text)) for n, text in (("a", "i j d"), ("c", "j e"), ("keep", "i j")))
    assert result.op
    func = Func("f", params, Block(args, (result.op,), (result,)), (Layout.parse("i e"),))
    rng = np.random.default_rng(0)
    a, c = (rng.standard_normal(shape).astype("f4") for shape in ((20, 23, 6), (23, 9)))
    kept = rng.random((20, 23)) < 0.5
    c[5], kept[:, 5] = np.nan, False
    a[:, 7], kept[:, 7] = np.inf, False
    for layouts in (True, False):
        (got,) = check(func, a, c, kept, layouts=layouts)
        assert np.isfinite(got).all()


AXES = {"x": 19, "y": 6, "z": 9}


def random_nest(seed: int) -> Func:
    """A nest over parts of x: random ops, and random loops whose carried values may change places."""
    rng = random.Random(seed)

    def tensor(names: str) -> TensorType:
        return TensorType(tuple((n, AXES[n]) for n in names), F64)

    args = tuple(argument(tensor(names), names) for names in ("xy", "yz", "x", "zx"))
    at = argument(RangeType("x", tile_extent(AXES["x"], 8)), "x")

    def loads(ranges: Sequence[Value]) -> list[Value]:
        return [Load(source=v, ranges=tuple(r for r in ranges if r.range.axis in v.names)).result for v in args]

    def fits(a: Value, c: Value) -> bool:
        return all(a.tensor.extents[n] == c.tensor.extents[n] for n in a.names if n in c.names)

    def some(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(rng.sample(names, rng.randint(1, len(names))))

    def grow(pool: list[Value], ranges: Sequence[Value], depth: int) -> None:
        for _ in range(rng.randint(2, 6)):
            a = rng.choice(pool)
            c = rng.choice([v for v in pool if fits(a, v)])
            shared = [n for n in a.names if n in c.names]
            match rng.randrange(6 if depth else 4):
                case 0:
                    new = rng.choice((b.add, b.sub, b.maximum, b.minimum))(a, c)
                case 1 if a.names:
                    new = b.reduce(rng.choice(("sum", "max")), a, some(a.names))
                case 2 if shared:
                    new = b.contract(a, c, some(shared), b.compare("lt", a, c) if rng.random() < 0.3 else None)
                case 3:
                    new = b.mul(a, 0.5)
                case 4 | 5 if depth and len(ranges) < 3:
                    pool += loop(pool, ranges, depth)
                    continue
                case _:
                    new = b.neg(a)
            pool.append(ew.Tanh(value=new).result if rng.random() < 0.8 else new)

    def loop(pool: list[Value], ranges: Sequence[Value], depth: int) -> tuple[Value, ...]:
        axis = rng.choice([n for n in "yz" if n not in [r.range.axis for r in ranges]])
        step = rng.choice((2, 3, 4))
        part = argument(RangeType(axis, tile_extent(AXES[axis], step)), axis)
        inits = rng.choices(pool, k=rng.randint(1, 4))
        carried = [argument(v.type) for v in inits]
        inner = [*pool, *carried, *loads([*ranges, part])]
        grow(inner, [*ranges, part], depth - 1)
        yields = tuple(rng.choice([x for x in inner[len(pool) :] + pool if x.type == v.type]) for v in carried)
        made = For(inits=tuple(inits), axis=axis, extent=AXES[axis], step=step, body=Block((part, *carried), (), yields))
        return made.results

    pool = loads([at])
    grow(pool, [at], 2)
    pool += loop(pool, [at], 2)
    grow(pool, [at], 1)
    chosen = [v for v in reversed(pool) if "x" in v.names][:3]
    whole = [TensorType(tuple((n, AXES[n]) for n in v.names), F64) for v in chosen]
    outs = tuple(argument(t) for t in whole)
    stores = tuple(Store(value=v, target=o, ranges=(at,)).result for v, o in zip(chosen, outs, strict=True))
    body = place((at, *outs), stores)
    nest = Parallel(axes=("x",), extents=(AXES["x"],), steps=(8,), body=body)
    params = tuple(Param(f"p{k}", Layout.parse(" ".join(v.names))) for k, v in enumerate(args))
    layouts = tuple(Layout.parse(" ".join(v.names)) for v in nest.results)
    return Func("f", params, Block(args, (nest,), nest.results), layouts)


@pytest.mark.parametrize("seed", range(30))
def test_random_loops(seed: int) -> None:
    """Values that share memory never overwrite each other."""
    func = random_nest(seed)
    rng = np.random.default_rng(seed)
    arrays = [rng.standard_normal([AXES[n] for n in v.names]) for v in func.args]
    low = lower(func, layouts=seed % 3 > 0)
    outs = outputs(low)
    compiled(low, Target("any", (128, 256, 512)[seed % 3], 16))(arrays, outs)
    for got, want, text in zip(outs, Interpreter(wide=True).run(func, *arrays), range(3), strict=False):
        np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-10, err_msg=f"output {text}")


# ---------------------------------------------------------------- text, errors, threads


def test_a_change_of_a_chain_changes_its_lines_alone() -> None:
    axes = {"b": 1, "h": 1, "i": 32, "j": 48, "d": 8, "e": 8}
    low = lower(tiled(program(axes), "b=1 h=1 i=16 j=16"))
    seen = 0

    def clipped(op: Map) -> Map:
        nonlocal seen
        seen += 1
        (last,) = set(op.body.yields)  # stored, and summed over j
        new = ew.Abs(value=last).result
        assert new.op
        return replace(op, body=Block(op.body.args, (*op.body.ops, new.op), (new,) * len(op.body.yields)))

    def block(body: Block, env: dict[Value, Value]) -> Block:
        ops: list[Op] = []
        for op in body.ops:
            chain = isinstance(op, Map)
            new = op.rebuild(lambda v: env.get(v, v), lambda inner: inner if chain else block(inner, env))  # noqa: B023
            if isinstance(new, Map) and {"i", "j"} <= set(new.results[0].names):
                new = clipped(new)
            env.update(zip(op.results, new.results, strict=True))
            ops.append(new)
        return Block(body.args, tuple(ops), tuple(env.get(v, v) for v in body.yields))

    before = CPU.emit(low, "").text["python"].splitlines()
    after = CPU.emit(low.with_body(block(low.body, {})), "").text["python"].splitlines()
    assert seen == 1
    changed = [line for line in difflib.ndiff(before, after) if line[0] in "+-"]
    assert 1 <= len(changed) <= 4 and all("#   " in line for line in changed)
    assert any("nd.abs" in line for line in changed)


def test_chains_print_and_parse() -> None:
    axes = {"b": 1, "h": 1, "i": 32, "j": 48, "d": 8, "e": 8}
    low = lower(tiled(program(axes, masked=True), "b=1 h=1 i=16 j=16"))
    assert "cpu.map" in str(low) and "cpu.pack" in str(low)
    assert parse(str(low)) == low


def test_other_targets_and_ops_are_refused() -> None:
    axes = {"b": 1, "h": 1, "i": 4, "j": 4, "d": 4, "e": 4}
    with pytest.raises(Unsupported, match="there is no target cpu:x"):
        CPU.passes("x")
    with pytest.raises(Unsupported, match="run the pass tile"):
        compiled(program(axes))
    with pytest.raises(Unsupported, match=r"nd.neg on tiles[\s\S]*form-chains"):
        compiled(elementwise(b.neg, F32))


def test_several_threads_share_a_kernel() -> None:
    axes = {"b": 1, "h": 2, "i": 64, "j": 64, "d": 16, "e": 16}
    kernel = compiled(lower(tiled(program(axes), "b=1 h=1 i=16 j=16")))
    problems: list[str] = []

    def work(seed: int) -> None:
        arrays = inputs(axes, seed=seed)
        want = reference(*arrays)
        for _ in range(30):
            out = np.empty(want.shape, np.float32)
            kernel(arrays, [out])
            if not np.allclose(out, want, rtol=1e-4, atol=1e-5):
                problems.append(f"thread {seed}")

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not problems


def test_stages_are_text() -> None:
    kernel = compiled(lower(elementwise(b.neg, F32)))
    stages = kernel.stages()
    assert "define" in stages["llvm"] and "ret" in stages["asm"]

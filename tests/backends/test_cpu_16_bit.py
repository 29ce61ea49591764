"""f16 and bf16 in memory: every value of both types, both ways; attention on them against float64."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attngen
from attngen.backends.cpu import half
from attngen.backends.cpu.ops import Pack
from attngen.backends.cpu.target import Target, find
from attngen.ir import build as b
from attngen.ir import elementwise as ew
from attngen.ir.core import Value
from attngen.ir.interpreter import Interpreter
from attngen.ir.types import BF16, F16, F32, F64, I8, I32, I64, ElementType, bound
from tests.backends.test_cpu import compiled, elementwise, lower
from tests.kernels.reference import attention
from tests.kernels.test_shapes import VIEWS
from tests.masks import oracle

DTYPES: dict[ElementType, Any] = {F16: np.dtype(np.float16), BF16: np.dtype(ml_dtypes.bfloat16)}
HALVES = sorted(DTYPES, key=str)
BITS = np.arange(1 << 16, dtype=np.uint16)


def apply(
    make: Callable[..., Value],
    elements: tuple[ElementType, ...],
    to: ElementType,
    *arrays: np.ndarray,
    target: Target | None = None,
) -> np.ndarray:
    """make(a0[x], a1[x], …) by a kernel."""
    out = np.empty(arrays[0].shape, DTYPES.get(to, to.numpy))
    compiled(lower(elementwise(make, *elements, n=arrays[0].size, step=1 << 12)), target)(arrays, [out])
    return out


def same(got: np.ndarray, want: np.ndarray) -> None:
    """Equal to the bit, but that a NaN is a NaN."""
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    number = ~np.isnan(want)
    kind = f"u{got.dtype.itemsize}"
    np.testing.assert_array_equal(got[number].view(kind), want[number].view(kind))


@pytest.fixture(params=["", "x86-64-v2"])
def target(request: pytest.FixtureRequest) -> Target:
    """This machine, and one without instructions for f16."""
    found = find(request.param)
    assert not request.param or not half.converts(found)
    if found.why_not_here():
        pytest.skip(f"hardware: {found.why_not_here()}")
    return found


@pytest.mark.parametrize("element", HALVES)
def test_every_value_widens(element: ElementType, target: Target) -> None:
    every = BITS.view(DTYPES[element])
    same(apply(lambda x: b.cast(x, F32), (element,), F32, every, target=target), every.astype(np.float32))


@pytest.mark.parametrize("element", HALVES)
def test_every_value_and_what_lies_between_narrows(element: ElementType, target: Target) -> None:
    """Each value, what lies half way to the next one, and the neighbours of both in f32."""
    with np.errstate(all="ignore"):
        wide = BITS.view(DTYPES[element]).astype(np.float32)
        middle = (wide.view(np.uint32) + np.roll(wide, -1).view(np.uint32).astype(np.uint64)) // 2
        found = np.concatenate([wide, middle.astype(np.uint32).view(np.float32)])
        found = np.concatenate([found, *(np.nextafter(found, np.float32(x)) for x in (np.inf, -np.inf))])
        want = found.astype(DTYPES[element])
    same(apply(lambda x: b.cast(x, element), (F32,), element, found, target=target), want)


@pytest.mark.parametrize("element", HALVES)
def test_double_precision_rounds_once(element: ElementType) -> None:
    """Next to half way between two values: rounding to f32 first would round to the wrong one."""
    wide = BITS[: 0x7F00 if element is BF16 else 0x7BFF].view(DTYPES[element]).astype(np.float64)
    above = BITS[1 : wide.size + 1].view(DTYPES[element]).astype(np.float64)
    middle = (wide + above) / 2
    x = np.concatenate([middle * (1 - 2.0**-40), middle * (1 + 2.0**-40)])
    want = np.concatenate([wide, above]).astype(DTYPES[element])
    same(apply(lambda x: b.cast(x, element), (F64,), element, np.concatenate([x, -x])), np.concatenate([want, -want]))


@pytest.mark.parametrize("element", HALVES)
def test_arithmetic_rounds_after_each_op(element: ElementType) -> None:
    """As the interpreter does, constants, comparisons and conversions of integers included."""

    def make(x: Value, y: Value, n: Value, m: Value) -> Value:
        total = b.add(b.mul(x, y), b.constant(1.1, element))
        chosen = b.select(b.compare("lt", x, y), b.unary(ew.Neg, total), b.binary(ew.Max, total, b.unary(ew.Abs, y)))
        return b.add(chosen, b.add(b.cast(n, element), b.cast(m, element)))

    rng = np.random.default_rng(0)
    x, y = (rng.choice(BITS, 4000).view(DTYPES[element]) for _ in range(2))
    n, m = rng.integers(-3000, 3000, 4000, np.int32), rng.integers(-(2**40), 2**40, 4000)
    kinds = (element, element, I32, I64)
    got = apply(make, kinds, element, x, y, n, m)
    with np.errstate(all="ignore"):
        (want,) = Interpreter().run(elementwise(make, *kinds, n=4000, step=1 << 12), x, y, n, m)
        same(got, np.asarray(want).astype(DTYPES[element]))


# ---------------------------------------------------------------- attention


def arrays(dtype: Any, q: tuple[int, ...], k: tuple[int, ...], d_v: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(dtype) for shape in (q, k, (*k[:-1], d_v))]


def check(got: np.ndarray, want: np.ndarray, noise: float = 3e-6) -> None:
    """Within half of the distance between two values of the type, and what f32 arithmetic adds."""
    digits, least = (11, -24) if got.dtype == np.float16 else (8, -133)
    with np.errstate(divide="ignore"):
        spacing = 2.0 ** np.maximum(np.floor(np.log2(np.abs(want))) + 1 - digits, least)
    assert np.isfinite(want).all()
    worst = np.max(np.abs(got.astype(np.float64) - want) - spacing / 2)
    assert worst <= noise


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize(
    ("q", "k", "d_v"),
    [((2, 4, 37, 20), (2, 2, 77, 20), 12), ((1, 2, 150, 64), (1, 2, 333, 64), 80), ((3, 2, 1, 7), (3, 2, 50, 7), 33)],
)
def test_attention(dtype: Any, q: tuple[int, ...], k: tuple[int, ...], d_v: int) -> None:
    query, key, value = arrays(dtype, q, k, d_v)
    out, lse = attngen.scaled_dot_product_attention(query, key, value, return_lse=True)
    want, want_lse = attention(query, key, value)
    assert out.dtype == dtype and lse.dtype == np.float32
    check(out, want)
    np.testing.assert_allclose(lse, want_lse, atol=1e-5)


@pytest.mark.parametrize("name", ["x86-64-v2", "x86-64-v3"])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_other_processors(name: str, dtype: Any) -> None:
    """Vectors of 128 and 256 bits, and no masked loads of 16 bits."""
    if find(name).why_not_here():
        pytest.skip(f"hardware: {find(name).why_not_here()}")
    query, key, value = arrays(dtype, (2, 37, 20), (2, 77, 20), 11)
    bias = np.linspace(-2, 2, 77).astype(dtype)
    out = attngen.scaled_dot_product_attention(query, key, value, bias, target=f"cpu:{name}")
    check(out, oracle.attention(query[None], key[None], value[None], bias=bias.astype(np.float32))[0][0])


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(HALVES), st.tuples(*[st.sampled_from(sorted(VIEWS))] * 4), st.integers(0, 99))
def test_any_strides(element: ElementType, views: tuple[str, str, str, str], seed: int) -> None:
    made = arrays(DTYPES[element], (2, 3, 41, 20), (2, 3, 75, 20), 12, seed)
    query, key, value = (VIEWS[name](x) for name, x in zip(views, made, strict=False))
    want = attention(query, key, value)[0]
    empty = np.full(want.shape, np.nan, query.dtype)
    out = empty if views[3] == "every row the same" else VIEWS[views[3]](empty)
    attngen.scaled_dot_product_attention(query, key, value, out=out)
    check(out, want)


TABLE: Any = np.linspace(-2, 2, 77).astype(np.float16)
BRAIN: Any = np.linspace(-1, 1, 8).astype(ml_dtypes.bfloat16)
PLANS: dict[str, dict[str, Any]] = {
    "causal": {"is_causal": True, "causal_alignment": "bottom_right"},
    "window": {"window": (20, 5), "causal_alignment": "top_left", "sinks": np.array([0.5, -1, 2, 0])},
    "lengths": {"seqused_k": np.array([30, 77]), "alibi_slopes": np.array([0.5, 0.25, 0.1, 0.0]), "softcap": 3.0},
    "captured": {"score_mod": lambda s, b, h, i, j: s + TABLE[j] * BRAIN[(i + j) % 8], "mask_mod": lambda b, h, i, j: i != j},
}


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("name", [*PLANS, "added", "boolean"])
def test_masks(name: str, dtype: Any) -> None:
    rng = np.random.default_rng(1)
    query, key, value = arrays(dtype, (2, 4, 37, 20), (2, 2, 77, 20), 12)
    keep = rng.random((37, 77)) < 0.5
    added = {
        "attn_mask": np.where(keep, rng.standard_normal((37, 77)), -np.inf).astype(dtype),
        "bias": rng.standard_normal((4, 1, 77)).astype(np.float16),
    }
    more: dict[str, Any] = PLANS[name] if name in PLANS else added if name == "added" else {"attn_mask": keep}
    # In the oracle a mask counts in the precision of the query.
    wide = [x.astype(np.float32) for x in (query, key, value)]
    want, want_lse = oracle.attention(*wide, **more)
    if name == "boolean":
        value[:, :, 5], keep[:, 5] = np.nan, False
        want, want_lse = oracle.attention(*wide, attn_mask=keep)
    out, lse = attngen.scaled_dot_product_attention(query, key, value, return_lse=True, **more)
    check(out, want)
    np.testing.assert_allclose(lse, want_lse, atol=2e-5)


def test_element_types_may_differ() -> None:
    """q f16, k bf16, v f32: the result has the type of the first."""

    @attngen.program(q="i d", k="j d", v="j e", out="i e")
    def mixed(q: Any, k: Any, v: Any) -> Any:
        return attngen.contract(attngen.softmax(attngen.contract(q, k, over="d"), over="j"), v, over="j")

    query, _, value = arrays(np.float16, (50, 20), (70, 20), 33)
    key = arrays(ml_dtypes.bfloat16, (1, 20), (70, 20), 1)[1]
    out = mixed(query, key, value.astype(np.float32))
    assert out.dtype == np.float16
    check(out, attention(query, key, value, scale=1.0)[0])


def test_numbers_that_the_type_does_not_hold() -> None:
    """Scores, and sums of large values, are in f32; only the result overflows, to infinity."""
    big = np.full((1, 1, 40, 16), 60000, np.float16)
    assert (attngen.scaled_dot_product_attention(big, big, big) == 60000).all()

    @attngen.program(x="i j", out="i")
    def total(x: Any) -> Any:
        return attngen.reduce_sum(x, over="j")

    rows = np.array([[60000, 60000, -60000], [60000, 60000, 0], [1e-7, 1e-7, -0.0]], np.float16)
    got = total(rows)
    same(got, np.array([60000, np.inf, 2 * float(np.float16(1e-7))], np.float16))


@pytest.mark.parametrize(("wide", "narrow"), [(F32, BF16), (F32, F16), (F64, BF16), (I64, I32), (I32, I8)], ids=str)
def test_one_lane_that_becomes_narrower_is_stored_alone(wide: ElementType, narrow: ElementType) -> None:
    """Whatever the width of vectors is, one lane is left over."""
    n, dtype = 33, DTYPES.get(narrow, narrow.numpy)
    room = np.full(n + 8, 5).astype(dtype)
    x = np.arange(n).astype(DTYPES.get(wide, wide.numpy))
    compiled(lower(elementwise(lambda v: b.cast(v, narrow), wide, n=n)))([x], [room[:n]])
    np.testing.assert_array_equal(room.astype(float), [*range(n), *[5] * 8])


GUARD = """
import ctypes, mmap, sys
import ml_dtypes, numpy as np
import attngen
dtype = np.dtype(getattr(ml_dtypes, sys.argv[1], None) or sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
def last(x):
    # The array right in front of memory that must not be touched.
    page = mmap.PAGESIZE
    pages = -(-x.nbytes // page)
    memory = mmap.mmap(-1, (pages + 1) * page)
    start = np.frombuffer(memory, np.uint8).ctypes.data
    assert libc.mprotect(ctypes.c_void_p(start + pages * page), page, 0) == 0
    found = np.frombuffer(memory, x.dtype, x.size, pages * page - x.nbytes).reshape(x.shape)
    found[...] = x
    return found
rng = np.random.default_rng(0)
q, k, v = (last(rng.standard_normal(s).astype(dtype)) for s in ((3, 37, 13), (3, 77, 13), (3, 77, 11)))
mask = last(rng.standard_normal((37, 77)).astype(dtype))
out = last(np.zeros((3, 37, 11), dtype))
attngen.scaled_dot_product_attention(q, k, v, mask, out=out)
print(np.isfinite(out.astype("f4")).all())
"""


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_nothing_behind_the_end_of_an_array_is_touched(name: str) -> None:
    done = subprocess.run([sys.executable, "-c", GUARD, name], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="reads x86 assembly")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_conversions_are_vector_instructions(dtype: str) -> None:
    kernel = attngen.compile(attngen.attention, dtype=dtype, q=(1, 2, 512, 64), k=(1, 2, 512, 64), v=(1, 2, 512, 64))
    asm = kernel.stages["asm"]
    assert not re.search(r"__(extend|trunc)\w+", asm)
    widening, narrowing = ("vcvtph2ps", "vcvtps2ph") if dtype == "float16" else ("vpmovzxwd", "vpmovdw|vpackusdw")
    if "vfmadd" in asm:
        assert len(re.findall(rf"\t(?:{widening})\t.*[yz]mm", asm)) >= 4 and re.search(rf"\t(?:{narrowing})\t.*[yz]mm", asm)


def test_few_rows_read_keys_and_values_where_they_are() -> None:
    kernel = attngen.compile(attngen.attention, dtype="float16", q=(1, 2, 1, 64), k=(1, 2, 512, 64), v=(1, 2, 512, 64))
    low = kernel.stages["choose-layouts"]
    assert len(re.findall(r"cpu\.pack .* element f32", low)) == 1
    calls = [line.strip() for line in kernel.stages["python"].splitlines() if re.match(r"\s*pack_", line)]
    assert len(calls) == 3 and "if k_d != 2:" in kernel.stages["python"] and "if v_e != 2:" in kernel.stages["python"]


def test_each_element_of_a_tile_is_converted_once() -> None:
    """Products read f32: of keys and values in a loop, and of queries before it."""
    kernel = attngen.compile(attngen.attention, dtype="bfloat16", q=(1, 2, 512, 64), k=(1, 2, 512, 64), v=(1, 2, 512, 64))
    low = kernel.stages["choose-layouts"]
    assert len(re.findall(r"cpu\.pack .* element f32", low)) == 3
    assert not re.search(r"nd\.contract.*bf16", low)
    before, _, inside = low.partition("loop.for")
    assert (before.count("cpu.pack"), inside.count("cpu.pack")) == (1, 2)


def test_the_report_gives_a_reason_for_every_pack_and_lane_axis() -> None:
    kernel = attngen.compile(attngen.attention, dtype="bfloat16", q=(1, 2, 512, 64), k=(1, 2, 512, 64), v=(1, 2, 512, 64))
    report = kernel.report()
    packs = [op for op in kernel.func.walk() if isinstance(op, Pack)]
    assert len(packs) == 3
    for op in packs:
        order = ", ".join(name for name, extent in op.result.tensor.axes if bound(extent) > 1)
        assert any(re.search(rf"is packed as \[{order}\].*: .*widened", text) for text in report.layouts), report.layouts
    for tile in ("i, j", "e, i"):
        assert any(re.match(rf"in tiles of {tile} vectors run along \w: \w", text) for text in report.layouts), report.layouts
    assert "\nlayout " in str(report) and max(map(len, str(report).splitlines())) <= 100

"""Integer, logic and comparison instructions against Python's integers, which are exact."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from attngen.backends.cuda import ptx
from tests.cuda.ptx.kernels import apply, entry, run

EDGES = [
    0,
    1,
    2,
    3,
    5,
    7,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    2**63 - 1,
    2**63,
    2**64 - 1,
]


def values(dtype: str, count: int = 2) -> list[np.ndarray]:
    """Every pair of edge values, and random ones, as columns."""
    bits = 8 * np.dtype(dtype).itemsize
    edges = np.array([e & (2**bits - 1) for e in EDGES], f"u{bits // 8}")
    pairs = np.array(np.meshgrid(edges, edges)).reshape(2, -1)
    more = np.random.default_rng(0).integers(0, 2**bits, (4, pairs.shape[1]), f"u{bits // 8}", endpoint=False)
    columns = [np.concatenate([pairs[k] if k < 2 else more[2], more[k]])[:640] for k in range(count)]
    return [c.view(dtype) for c in columns]


def trunc(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


Case = tuple[str, str, Callable[..., int]]
CASES: list[Case] = [
    ("add.s32 %x, %a, %b;", "i4", lambda a, b: a + b),
    ("add.s64 %x, %a, %b;", "i8", lambda a, b: a + b),
    ("add.sat.s32 %x, %a, %b;", "i4", lambda a, b: min(max(a + b, -(2**31)), 2**31 - 1)),
    ("sub.u32 %x, %a, %b;", "u4", lambda a, b: a - b),
    ("mul.lo.s32 %x, %a, %b;", "i4", lambda a, b: a * b),
    ("mul.hi.s32 %x, %a, %b;", "i4", lambda a, b: a * b >> 32),
    ("mul.hi.u32 %x, %a, %b;", "u4", lambda a, b: a * b >> 32),
    ("mul.hi.s64 %x, %a, %b;", "i8", lambda a, b: a * b >> 64),
    ("mul.hi.u64 %x, %a, %b;", "u8", lambda a, b: a * b >> 64),
    ("mad.lo.u32 %x, %a, %b, %a;", "u4", lambda a, b: a * b + a),
    ("mad.hi.s32 %x, %a, %b, %b;", "i4", lambda a, b: (a * b >> 32) + b),
    ("sad.s32 %x, %a, %b, %a;", "i4", lambda a, b: a + abs(a - b)),
    ("min.s32 %x, %a, %b;", "i4", lambda a, b: min(a, b)),
    ("max.u64 %x, %a, %b;", "u8", lambda a, b: max(a, b)),
    ("div.s32 %x, %a, %b;", "i4", lambda a, b: trunc(a, b) if b else -1),
    ("div.u64 %x, %a, %b;", "u8", lambda a, b: a // b if b else -1),
    ("rem.s64 %x, %a, %b;", "i8", lambda a, b: a - trunc(a, b) * b if b else a),
    ("rem.u32 %x, %a, %b;", "u4", lambda a, b: a % b if b else a),
    ("and.b64 %x, %a, %b;", "u8", lambda a, b: a & b),
    ("or.b32 %x, %a, %b;", "u4", lambda a, b: a | b),
    ("xor.b16 %x, %a, %b;", "u2", lambda a, b: a ^ b),
    ("neg.s32 %x, %a;", "i4", lambda a, b: -a),
    ("abs.s64 %x, %a;", "i8", lambda a, b: abs(a)),
    ("not.b32 %x, %a;", "u4", lambda a, b: ~a),
    ("cnot.b32 %x, %a;", "u4", lambda a, b: int(a == 0)),
    ("shl.b32 %x, %a, 5;", "u4", lambda a, b: a << 5),
    ("shr.s32 %x, %a, 40;", "i4", lambda a, b: a >> 31),
    ("shr.u64 %x, %a, 63;", "u8", lambda a, b: a >> 63),
    ("shl.b64 %x, %a, 64;", "u8", lambda a, b: 0),
    ("shf.l.wrap.b32 %x, %a, %b, 7;", "u4", lambda a, b: (b << 7) | (a >> 25)),
    ("shf.r.clamp.b32 %x, %a, %b, 32;", "u4", lambda a, b: b),
    ("popc.b32 %x, %a;", "u4", lambda a, b: a.bit_count()),
    ("clz.b32 %x, %a;", "u4", lambda a, b: 32 - a.bit_length()),
    ("brev.b32 %x, %a;", "u4", lambda a, b: int(f"{a:032b}"[::-1], 2)),
    ("bfind.u32 %x, %a;", "u4", lambda a, b: a.bit_length() - 1),
    ("bfind.s32 %x, %a;", "i4", lambda a, b: (~a if a < 0 else a).bit_length() - 1),
    ("lop3.b32 %x, %a, %b, %r0, 0x96;", "u4", lambda a, b, t: a ^ b ^ t),
    ("lop3.b32 %x, %a, %b, %r0, 0xCA;", "u4", lambda a, b, t: (a & b) | (~a & t)),
    ("{ .reg .pred %q; setp.lo.u32 %q, %a, %b; selp.b32 %x, %a, 7, %q; }", "u4", lambda a, b: a if a < b else 7),
    ("{ .reg .pred %q; setp.hs.b32 %q, %a, %b; selp.b32 %x, 1, 0, %q; }", "i4", lambda a, b: int(a % 2**32 >= b % 2**32)),
    ("slct.b32.s32 %x, %a, 3, %a;", "i4", lambda a, b: a if a >= 0 else 3),
    ("set.lt.u32.s32 %x, %a, %b;", "i4", lambda a, b: -1 if a < b else 0),
    ("prmt.b32 %x, %a, %b, 0x5410;", "u4", lambda a, b: (a & 0xFFFF) | (b & 0xFFFF) << 16),
    ("prmt.b32 %x, %a, %b, 0x888F;", "u4", lambda a, b: (255 if b >> 31 else 0) | (0xFFFFFF00 if a >> 7 & 1 else 0)),
    ("prmt.b32.rc16 %x, %a, %b, 1;", "u4", lambda a, b: (a >> 16) * 0x10001),
    ("bmsk.clamp.b32 %x, 4, 8;", "u4", lambda a, b: 0xFF0),
]


@pytest.mark.parametrize(("text", "dtype", "expected"), CASES, ids=[c[0] for c in CASES])
def test_two_operands(text: str, dtype: str, expected: Callable[..., int]) -> None:
    a, b = values(dtype)
    out = apply(text, [a, b], np.zeros(a.size, dtype))
    bits = 8 * out.itemsize
    more = [range(a.size)] if expected.__code__.co_argcount == 3 else []
    exact = [expected(int(x), int(y), *z) for x, y, *z in zip(a, b, *more, strict=True)]
    assert [int(x) % 2**bits for x in out] == [x % 2**bits for x in exact]


def field(a: int, start: int, length: int, signed: bool) -> int:
    sign = (a >> min(start + length - 1, 31) & 1) if signed and length else 0
    return sum((a >> start + k & 1 if k < length and start + k < 32 else sign) << k for k in range(32))


@pytest.mark.parametrize("kind", ["u32", "s32", "insert"])
def test_bit_fields(kind: str) -> None:
    (a,) = values("u4", 1)
    generate = np.random.default_rng(3)
    start, length = generate.integers(0, 40, (2, a.size)).astype(np.uint32)
    if kind == "insert":
        out = apply("bfi.b32 %x, %a, 0x12345678, %b, %c;", [a, start, length], np.zeros(a.size, np.uint32))
        masks = [(((1 << int(n)) - 1) << int(s)) & 0xFFFFFFFF for s, n in zip(start, length, strict=True)]
        expected = [(0x12345678 & ~m) | ((int(x) << int(s)) & m) for x, s, m in zip(a, start, masks, strict=True)]
    else:
        out = apply(f"bfe.{kind} %x, %a, %b, %c;", [a, start, length], np.zeros(a.size, np.uint32))
        expected = [field(int(x), int(s), int(n), kind == "s32") for x, s, n in zip(a, start, length, strict=True)]
    assert out.tolist() == expected


def test_carries_make_wide_numbers() -> None:
    """128-bit sums and products from 64-bit and 32-bit ones with the condition code."""
    a, b = values("u8")
    out = np.zeros(a.size, np.uint64)
    # (a, b) + (b, a), the upper half.
    apply("{ .reg .b64 %low; add.cc.u64 %low, %a, %b; addc.u64 %x, %b, %a; }", [a, b], out)
    exact = [(((int(y) << 64) + int(x)) + ((int(x) << 64) + int(y))) >> 64 for x, y in zip(a, b, strict=True)]
    assert out.tolist() == [e % 2**64 for e in exact]
    apply("{ .reg .b64 %low; sub.cc.u64 %low, %a, %b; subc.u64 %x, %b, %a; }", [a, b], out)
    exact = [(((int(y) << 64) + int(x)) - ((int(x) << 64) + int(y))) >> 64 for x, y in zip(a, b, strict=True)]
    assert out.tolist() == [e % 2**64 for e in exact]


def test_wide_products_and_extension() -> None:
    a, b = values("i4")
    out = apply("mad.wide.s32 %x, %a, %b, -9;", [a, b], np.zeros(a.size, np.int64))
    np.testing.assert_array_equal(out, a.astype(np.int64) * b - 9)
    small = np.arange(-128, 128).astype(np.int8)
    body = "cvta.to.global.u64 %d1, %d0; ld.param.u64 %d2, [given]; cvt.u64.u32 %d3, %r0; add.s64 %d2, %d2, %d3;"
    body += "ld.global.s8 %r1, [%d2]; mad.wide.u32 %d1, %r0, 4, %d1; st.global.s32 [%d1], %r1;"
    assert run(body, np.zeros(256, np.int32), threads=256, given=small).tolist() == small.tolist()


def test_dot_product_of_bytes() -> None:
    a, b = values("u4")
    out = apply("dp4a.s32.u32 %x, %a, %b, -5;", [a, b], np.zeros(a.size, np.int32))
    np.testing.assert_array_equal(out, (a.view(np.int8).astype(int) * b.view(np.uint8)).reshape(-1, 4).sum(1) - 5)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("mul24.lo.s32 %r1, %r2, %r3;", "instruction mul24 is not known"),
        ("add.f32.bf16 %r1, %r2, %r3;", r"does not know \.f32"),
        ("mul.s32 %r1, %r2, %r3;", "does not know the form"),
        ("add.s32.quickly %r1, %r2, %r3;", "does not know the type"),
        ("shl.b32 %p1, %r2, 3;", "a predicate where there is none"),
        ("add.s64 %d1, %r2, %d3;", "has 32 bits, 64 are needed"),
        ("add.s32 %r1, %r2;", "operands are missing"),
        ("ld.shared.v2.u32 %r1, [%r2];", "the number of elements"),
        ("wmma.load.a.sync.aligned.row.m16n16k16.f16 {%r1}, [%d1];", "instruction wmma is not known"),
    ],
)
def test_unknown_forms_are_refused_by_name(text: str, complaint: str) -> None:
    with pytest.raises(ptx.PtxError, match=complaint) as caught:
        ptx.run(entry(text), None, 1, 32, [np.zeros(4)])
    assert caught.value.loc.line == 7

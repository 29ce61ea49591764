"""`cvt` between all types, with rounding and saturation, and conversions of addresses."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from attngen.backends.cuda.ptx.rounding import from_bf16, to_bf16
from tests.cuda.ptx.kernels import apply, run
from tests.cuda.ptx.test_floats import rounded

REALS = np.array(
    [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 2.75, -7.25, 126.5, 255.5, 3e9, -3e9, 1e20, np.inf, -np.inf, np.nan], np.float32
)
ROUND = {"rni": lambda x: float(np.rint(x)), "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}


@pytest.mark.parametrize("mode", ROUND)
@pytest.mark.parametrize("integer", ["s32", "u32", "s64", "u64", "u8", "s16"])
def test_floats_to_integers_saturate(mode: str, integer: str) -> None:
    bits = int(integer[1:])
    dtype = f"{'i' if integer[0] == 's' else 'u'}{bits // 8}"
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    out = apply(f"cvt.{mode}.{integer}.f32 %x, %a;", [REALS], np.zeros(REALS.size, dtype))
    expected = [
        0 if math.isnan(x) else low if x == -math.inf else high if x == math.inf else ROUND[mode](x) for x in map(float, REALS)
    ]
    assert out.tolist() == [min(max(int(x), int(low)), int(high)) for x in expected]


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize(
    ("integer", "element"), [("s32", "f32"), ("u64", "f32"), ("s64", "f64"), ("u32", "f16"), ("s64", "f32")]
)
def test_integers_to_floats_round_once(mode: str, integer: str, element: str) -> None:
    bits = int(integer[1:])
    dtype = f"{'i' if integer[0] == 's' else 'u'}{bits // 8}"
    edges = [0, 1, 3, 2**24 - 1, 2**24 + 1, 2**25 + 2, 2**31 - 1, 2047, 2049, 4098]
    edges += [2**53 + 1, 2**54 + 2, 2**62 + 2**38, 2**62 + 2**38 + 1, 2**63 - 1] if bits == 64 else []
    edges += [2**64 - 1, 2**63 + 2**39 + 1] if integer == "u64" else [-x for x in edges] if integer[0] == "s" else [2**32 - 1]
    a = np.array([x for x in edges if element != "f16" or abs(x) < 60000], dtype)
    out = apply(f"cvt.{mode}.{element}.{integer} %x, %a;", [a], np.zeros(a.size, f"f{int(element[1:]) // 8}"))
    assert out.tolist() == [rounded(Fraction(int(x)), element, mode) for x in a]


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize(("source", "target"), [("f64", "f32"), ("f32", "f16"), ("f32", "bf16"), ("f64", "f16")])
def test_narrowing_rounds_once(mode: str, source: str, target: str) -> None:
    generate = np.random.default_rng(7)
    a = np.concatenate(
        [generate.normal(0, 1, 200), generate.integers(-9999, 9999, 200) / 8, 2.0 ** -generate.integers(0, 30, 50)]
    )
    # Halfway between two numbers, and just beside.
    a = np.concatenate(
        [a, 1 + 2.0**-11 * np.arange(1, 30), 1 + 2.0**-8 * np.arange(1, 30) + 2.0**-23, 1 + 2.0**-24 * np.arange(1, 9)]
    )
    a = a.astype(f"f{int(source[1:]) // 8}")
    out = apply(
        f"cvt.{mode}.{target}.{source} %x, %a;",
        [a],
        np.zeros(a.size, np.uint16 if target == "bf16" else f"f{int(target[1:]) // 8}"),
    )
    held = from_bf16(out) if target == "bf16" else out
    np.testing.assert_array_equal(held, [rounded(Fraction(float(x)), target, mode) for x in a])


def test_packed_conversion_puts_the_first_source_above() -> None:
    a, b = np.random.default_rng(8).normal(size=(2, 64)).astype(np.float32)
    halves = apply("cvt.rn.f16x2.f32 %x, %a, %b;", [a, b], np.zeros(64, np.uint32)).view(np.float16).reshape(-1, 2)
    np.testing.assert_array_equal(halves, np.stack([b, a], axis=1).astype(np.float16))
    brains = apply("cvt.rn.relu.bf16x2.f32 %x, %a, %b;", [a, b], np.zeros(64, np.uint32)).view(np.uint16).reshape(-1, 2)
    np.testing.assert_array_equal(brains, to_bf16(np.maximum(np.stack([b, a], axis=1), 0)))


def test_tf32_keeps_ten_bits() -> None:
    a = np.array([1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-12, -1 - 2.0**-11, 3.0], np.float32)
    out = apply("cvt.rna.tf32.f32 %x, %a;", [a], np.zeros(5, np.float32))
    np.testing.assert_array_equal(out, np.array([1 + 2.0**-10, 1 + 2.0**-9, 1, -1 - 2.0**-10, 3], np.float32))


def test_integers_to_integers() -> None:
    a = np.array([0, 1, -1, 127, 128, -128, -129, 255, 256, 70000, -70000], np.int32)
    assert apply("cvt.s8.s32 %x, %a;", [a], np.zeros(a.size, np.int8)).tolist() == a.astype(np.int8).tolist()
    assert apply("cvt.sat.s8.s32 %x, %a;", [a], np.zeros(a.size, np.int8)).tolist() == np.clip(a, -128, 127).tolist()
    assert apply("cvt.sat.u16.s32 %x, %a;", [a], np.zeros(a.size, np.uint16)).tolist() == np.clip(a, 0, 65535).tolist()
    assert apply("cvt.s64.s32 %x, %a;", [a], np.zeros(a.size, np.int64)).tolist() == a.tolist()
    assert apply("cvt.u64.u32 %x, %a;", [a], np.zeros(a.size, np.uint64)).tolist() == [int(x) % 2**32 for x in a]
    reals = np.array([-2.5, 2.5, -0.5, 1e9], np.float32)
    assert apply("cvt.rmi.f32.f32 %x, %a;", [reals], np.zeros(4, np.float32)).tolist() == [-3, 2, -1, 1e9]


def test_generic_addresses_lead_to_their_spaces() -> None:
    body = """
    .shared .align 8 .b8 sh[128]; .local .align 4 .b8 own[8];
    mov.u32 %r1, sh; mad.lo.u32 %r1, %r0, 4, %r1; cvt.u64.u32 %d1, %r1; cvta.shared.u64 %d1, %d1;
    st.u32 [%d1], %r0; isspacep.shared %p1, %d1; isspacep.global %p2, %d1;
    mov.u64 %d2, own; cvta.local.u64 %d2, %d2; st.u32 [%d2+4], 100;
    ld.u32 %r2, [%d2+4]; cvta.to.shared.u64 %d3, %d1; ld.shared.u32 %r3, [%d3];
    add.u32 %r2, %r2, %r3; @!%p1 mov.u32 %r2, 0; @%p2 mov.u32 %r2, 1;
    mad.wide.u32 %d4, %r0, 4, %d0; st.u32 [%d4], %r2;
    """
    assert run(body, np.zeros(32, np.uint32)).tolist() == [100 + t for t in range(32)]

"""Floating-point instructions against exact fractions, rounded here by a second method."""

from __future__ import annotations

import operator
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from attngen.backends.cuda.ptx.rounding import from_bf16, to_bf16
from tests.cuda.ptx.kernels import apply

FORMATS = {"f16": (11, -24, 16), "bf16": (8, -133, 128), "f32": (24, -149, 128), "f64": (53, -1074, 1024)}
"""Bits of precision, exponent of the least number, exponent above the greatest."""


def rounded(x: Fraction, element: str, mode: str) -> float:
    """A fraction in a format: the largest multiple of the unit below it, or the next one, as the mode says."""
    bits, least, top = FORMATS[element]
    if not x:
        return 0.0
    exponent = abs(x).numerator.bit_length() - abs(x).denominator.bit_length()
    exponent += Fraction(2) ** exponent <= abs(x)
    unit = Fraction(2) ** max(exponent - bits, least)
    below, rest = divmod(x, unit)
    above = {"rm": False, "rp": rest > 0, "rz": rest > 0 and x < 0}.get(
        mode, rest * 2 > unit or (rest * 2 == unit and below % 2)
    )
    result = (below + bool(above)) * unit
    if abs(result) >= Fraction(2) ** top:
        inward = mode == "rz" or (mode == "rm") == (result > 0) and mode != "rn"
        largest = float((Fraction(2) ** top) - Fraction(2) ** (top - bits))
        return (largest if inward else float("inf")) * (1 if result > 0 else -1)
    return float(result)


def numbers(element: str, count: int = 300) -> list[np.ndarray]:
    """Three columns, of all sizes, near each other, and with few bits, so that ties and cancellation occur."""
    generate = np.random.default_rng(5)
    spread = {"f16": 12, "bf16": 60, "f32": 60, "f64": 300}[element]
    columns: list[np.ndarray] = []
    for _ in range(3):
        x = generate.normal(size=count) * 2.0 ** generate.integers(-spread // 2, spread // 2, count)
        x[: count // 3] = generate.integers(-64, 64, count // 3) * 2.0 ** generate.integers(
            -3, 8 if element == "f16" else 30, count // 3
        )
        columns.append(to_format(x, element))
    columns[1][::5] = columns[0][::5]
    columns[2][::7] = -columns[0][::7] if element != "bf16" else columns[0][::7] ^ 0x8000
    return columns


def to_format(x: np.ndarray, element: str) -> np.ndarray:
    dtype = {"f16": np.float16, "bf16": np.float32, "f32": np.float32, "f64": np.float64}[element]
    with np.errstate(all="ignore"):
        held = x.astype(dtype)
    return to_bf16(held) if element == "bf16" else held


def exactly(x: np.ndarray, element: str) -> list[Fraction]:
    return [Fraction(float(v)) for v in (from_bf16(x) if element == "bf16" else x)]


def as_float(x: np.ndarray, element: str) -> np.ndarray:
    return (from_bf16(x) if element == "bf16" else x).astype(np.float64)


OPERATIONS: dict[str, Callable[..., Fraction]] = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}


@pytest.mark.parametrize("name", [*OPERATIONS, "fma"])
@pytest.mark.parametrize(
    ("element", "mode"),
    [("f32", "rn"), ("f32", "rz"), ("f32", "rm"), ("f32", "rp"), ("f64", "rn"), ("f64", "rp"), ("f16", "rn"), ("bf16", "rn")],
)
def test_rounding_is_exact(name: str, element: str, mode: str) -> None:
    a, b, c = numbers(element)
    xs, ys, zs = (exactly(v, element) for v in (a, b, c))
    if name == "fma":
        out = apply(f"fma.{mode}.{element} %x, %a, %b, %c;", [a, b, c], np.zeros_like(a))
        exact = [x * y + z for x, y, z in zip(xs, ys, zs, strict=True)]
    else:
        out = apply(f"{name}.{mode}.{element} %x, %a, %b;", [a, b], np.zeros_like(a))
        exact = [OPERATIONS[name](x, y) for x, y in zip(xs, ys, strict=True)]
    expected = [rounded(x, element, mode) for x in exact]
    np.testing.assert_array_equal(as_float(out, element), expected)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_division_and_square_root(mode: str) -> None:
    a, b, _ = numbers("f32")
    b[b == 0] = 3
    out = apply(f"div.{mode}.f32 %x, %a, %b;", [a, b], np.zeros_like(a))
    exact = [x / y for x, y in zip(exactly(a, "f32"), exactly(b, "f32"), strict=True)]
    np.testing.assert_array_equal(out, np.array([rounded(x, "f32", mode) for x in exact], np.float32))
    out = apply(f"sqrt.{mode}.f32 %x, %a;", [np.abs(a)], np.zeros_like(a))
    for x, root in zip(exactly(np.abs(a), "f32"), out, strict=True):
        # The exact root lies between the squares of the neighbours that the mode allows.
        below, above = (Fraction(float(np.nextafter(root, np.float32(end)))) for end in (-np.inf, np.inf))
        here = Fraction(float(root))
        low, high = {"rn": ((below + here) / 2, (here + above) / 2), "rp": (below, here)}.get(mode, (here, above))
        assert max(low, Fraction(0)) ** 2 <= x <= high**2


@pytest.mark.parametrize(
    ("text", "function"),
    [
        ("ex2.approx.ftz.f32 %x, %a;", np.exp2),
        ("sin.approx.f32 %x, %a;", np.sin),
        ("cos.approx.f32 %x, %a;", np.cos),
        ("tanh.approx.f32 %x, %a;", np.tanh),
        ("{ abs.f32 %x, %a; lg2.approx.f32 %x, %x; }", lambda x: np.log2(np.abs(x))),
        ("{ abs.f32 %x, %a; rsqrt.approx.f32 %x, %x; }", lambda x: 1 / np.sqrt(np.abs(x))),
        ("rcp.rn.f32 %x, %a;", lambda x: 1 / x),
    ],
)
def test_functions(text: str, function: Callable[[np.ndarray], np.ndarray]) -> None:
    a = np.random.default_rng(6).normal(0, 8, 200).astype(np.float32)
    np.testing.assert_allclose(apply(text, [a], np.zeros_like(a)), function(a.astype(np.float64)), rtol=1.2e-7)


@pytest.mark.parametrize("element", ["f16", "bf16", "f32", "f64"])
def test_extremes_of_order_and_sign(element: str) -> None:
    """NaN gives way to numbers, or wins with .NaN; −0 is below +0; neg and abs touch the sign alone."""
    special = to_format(np.array([0.0, -0.0, 1.5, -2.0, np.inf, -np.inf, np.nan]), element)
    a, b = (x.reshape(-1) for x in np.meshgrid(special, special))
    x, y = as_float(a, element), as_float(b, element)
    for name, pick in (("max", np.fmax), ("min", np.fmin)):
        low = as_float(apply(f"{name}.{element} %x, %a, %b;", [a, b], np.zeros_like(a)), element)
        np.testing.assert_array_equal(low, pick(x, y))
        zeros = (x == 0) & (y == 0)
        signs = np.signbit(x) & np.signbit(y) if name == "max" else np.signbit(x) | np.signbit(y)
        np.testing.assert_array_equal(np.signbit(low)[zeros], signs[zeros])
    if element != "f64":
        strict = as_float(apply(f"max.NaN.{element} %x, %a, %b;", [a, b], np.zeros_like(a)), element)
        np.testing.assert_array_equal(strict, np.maximum(x, y))
    raw = np.uint64 if element == "f64" else f"u{a.itemsize}"
    bit = np.array(1, raw) << np.array(8 * a.itemsize - 1, raw)
    np.testing.assert_array_equal(apply(f"neg.{element} %x, %a;", [a], np.zeros_like(a)).view(raw), a.view(raw) ^ bit)
    np.testing.assert_array_equal(apply(f"abs.{element} %x, %a;", [a], np.zeros_like(a)).view(raw), a.view(raw) & ~bit)


COMPARISONS = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}


@pytest.mark.parametrize("name", [*COMPARISONS, *(f"{n}u" for n in COMPARISONS), "num", "nan"])
def test_comparisons_with_nan(name: str) -> None:
    special = np.array([0.0, -0.0, 1.0, -1.0, np.inf, np.nan], np.float32)
    a, b = (x.reshape(-1) for x in np.meshgrid(special, special))
    out = np.zeros(a.size, np.int32)
    apply(f"{{ .reg .pred %q; setp.{name}.f32 %q, %a, %b; selp.s32 %x, 1, 0, %q; }}", [a, b], out)
    unordered = np.isnan(a) | np.isnan(b)
    if name in ("num", "nan"):
        expected = unordered if name == "nan" else ~unordered
    elif name in COMPARISONS:
        expected = COMPARISONS[name](a, b) & ~unordered
    else:
        expected = COMPARISONS[name[:-1]](a, b) | unordered
    np.testing.assert_array_equal(out, expected)


def test_packed_halves_are_two_numbers() -> None:
    a, b, c = (x[:256] for x in numbers("f16"))
    pairs = [x.view(np.uint32) for x in (a, b, c)]
    out = apply("fma.rn.f16x2 %x, %a, %b, %c;", pairs, np.zeros(128, np.uint32)).view(np.float16)
    single = apply("fma.rn.f16 %x, %a, %b, %c;", [a, b, c], np.zeros(256, np.float16))
    np.testing.assert_array_equal(out, single)
    exact = [rounded(x * y + z, "f16", "rn") for x, y, z in zip(*(exactly(v, "f16") for v in (a, b, c)), strict=True)]
    np.testing.assert_array_equal(single, exact)
    low = np.float16(0.5)
    constant = apply("mul.f16x2 %x, %a, 0x38003800;", pairs[:1], np.zeros(128, np.uint32)).view(np.float16)
    np.testing.assert_array_equal(constant, a * low)


def test_packed_single_precision() -> None:
    a, b, c = (np.ascontiguousarray(x[:256]) for x in numbers("f32"))
    pairs = [x.view(np.uint64) for x in (a, b, c)]
    out = apply("fma.rn.f32x2 %x, %a, %b, %c;", pairs, np.zeros(128, np.uint64)).view(np.float32)
    np.testing.assert_array_equal(out, apply("fma.rn.f32 %x, %a, %b, %c;", [a, b, c], np.zeros(256, np.float32)))
    np.testing.assert_array_equal(apply("mul.f32x2 %x, %a, %b;", pairs[:2], np.zeros(128, np.uint64)).view(np.float32), a * b)


def test_flush_to_zero_and_saturation() -> None:
    tiny = np.array([2.0**-140, -(2.0**-140), 2.0**-126, 0.3, 2.0, -1.0, np.nan], np.float32)
    kept = apply("add.f32 %x, %a, 0f00000000;", [tiny], np.zeros_like(tiny))
    np.testing.assert_array_equal(kept, tiny)
    flushed = apply("mul.ftz.f32 %x, %a, 0f3F800000;", [tiny], np.zeros_like(tiny))
    np.testing.assert_array_equal(flushed, [0, 0, 2.0**-126, np.float32(0.3), 2, -1, np.nan])
    assert np.signbit(flushed[1])
    saturated = apply("add.sat.f32 %x, %a, 0f00000000;", [tiny], np.zeros_like(tiny))
    np.testing.assert_array_equal(saturated, [tiny[0], 0, tiny[2], tiny[3], 1, 0, 0])

"""Floats with PTX's rounding modes (PTX ISA, "Rounding Modifiers"). Values are computed in float64 with the error kept.

A value is a pair: `high`, and the sign of what is missing in `low`. bf16 is held as its 16 bits in uint16.
"""

from __future__ import annotations

import numpy as np

from attngen.backends.cuda.ptx.types import Array, Type

MODES = ("rn", "rz", "rm", "rp")
TINY = np.float32(2.0**-126)


def flush(x: Array) -> Array:
    """`.ftz`: subnormal float32 numbers become zero and keep their sign."""
    return np.where(np.abs(x) < TINY, np.copysign(np.float32(0), x), x)


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b and its rounding error, both float64 (Knuth)."""
    s = a + b
    part = s - a
    return s, (a - (s - part)) + (b - part)


def two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """a · b and its rounding error, both float64 (Veltkamp, Dekker)."""

    def split(x: Array) -> tuple[Array, Array]:
        t = x * 134217729.0
        high = t - (t - x)
        return high, x - high

    p = a * b
    (ah, al), (bh, bl) = split(a), split(b)
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def odd(high: Array, low: Array) -> Array:
    """Rounded to odd: an inexact value gets the neighbour whose last bit is 1. Rounding that to fewer bits is then right."""
    raw = high.view(f"u{high.dtype.itemsize}")
    fix = (low != 0) & (raw & raw.dtype.type(1) == 0) & np.isfinite(high)
    if not fix.any():
        return high
    towards = np.copysign(high.dtype.type(np.inf), low.astype(high.dtype))
    return np.where(fix, np.nextafter(high, towards), high)


def directed(rounded: Array, missing: Array, mode: str) -> Array:
    """A number rounded to nearest, moved by one unit if the mode asks for it. missing: sign of exact − rounded."""
    infinite = rounded.dtype.type(np.inf)
    down = missing < 0
    up = missing > 0
    if mode == "rz":
        down, up = down & (rounded > 0), up & (rounded < 0)
    if mode != "rp":
        rounded = np.where(down, np.nextafter(rounded, -infinite), rounded)
    if mode != "rm":
        rounded = np.where(up, np.nextafter(rounded, infinite), rounded)
    return rounded


def narrow(high: Array, low: Array | float, t: Type, mode: str = "rn") -> Array:
    """float64 high + low, rounded once to type t: f64, f32, f16, or bf16 as uint16."""
    low = np.broadcast_to(np.asarray(low, np.float64), high.shape)
    if t.name == "bf16":
        single = high.astype(np.float32)
        return to_bf16(odd(single, (high - single) + low), mode)
    rounded = odd(high, low).astype(t.numpy) if t.bits < 64 else high
    if mode == "rn":
        return rounded
    return directed(rounded, np.where(np.isnan(rounded) | np.isinf(high), 0.0, (high - rounded) + low), mode)


def to_bf16(x: Array, mode: str = "rn") -> Array:
    """float32 to bfloat16, as uint16. NaN becomes 0x7FFF, as on the device."""
    raw = x.view(np.uint32)
    kept, rest = raw >> np.uint32(16), raw & np.uint32(0xFFFF)
    negative = (raw >> np.uint32(31)).astype(bool)
    up = {
        "rn": (rest > 0x8000) | ((rest == 0x8000) & (kept & np.uint32(1)).astype(bool)),
        "rna": rest >= 0x8000,
        "rz": np.zeros(x.shape, bool),
        "rm": (rest != 0) & negative,
        "rp": (rest != 0) & ~negative,
    }[mode]
    return np.where(np.isnan(x), np.uint16(0x7FFF), (kept + up).astype(np.uint16))


def from_bf16(raw: Array) -> Array:
    """uint16 to float32."""
    return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_tf32(x: Array, mode: str) -> Array:
    """float32 with 10 bits of fraction left (PTX ISA, "Alternate Floating-Point Data Formats")."""
    raw = x.view(np.uint32)
    half = {"rna": np.uint32(0x1000), "rz": np.uint32(0), "rn": np.uint32(0xFFF) + ((raw >> np.uint32(13)) & np.uint32(1))}[
        mode
    ]
    finite = (raw & np.uint32(0x7F800000)) != 0x7F800000
    return (np.where(finite, raw + half, raw) & np.uint32(0xFFFFE000)).view(np.float32)


def widen(raw: Array, t: Type) -> Array:
    """Exactly, to float64."""
    return (from_bf16(raw) if t.name == "bf16" else raw).astype(np.float64)


def fused(a: Array, b: Array, c: Array) -> Array:
    """a · b + c in float32, rounded once to nearest."""
    exact = a.astype(np.float64) * b
    total = exact + c
    raw = total.view(np.uint64)
    # Rounding twice goes wrong only halfway between two float32 numbers, and among subnormal ones.
    doubt = ((raw & np.uint64(0x1FFFFFFF)) == 0x10000000) | (np.abs(total) < TINY)
    result = total.astype(np.float32)
    if doubt.any():
        high, low = two_sum(exact[doubt], c[doubt].astype(np.float64))
        result[doubt] = odd(high, np.where(np.isfinite(low), low, 0)).astype(np.float32)
    return result

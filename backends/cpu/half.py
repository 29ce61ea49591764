"""Floats of 16 bits, f16 and bf16: integers in memory and in registers, which are widened to f32 before any arithmetic.

Narrowing rounds to the nearest, ties to even, and keeps NaN.
"""

from __future__ import annotations

import numpy as np

from attngen.backends.cpu.functions import like
from attngen.backends.cpu.target import Target
from attngen.backends.cpu.vector import I32, REGISTER, Code, Ir, ll
from attngen.ir.types import BF16, F16, F32, F64, ElementType, round_bf16

HALVES = (F16, BF16)
FLOAT, SHORT = REGISTER["f32"], REGISTER["f16"]


def converts(target: Target) -> bool:
    """Whether a processor has instructions between f16 and f32."""
    return target.has("f16c") or target.has("neon")


def encode(number: float, element: ElementType) -> int:
    """The bits of a constant, as a signed integer."""
    if element is F16:
        with np.errstate(over="ignore"):
            return int(np.float16(number).view(np.int16))
    return int(round_bf16(number).view(np.int32)) >> 16


def widen(c: Code, x: Ir, element: ElementType) -> Ir:
    """To f32, exactly."""
    b = c.b
    if element is F16 and converts(c.target):
        return b.fpext(b.bitcast(x, like(x.type, ll.HalfType())), like(x.type, FLOAT))
    whole, real = like(x.type, I32), like(x.type, FLOAT)

    def number(n: int) -> Ir:
        return c.constant(n, whole)

    bits = b.zext(x, whole)
    if element is BF16:
        return b.bitcast(b.shl(bits, number(16)), real)
    # The exponent moves from its offset of 15 to that of 127; infinity and NaN have the largest one, and a subnormal number
    # is what a float with the same fraction exceeds the smallest normal number by.
    sign = b.shl(b.and_(bits, number(0x8000)), number(16))
    shifted = b.shl(b.and_(bits, number(0x7FFF)), number(13))
    exponent, normal = b.and_(shifted, number(0x7C00 << 13)), b.add(shifted, number(112 << 23))
    least = b.bitcast(number(113 << 23), real)
    tiny = b.fsub(b.bitcast(b.add(normal, number(1 << 23)), real), least)
    special = b.select(b.icmp_signed("==", exponent, number(0)), b.bitcast(tiny, whole), normal)
    largest = b.icmp_signed("==", exponent, number(0x7C00 << 13))
    return b.bitcast(b.or_(b.select(largest, b.add(normal, number(112 << 23)), special), sign), real)


def narrow(c: Code, x: Ir, element: ElementType) -> Ir:
    """From f32."""
    b = c.b
    whole, short, real = (like(x.type, kind) for kind in (I32, SHORT, FLOAT))
    if element is F16 and converts(c.target):
        return b.bitcast(b.fptrunc(x, like(x.type, ll.HalfType())), short)

    def number(n: int) -> Ir:
        return c.constant(n, whole)

    bits = b.bitcast(x, whole)
    if element is BF16:
        odd = b.and_(b.lshr(bits, number(16)), number(1))
        rounded = b.add(b.add(bits, number(0x7FFF)), odd)
        kept = b.select(b.fcmp_unordered("uno", x, x), b.or_(bits, number(0x400000)), rounded)
        return b.trunc(b.lshr(kept, number(16)), short)
    # Subnormal results: adding a number whose last bit is worth as much as theirs rounds.
    sign, size = b.and_(b.lshr(bits, number(16)), number(0x8000)), b.and_(bits, number(0x7FFFFFFF))
    magic = number(126 << 23)
    tiny = b.sub(b.bitcast(b.fadd(b.bitcast(size, real), b.bitcast(magic, real)), whole), magic)
    odd = b.and_(b.lshr(size, number(13)), number(1))
    normal = b.lshr(b.add(b.add(size, number(0xFFF - (112 << 23))), odd), number(13))
    found = b.select(b.icmp_signed("<", size, number(113 << 23)), tiny, normal)
    special = b.select(b.icmp_signed(">", size, number(0x7F800000)), number(0x7E00), number(0x7C00))
    found = b.select(b.icmp_signed(">=", size, number(143 << 23)), special, found)
    return b.trunc(b.or_(found, sign), short)


def to_odd(c: Code, x: Ir) -> Ir:
    """f64 to f32 such that narrowing the result rounds as narrowing x itself: inexact results have an odd last bit."""
    b = c.b
    whole, real = like(x.type, I32), like(x.type, FLOAT)
    near = b.fptrunc(x, real)
    back = b.fpext(near, x.type)
    larger = b.fcmp_ordered(">", c.intrinsic("fabs", back), c.intrinsic("fabs", x))
    inexact = b.fcmp_ordered("!=", back, x)
    down = b.sub(b.bitcast(near, whole), b.zext(larger, whole))
    return b.bitcast(b.or_(down, b.zext(inexact, whole)), real)


def from_float(c: Code, x: Ir, source: ElementType, to: ElementType) -> Ir:
    """From f32 or f64 to 16 bits."""
    return narrow(c, to_odd(c, x) if source is F64 else x, to)


def widened(c: Code, x: Ir, element: ElementType) -> Ir:
    """What arithmetic on this element type is done with."""
    return widen(c, x, element) if element in HALVES else x


def narrowed(c: Code, x: Ir, element: ElementType) -> Ir:
    """A result of such arithmetic as its element type holds it."""
    return from_float(c, x, F32, element) if element in HALVES else x

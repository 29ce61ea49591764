"""Arithmetic on integers (PTX ISA, "Integer Arithmetic Instructions", "Extended-Precision Integer Arithmetic Instructions")."""

from __future__ import annotations

import numpy as np

from attngen.backends.cuda.ptx.decode import Decoder, Effect, instruction
from attngen.backends.cuda.ptx.types import TYPES, UNSIGNED, Array, Type


def wider(t: Type) -> Type:
    """The type of a `.wide` product."""
    return TYPES[f"{t.kind}{2 * t.bits}"]


def high_product(a: Array, b: Array, t: Type) -> Array:
    """The upper half of the product."""
    if t.bits < 64:
        w = wider(t).numpy
        return ((a.astype(w) * b.astype(w)) >> w.type(t.bits)).astype(t.numpy)
    mask, s = np.uint64(0xFFFFFFFF), np.uint64(32)
    x, y = a.view(np.uint64), b.view(np.uint64)
    xl, xh, yl, yh = x & mask, x >> s, y & mask, y >> s
    middle = xh * yl + ((xl * yl) >> s)
    high = xh * yh + (middle >> s) + (((middle & mask) + xl * yh) >> s)
    if t.kind == "s":
        zero = np.uint64(0)
        high = high - np.where(a < 0, y, zero) - np.where(b < 0, x, zero)
    return high.view(t.numpy)


def quotient(a: Array, b: Array) -> tuple[Array, Array]:
    """a / b rounded towards zero, and the remainder. Division by zero gives all ones, as on the device."""
    zero = b == 0
    safe = np.where(zero, b.dtype.type(1), b)
    remainder = np.fmod(a, safe)
    result = (a - remainder) // safe
    ones = np.array(-1).astype(b.dtype)
    return np.where(zero, ones, result), np.where(zero, a, remainder)


def saturated(a: Array, b: Array, opcode: str) -> Array:
    """add.sat.s32 and sub.sat.s32."""
    x, y = a.astype(np.int64), b.astype(np.int64)
    return np.clip(x + y if opcode == "add" else x - y, -(2**31), 2**31 - 1).astype(np.int32)


def binary(d: Decoder) -> Effect:
    """`add`, `sub`, `min`, `max`, `div`, `rem` on integers, with `.sat` and `.cc`."""
    t, opcode = d.modifiers.type(), d.i.opcode
    a, b, store = d.read(1, t), d.read(2, t), d.write(0, t)
    if d.modifiers.flag("cc"):
        return carried(d, t, uses=False)
    if d.modifiers.flag("sat"):
        return lambda: store(saturated(a, b, opcode))
    if opcode in ("div", "rem"):
        return lambda: store(quotient(a, b)[opcode == "rem"])
    f = {"add": np.add, "sub": np.subtract, "min": np.minimum, "max": np.maximum}[opcode]
    return lambda: store(f(a, b))


@instruction("addc", "subc")
def with_carry(d: Decoder) -> Effect:
    """`addc{.cc}`, `subc{.cc}`."""
    t = d.modifiers.type()
    return carried(d, t, uses=True)


def carried(d: Decoder, t: Type, uses: bool) -> Effect:
    """Addition and subtraction that set the condition code; with `uses`, that add it too."""
    m, raw = d.machine, TYPES[f"u{t.bits}"]
    a, b, store = d.read(1, raw), d.read(2, raw), d.write(0, raw)
    sets = d.modifiers.flag("cc") or not uses
    subtract = d.i.opcode.startswith("sub")

    def effect() -> None:
        extra = (m.carry & uses).astype(raw.numpy)
        if subtract:
            result = a - b - extra
            over = (a < b) | ((a == b) & (extra != 0))
        else:
            result = a + b + extra
            over = (result < a) | ((result == a) & (extra != 0))
        store(result)
        if sets:
            np.copyto(m.carry, over, where=m.where)

    return effect


def multiply(d: Decoder) -> Effect:
    """`mul`, `mad` and `madc` with `.lo`, `.hi`, `.wide`; a condition code only of unsigned sums."""
    t = d.modifiers.type()
    part = d.modifiers.choice("lo", "hi", "wide")
    if not part or ("cc" in d.modifiers.left and t.kind != "u"):
        raise d.modifiers.refused("the form")
    out = wider(t) if part == "wide" else t
    a, b, store = d.read(1, t), d.read(2, t), d.write(0, out)
    c = d.read(3, out) if d.i.opcode.startswith("mad") else None
    sets, uses, m = d.modifiers.flag("cc"), d.i.opcode == "madc", d.machine

    def product() -> Array:
        if part == "hi":
            return high_product(a, b, t)
        return np.multiply(a, b, dtype=out.numpy)

    def with_carry_bit() -> None:
        held = product()
        total = held + c
        over = total < held
        if uses:
            carry = m.carry.astype(total.dtype)
            over, total = over | (total + carry < total), total + carry
        store(total)
        if sets:
            np.copyto(m.carry, over, where=m.where)

    if c is None:
        return lambda: store(product())
    return with_carry_bit if sets or uses else lambda: store(product() + c)


@instruction("sad")
def sad(d: Decoder) -> Effect:
    """`sad d, a, b, c`: c + |a − b|."""
    t = d.modifiers.type()
    (a, b, c), store = (d.read(n, t) for n in (1, 2, 3)), d.write(0, t)
    return lambda: store(c + (np.maximum(a, b) - np.minimum(a, b)))


def unary(d: Decoder) -> Effect:
    """`neg` and `abs`."""
    t = d.modifiers.type()
    a, store = d.read(1, t), d.write(0, t)
    return (lambda: store(np.negative(a))) if d.i.opcode == "neg" else (lambda: store(np.abs(a)))


@instruction("popc", "clz", "brev", "bfind")
def bits(d: Decoder) -> Effect:
    """Counting and reversing bits."""
    t, opcode = d.modifiers.type(), d.i.opcode
    shift = d.modifiers.flag("shiftamt")
    a, store = d.read(1, t), d.write(0, TYPES[f"b{t.bits}"] if opcode == "brev" else TYPES["u32"])

    def digits(x: Array) -> Array:
        """Bits as 0 or 1, the highest first, shape (lanes, bits)."""
        raw = np.ascontiguousarray(x).view(UNSIGNED[t.bits])
        return (raw[:, None] >> np.arange(t.bits - 1, -1, -1).astype(raw.dtype)) & raw.dtype.type(1)

    def effect() -> None:
        held = digits(np.where(a < 0, ~a, a) if opcode == "bfind" and t.kind == "s" else a)
        if opcode == "popc":
            store(held.sum(axis=1).astype(np.uint32))
        elif opcode == "brev":
            place = np.arange(t.bits).astype(held.dtype)
            store(np.bitwise_or.reduce(held << place, axis=1))
        else:
            leading = np.where(held.any(axis=1), held.argmax(axis=1), t.bits)
            if opcode == "clz":
                store(leading.astype(np.uint32))
            else:
                found = np.where(leading == t.bits, -1, leading if shift else t.bits - 1 - leading)
                store(found.astype(np.int32).view(np.uint32))

    return effect


@instruction("bfe", "bfi")
def field(d: Decoder) -> Effect:
    """Bit field extract and insert; position and length are taken modulo 256."""
    t, opcode = d.modifiers.type(), d.i.opcode
    raw = TYPES[f"u{t.bits}"]
    first = 2 if opcode == "bfe" else 3
    source, store = d.read(1, raw), d.write(0, raw)
    into = d.read(2, raw) if opcode == "bfi" else None
    position, length = d.read(first, TYPES["u32"]), d.read(first + 1, TYPES["u32"])
    one, top = raw.numpy.type(1), t.bits

    def mask(count: Array) -> Array:
        """The lowest `count` bits."""
        low = shifted(np.broadcast_to(one, count.shape), count, t.bits) - one
        return low

    def effect() -> None:
        start, count = position & np.uint32(255), np.minimum(length & np.uint32(255), top)
        if into is not None:
            chosen = shifted(mask(count), start, top)
            store((into & ~chosen) | (shifted(source, start, top) & chosen))
            return
        inside = mask(count)
        result = down(source, start, top) & inside
        if t.kind == "s":
            last = np.minimum(start + count - np.uint32(1), np.uint32(top - 1))
            sign = (down(source, last, top) & one).astype(bool) & (count > 0)
            covered = mask(np.clip(np.int64(top) - start, 0, count).astype(np.uint32))
            result = np.where(sign, result | ~(inside & covered), result)
        store(result)

    return effect


def shifted(x: Array, by: Array, width: int) -> Array:
    """x << by; all bits are gone from the width on."""
    s = np.minimum(by, width - 1).astype(x.dtype)
    return np.where(by >= width, x.dtype.type(0), x << s)


def down(x: Array, by: Array, width: int) -> Array:
    """x >> by; from the width on, zero or the sign."""
    s = np.minimum(by, width - 1).astype(x.dtype)
    if np.issubdtype(x.dtype, np.signedinteger):
        return x >> s
    return np.where(by >= width, x.dtype.type(0), x >> s)

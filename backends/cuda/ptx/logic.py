"""Bits (PTX ISA, "Logic and Shift Instructions")."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attngen.backends.cuda.ptx.decode import Decoder, Effect, instruction
from attngen.backends.cuda.ptx.integers import down, shifted
from attngen.backends.cuda.ptx.syntax import Immediate
from attngen.backends.cuda.ptx.types import B32, S32, TYPES, U32, Array


@instruction("and", "or", "xor")
def binary(d: Decoder) -> Effect:
    t = d.modifiers.type()
    a, b, store = d.read(1, t), d.read(2, t), d.write(0, t)
    f = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[d.i.opcode]
    return lambda: store(f(a, b))


@instruction("not", "cnot")
def complement(d: Decoder) -> Effect:
    """`not`: every bit; `cnot`: 1 for 0, and 0 for all else."""
    t = d.modifiers.type()
    a, store = d.read(1, t), d.write(0, t)
    if d.i.opcode == "not":
        return lambda: store(~a)
    return lambda: store((a == 0).astype(t.numpy))


@instruction("shl", "shr")
def shift(d: Decoder) -> Effect:
    """Amounts beyond the width clear everything, or leave the sign."""
    t = d.modifiers.type()
    a, by, store = d.read(1, t), d.read(2, U32), d.write(0, t)
    f = shifted if d.i.opcode == "shl" else down
    return lambda: store(f(a, by, t.bits))


@instruction("shf")
def funnel(d: Decoder) -> Effect:
    """`shf.l|r.wrap|clamp.b32 d, a, b, c`: a window of the 64 bits b:a."""
    left = d.modifiers.choice("l", "r") == "l"
    wrap = d.modifiers.choice("wrap", "clamp") == "wrap"
    d.modifiers.type()
    (a, b, c), store = (d.read(n, U32) for n in (1, 2, 3)), d.write(0, B32)

    def effect() -> None:
        n = (c & np.uint32(31) if wrap else np.minimum(c, 32)).astype(np.uint64)
        both = (b.astype(np.uint64) << np.uint64(32)) | a
        moved = (both << n) >> np.uint64(32) if left else both >> n
        store(np.where(n == 32, a if left else b, moved.astype(np.uint32)))

    return effect


@instruction("lop3")
def lop3(d: Decoder) -> Effect:
    """Any function of three bits, given by its table of truth."""
    d.modifiers.type()
    (a, b, c), store = (d.read(n, U32) for n in (1, 2, 3)), d.write(0, B32)
    table = d.operand(4)
    if not isinstance(table, Immediate) or len(d.operands) != 5:
        raise d.modifiers.refused("the form")

    def effect() -> None:
        result = np.zeros(a.shape, np.uint32)
        for j in range(8):
            if table.value >> j & 1:
                result |= (a if j & 4 else ~a) & (b if j & 2 else ~b) & (c if j & 1 else ~c)
        store(result)

    return effect


@instruction("prmt")
def permute(d: Decoder) -> Effect:
    """Any four of the eight bytes b:a; bit 3 of a selector repeats the sign of the byte."""
    mode = d.modifiers.choice("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")
    d.modifiers.type()
    (a, b, c), store = (d.read(n, U32) for n in (1, 2, 3)), d.write(0, B32)
    tables: dict[str, Callable[[Array, int], Array]] = {
        "f4e": lambda s, j: s + j,
        "b4e": lambda s, j: (s - j) & 7,
        "rc8": lambda s, j: s,
        "ecl": lambda s, j: np.maximum(s, j),
        "ecr": lambda s, j: np.minimum(s, j),
        "rc16": lambda s, j: (s & 1) * 2 + (j & 1),
    }

    def effect() -> None:
        both = (b.astype(np.uint64) << np.uint64(32)) | a
        if mode:
            chosen = [tables[mode]((c & np.uint32(3)).astype(np.int64), j) for j in range(4)]
            sign = [np.zeros(c.shape, bool)] * 4
        else:
            chosen = [((c >> np.uint32(4 * j)) & np.uint32(7)).astype(np.int64) for j in range(4)]
            sign = [((c >> np.uint32(4 * j + 3)) & np.uint32(1)).astype(bool) for j in range(4)]
        result = np.zeros(c.shape, np.uint32)
        for j in range(4):
            byte = (both >> (8 * chosen[j]).astype(np.uint64)).astype(np.uint32) & np.uint32(255)
            byte = np.where(sign[j], (byte >> np.uint32(7)) * np.uint32(255), byte)
            result |= byte << np.uint32(8 * j)
        store(result)

    return effect


@instruction("dp4a")
def dot(d: Decoder) -> Effect:
    """`dp4a.atype.btype d, a, b, c`: c plus the products of four bytes."""
    kinds = [TYPES[x] for x in d.modifiers.take(2)]
    out = S32 if "s" in (kinds[0].kind, kinds[1].kind) else U32
    raw = [d.read(n, U32) for n in (1, 2)]
    c, store = d.read(3, out), d.write(0, out)

    def bytes_of(x: Array, kind: str) -> Array:
        return np.ascontiguousarray(x).view(np.int8 if kind == "s" else np.uint8).reshape(-1, 4).astype(np.int64)

    def effect() -> None:
        a, b = (bytes_of(x, t.kind) for x, t in zip(raw, kinds, strict=True))
        store((c + (a * b).sum(axis=1)).astype(out.numpy))

    return effect


@instruction("bmsk")
def mask(d: Decoder) -> Effect:
    """`bmsk.clamp|wrap.b32 d, position, length`."""
    wrap = d.modifiers.choice("clamp", "wrap") == "wrap"
    d.modifiers.type()
    a, b, store = d.read(1, U32), d.read(2, U32), d.write(0, B32)

    def effect() -> None:
        start, length = (a & np.uint32(31), b & np.uint32(31)) if wrap else (np.minimum(a, 32), np.minimum(b, 32))
        ones = (np.uint64(1) << length.astype(np.uint64)) - np.uint64(1)
        store((ones << start.astype(np.uint64)).astype(np.uint32))

    return effect

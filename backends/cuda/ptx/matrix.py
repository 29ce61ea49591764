"""Tensor-core instructions of a warp (PTX ISA, "Warp Level Matrix Multiply-Accumulate Instructions": mma, ldmatrix, stmatrix).

Fragments: lane 4g+t of a warp holds rows g and g+8 and, of each group of columns, those that start at t times the elements
of a register.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from attngen.backends.cuda.ptx.accumulators import RESULTS, Accumulators
from attngen.backends.cuda.ptx.decode import Decoder, Effect, instruction
from attngen.backends.cuda.ptx.layout import WARP
from attngen.backends.cuda.ptx.moves import state_space
from attngen.backends.cuda.ptx.rounding import from_bf16
from attngen.backends.cuda.ptx.types import B32, Array

PER_REGISTER = {"f16": 2, "bf16": 2, "tf32": 1, "s8": 4, "u8": 4}
"""How many elements of a or b a register holds."""


def elements(name: str, raw: Array) -> Array:
    """Registers as uint32 of any shape -> their elements along a new last axis, in float32 or int32."""
    raw = np.ascontiguousarray(raw)
    if name == "tf32":
        # The low 13 bits are ignored by the hardware.
        return (raw & np.uint32(0xFFFFE000)).view(np.float32)[..., None]
    if name in ("s8", "u8"):
        return raw.view(np.int8 if name == "s8" else np.uint8).reshape(*raw.shape, 4).astype(np.int32)
    halves = raw.view(np.uint16).reshape(*raw.shape, 2)
    return from_bf16(halves) if name == "bf16" else halves.view(np.float16).astype(np.float32)


def matrix_a(name: str, registers: Array) -> Array:
    """Fragment a, shape (registers, lanes) -> (warps, 16, k)."""
    e = PER_REGISTER[name]
    n, lanes = registers.shape
    x = elements(name, registers).reshape(n // 2, 2, lanes // WARP, 8, 4, e)
    return x.transpose(2, 1, 3, 0, 4, 5).reshape(lanes // WARP, 16, n // 2 * 4 * e)


def matrix_b(name: str, registers: Array) -> Array:
    """Fragment b, shape (registers, lanes) -> (warps, k, 8)."""
    e = PER_REGISTER[name]
    n, lanes = registers.shape
    x = elements(name, registers).reshape(n, lanes // WARP, 8, 4, e)
    return x.transpose(1, 0, 3, 4, 2).reshape(lanes // WARP, n * 4 * e, 8)


def matrix_c(registers: Array) -> Array:
    """Accumulators, four registers of one element each, (4, lanes) -> (warps, 16, 8)."""
    lanes = registers.shape[1]
    return registers.reshape(2, 2, lanes // WARP, 8, 4).transpose(2, 0, 3, 4, 1).reshape(lanes // WARP, 16, 8)


def registers_c(matrix: Array) -> Array:
    """The reverse of `matrix_c`."""
    warps = matrix.shape[0]
    return matrix.reshape(warps, 2, 8, 4, 2).transpose(1, 4, 0, 2, 3).reshape(4, warps * WARP)


@instruction("mma")
def mma(d: Decoder) -> Effect:
    """`mma.sync.aligned.m16n8kK.row.col.dtype.atype.btype.ctype d, a, b, c`, with f16, bf16, tf32, s8 and u8 as inputs."""
    out, first, second, added = d.modifiers.take(4)
    d.modifiers.drop("sync", "aligned", "row", "col")
    saturates = d.modifiers.flag("satfinite")
    shape = re.fullmatch(r"m16n8k(\d+)", d.modifiers.take(1)[0])
    integer = first in ("s8", "u8") and second in ("s8", "u8")
    if not shape or first not in PER_REGISTER or not (first == second or integer) or saturates and not integer:
        raise d.modifiers.refused("the shape and types")
    if out not in RESULTS[first] or out != added:
        raise d.modifiers.refused("the accumulator type")
    acc, m = Accumulators(d, out, 0, 3, saturates), d.machine
    a, b = d.reads(1, B32), d.reads(2, B32)
    depth = 4 * PER_REGISTER[first] * len(b)
    if depth != int(shape[1]) or len(a) != 2 * len(b) or acc.elements != 4 or len(acc.sources) != len(acc.stores):
        raise d.modifiers.refused("the number of registers")

    def effect() -> None:
        m.converged(d.i)
        product = np.matmul(matrix_a(first, np.stack(a)), matrix_b(second, np.stack(b)))
        acc.write(registers_c(product + matrix_c(acc.read())))

    return effect


def tiles(d: Decoder) -> tuple[int, bool]:
    """How many 8×8 matrices `ldmatrix` or `stmatrix` moves, and whether they are transposed."""
    d.modifiers.drop("sync", "aligned")
    (kind,) = d.modifiers.take(1)
    if kind != "b16" or not d.modifiers.flag("m8n8"):
        raise d.modifiers.refused("the shape and type")
    count = int((d.modifiers.choice("x1", "x2", "x4") or "x0")[1:])
    return count, d.modifiers.flag("trans")


def rows(d: Decoder, operand: int, count: int) -> Callable[[], tuple[Array, Array]]:
    """Gives offsets of the 16-byte rows, whose addresses the first 8·count lanes hold, and those lanes."""
    m, named = d.machine, state_space(d)
    address = d.address(operand, named)
    space = m.memories.spaces["shared"]

    def locate() -> tuple[Array, Array]:
        m.converged(d.i)
        lanes = m.lanes[m.lanes % WARP < 8 * count]
        part, _, inner = next(m.memories.split(named, address()[lanes], d.i, lanes))
        if part is not space or inner.size != lanes.size:
            raise m.layout.defect("bounds", "a row is not in shared memory", d.i, int(lanes[0]), int(inner[0]))
        return space.locate(m.layout, d.i, inner, lanes, 16), lanes

    return locate


@instruction("ldmatrix")
def ldmatrix(d: Decoder) -> Effect:
    """`ldmatrix.sync.aligned.m8n8.x1|x2|x4{.trans}{.shared}.b16 r, [p]`."""
    count, transposed = tiles(d)
    locate, stores, m = rows(d, 1, count), d.writes(0, B32), d.machine
    space = m.memories.spaces["shared"]
    if len(stores) != count:
        raise d.modifiers.refused("the number of registers")

    def effect() -> None:
        at, lanes = locate()
        if space.shadow is not None:
            space.shadow.read(d.i, at, 16, lanes)
        found = space.view(np.dtype(np.uint64))[at[:, None] // 8 + np.arange(2)].view(np.uint16).reshape(-1, count, 8, 8)
        if transposed:
            found = found.transpose(0, 1, 3, 2)
        registers = np.ascontiguousarray(found).view(np.uint32).reshape(-1, count, WARP)
        for j, store in enumerate(stores):
            full = np.zeros(m.layout.lanes, np.uint32)
            full[m.lanes] = registers[:, j].reshape(-1)
            store(full)

    return effect


@instruction("stmatrix")
def stmatrix(d: Decoder) -> Effect:
    """`stmatrix.sync.aligned.m8n8.x1|x2|x4{.trans}{.shared}.b16 [p], r`."""
    count, transposed = tiles(d)
    locate, sources, m = rows(d, 0, count), d.reads(1, B32), d.machine
    space = m.memories.spaces["shared"]
    if len(sources) != count:
        raise d.modifiers.refused("the number of registers")

    def effect() -> None:
        at, lanes = locate()
        if space.shadow is not None:
            space.shadow.write(d.i, at, 16, lanes)
        held = np.stack([s[m.lanes] for s in sources], axis=1).reshape(-1, WARP, count).transpose(0, 2, 1)
        halves = np.ascontiguousarray(held).view(np.uint16).reshape(-1, count, 8, 8)
        if transposed:
            halves = halves.transpose(0, 1, 3, 2)
        cells = np.ascontiguousarray(halves).view(np.uint64).reshape(-1, 2)
        space.view(np.dtype(np.uint64))[at[:, None] // 8 + np.arange(2)] = cells

    return effect

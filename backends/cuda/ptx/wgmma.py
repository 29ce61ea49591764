"""Matrix products of a warpgroup, four warps (PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate").

Descriptors may use any of the four swizzling modes; matrices of 16-bit elements may be stored either way round.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attngen.backends.cuda.ptx.accumulators import RESULTS, Accumulators
from attngen.backends.cuda.ptx.decode import Decoder, Effect, Taken, control, instruction
from attngen.backends.cuda.ptx.descriptors import Descriptor, gather
from attngen.backends.cuda.ptx.flight import Flight, names
from attngen.backends.cuda.ptx.layout import WARP
from attngen.backends.cuda.ptx.matrix import matrix_a
from attngen.backends.cuda.ptx.rounding import from_bf16
from attngen.backends.cuda.ptx.syntax import Immediate, Vector
from attngen.backends.cuda.ptx.types import B32, PRED, U64, Array

GROUP = 4 * WARP
SIZES = {"f16": 2, "bf16": 2, "tf32": 4, "s8": 1, "u8": 1}
"""Bytes of an element; a product is summed over 32 bytes of them."""


@dataclass(frozen=True)
class Form:
    """`m64nNkK`: columns N; element types; the factor of a · b; whether a and b are stored transposed."""

    columns: int
    first: str
    second: str
    factor: int
    transposed_a: bool
    transposed_b: bool

    @property
    def size(self) -> int:
        return SIZES[self.first]

    @property
    def depth(self) -> int:
        return 32 // self.size


def values(element: str, tile: Array) -> Array:
    """Raw elements, as unsigned numbers of their size, to float32, or int64 for integers."""
    match element:
        case "tf32":
            return (tile & np.uint32(0xFFFFE000)).view(np.float32)
        case "bf16":
            return from_bf16(tile)
        case "f16":
            return tile.view(np.float16).astype(np.float32)
        case _:
            return (tile.view(np.int8) if element == "s8" else tile).astype(np.int64)


def form(d: Decoder) -> tuple[Form, Accumulators]:
    shape, out, first, second = d.modifiers.take(4)
    d.modifiers.drop("sync", "aligned", "mma_async")
    saturates = d.modifiers.flag("satfinite")
    matched = re.fullmatch(r"m64n(\d+)k(\d+)", shape)
    integer = first in ("s8", "u8") and second in ("s8", "u8")
    if not matched or first not in SIZES or not (first == second or integer) or int(matched[2]) != 32 // SIZES[first]:
        raise d.modifiers.refused("the shape and types")
    if out not in RESULTS[first] or saturates and not integer:
        raise d.modifiers.refused("the accumulator type")
    numbers = [o.value for o in d.operands[4:] if isinstance(o, Immediate)]
    in_registers = isinstance(d.operand(1), Vector)
    expected = 0 if integer else 2 + (SIZES[first] == 2) * (1 if in_registers else 2)
    if len(numbers) != expected or len(d.operands) != 4 + expected or any(n not in (1, -1) for n in numbers[:2]):
        raise d.modifiers.refused("the constants at the end")
    turned = [0, 0, *numbers[2:]]
    made = Form(int(matched[1]), first, second, int(np.prod(numbers[:2])), bool(turned[-2]), bool(turned[-1]))
    acc = Accumulators(d, out, 0, 0, saturates)
    if made.columns % 8 or not 8 <= made.columns <= 256 or acc.elements != made.columns // 2:
        raise d.modifiers.refused("the number of columns, or of registers for it,")
    return made, acc


@control("wgmma.mma_async")
def product(d: Decoder) -> Taken:
    """`wgmma.mma_async.sync.aligned.m64nNkK.f32.type.type d, a, b, scale-d, …`: a warp waits for the other three."""
    (f, acc), m = form(d), d.machine
    if m.layout.padded % GROUP:
        raise d.modifiers.refused("a block that is not made of whole warpgroups (128 threads),")
    in_registers = isinstance(d.operand(1), Vector)
    a, b = (d.reads(1, B32) if in_registers else [d.read(1, U64)]), d.read(2, U64)
    keep = d.predicate(3) if not isinstance(d.operand(3), Immediate) else constant(d)
    here = np.zeros(m.layout.lanes, bool)
    written, read = names(d.operands[:1]), names(d.operands[1:2]) if in_registers else frozenset[str]()

    def taken(lanes: Array) -> None:
        before = m.active
        m.activate(lanes)
        m.converged(d.i)
        m.activate(before)
        here[lanes] = True
        m.block(lanes, d.index)
        full = here.reshape(-1, GROUP).all(axis=1)
        if not full.any():
            return
        ready = np.repeat(full, GROUP)
        here[ready] = False
        m.blocked &= ~ready
        old = acc.read()
        result = old.copy()
        for group in map(int, np.flatnonzero(full)):
            part = slice(group * GROUP, (group + 1) * GROUP)
            tile, pieces = operand_a(d, f, a, in_registers, part)
            other, more = tile_of(d, f, f.second, b[part], f.columns, f.transposed_b, part)
            warps = np.arange(4 * group, 4 * group + 4)
            if m.shadow is not None:
                column, clock = m.shadow.group_column(int(warps[0])), int(m.flights.committed[warps[0]]) + 1
                m.shadow.read_until_wait(d.i, np.concatenate([pieces, more]), m.everyone[part], column, clock)
            m.flights.issue(d.i, warps, lambda number: Flight(written, read, d.i.modifiers[3], number))
            summed = registers(f.factor * (tile @ other.T))
            result[:, part] = summed + np.where(keep()[part], old[:, part], old.dtype.type(0))
        before = m.active
        m.activate(ready)
        acc.write(result)
        m.activate(before)

    return taken


def constant(d: Decoder) -> Callable[[], Array]:
    fixed = d.read(3, PRED)
    return lambda: fixed


def operand_a(d: Decoder, f: Form, a: list[Array], in_registers: bool, part: slice) -> tuple[Array, Array]:
    """The tile (64, depth), and the pieces of shared memory it comes from."""
    if in_registers:
        return matrix_a(f.first, np.stack([x[part] for x in a])).reshape(64, f.depth), np.zeros(0, np.int64)
    return tile_of(d, f, f.first, a[0][part], 64, f.transposed_a, part)


def tile_of(d: Decoder, f: Form, element: str, raw: Array, rows: int, transposed: bool, part: slice) -> tuple[Array, Array]:
    """A tile (rows, depth) from a descriptor, which must be the same in all lanes, and the pieces it comes from."""
    m = d.machine
    if (raw != raw[0]).any():
        lane = part.start + int(np.flatnonzero(raw != raw[0])[0])
        raise m.layout.defect("divergence", "the descriptor differs inside the warpgroup", d.i, lane)
    descriptor = Descriptor.decode(int(raw[0]))
    if descriptor.base_offset:
        raise d.modifiers.refused("a descriptor with a base offset")
    chunks = descriptor.chunks(rows, f.depth, 16 // f.size, transposed)
    space = m.memories.spaces["shared"]
    flat = chunks.reshape(-1)
    at = space.locate(m.layout, d.i, flat, np.broadcast_to(np.int64(part.start), flat.shape), 16)
    raw_tile = gather(space.data, at.reshape(chunks.shape), np.dtype(f"u{f.size}"), transposed)
    tile = values(element, np.ascontiguousarray(raw_tile))
    if m.shadow is None:
        return tile, at
    granule = m.shadow.granule
    return tile, (at[:, None] // granule + np.arange(16 // granule)).reshape(-1)


def registers(tile: Array) -> Array:
    """(64, columns) -> (columns / 2, 128 lanes)."""
    columns = tile.shape[1]
    return tile.reshape(4, 2, 8, columns // 8, 4, 2).transpose(3, 1, 5, 0, 2, 4).reshape(columns // 2, GROUP)


@instruction("wgmma")
def synchronise(d: Decoder) -> Effect:
    """`wgmma.fence`, `wgmma.commit_group`, `wgmma.wait_group n`."""
    m = d.machine
    d.modifiers.drop("sync", "aligned")
    what = d.modifiers.choice("fence", "commit_group", "wait_group")
    kept = d.operand(0) if what == "wait_group" else Immediate(0)
    if not what or not isinstance(kept, Immediate):
        raise d.modifiers.refused("the form")
    left = kept.value

    def effect() -> None:
        m.converged(d.i)
        if what == "fence":
            m.flights.fence()
        elif what == "commit_group":
            m.flights.commit()
        else:
            m.flights.wait(left)

    return effect


@instruction("setmaxnreg")
def registers_per_thread(d: Decoder) -> Effect:
    """`setmaxnreg.inc|dec.sync.aligned.u32 n`: registers are not limited here; the number must be one that is allowed."""
    d.modifiers.drop("inc", "dec", "sync", "aligned", "u32")
    number, m = d.operand(0), d.machine
    if not isinstance(number, Immediate) or number.value % 8 or not 24 <= number.value <= 256:
        raise d.modifiers.refused("the number of registers")
    return lambda: m.converged(d.i)

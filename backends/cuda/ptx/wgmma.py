"""Matrix products of a warpgroup, four warps (PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate").

Descriptors may use any of the four swizzling modes; matrices of 16-bit elements may be stored either way round.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attngen.backends.cuda.ptx.decode import Decoder, Effect, Store, Taken, control, instruction
from attngen.backends.cuda.ptx.descriptors import Descriptor, gather
from attngen.backends.cuda.ptx.flight import Flight, names
from attngen.backends.cuda.ptx.layout import WARP
from attngen.backends.cuda.ptx.matrix import matrix_a
from attngen.backends.cuda.ptx.rounding import from_bf16
from attngen.backends.cuda.ptx.syntax import Immediate, Vector
from attngen.backends.cuda.ptx.types import B32, F32, PRED, U64, Array

GROUP = 4 * WARP
DEPTH = {"f16": 16, "bf16": 16, "tf32": 8}
"""The extent along which products are summed, by element type."""


@dataclass(frozen=True)
class Form:
    """`m64nNkK`: columns N; depth K; element; the factors of a and b; whether they are stored transposed."""

    columns: int
    depth: int
    element: str
    factor: int
    transposed_a: bool
    transposed_b: bool

    @property
    def per_chunk(self) -> int:
        return 4 if self.element == "tf32" else 8

    def values(self, tile: Array) -> Array:
        """Raw elements to float32."""
        if self.element == "tf32":
            return (tile.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
        return from_bf16(tile) if self.element == "bf16" else tile.view(np.float16).astype(np.float32)


def form(d: Decoder) -> Form:
    shape, out, first, second = d.modifiers.take(4)
    d.modifiers.drop("sync", "aligned", "mma_async")
    matched = re.fullmatch(r"m64n(\d+)k(\d+)", shape)
    if not matched or first != second or first not in DEPTH or out != "f32" or int(matched[2]) != DEPTH[first]:
        raise d.modifiers.refused("the shape and types")
    numbers = [o.value for o in d.operands[4:] if isinstance(o, Immediate)]
    in_registers = isinstance(d.operand(1), Vector)
    if len(numbers) != (2 if first == "tf32" else 3 if in_registers else 4) or any(n not in (1, -1) for n in numbers[:2]):
        raise d.modifiers.refused("the constants at the end")
    turned = numbers[2:] if not in_registers else [0, *numbers[2:]]
    a, b = (bool(n) for n in (turned or [0, 0]))
    made = Form(int(matched[1]), DEPTH[first], first, numbers[0] * numbers[1], a, b)
    if made.columns % 8 or not 8 <= made.columns <= 256 or len(d.parts(0)) != made.columns // 2:
        raise d.modifiers.refused("the number of columns, or of registers for it,")
    return made


@control("wgmma.mma_async")
def product(d: Decoder) -> Taken:
    """`wgmma.mma_async.sync.aligned.m64nNkK.f32.type.type d, a, b, scale-d, …`: a warp waits for the other three."""
    f, m = form(d), d.machine
    if m.layout.padded % GROUP:
        raise d.modifiers.refused("a block that is not made of whole warpgroups (128 threads),")
    accumulators, stores = d.reads(0, F32), d.writes(0, F32)
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
        old = np.stack(accumulators)
        result = old.copy()
        for group in map(int, np.flatnonzero(full)):
            part = slice(group * GROUP, (group + 1) * GROUP)
            tile, pieces = operand_a(d, f, a, in_registers, part)
            other, more = tile_of(d, f, b[part], f.columns, f.transposed_b, part)
            warps = np.arange(4 * group, 4 * group + 4)
            if m.shadow is not None:
                column, clock = m.shadow.group_column(int(warps[0])), int(m.flights.committed[warps[0]]) + 1
                m.shadow.read_until_wait(d.i, np.concatenate([pieces, more]), part.start, warps, column, clock)
            m.flights.issue(d.i, warps, lambda number: Flight(written, read, d.i.modifiers[3], number))
            summed = registers(f.factor * (tile @ other.T))
            result[:, part] = summed + np.where(keep()[part], old[:, part], np.float32(0))
        finish(d, stores, result, ready)

    return taken


def constant(d: Decoder) -> Callable[[], Array]:
    fixed = d.read(3, PRED)
    return lambda: fixed


def finish(d: Decoder, stores: list[Store], result: Array, lanes: Array) -> None:
    before = d.machine.active
    d.machine.activate(lanes)
    for store, values in zip(stores, result, strict=True):
        store(values)
    d.machine.activate(before)


def operand_a(d: Decoder, f: Form, a: list[Array], in_registers: bool, part: slice) -> tuple[Array, Array]:
    """The tile (64, depth) in float32, and the pieces of shared memory it comes from."""
    if in_registers:
        return matrix_a(f.element, np.stack([x[part] for x in a])).reshape(64, f.depth), np.zeros(0, np.int64)
    return tile_of(d, f, a[0][part], 64, f.transposed_a, part)


def tile_of(d: Decoder, f: Form, raw: Array, rows: int, transposed: bool, part: slice) -> tuple[Array, Array]:
    """A tile (rows, depth) in float32 from a descriptor, which must be the same in all lanes, and the pieces it comes from."""
    m = d.machine
    if (raw != raw[0]).any():
        lane = part.start + int(np.flatnonzero(raw != raw[0])[0])
        raise m.layout.defect("divergence", "the descriptor differs inside the warpgroup", d.i, lane)
    descriptor = Descriptor.decode(int(raw[0]))
    if descriptor.base_offset:
        raise d.modifiers.refused("a descriptor with a base offset")
    chunks = descriptor.chunks(rows, f.depth, f.per_chunk, transposed)
    space = m.memories.spaces["shared"]
    flat = chunks.reshape(-1)
    at = space.locate(m.layout, d.i, flat, np.broadcast_to(np.int64(part.start), flat.shape), 16)
    element = np.dtype(np.uint32 if f.element == "tf32" else np.uint16)
    tile = f.values(np.ascontiguousarray(gather(space.data, at.reshape(chunks.shape), element, transposed)))
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

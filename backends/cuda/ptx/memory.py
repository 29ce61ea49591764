"""State spaces as byte arrays, with bounds and alignment of every access checked (PTX ISA, "State Spaces").

Generic addresses: global memory starts at 2^40, the other spaces have windows above 2^48.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from attngen.backends.cuda.ptx.layout import Layout
from attngen.backends.cuda.ptx.program import Program
from attngen.backends.cuda.ptx.shadow import Shadow
from attngen.backends.cuda.ptx.syntax import Instruction
from attngen.backends.cuda.ptx.types import Array

GLOBAL_BASE = 1 << 40
WINDOWS = {"shared": 1 << 48, "local": 1 << 49, "param": 1 << 50, "const": 1 << 51}
WINDOW_SIZE = 1 << 32
GUARD = 512
"""Bytes between two buffers, so that a small overrun does not reach the next one."""


@dataclass(frozen=True)
class Buffer:
    """An array in global memory: its first address, and how many bytes there are from there to its last one."""

    name: str
    address: int
    size: int


class Global:
    """Global memory, one copy for all blocks: buffers with gaps between them. A buffer need not own all bytes from its first to
    its last one: what lies between its runs of bytes is as much out of bounds as what lies behind it."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self.runs: list[tuple[Array, Array, Array]] = []
        """Of each buffer: where its runs begin and end, and what to add to their addresses to get offsets into `data`."""
        self.parts: list[tuple[int, Array]] = []
        self.top, self.size = GLOBAL_BASE, 0

    def reserve(self, size: int) -> int:
        """An address, a multiple of 256, from which on nobody owns so many bytes."""
        address = self.top
        self.top += -(-(size + GUARD) // 256) * 256
        return address

    def add(self, name: str, content: Array, address: int | None = None) -> Buffer:
        """Copy bytes in; the address is a multiple of 256 unless it is given."""
        address = self.reserve(content.size) if address is None else address
        place = self.put(content, address % 256)
        self.own(Buffer(name, address, content.size), np.array([address]), np.array([content.size]), np.array([place]))
        return self.buffers[-1]

    def put(self, content: Array, lead: int = 0) -> int:
        """Copy bytes in, and say where in `data` they are: at a multiple of 256, and `lead` more."""
        place = -(-self.size // 256) * 256 + lead
        self.parts.append((place, content))
        self.size = place + content.size
        return place

    def own(self, buffer: Buffer, first: Array, sizes: Array, places: Array) -> None:
        """Let a buffer own runs of bytes. places: where these are in `data`, at the same alignment as their addresses."""
        self.buffers.append(buffer)
        self.runs.append((first, first + sizes, places - first))

    def freeze(self) -> Array:
        """All buffers as one array, which is from now on where their bytes are."""
        data = np.zeros(self.size + GUARD, np.uint8)
        for number, (place, part) in enumerate(self.parts):
            data[place : place + part.size] = part
            self.parts[number] = place, data[place : place + part.size]
        nowhere = np.array([GLOBAL_BASE], np.int64)
        first, end, shift = (np.concatenate(x) for x in zip(*(self.runs or [(nowhere, nowhere, nowhere)]), strict=True))
        order = np.argsort(first, kind="stable")
        self.starts, self.ends, self.shifts = first[order], end[order], shift[order]
        return data

    def nearest(self, address: int) -> str:
        """The buffer at or before an address, in words."""
        before = [b for b in self.buffers if b.address <= address]
        b = max(before, key=lambda b: b.address, default=None)
        if b is None or address - b.address > b.size + (1 << 30):
            return "in no buffer"
        if address - b.address < b.size and len(self.runs[self.buffers.index(b)][0]) > 1:
            return f"{address - b.address} bytes after the start of {b.name}, between its elements"
        return f"{address - b.address} bytes after the start of {b.name}, which has {b.size}"


class Space:
    """A state space: bytes, and where the part of each lane starts.

    origin: per lane, the offset of its part (its block's for shared, its own for local); size: bytes of one part.
    """

    def __init__(self, name: str, data: Array, origin: Array, size: int, base: int = 0) -> None:
        self.name, self.data, self.origin, self.size, self.base = name, data, origin, size, base
        self.views: dict[np.dtype[np.generic], Array] = {}
        self.shadow: Shadow | None = None
        self.buffers: Global | None = None

    def view(self, dtype: np.dtype[np.generic]) -> Array:
        """The bytes as elements of another type."""
        if dtype not in self.views:
            usable = self.data.size // dtype.itemsize * dtype.itemsize
            self.views[dtype] = self.data[:usable].view(dtype)
        return self.views[dtype]

    def locate(self, layout: Layout, i: Instruction, address: Array, lanes: Array, width: int, align: int = 0) -> Array:
        """Offsets into `data` of accesses of `width` bytes, in bounds and aligned (to their width if not told)."""
        align = align or width
        if (address % align).any():
            j = int(np.flatnonzero(address % align)[0])
            why = f"an access of {width} bytes to {self.name} memory must be at a multiple of {align}"
            raise layout.defect("alignment", why, i, lanes[j], int(address[j]))
        if self.buffers is not None:
            owner = np.searchsorted(self.buffers.starts, address, side="right") - 1
            bad = (owner < 0) | (address + width > self.buffers.ends[owner])
            start = -self.buffers.shifts[owner]
        else:
            bad = (address < 0) | (address + width > self.size)
            start = self.base
        if bad.any():
            j = int(np.flatnonzero(bad)[0])
            where = self.buffers.nearest(int(address[j])) if self.buffers else f"beyond the {self.size} bytes that there are"
            why = f"{width} bytes of {self.name} memory, {where}"
            raise layout.defect("bounds", why, i, lanes[j], int(address[j]))
        return address - start + self.origin[lanes]


class Memories:
    """Every state space of a batch of blocks."""

    def __init__(self, program: Program, layout: Layout, shared: int, params: Array, heap: Global, data: Array) -> None:
        self.layout = layout
        n = layout.lanes
        nothing = np.zeros(n, np.int64)
        stride = -(-max(shared, 1) // 1024) * 1024
        local = -(-max(program.sizes["local"], 1) // 16) * 16
        # Memory that nobody wrote reads as 0xCB, so that no test passes by lucky zeros.
        self.spaces = {
            "global": Space("global", data, nothing, 0, GLOBAL_BASE),
            "shared": Space("shared", fresh(stride * len(layout.blocks)), layout.owner() * stride, shared),
            "local": Space("local", fresh(local * n), np.arange(n) * local, program.sizes["local"]),
            "param": Space("param", padded(params), nothing, params.size),
            "const": Space("const", padded(initial(program, "const")), nothing, program.sizes["const"]),
        }
        self.spaces["global"].buffers = heap
        self.stride = stride

    def split(self, space: str, address: Array, i: Instruction, lanes: Array) -> Iterator[tuple[Space, Array | None, Array]]:
        """The spaces that addresses lie in: space, which of the lanes (all if None), addresses in that space."""
        if space:
            yield self.spaces[space], None, address
            return
        for name, base in WINDOWS.items():
            inside = (address >= base) & (address < base + WINDOW_SIZE)
            if inside.all():
                yield self.spaces[name], None, address - base
                return
            if inside.any():
                chosen = np.flatnonzero(inside)
                yield self.spaces[name], chosen, address[chosen] - base
        outside = np.flatnonzero(address < WINDOWS["shared"])
        if outside.size == address.size:
            yield self.spaces["global"], None, address
        elif outside.size:
            yield self.spaces["global"], outside, address[outside]

    def load(
        self, i: Instruction, space: str, address: Array, lanes: Array, dtype: np.dtype[np.generic], count: int, strong: bool
    ) -> list[Array]:
        """`count` consecutive elements for each lane."""
        width = dtype.itemsize
        out: list[Array] = []
        for part, chosen, inner in self.split(space, address, i, lanes):
            who = lanes if chosen is None else lanes[chosen]
            at = part.locate(self.layout, i, inner, who, width * count)
            if part.shadow is not None:
                part.shadow.read(i, at, width * count, who, strong)
            cells, first = part.view(dtype), at // width
            if chosen is None:
                return [cells[first + j] for j in range(count)]
            out = out or [np.zeros(lanes.size, dtype) for _ in range(count)]
            for j in range(count):
                out[j][chosen] = cells[first + j]
        return out

    def store(self, i: Instruction, space: str, address: Array, lanes: Array, values: list[Array], strong: bool) -> None:
        """Write consecutive elements for each lane; where lanes of a warp overlap, the last one wins."""
        width, count = values[0].dtype.itemsize, len(values)
        for part, chosen, inner in self.split(space, address, i, lanes):
            who = lanes if chosen is None else lanes[chosen]
            at = part.locate(self.layout, i, inner, who, width * count)
            if part.name in ("param", "const"):
                raise self.layout.defect("bounds", f"{part.name} memory cannot be written", i, who[0], int(inner[0]))
            clash = None if part.shadow is None else part.shadow.write(i, at, width * count, who, strong)
            raw = np.dtype(f"u{width}")
            cells, first = part.view(raw), at // width
            given = [(value if chosen is None else value[chosen]).view(raw) for value in values]
            for j, value in enumerate(given):
                cells[first + j] = value
            if clash is not None and part.shadow is not None:
                lost = np.any([cells[first + j] != value for j, value in enumerate(given)], axis=0)
                part.shadow.check_clash(i, at, width * count, who, clash & lost)


def fresh(size: int) -> Array:
    return np.full(size, 0xCB, np.uint8)


def padded(data: Array) -> Array:
    """To a multiple of 16 bytes, so that every element type has a view of it."""
    return np.concatenate([data, np.zeros(-data.size % 16 or (16 if not data.size else 0), np.uint8)])


def initial(program: Program, space: str) -> Array:
    """The bytes of a space of constants."""
    data = np.zeros(program.sizes[space], np.uint8)
    for place in program.places.values():
        if place.space == space:
            content = np.frombuffer(place.variable.initial, np.uint8)
            data[place.offset : place.offset + content.size] = content
    return data

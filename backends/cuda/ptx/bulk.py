"""Bulk copies between global and shared memory (PTX ISA: cp.async.bulk, cp.async.bulk.tensor, commit_group, wait_group).

Copies into shared memory complete on an mbarrier, as late as the program allows. Copies out of it are carried out at once,
but what they read must not be overwritten until their group has been waited for.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attngen.backends.cuda.ptx.decode import Decoder, Effect
from attngen.backends.cuda.ptx.descriptors import swizzle
from attngen.backends.cuda.ptx.layout import WARP
from attngen.backends.cuda.ptx.machine import Machine
from attngen.backends.cuda.ptx.mbarriers import Landing
from attngen.backends.cuda.ptx.moves import CACHE
from attngen.backends.cuda.ptx.shadow import OPEN
from attngen.backends.cuda.ptx.syntax import Immediate, Memory
from attngen.backends.cuda.ptx.tensormaps import SIZE, Tiles, decode
from attngen.backends.cuda.ptx.types import S32, U32, Array


class BulkStores:
    """What each thread's copies out of shared memory still read: offsets of 16 bytes, by group."""

    def __init__(self, machine: Machine) -> None:
        self.m = machine
        self.reading: dict[int, list[tuple[int, Array]]] = {}
        self.committed = np.zeros(machine.layout.lanes, np.int64)

    def wait(self, kept: int) -> None:
        for lane in map(int, self.m.lanes):
            held = self.reading.pop(lane, [])
            done = [p for group, p in held if group < self.committed[lane] - kept]
            left = [(group, p) for group, p in held if group >= self.committed[lane] - kept]
            if left:
                self.reading[lane] = left
            if done and self.m.shadow is not None:
                none = np.zeros(0, np.int64)
                going_on = np.concatenate([none, *(p for _, p in left)])
                self.m.shadow.end_reads(lane, np.concatenate(done), going_on)


Source = Callable[[int], tuple[Array, Array, int, int]]
"""For a lane: addresses in global memory and which of them to touch, bytes at each, and the swizzling mode."""


def copy(d: Decoder) -> Effect:
    """`cp.async.bulk{.tensor.Nd}` in either direction between `.global` and `.shared`, within one block."""
    d.modifiers.drop("async", "bulk", "tile", *CACHE)
    tensor = d.modifiers.flag("tensor")
    rank = int((d.modifiers.choice("1d", "2d", "3d", "4d", "5d") or "0d")[0])
    spaces = [w.partition("::")[0] for w in d.modifiers.left[:2]]
    inward = spaces == ["shared", "global"]
    done = d.modifiers.choice("mbarrier::complete_tx::bytes", "bulk_group")
    if (not inward and spaces != ["global", "shared"]) or (done == "bulk_group") == inward or not done:
        raise d.modifiers.refused("the state spaces and how it completes")
    d.modifiers.drop("global", "shared::cluster", "shared::cta")
    shared = d.address(0 if inward else 1, "shared")
    source = tiles(d, 1 if inward else 0, rank) if tensor else plain(d, 1 if inward else 0)
    if not inward:
        return outward(d, shared, source)
    barrier, m = d.address(2 if tensor else 3, "shared"), d.machine

    def effect() -> None:
        starts, objects = shared(), barrier()
        for lane in map(int, m.lanes):
            addresses, inside, size, mode = source(lane)
            at = placed(d, lane, int(starts[lane]), addresses.size * size, mode)
            key = (int(m.owner[lane]), int(objects[lane]))
            clock = m.mbarriers.find(d.i, key, np.array([lane])).clock + 1
            data = np.zeros((addresses.size, size), np.uint8)
            data[inside] = m.memories.spaces["global"].data[reached(d, addresses[inside], lane, size)]
            receive(d, lane, at, data.reshape(-1, 16), key, clock)

    return effect


def receive(d: Decoder, lane: int, at: Array, data: Array, key: tuple[int, int], clock: int) -> None:
    """Queue data, chunks of 16 bytes, that lands at offsets `at` of shared memory when the mbarrier is waited for."""
    m = d.machine
    space, who = m.memories.spaces["shared"], np.full(at.size, lane)
    if m.shadow is not None:
        m.shadow.start_bulk(d.i, at, 16, who, m.shadow.column(*key), clock)
    where = at[:, None] + np.arange(16)
    space.data[where] = 0xCB

    def complete() -> None:
        space.data[where] = data
        if m.shadow is not None:
            m.shadow.end_copy(at, 16, who, waited=False)
        m.mbarriers.complete_bytes(key, data.size)

    m.mbarriers.queue.append(Landing(key, complete))


def outward(d: Decoder, shared: Callable[[], Array], target: Source) -> Effect:
    m = d.machine

    def effect() -> None:
        starts, space = shared(), m.memories.spaces["shared"]
        for lane in map(int, m.lanes):
            addresses, inside, size, mode = target(lane)
            at = placed(d, lane, int(starts[lane]), addresses.size * size, mode)
            if m.shadow is not None:
                pieces, _ = m.shadow.pieces(at, 16, at)
                m.shadow.read_until_wait(d.i, pieces, np.array([lane]), int(m.shadow.own[lane // WARP]), OPEN)
                m.bulk.reading.setdefault(lane, []).append((int(m.bulk.committed[lane]), pieces))
            data = space.data[at[:, None] + np.arange(16)].reshape(-1, size)
            m.memories.spaces["global"].data[reached(d, addresses[inside], lane, size)] = data[inside]

    return effect


def placed(d: Decoder, lane: int, start: int, size: int, mode: int) -> Array:
    """Offsets of the chunks of 16 bytes in shared memory, which tensor copies swizzle."""
    m, space = d.machine, d.machine.memories.spaces["shared"]
    align = 128 if "tensor" in d.i.modifiers else 16
    if start % align:
        raise m.layout.defect("alignment", f"a bulk copy needs shared memory at a multiple of {align}", d.i, lane, start)
    chunks = start + np.arange(0, size, 16)
    if mode:
        chunks = swizzle(chunks, mode)
    return space.locate(m.layout, d.i, chunks, np.full(chunks.size, lane), 16)


def reached(d: Decoder, addresses: Array, lane: int, size: int) -> Array:
    """Offsets into global memory, one row of `size` bytes per address."""
    m = d.machine
    at = m.memories.spaces["global"].locate(m.layout, d.i, addresses, np.full(addresses.size, lane), size)
    return at[:, None] + np.arange(size)


def plain(d: Decoder, operand: int) -> Source:
    """`[address]` with the size as third operand: chunks of 16 bytes, all of them."""
    address, size, m = d.address(operand, "global"), d.read(2, U32), d.machine

    def source(lane: int) -> tuple[Array, Array, int, int]:
        count = int(size[lane])
        if count % 16:
            raise m.layout.defect("alignment", f"a bulk copy of {count} bytes; expected a multiple of 16", d.i, lane)
        chunks = int(address()[lane]) + np.arange(0, count, 16, dtype=np.int64)
        return chunks, np.ones(chunks.size, bool), 16, 0

    return source


def tiles(d: Decoder, operand: int, rank: int) -> Source:
    """`[map, {x, y, …}]`: the elements of a box of a tensor map."""
    o, m = d.operand(operand), d.machine
    if not isinstance(o, Memory) or o.coordinates is None or len(o.coordinates.items) != rank:
        raise d.modifiers.refused("the coordinates")
    address, corner = d.address(operand), d.reads(o.coordinates, S32)

    def source(lane: int) -> tuple[Array, Array, int, int]:
        found = tensor_map(d, int(address()[lane]), lane)
        if len(found.box) != rank:
            raise m.layout.defect("bounds", f"the tensor map has {len(found.box)} axes, not {rank}", d.i, lane)
        addresses, inside = found.addresses([int(x[lane]) for x in corner])
        return addresses, inside, found.element, found.swizzle

    return source


def tensor_map(d: Decoder, address: int, lane: int) -> Tiles:
    m, one = d.machine, np.array([lane])
    ((part, _, inner),) = m.memories.split("", np.array([address]), d.i, one)
    at = int(part.locate(m.layout, d.i, inner, one, SIZE, align=64)[0])
    found = decode(part.data[at : at + SIZE].tobytes())
    if found is None:
        raise m.layout.defect("bounds", "there is no tensor map of the interpreter's at this address", d.i, lane, address)
    return found


def commit(d: Decoder) -> Effect:
    """`cp.async.bulk.commit_group`."""
    d.modifiers.drop("async", "bulk", "commit_group")
    m = d.machine

    def effect() -> None:
        m.bulk.committed[m.lanes] += 1

    return effect


def wait(d: Decoder) -> Effect:
    """`cp.async.bulk.wait_group{.read} n`."""
    d.modifiers.drop("async", "bulk", "wait_group", "read")
    kept, m = d.operand(0), d.machine
    if not isinstance(kept, Immediate):
        raise d.modifiers.refused("the number of groups")
    left = kept.value
    return lambda: m.bulk.wait(left)

"""Mbarrier objects and what completes on them (PTX ISA, "Parallel Synchronization: mbarrier").

An object is kept beside shared memory, under the address of its 8 bytes. Its phase is the number of phases completed, so a
state token of a phase is that number. `try_wait` says "not yet" once before it blocks, so that a program without a loop
around it is found out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from attngen.backends.cuda.ptx.layout import WARP
from attngen.backends.cuda.ptx.machine import Machine
from attngen.backends.cuda.ptx.shadow import PASSED, joined
from attngen.backends.cuda.ptx.syntax import Instruction
from attngen.backends.cuda.ptx.types import Array

Key = tuple[int, int]
"""Block of the batch, and address in its shared memory."""
MOST = (1 << 20) - 1
"""The largest count of arrivals."""


@dataclass
class Mbarrier:
    """count: arrivals of a phase; pending: those still to come; bytes: of copies still to come; phase: phases completed.

    released: what arrivals of this phase knew; known: what a thread knows that has seen the last phase end. before: phases
    of earlier objects at this address, so that clocks never go back. waits: for each warp that waited by parity, its last wait:
    for which phase, when, and where.
    """

    count: int
    pending: int
    bytes: int = 0
    phase: int = 0
    released: Array | None = None
    known: Array | None = None
    before: int = 0
    waits: dict[int, Wait] = field(default_factory=dict[int, "Wait"])

    @property
    def clock(self) -> int:
        return self.before + self.phase


@dataclass(frozen=True)
class Wait:
    phase: int
    time: int
    i: Instruction
    lane: int


@dataclass(frozen=True)
class Landing:
    """An asynchronous operation under way, and what is to be done when it completes."""

    key: Key
    complete: Callable[[], None]


class Mbarriers:
    def __init__(self, machine: Machine) -> None:
        self.m = machine
        self.objects: dict[Key, Mbarrier] = {}
        self.queue: list[Landing] = []
        self.asked: dict[int, Key] = {}
        self.past: dict[Key, int] = {}

    def groups(self, lanes: Array, address: Array) -> list[tuple[Key, Array]]:
        """Lanes (numbers) by the object they mean."""
        stride = self.m.memories.stride
        where = self.m.owner[lanes] * stride + address[lanes]
        return [((int(w) // stride, int(w) % stride), lanes[where == w]) for w in np.unique(where)]

    def find(self, i: Instruction, key: Key, lanes: Array) -> Mbarrier:
        """The object of a key, for these lanes, to whom it must be known."""
        if key not in self.objects:
            raise self.m.layout.defect("mbarrier", "there is no mbarrier here: it was not initialised", i, lanes[0], key[1])
        if self.m.shadow is not None:
            self.m.shadow.use(i, self.offset(i, key, lanes), lanes)
        return self.objects[key]

    def offset(self, i: Instruction, key: Key, lanes: Array) -> Array:
        """Where its 8 bytes lie in shared memory: at a multiple of 8."""
        address = np.broadcast_to(np.int64(key[1]), lanes.shape)
        return self.m.memories.spaces["shared"].locate(self.m.layout, i, address, lanes, 8)

    def init(self, i: Instruction, lanes: Array, address: Array, count: Array) -> None:
        for key, group in self.groups(lanes, address):
            at, n = self.offset(i, key, group), int(count[group[0]])
            if not 1 <= n <= MOST:
                raise self.m.layout.defect("mbarrier", f"the count {n} is not within 1 to {MOST}", i, group[0], key[1])
            if self.m.shadow is not None:
                self.m.shadow.create(i, at, group)
            self.objects[key] = Mbarrier(n, n, before=self.past.get(key, 0))

    def invalidate(self, i: Instruction, lanes: Array, address: Array) -> None:
        for key, group in self.groups(lanes, address):
            self.find(i, key, group)
            if self.m.shadow is not None:
                self.m.shadow.use(i, self.offset(i, key, group), group, last=True)
            self.past[key] = self.objects.pop(key).clock

    def expect(self, i: Instruction, lanes: Array, address: Array, size: Array) -> None:
        """More bytes are to come in this phase."""
        for key, group in self.groups(lanes, address):
            self.find(i, key, group).bytes += int(size[group].astype(np.int64).sum())

    def arrive(self, i: Instruction, lanes: Array, address: Array, count: Array, drop: bool = False) -> Array:
        """Arrivals; the number of the phase before them, per lane of the machine. drop: of the phases to come too."""
        m = self.m
        token = np.zeros(m.layout.lanes, np.uint64)
        for key, group in self.groups(lanes, address):
            b = self.find(i, key, group)
            token[group] = b.phase
            self.note(b, self.known_to(group))
            n = int(count[group].astype(np.int64).sum())
            b.count -= n if drop else 0
            self.subtract(i, key, b, n, int(group[0]))
        return token

    def known_to(self, lanes: Array) -> Array | None:
        """What the warps of these lanes know now, to hand on; what they do next is not part of it."""
        shadow = self.m.shadow
        return None if shadow is None else shadow.release(lanes)

    def note(self, b: Mbarrier, rows: Array | None) -> None:
        if rows is not None:
            b.released = rows if b.released is None else joined(b.released, rows)

    def arrive_later(self, i: Instruction, key: Key, n: int, lane: int, rows: Array | None) -> None:
        """Arrivals that copies make when they land, with what was known when they were asked for."""
        if (b := self.objects.get(key)) is not None:
            self.note(b, rows)
            self.subtract(i, key, b, n, lane)

    def subtract(self, i: Instruction, key: Key, b: Mbarrier, n: int, lane: int) -> None:
        b.pending -= n
        if b.pending < 0:
            raise self.m.layout.defect("mbarrier", f"more arrivals than the {b.count} it expects in a phase", i, lane, key[1])
        self.settle(key, b)

    def complete_bytes(self, key: Key, size: int) -> None:
        """A copy has written this many bytes."""
        b = self.objects.get(key)
        if b is not None:
            b.bytes -= size
            self.settle(key, b)

    def settle(self, key: Key, b: Mbarrier) -> None:
        """End the phase if nothing is missing, and wake those who wait for it."""
        if b.pending or b.bytes:
            return
        b.phase += 1
        b.pending = b.count
        m = self.m
        if m.shadow is not None:
            column = m.shadow.column(*key)
            row = np.zeros((3, column + 1), np.int32)
            row[:, column] = b.clock
            for more in (b.known, b.released):
                row = row if more is None else joined(row, more)
            b.known, b.released = row, None
            for warp, wait in b.waits.items():
                if wait.phase == b.phase - 2 and row[PASSED, m.shadow.own[warp]] < wait.time:
                    why = (
                        "the phase after the one waited for can end before this thread has looked, which then waits for another"
                    )
                    raise m.layout.defect("mbarrier", why, wait.i, wait.lane, key[1])
        for lane in [lane for lane, asked in self.asked.items() if asked == key]:
            m.blocked[lane] = False
            del self.asked[lane]

    def test(self, i: Instruction, lanes: Array, address: Array, token: Array, parity: bool) -> Array:
        """Which lanes (of the machine) find the phase of their token, or of this parity, completed. Those acquire it."""
        m = self.m
        passed = np.zeros(m.layout.lanes, bool)
        for key, group in self.groups(lanes, address):
            b = self.find(i, key, group)
            given = token[group].astype(np.int64)
            ok = np.not_equal(given & 1, b.phase & 1) if parity else np.less(given, b.phase)
            passed[group] = ok
            if ok.any() and m.shadow is not None and b.known is not None:
                m.shadow.acquire(group[ok], b.known)
            if parity and m.shadow is not None:
                warps, first = np.unique(group[ok] // WARP, return_index=True)
                for warp, lane in zip(map(int, warps), group[ok][first], strict=True):
                    b.waits[warp] = Wait(b.phase - 1, int(m.shadow.time[warp]), i, int(lane))
        return passed

    def progress(self, asked: set[Key] | None = None) -> bool:
        """Land what blocked lanes wait for, or else the oldest of all. Whether anything landed."""
        wanted = set(self.asked.values()) if asked is None else asked
        chosen = [x for x in self.queue if x.key in wanted]
        if not chosen and asked is None:
            chosen = self.queue[:1]
        self.queue = [x for x in self.queue if all(x is not y for y in chosen)]
        for landing in chosen:
            landing.complete()
        return bool(chosen)

"""What happened to each piece of shared memory, and who may know of it: races, unwritten and unfinished data.

Ordering is tracked with vector clocks (happens-before), so that a race is found whatever the order in which the interpreter
ran the warps. Warps are the units: what lanes of one warp do to each other is taken to follow program order. Besides warps,
every mbarrier has a clock of its own, that of the asynchronous copies which complete on it, and so has every warpgroup, that
of its groups of wgmma. Barriers and mbarriers carry clocks from one warp to another; other ways of synchronising through
shared memory are not understood.

Two clocks are kept for each warp: what it has seen, and what of that a proxy fence has made visible to the async proxy
(PTX ISA, "Memory Consistency Model", "Proxies").
"""

from __future__ import annotations

import numpy as np

from attngen.backends.cuda.ptx.errors import Defect
from attngen.backends.cuda.ptx.layout import Layout
from attngen.backends.cuda.ptx.syntax import Instruction
from attngen.backends.cuda.ptx.types import Array

ORDINARY, ASYNC = 0, 1
"""Index of `seen`: ordinary accesses, accesses by the async proxy."""
OPEN = 1 << 30
"""Clock of a read that goes on until a wait; nobody has seen it."""
COPY, BULK, OBJECT = 1, 2, 3
"""Why a piece must not be touched: cp.async, a bulk copy that completes on an mbarrier, or an mbarrier itself."""
PENDING = {
    COPY: ("async", "cp.async has not been waited for"),
    BULK: ("async", "a bulk copy into it has not completed"),
    OBJECT: ("mbarrier", "an mbarrier lies there that was not invalidated"),
}


class Shadow:
    """granule: bytes per piece, the width of the narrowest access of the program."""

    def __init__(self, layout: Layout, stride: int, granule: int) -> None:
        self.layout, self.stride, self.granule = layout, stride, granule
        self.warps = layout.warps
        self.width = layout.warps + layout.warps // 4
        pieces = stride * len(layout.blocks) // granule
        self.pending = np.zeros(pieces, np.uint8)
        self.written = np.zeros(pieces, np.int32)
        self.writer = np.zeros(pieces, np.int16)
        self.write_line = np.zeros(pieces, np.int32)
        self.readers = np.zeros((pieces, self.width), np.int32)
        self.read_line = np.zeros(pieces, np.int32)
        warps = layout.warps * len(layout.blocks)
        self.own = np.arange(warps) % layout.warps
        self.seen = np.zeros((2, warps, self.width), np.int32)
        self.seen[ORDINARY, np.arange(warps), self.own] = 1
        self.columns: dict[tuple[int, int], int] = {}

    def column(self, block: int, address: int) -> int:
        """The column of an mbarrier's clock."""
        key = (block, address)
        if key not in self.columns:
            self.columns[key] = self.width + sum(b == block for b, _ in self.columns)
            if self.columns[key] >= self.seen.shape[2]:
                self.seen = np.concatenate([self.seen, np.zeros((*self.seen.shape[:2], 8), np.int32)], axis=2)
        return self.columns[key]

    def pieces(self, at: Array, width: int, warps: Array) -> tuple[Array, Array]:
        """Piece numbers and warps, one per piece touched."""
        if width == self.granule:
            return at // width, warps
        n = -(-width // self.granule)
        return (at[:, None] // self.granule + np.arange(n)).ravel(), np.repeat(warps, n)

    def clock(self, warps: Array) -> Array:
        return self.seen[ORDINARY, warps, self.own[warps]]

    def read(self, i: Instruction, at: Array, width: int, lanes: Array, strong: bool = False, proxy: int = ORDINARY) -> None:
        """Ordinary reads by lanes. strong: volatile, relaxed or acquire; those do not race."""
        piece, warp = self.pieces(at, width, lanes // 32)
        self.check_finished(i, piece, lanes, "read")
        self.check_initialised(i, piece, lanes)
        if strong:
            return
        self.check_written(i, piece, warp, lanes, "read", proxy)
        self.readers[piece, self.own[warp]] = self.clock(warp)
        self.read_line[piece] = i.loc.line

    def read_until_wait(self, i: Instruction, piece: Array, lane: int, group: Array, column: int, clock: int) -> None:
        """Reads for warps, by the async proxy, that may happen until someone has seen this clock in this column."""
        lanes = np.array([lane])
        self.check_finished(i, piece, lanes, "read")
        self.check_initialised(i, piece, lanes)
        for one in group:
            self.check_written(i, piece, np.full(piece.size, one), lanes, "read", ASYNC)
        self.readers[piece, column] = clock
        self.read_line[piece] = i.loc.line

    def group_column(self, warp: int) -> int:
        """The column of the clock of a warp's warpgroup, which counts the groups of wgmma that are complete."""
        return self.warps + int(self.own[warp]) // 4

    def end_group(self, warp: int, number: int) -> None:
        """A warp has waited for so many groups of its warpgroup; they are complete for all of its warps."""
        column = self.group_column(warp)
        self.seen[ORDINARY, warp, column] = max(self.seen[ORDINARY, warp, column], number)

    def end_reads(self, warp: int, finished: Array, going_on: Array) -> None:
        """A warp has waited: reads of `finished` pieces are over, those of `going_on` are not."""
        self.readers[finished, self.own[warp]] = self.clock(np.array([warp]))[0]
        self.readers[going_on, self.own[warp]] = OPEN

    def write(self, i: Instruction, at: Array, width: int, lanes: Array, strong: bool = False) -> Array | None:
        """Ordinary writes by lanes. Which of them meet another warp's write in the same instruction; None if none does."""
        piece, warp = self.pieces(at, width, lanes // 32)
        self.check_finished(i, piece, lanes, "overwritten")
        if not strong:
            self.check_overwrite(i, piece, warp, lanes)
        self.set_written(i, piece, self.own[warp], self.clock(warp))
        clash = self.writer[piece] != self.own[warp]
        if strong or not clash.any():
            return None
        return np.asarray(np.isin(piece, piece[clash]).reshape(lanes.size, -1).any(axis=1))

    def check_clash(self, i: Instruction, at: Array, width: int, lanes: Array, lost: Array) -> None:
        """Warps may write the same place at once only if they write the same."""
        if lost.any():
            piece, _ = self.pieces(at, width, lanes)
            why = "two warps write different values to the same shared memory in this instruction"
            raise self.found("race", why, i, piece, np.repeat(lost, piece.size // lanes.size), lanes)

    def update(self, i: Instruction, at: Array, width: int, lanes: Array) -> None:
        """Atomic updates: ordered with ordinary accesses only through barriers, free among themselves."""
        piece, warp = self.pieces(at, width, lanes // 32)
        self.check_finished(i, piece, lanes, "updated")
        self.check_initialised(i, piece, lanes)
        self.check_written(i, piece, warp, lanes, "updated", ORDINARY)
        self.readers[piece, self.own[warp]] = self.clock(warp)
        self.read_line[piece] = i.loc.line

    def start_copy(self, i: Instruction, at: Array, width: int, lanes: Array, why: int, columns: Array, clocks: Array) -> None:
        """An asynchronous write begins. columns, clocks: per lane, what a reader must have seen to use the data."""
        piece, warp = self.pieces(at, width, lanes // 32)
        self.check_finished(i, piece, lanes, "overwritten")
        self.check_overwrite(i, piece, warp, lanes)
        n = piece.size // max(1, lanes.size)
        self.set_written(i, piece, np.repeat(columns, n), np.repeat(clocks, n))
        self.pending[piece] = why

    def end_copy(self, at: Array, width: int, lanes: Array, by_warp: bool) -> None:
        """The data has arrived. by_warp: the lanes waited for it themselves and count as its writers from now on."""
        piece, warp = self.pieces(at, width, lanes // 32)
        self.pending[piece] = 0
        if by_warp:
            self.writer[piece], self.written[piece] = self.own[warp], self.clock(warp)

    def follow(self, at: Array, width: int, column: int, clock: int) -> None:
        """Copies under way will be known to those who see an mbarrier's phase."""
        piece, _ = self.pieces(at, width, at)
        self.writer[piece], self.written[piece] = column, clock

    def create(self, i: Instruction, at: Array, lanes: Array) -> None:
        """An mbarrier is made, which counts as a write."""
        self.write(i, at, 8, lanes)
        piece, _ = self.pieces(at, 8, lanes)
        self.pending[piece] = OBJECT

    def use(self, i: Instruction, at: Array, lanes: Array, last: bool = False) -> None:
        """An mbarrier is used, after it was made; `last`: for the last time, after all other uses."""
        piece, warp = self.pieces(at, 8, lanes // 32)
        self.check_written(i, piece, warp, lanes, "used as an mbarrier", ORDINARY)
        if last:
            self.pending[piece] = 0
            self.write(i, at, 8, lanes)
            self.written[piece] = 0
        else:
            self.readers[piece, self.own[warp]] = self.clock(warp)
            self.read_line[piece] = i.loc.line

    def set_written(self, i: Instruction, piece: Array, column: Array, clock: Array) -> None:
        self.writer[piece], self.written[piece], self.write_line[piece] = column, clock, i.loc.line

    def check_initialised(self, i: Instruction, piece: Array, lanes: Array) -> None:
        unwritten = self.written[piece] == 0
        if unwritten.any():
            raise self.found("unwritten", "shared memory that nobody wrote is read", i, piece, unwritten, lanes)

    def check_finished(self, i: Instruction, piece: Array, lanes: Array, verb: str) -> None:
        bad = self.pending[piece] != 0
        if bad.any():
            first = piece[np.flatnonzero(bad)[0]]
            kind, what = PENDING[int(self.pending[first])]
            why = f"shared memory is {verb} while {what} (line {self.write_line[first]})"
            raise self.found(kind, why, i, piece, bad, lanes)

    def check_written(self, i: Instruction, piece: Array, warp: Array, lanes: Array, verb: str, proxy: int) -> None:
        """Whether each warp has seen the last write of each piece."""
        column = self.writer[piece]
        # What an mbarrier's copies wrote is in the async proxy already.
        known = self.seen[ORDINARY, warp, column] >= self.written[piece]
        if not known.all():
            first = int(np.flatnonzero(~known)[0])
            line = self.write_line[piece[first]]
            if column[first] >= self.width:
                why = f"shared memory is {verb} without waiting on the mbarrier of the copy at line {line}"
                raise self.found("async", why, i, piece, ~known, lanes)
            why = f"shared memory is {verb} that another warp wrote at line {line}, with no barrier between"
            raise self.found("race", why, i, piece, ~known, lanes)
        if proxy == ASYNC:
            visible = (self.seen[ASYNC, warp, column] >= self.written[piece]) | (column >= self.width)
            if not visible.all():
                line = self.write_line[piece[np.flatnonzero(~visible)[0]]]
                why = f"the async proxy reads what was written at line {line} with no fence.proxy.async after it"
                raise self.found("race", why, i, piece, ~visible, lanes)

    def check_overwrite(self, i: Instruction, piece: Array, warp: Array, lanes: Array) -> None:
        """Whether each warp has seen the last write and all reads of each piece."""
        fresh = self.written[piece] == 0
        if fresh.all():
            return
        self.check_written(i, piece, warp, lanes, "overwritten", ORDINARY)
        unseen = self.readers[piece] > self.seen[ORDINARY, warp, : self.width]
        bad = unseen.any(axis=1)
        if bad.any():
            worst = int(np.flatnonzero(bad)[0])
            first = piece[worst]
            going_on = bool(unseen[worst, self.warps :].any() or np.equal(self.readers[first], OPEN).any())
            what = "an asynchronous instruction reads" if going_on else "another warp read"
            why = f"shared memory is overwritten that {what} at line {self.read_line[first]}"
            why += ", with no wait_group between" if going_on else ", with no barrier between"
            raise self.found("async" if going_on else "race", why, i, piece, np.asarray(bad), lanes)

    def found(self, kind: str, why: str, i: Instruction, piece: Array, bad: Array, lanes: Array) -> Defect:
        j = int(np.flatnonzero(bad)[0])
        lane = int(lanes[j // max(1, piece.size // max(1, lanes.size))])
        return self.layout.defect(kind, why, i, lane, int(piece[j]) * self.granule % self.stride)

    def release(self, warps: Array) -> Array:
        """What these warps have seen, one row of both clocks each; what they do next is not part of it."""
        rows = self.seen[:, warps].copy()
        self.seen[ORDINARY, warps, self.own[warps]] += 1
        return rows

    def acquire(self, warps: Array, rows: Array) -> None:
        """These warps now know what `rows` (2, columns), or one such row per warp, tell."""
        rows = rows if rows.ndim == 3 else rows[:, None]
        n = rows.shape[2]
        self.seen[:, warps, :n] = np.maximum(self.seen[:, warps, :n], rows)

    def proxy_fence(self, warps: Array) -> None:
        """All that these warps have seen becomes visible to the async proxy."""
        self.seen[ASYNC, warps] = np.maximum(self.seen[ASYNC, warps], self.seen[ORDINARY, warps])
        self.seen[ORDINARY, warps, self.own[warps]] += 1


def joined(a: Array, b: Array) -> Array:
    """The later of two clocks; one may have more columns."""
    if a.shape[-1] < b.shape[-1]:
        a, b = b, a
    a = a.copy()
    a[..., : b.shape[-1]] = np.maximum(a[..., : b.shape[-1]], b)
    return a

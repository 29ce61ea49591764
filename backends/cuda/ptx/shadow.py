"""What happened to each piece of shared memory, and who may know of it: races, unwritten and unfinished data.

Ordering is tracked with vector clocks (happens-before), so that a race is found whatever the order in which the interpreter
ran the lanes. Accesses are stamped with the clock of their warp; what has been seen of them is known for each lane. Besides
warps, every mbarrier has a clock of its own, that of the asynchronous copies which complete on it, and so has every warpgroup,
that of its groups of wgmma. Barriers (of the block and of a warp) and mbarriers carry clocks from lanes to lanes; other ways of
synchronising through shared memory are not understood.

Three rows are kept for each lane: what it has seen, what of that a proxy fence has made visible to the async proxy (PTX ISA,
"Memory Consistency Model", "Proxies"), and how far warps are known to have come, which waiting for a group of wgmma tells too.
"""

from __future__ import annotations

import numpy as np

from attngen.backends.cuda.ptx.errors import Defect
from attngen.backends.cuda.ptx.layout import WARP, Layout
from attngen.backends.cuda.ptx.syntax import Instruction
from attngen.backends.cuda.ptx.types import Array

ORDINARY, ASYNC, PASSED = 0, 1, 2
"""Index of `seen`: ordinary accesses, accesses by the async proxy, instructions."""
OPEN = 1 << 30
"""Clock of a read that goes on until a wait; nobody has seen it."""
NOBODY = -1
"""In place of the lane that wrote: a copy did."""
MANY = -2
"""In place of the lane that read, less the number of its warp: several lanes of the warp did."""
COPY, BULK, OBJECT = 1, 2, 3
"""Why a piece must not be touched: cp.async, a bulk copy that completes on an mbarrier, or an mbarrier itself."""
PENDING = {
    COPY: ("async", "cp.async has not been waited for"),
    BULK: ("async", "a bulk copy into it has not completed"),
    OBJECT: ("mbarrier", "an mbarrier lies there that was not invalidated"),
}


class Shadow:
    """granule: bytes per piece, the width of the narrowest access of the program.

    time: of each warp. fresh: lanes with accesses that some lane of their warp has not seen, the last of them at `last`.
    """

    def __init__(self, layout: Layout, stride: int, granule: int) -> None:
        self.layout, self.stride, self.granule = layout, stride, granule
        self.warps = layout.warps
        self.width = layout.warps + layout.warps // 4
        pieces = stride * len(layout.blocks) // granule
        self.pending = np.zeros(pieces, np.uint8)
        self.written = np.zeros(pieces, np.int32)
        self.writer = np.zeros(pieces, np.int16)
        self.writing_lane = np.zeros(pieces, np.int32)
        self.write_line = np.zeros(pieces, np.int32)
        self.readers = np.zeros((pieces, self.width), np.int32)
        self.read_line = np.zeros(pieces, np.int32)
        # The lane that read last, or waited for a bulk copy that did, since it was written.
        self.reading_lane = np.full(pieces, NOBODY, np.int32)
        warps = layout.warps * len(layout.blocks)
        self.own = np.arange(warps) % layout.warps
        self.time = np.ones(warps, np.int32)
        self.last = np.zeros(warps, np.int32)
        self.fresh = np.zeros(layout.lanes, bool)
        self.fenced = np.zeros(layout.lanes, np.int32)
        self.missing = ~layout.exists()
        self.seen = np.zeros((3, layout.lanes, self.width), np.int32)
        self.columns: dict[tuple[int, int], int] = {}

    def column(self, block: int, address: int) -> int:
        """The column of an mbarrier's clock."""
        key = (block, address)
        if key not in self.columns:
            self.columns[key] = self.width + sum(b == block for b, _ in self.columns)
            if self.columns[key] >= self.seen.shape[2]:
                self.seen = np.concatenate([self.seen, np.zeros((*self.seen.shape[:2], 8), np.int32)], axis=2)
        return self.columns[key]

    def pieces(self, at: Array, width: int, lanes: Array) -> tuple[Array, Array]:
        """Piece numbers and lanes, one per piece touched."""
        if width == self.granule:
            return at // width, lanes
        n = -(-width // self.granule)
        return (at[:, None] // self.granule + np.arange(n)).ravel(), np.repeat(lanes, n)

    def stamp(self, lanes: Array) -> Array:
        """The time of accesses by lanes, which from now on are to be made known."""
        warps = lanes // WARP
        time = self.time[warps]
        self.fresh[lanes] = True
        self.last[warps] = time
        return time

    def read(self, i: Instruction, at: Array, width: int, lanes: Array, strong: bool = False) -> None:
        """Ordinary reads by lanes. strong: volatile, relaxed or acquire; those do not race."""
        piece, lane = self.pieces(at, width, lanes)
        self.check_finished(i, piece, lanes, "read")
        self.check_initialised(i, piece, lanes)
        if strong:
            return
        self.check_written(i, piece, lane, lanes, "read")
        self.note_readers(piece, lane)
        self.read_line[piece] = i.loc.line

    def note_readers(self, piece: Array, lane: Array) -> None:
        own = self.own[lane // WARP]
        earlier = self.read_by_others(piece, lane) & (self.readers[piece, own] > self.seen[ORDINARY, lane, own])
        self.readers[piece, own] = self.stamp(lane)
        self.reading_lane[piece] = lane
        several = earlier | (self.reading_lane[piece] != lane)
        if several.any():
            self.reading_lane[piece[several]] = MANY - lane[several] // WARP

    def read_by_others(self, piece: Array, lane: Array) -> Array:
        """Which pieces another lane of a lane's warp was the last to read."""
        last, warp = self.reading_lane[piece], lane // WARP
        return (last != lane) & (last // WARP == warp) | (last == MANY - warp)

    def read_until_wait(self, i: Instruction, piece: Array, lanes: Array, column: int, clock: int) -> None:
        """Reads by the async proxy, for lanes, that may happen until someone has seen this clock in this column."""
        one = lanes[:1]
        self.check_finished(i, piece, one, "read")
        self.check_initialised(i, piece, one)
        for warp in np.unique(lanes // WARP):
            # A warp asks for it together: what one of its lanes knows is enough.
            known = self.seen[:, lanes[lanes // WARP == warp]].max(axis=1)
            self.check_written(i, piece, np.full(piece.size, one[0]), one, "read", ASYNC, known)
        self.readers[piece, column] = clock
        self.read_line[piece] = i.loc.line

    def group_column(self, warp: int) -> int:
        """The column of the clock of a warp's warpgroup, which counts the groups of wgmma that are complete."""
        return self.warps + int(self.own[warp]) // 4

    def passed(self, lanes: Array) -> Array:
        """How far warps have come, at least, when these lanes are where they are."""
        row = self.seen[PASSED, lanes].max(axis=0)
        warps = np.unique(lanes // WARP)
        row[self.own[warps]] = self.time[warps]
        return row

    def pass_on(self, lanes: Array, row: Array) -> None:
        n = row.size
        self.seen[PASSED, lanes, :n] = np.maximum(self.seen[PASSED, lanes, :n], row)

    def end_group(self, lanes: Array, number: int) -> None:
        """Lanes of one warp have waited for so many groups of its warpgroup; they are complete for all of its warps."""
        column = self.group_column(int(lanes[0]) // WARP)
        self.seen[ORDINARY, lanes, column] = np.maximum(self.seen[ORDINARY, lanes, column], number)

    def end_reads(self, lane: int, finished: Array, going_on: Array) -> None:
        """A lane has waited: reads of `finished` pieces are over, those of `going_on` are not."""
        own = self.own[lane // WARP]
        self.readers[finished, own] = self.stamp(np.array([lane]))[0]
        self.readers[going_on, own] = OPEN
        self.reading_lane[finished] = lane

    def write(self, i: Instruction, at: Array, width: int, lanes: Array, strong: bool = False) -> Array | None:
        """Ordinary writes by lanes. Which of them meet another warp's write in the same instruction; None if none does."""
        piece, lane = self.pieces(at, width, lanes)
        self.check_finished(i, piece, lanes, "overwritten")
        if not strong:
            self.check_overwrite(i, piece, lane, lanes)
        own = self.own[lane // WARP]
        self.set_written(i, piece, own, self.stamp(lane), lane)
        clash = self.writer[piece] != own
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
        piece, lane = self.pieces(at, width, lanes)
        self.check_finished(i, piece, lanes, "updated")
        self.check_initialised(i, piece, lanes)
        self.check_written(i, piece, lane, lanes, "updated")
        self.readers[piece, self.own[lane // WARP]] = self.stamp(lane)
        self.read_line[piece] = i.loc.line

    def start_copy(self, i: Instruction, at: Array, width: int, lanes: Array) -> None:
        """`cp.async` by lanes begins."""
        piece, lane = self.pieces(at, width, lanes)
        self.check_finished(i, piece, lanes, "overwritten")
        self.check_overwrite(i, piece, lane, lanes)
        self.set_written(i, piece, self.own[lane // WARP], self.stamp(lane), lane)
        self.pending[piece] = COPY

    def start_bulk(self, i: Instruction, at: Array, width: int, lanes: Array, column: int, clock: int) -> None:
        """A bulk copy begins. column, clock: of its mbarrier, what a reader must have seen to use the data."""
        piece, lane = self.pieces(at, width, lanes)
        self.check_finished(i, piece, lanes, "overwritten")
        self.check_overwrite(i, piece, lane, lanes, ASYNC)
        self.set_written(i, piece, column, clock, NOBODY)
        self.pending[piece] = BULK

    def end_copy(self, at: Array, width: int, lanes: Array, waited: bool) -> None:
        """The data has arrived. waited: the lanes waited for it themselves and count as its writers from now on."""
        piece, lane = self.pieces(at, width, lanes)
        self.pending[piece] = 0
        if waited:
            self.writer[piece], self.written[piece] = self.own[lane // WARP], self.stamp(lane)
            self.writing_lane[piece] = lane

    def follow(self, at: Array, width: int, column: int, clock: int) -> None:
        """Copies under way will be known to those who see an mbarrier's phase."""
        piece, _ = self.pieces(at, width, at)
        self.writer[piece], self.written[piece], self.writing_lane[piece] = column, clock, NOBODY

    def create(self, i: Instruction, at: Array, lanes: Array) -> None:
        """An mbarrier is made, which counts as a write."""
        self.write(i, at, 8, lanes)
        piece, _ = self.pieces(at, 8, lanes)
        self.pending[piece] = OBJECT

    def use(self, i: Instruction, at: Array, lanes: Array, last: bool = False) -> None:
        """An mbarrier is used, after it was made; `last`: for the last time, after all other uses."""
        piece, lane = self.pieces(at, 8, lanes)
        self.check_written(i, piece, lane, lanes, "used as an mbarrier")
        if last:
            self.pending[piece] = 0
            self.write(i, at, 8, lanes)
            self.written[piece] = 0
        else:
            self.readers[piece, self.own[lane // WARP]] = self.time[lane // WARP]
            self.read_line[piece] = i.loc.line

    def set_written(self, i: Instruction, piece: Array, column: Array | int, clock: Array | int, lane: Array | int) -> None:
        self.writer[piece], self.written[piece], self.write_line[piece] = column, clock, i.loc.line
        self.writing_lane[piece], self.reading_lane[piece] = lane, NOBODY

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

    def check_written(
        self,
        i: Instruction,
        piece: Array,
        lane: Array,
        lanes: Array,
        verb: str,
        proxy: int = ORDINARY,
        known: Array | None = None,
    ) -> None:
        """Whether each lane has seen the last write of each piece. known: what all lanes have seen, if they share it."""
        column, written, own = self.writer[piece], self.written[piece], self.writing_lane[piece] == lane
        told = self.seen[ORDINARY, lane, column] if known is None else known[ORDINARY, column]
        unknown = (told < written) & ~own
        if unknown.any():
            first = int(np.flatnonzero(unknown)[0])
            line = self.write_line[piece[first]]
            if column[first] >= self.width:
                why = f"shared memory is {verb} without waiting on the mbarrier of the copy at line {line}"
                raise self.found("async", why, i, piece, unknown, lanes)
            same = column[first] == self.own[lane[first] // WARP]
            who, barrier = ("lane of the warp", "bar.warp.sync") if same else ("warp", "barrier")
            why = f"shared memory is {verb} that another {who} wrote at line {line}, with no {barrier} between"
            raise self.found("race", why, i, piece, unknown, lanes)
        if proxy == ASYNC:
            # What an mbarrier's copies wrote is in the async proxy already.
            told = self.seen[ASYNC, lane, column] if known is None else known[ASYNC, column]
            hidden = (told < written) & (column < self.width) & ~(own & (written <= self.fenced[lane]))
            if hidden.any():
                line = self.write_line[piece[np.flatnonzero(hidden)[0]]]
                does = "reads" if verb == "read" else "overwrites"
                why = f"the async proxy {does} what was written at line {line} with no fence.proxy.async after it"
                raise self.found("race", why, i, piece, hidden, lanes)

    def check_overwrite(self, i: Instruction, piece: Array, lane: Array, lanes: Array, proxy: int = ORDINARY) -> None:
        """Whether each lane has seen the last write, if another warp's, and all reads of each piece."""
        if not self.written[piece].any():
            return
        own = self.own[lane // WARP]
        others = self.writer[piece] != own
        if proxy == ASYNC or others.any():
            p, who = (piece, lane) if proxy == ASYNC else (piece[others], lane[others])
            self.check_written(i, p, who, who, "overwritten", proxy)
        seen = self.seen[ORDINARY, lane, : self.width]
        # Of a warp that read before another one did, nobody knows which lanes it was.
        ordered = np.flatnonzero(~self.read_by_others(piece, lane))
        seen[ordered, own[ordered]] = OPEN - 1
        unseen = self.readers[piece] > seen
        bad = unseen.any(axis=1)
        if bad.any():
            worst = int(np.flatnonzero(bad)[0])
            first = piece[worst]
            going_on = bool(unseen[worst, self.warps :].any() or np.equal(self.readers[first], OPEN).any())
            same = not going_on and bool(unseen[worst, own[worst]])
            what = "an asynchronous instruction reads" if going_on else f"another {'lane of the warp' if same else 'warp'} read"
            why = f"shared memory is overwritten that {what} at line {self.read_line[first]}"
            why += ", with no wait_group between" if going_on else ", with no barrier between"
            raise self.found("async" if going_on else "race", why, i, piece, np.asarray(bad), lanes)

    def found(self, kind: str, why: str, i: Instruction, piece: Array, bad: Array, lanes: Array) -> Defect:
        j = int(np.flatnonzero(bad)[0])
        lane = int(lanes[j // max(1, piece.size // max(1, lanes.size))])
        return self.layout.defect(kind, why, i, lane, int(piece[j]) * self.granule % self.stride)

    def release(self, lanes: Array) -> Array:
        """What these lanes have seen and done, all rows; what they do next is not part of it."""
        row = self.seen[:, lanes].max(axis=1)
        warps = np.unique(lanes // WARP)
        complete = warps[self.speaks_for(warps, lanes)]
        row[ORDINARY, self.own[complete]] = self.time[complete]
        row[PASSED, self.own[warps]] = self.time[warps]
        self.time[warps] += 1
        return row

    def speaks_for(self, warps: Array, lanes: Array) -> Array:
        """Of which warps these are all lanes with accesses that others of the warp have not seen."""
        others = self.fresh.copy()
        others[lanes] = False
        return np.logical_not(others.reshape(-1, WARP)[warps].any(axis=1))

    def acquire(self, lanes: Array, row: Array) -> None:
        """These lanes now know what a row tells."""
        n = row.shape[-1]
        self.seen[:, lanes, :n] = np.maximum(self.seen[:, lanes, :n], row[:, None])
        self.forget(np.unique(lanes // WARP))

    def forget(self, warps: Array) -> None:
        """Nothing is fresh in a warp all lanes of which have seen all that the warp did."""
        own = self.seen[ORDINARY].reshape(-1, WARP, self.seen.shape[2])[warps, :, self.own[warps]]
        behind = (own < self.last[warps, None]) & ~self.missing.reshape(-1, WARP)[warps]
        self.fresh.reshape(-1, WARP)[warps[~behind.any(axis=1)]] = False

    def warp_sync(self, lanes: Array) -> None:
        """`bar.warp.sync` by these lanes, a group in each warp."""
        for warp in np.unique(lanes // WARP):
            group = lanes[lanes // WARP == warp]
            self.acquire(group, self.release(group))

    def proxy_fence(self, lanes: Array) -> None:
        """All that these lanes have seen and done becomes visible to the async proxy."""
        warps = np.unique(lanes // WARP)
        complete = self.speaks_for(warps, lanes)
        self.seen[ASYNC, lanes] = np.maximum(self.seen[ASYNC, lanes], self.seen[ORDINARY, lanes])
        for warp in warps[complete]:
            self.seen[ASYNC, lanes[lanes // WARP == warp], self.own[warp]] = self.time[warp]
        self.fenced[lanes] = self.time[lanes // WARP]
        self.time[warps] += 1


def joined(a: Array, b: Array) -> Array:
    """The later of two clocks; one may have more columns."""
    if a.shape[-1] < b.shape[-1]:
        a, b = b, a
    a = a.copy()
    a[..., : b.shape[-1]] = np.maximum(a[..., : b.shape[-1]], b)
    return a

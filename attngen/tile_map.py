"""Which tiles of a mask are empty, full or mixed, counted from the conditions that the loop itself uses.

A square of tiles is looked at as a whole, and cut into smaller ones only where it is neither empty nor full: the bounds that
decide about a tile hold for a larger part too. So a diagonal costs what is near to it, and nothing of size q_len · kv_len is
made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

import numpy as np

from attngen.ir.core import Block, Env, Op, Value
from attngen.ir.func import Func
from attngen.ir.interpreter import to_axes
from attngen.ir.loop import For, Load, Parallel
from attngen.ir.nd import REDUCTIONS, Reduce
from attngen.ir.passes.specialize_mask import Conditions, conditions
from attngen.ir.rewrite import free, postorder
from attngen.ir.types import Extent, bound

EMPTY, FULL, MIXED = 0, 1, 2
KINDS = ("empty", "full", "mixed")
Indices = np.ndarray[Any, np.dtype[np.int64]]
CHUNK = 1 << 13
"""How many squares are looked at at once."""


@dataclass(frozen=True)
class NotKnown:
    """Why tiles cannot be counted: the mask depends on these parameters, whose arrays are not at hand, or without any of them,
    on what the program computes."""

    names: tuple[str, ...]


class Axis(NamedTuple):
    """A looped axis: how long it is, and how long the parts are."""

    name: str
    extent: int
    step: int

    @property
    def parts(self) -> int:
        return -(-self.extent // self.step)


class Run(NamedTuple):
    """Tiles of one kind that are next to each other: from part `first` to before part `end` of the last axis."""

    kind: str
    first: int
    end: int


class Row(NamedTuple):
    """A row of tiles: which part it is along each axis but the last one, and its runs from the first tile to the last."""

    at: tuple[int, ...]
    runs: tuple[Run, ...]


class Squares(NamedTuple):
    """Squares of tiles of one kind: the number of the first tile along each axis (axes × squares), and of the one behind."""

    kind: int
    first: Indices
    end: Indices


@dataclass(frozen=True)
class TileMap:
    """axes: the innermost two, the one that is looped over last, and before them others that the mask depends on. repeats: how
    often all of it occurs, once for each part of other axes. Numbers are of tiles, and of pairs of coordinates in empty tiles
    and in all."""

    axes: tuple[Axis, ...]
    repeats: int
    empty: int
    full: int
    mixed: int
    pairs_left_out: int
    pairs: int
    _search: Search = field(repr=False, compare=False)

    @property
    def tiles(self) -> int:
        return self.empty + self.full + self.mixed

    @property
    def left_out(self) -> float:
        """The share of the work that lies in empty tiles."""
        return self.pairs_left_out / self.pairs if self.pairs else 0.0

    def __str__(self) -> str:
        cut = " x ".join(f"{a.parts:,}" for a in self.axes)
        sizes = " x ".join(f"{a.name}={a.step}" for a in self.axes)
        often = f", {self.repeats:,} times" if self.repeats > 1 else ""
        return (
            f"{cut} tiles of {sizes}{often}: {self.empty:,} empty, {self.full:,} full, {self.mixed:,} mixed; "
            f"{100 * self.left_out:.1f} % of the work left out"
        )

    def rows(self) -> Iterator[Row]:
        """Every row of tiles in order, as runs of one kind."""
        pieces: list[Indices] = []
        for kind, first, end in self._search.squares():
            heights = end[:-1] - first[:-1]
            rows: Indices = heights.prod(0)
            which = np.repeat(np.arange(first.shape[1], dtype=np.int64), rows)
            inside = np.arange(len(which), dtype=np.int64) - np.repeat(np.cumsum(rows) - rows, rows)
            at: list[Indices] = []
            for d in reversed(range(len(heights))):
                at.insert(0, first[d][which] + inside % heights[d][which])
                inside = inside // heights[d][which]
            pieces.append(np.stack([*at, first[-1][which], end[-1][which], np.full(len(which), kind)]))
        table = np.concatenate(pieces, axis=1)
        table = table[:, np.lexsort(table[-3::-1])]
        starts = np.flatnonzero(np.any(table[:-3, 1:] != table[:-3, :-1], axis=0)) + 1
        for begin, stop in zip((0, *starts), (*starts, table.shape[1]), strict=True):
            row = table[:, begin:stop]
            changes = [0, *(np.flatnonzero(row[-1, 1:] != row[-1, :-1]) + 1)]
            lasts = [*(c - 1 for c in changes[1:]), row.shape[1] - 1]
            runs = [Run(KINDS[row[-1, a]], int(row[-3, a]), int(row[-2, b])) for a, b in zip(changes, lasts, strict=True)]
            yield Row(tuple(map(int, row[:-3, 0])), tuple(runs))

    def picture(self, width: int, height: int) -> tuple[np.ndarray, int]:
        """The map over its last two axes, at the first part of the others, as an array of kinds; if it is larger than
        width × height, a cell stands for n × n tiles, and is mixed unless all of them are alike. Also n."""
        parts = [axis.parts for axis in self.axes]
        n = 0
        while any(-(-p >> n) > most for p, most in zip(parts[-2:], (height, width)[-len(parts) :], strict=True)):
            n += 1
        cells = np.full([-(-p >> n) for p in parts[-2:]], MIXED, np.int8)
        for kind, first, end in self._search.squares(smallest=n):
            chosen = np.all(first[:-2] == 0, axis=0)
            for begin, stop in zip(first[-2:, chosen].T >> n, -(-end[-2:, chosen].T >> n), strict=True):
                cells[tuple(map(slice, begin, stop))] = kind
        return np.atleast_2d(cells), 1 << n


class Search:
    """Finds the squares of tiles that are empty, full or mixed."""

    def __init__(self, known: Conditions, ranges: Mapping[Value, Axis], tables: Mapping[Value, np.ndarray]) -> None:
        """ranges: the loops, the innermost one last."""
        span = known.span
        named = {"certain": known.certain, "possible": known.possible, "first": span.first, "end": span.end}
        self.wanted = {name: v for name, v in named.items() if v is not None}
        self.order = postorder(self.wanted.values(), regions=False)
        needs = free(tuple(self.wanted.values()))
        self.reads = frozenset[Value]().union(*(needs[v] for v in self.wanted.values()))
        self.ranges = [r for r in ranges if r in self.reads or r in list(ranges)[-2:]]
        self.axes = tuple(ranges[r] for r in self.ranges)
        self.tables = tables
        self.reduced: dict[tuple[Op, int], Any] = {}

    def squares(self, smallest: int = 0) -> Iterator[Squares]:
        """Every tile in one square of the last two axes; squares of 2**smallest tiles along each that are neither empty nor
        full count as mixed."""
        parts = np.array([[axis.parts] for axis in self.axes])
        grows = np.array([[int(d >= len(parts) - 2)] for d in range(len(parts))])
        corners = np.indices([1 + g for (g,) in grows]).reshape(len(parts), -1, 1)
        level = max(smallest, *(int(n - 1).bit_length() for (n,) in parts[-2:]))
        place = np.indices([1 if g else n for (g,), (n,) in zip(grows, parts, strict=True)]).reshape(len(parts), -1)
        waiting = [(level, place[:, k : k + CHUNK]) for k in range(0, place.shape[1], CHUNK)]
        while waiting:
            level, place = waiting.pop()
            kinds = self.classify(level, place)
            for kind in (EMPTY, FULL, MIXED) if level <= smallest else (EMPTY, FULL):
                chosen = place[:, kinds == kind]
                if chosen.size:
                    yield Squares(kind, chosen << level * grows, np.minimum((chosen + 1) << level * grows, parts))
            if level > smallest:
                below = ((place << grows)[:, None, kinds == MIXED] + corners).reshape(len(parts), -1)
                below = below[:, np.all(below << (level - 1) * grows < parts, axis=0)]
                waiting += [(level - 1, below[:, k : k + CHUNK]) for k in range(0, below.shape[1], CHUNK)]

    def size(self, value: Value, level: int) -> int:
        """How long a square is along the axis of a loop."""
        at = self.ranges.index(value)
        return self.axes[at].step << (level if at >= len(self.ranges) - 2 else 0)

    def classify(self, level: int, place: np.ndarray) -> np.ndarray:
        """The kinds of squares of 2**level tiles along the last two axes, from their numbers (axes × squares)."""
        parts: dict[Value, Any] = {}
        for value, axis, k in zip(self.ranges, self.axes, place, strict=True):
            size = self.size(value, level)
            parts[value] = k * size, np.minimum((k + 1) * size, axis.extent)
        values = self.evaluate(parts, level, dict(zip(self.ranges, place, strict=True)))
        known = {name: values[v] for name, v in self.wanted.items()}
        kinds = np.where(np.broadcast_to(known["certain"], place.shape[1]), FULL, MIXED)
        start, stop = parts[self.ranges[-1]]
        first, end = known.get("first", start), np.minimum(known.get("end", stop), self.axes[-1].extent)
        visited = (np.maximum(first, start) < np.minimum(end, stop)) & (np.maximum(first, 0) < end)
        kinds[~(visited & known.get("possible", True))] = EMPTY
        return kinds

    def evaluate(self, parts: Mapping[Value, Any], level: int, place: Mapping[Value, np.ndarray]) -> dict[Value, Any]:
        """What is wanted, for all squares at once: ops on scalars act on arrays of them alike."""
        values: dict[Value, Any] = {**self.tables, **parts}
        for op in self.order:
            if isinstance(op, Reduce) and isinstance(op.value.op, Load):
                values[op.result] = self.reduce(op, op.value.op, level, place)
            elif not isinstance(op, Load) or not op.ranges and not op.result.names:
                args = tuple(values[v] for v in op.operands)
                values[op.results[0]] = op.evaluate(args, ENV)
        return values

    def reduce(self, op: Reduce, load: Load, level: int, place: Mapping[Value, np.ndarray]) -> Any:
        """The least or greatest element of a table over each square."""
        ranges = {r.range.axis: r for r in load.ranges}
        if (op, level) not in self.reduced:
            table = self.tables[load.source]
            for d, name in reversed([*enumerate(load.source.names)]):
                size = self.size(ranges[name], level) if name in ranges else table.shape[d]
                starts = np.arange(0, table.shape[d], size, dtype=np.int64)
                table = REDUCTIONS[op.kind][0].reduceat(table, starts, axis=d)
            self.reduced[op, level] = table
        return self.reduced[op, level][tuple(place[ranges[n]] if n in ranges else 0 for n in load.source.names)]


ENV = Env({}, lambda block, args: args)


def tile_maps(func: Func, arrays: Mapping[str, Any]) -> Iterator[tuple[str, TileMap | NotKnown]]:
    """The axis and the map of each masked loop of a function as it is before `specialize-mask`; NotKnown where an array is
    missing that its mask depends on. arrays: by parameter. Runtime extents are those of the arrays, otherwise their bounds."""
    lengths: dict[str, int] = {}
    tables: dict[Value, np.ndarray] = {}
    names = {v: param.name for v, param in zip(func.args, func.params, strict=True)}
    for param, v in zip(func.params, func.args, strict=True):
        if param.name in arrays:
            tables[v] = to_axes(np.asarray(arrays[param.name]), param.layout, v.tensor, lengths, param.name)

    def axis(r: Value, extent: Extent, step: int) -> Axis:
        name = r.range.axis
        return Axis(name, extent if isinstance(extent, int) else lengths.get(name, bound(extent)), step)

    def inside(block: Block, around: dict[Value, Axis]) -> Iterator[tuple[str, TileMap | NotKnown]]:
        for op in block.ops:
            if isinstance(op, Parallel):
                each = zip(op.body.args, op.axes, op.extents, op.steps, strict=False)
                yield from inside(op.body, {**around, **{r: axis(r, extent, step) for r, _, extent, step in each}})
            elif isinstance(op, For):
                ranges = {**around, op.body.args[0]: axis(op.body.args[0], op.extent, op.step)}
                known = conditions(op)
                if known is not None:
                    search = Search(known, ranges, tables)
                    missing = [names.get(v, "") for v in search.reads.difference(ranges, tables)]
                    computed = any(x.regions for x in search.order)
                    unknown = NotKnown(tuple(sorted(filter(None, missing))))
                    yield op.axis, unknown if missing or computed else count(search, ranges)
                yield from inside(op.body, ranges)

    yield from inside(func.body, {})


def count(search: Search, ranges: Mapping[Value, Axis]) -> TileMap:
    axes = search.axes
    tiles, left_out = [0, 0, 0], 0
    steps, extents = np.array([[a.step] for a in axes]), np.array([[a.extent] for a in axes])
    for kind, first, end in search.squares():
        tiles[kind] += int((end - first).prod(0).sum())
        if kind == EMPTY:
            left_out += int((np.minimum(end * steps, extents) - first * steps).prod(0).sum())
    repeats = prod(a.parts for r, a in ranges.items() if r not in search.ranges)
    empty, full, mixed = tiles
    return TileMap(axes, repeats, empty, full, mixed, left_out, prod(a.extent for a in axes), search)


__all__ = ["Axis", "NotKnown", "Row", "Run", "TileMap", "tile_maps"]

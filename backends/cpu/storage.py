"""Scratch memory: which tiles share a place, and where each place lies.

Everything is decided on intervals of positions: ops in order, a loop having one position before and one after its body. Two
values share a place only if their intervals do not overlap, except where an op reads the one and writes the other safely.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from attngen.backends.cpu.ops import Chain, Lookup, Pack, Product
from attngen.backends.cpu.target import Target
from attngen.ir.core import Block, Op, Value, argument
from attngen.ir.loop import For, If, Load, Store
from attngen.ir.nd import Contract, Reduce
from attngen.ir.types import TensorType, bound

ALIGNMENT = 64


@dataclass
class Place:
    """Memory that the values of a set share one after another."""

    values: list[Value]
    offset: int = 0


@dataclass
class Loop:
    """A loop while the positions of its body are counted."""

    captured: list[Value] = field(default_factory=list[Value])


Path = tuple[tuple[If, int], ...]
"""The branches that something is in, outer ones first."""


def exclusive(a: Path, b: Path) -> bool:
    """Whether two branches are never both taken."""
    return any(x is y and m != n for (x, m), (y, n) in zip(a, b, strict=False))


class Storage:
    """The scratch memory of one nest."""

    def __init__(self, body: Block, target: Target) -> None:
        self.target = target
        self.first: dict[Value, int] = {}
        self.uses: dict[Value, list[tuple[int, Path]]] = {}
        self.path: dict[Value, Path] = {}
        self.depth: dict[Value, int] = {}
        self.at: dict[int, Op] = {}
        self.place: dict[Value, Place] = {}
        self.views: dict[Value, Value] = {}
        self.memory = set(body.args)
        """The nest's results: written in place, whatever loop carries them."""
        self.starts: dict[For, list[tuple[Value, Value]]] = {}
        self.ends: dict[For, list[tuple[Value, Value]]] = {}
        """Copies (from, to) before and after each trip of a loop."""
        self.loops: list[tuple[For, int, int]] = []
        self.branches: list[tuple[If, int, int]] = []
        self.joins: dict[Block, list[tuple[Value, Value]]] = {}
        """Copies (from, to) at the end of a branch."""
        self.clock = 0
        self.taken: Path = ()
        self.count(body, [])
        self.share()
        self.reuse()
        self.bytes = self.arrange()

    # ---- intervals

    def define(self, value: Value, stack: list[Loop]) -> None:
        self.first[value] = self.clock
        self.uses[value] = [(self.clock, self.taken)]
        self.path[value] = self.taken
        self.depth[value] = len(stack)
        self.place[value] = Place([value])

    def use(self, value: Value, stack: list[Loop]) -> None:
        value = self.views.get(value, value)
        if value in self.first:
            self.uses[value].append((self.clock, self.taken))
            # What is read in a loop but made outside of it is needed until the last trip is over.
            if self.depth[value] < len(stack):
                stack[self.depth[value]].captured.append(value)

    def count(self, block: Block, stack: list[Loop]) -> None:
        for op in block.ops:
            self.clock += 1
            self.at[self.clock] = op
            for value in op.operands:
                self.use(value, stack)
            match op:
                case For():
                    self.count_loop(op, stack)
                case If():
                    self.count_branches(op, stack)
                case Load() if op.source in self.first or op.source in self.views:
                    self.views[op.result] = self.views.get(op.source, op.source)
                case Store():
                    self.memory.add(op.result)
                case Chain() | Pack() | Lookup() | Contract() | Reduce():
                    for value in op.results:
                        self.define(value, stack)
                case _:
                    pass

    def count_loop(self, op: For, stack: list[Loop]) -> None:
        start, loop = self.clock, Loop()
        carried = op.body.args[1:]
        for init, arg in zip(op.inits, carried, strict=True):
            if init in self.memory:
                self.memory.add(arg)
            else:
                self.define(arg, [*stack, loop])
        self.count(op.body, [*stack, loop])
        self.clock += 1
        self.at[self.clock] = op
        for value in op.body.yields:
            self.use(value, [*stack, loop])
        for value in loop.captured:
            self.uses[value].append((self.clock, self.taken))
        for arg, result in zip(carried, op.results, strict=True):
            if arg in self.memory:
                self.memory.add(result)
            else:
                self.define(result, stack)
                self.join(arg, result)
        self.loops.append((op, start, self.clock))

    def count_branches(self, op: If, stack: list[Loop]) -> None:
        ends: list[int] = []
        outer = self.taken
        for n, region in enumerate((op.then, op.otherwise)):
            self.taken = (*outer, (op, n))
            self.count(region, stack)
            self.clock += 1
            self.at[self.clock] = op
            for value in region.yields:
                self.use(value, stack)
            ends.append(self.clock)
        self.taken = outer
        self.clock += 1
        self.at[self.clock] = op
        for result, value in zip(op.results, op.then.yields, strict=True):
            if value in self.memory:
                self.memory.add(result)
            else:
                self.define(result, stack)
        self.branches.append((op, ends[0], ends[1]))

    def last(self, value: Value, path: Path = ()) -> int:
        """When a value is read for the last time, as seen from a branch: what the other branch does is of no concern."""
        return max((clock for clock, other in self.uses[value] if not exclusive(path, other)), default=self.first[value])

    # ---- sharing

    def join(self, a: Value, b: Value) -> None:
        into, other = self.place[a], self.place[b]
        if into is not other:
            into.values += other.values
            self.place.update(dict.fromkeys(other.values, into))

    def share(self) -> None:
        """A value that is carried, or that branches hand on, stays in one place where it can; else it is copied."""
        for op, _, _ in self.branches:
            for result, *values in zip(op.results, op.then.yields, op.otherwise.yields, strict=True):
                self.stay(result, values)
        for op, start, end in self.loops:
            each = [x for x in zip(op.inits, op.body.args[1:], op.body.yields, strict=True) if x[1] not in self.memory]
            for init, arg, new in each:
                self.stay(arg, [new, init])
            self.starts[op] = self.copies([(init, arg) for init, arg, _ in each], start)
            self.ends[op] = self.copies([(new, arg) for _, arg, new in each], end)
        for op, *ends in self.branches:
            for region, end in zip((op.then, op.otherwise), ends, strict=True):
                each = zip(region.yields, op.results, strict=True)
                self.joins[region] = self.copies([(y, r) for y, r in each if r not in self.memory], end)

    def stay(self, value: Value, sources: list[Value]) -> None:
        for source in sources:
            if value in self.place and source in self.place and self.compatible(source, value):
                self.join(value, source)

    def reuse(self) -> None:
        """A chain's result takes the place of an input that nothing reads later."""
        for op in self.at.values():
            if isinstance(op, Chain):
                for result in op.results:
                    taken = next((x for x in op.inputs if x in self.place and self.compatible(x, result)), None)
                    if taken is not None:
                        self.join(taken, result)

    def compatible(self, value: Value, arg: Value) -> bool:
        if self.place[value] is self.place[arg]:
            return False
        same = all(a.tensor.axes == value.tensor.axes and a.element == value.element for a in self.place[arg].values)
        return same and not any(self.overlap(a, b) for a in self.place[arg].values for b in self.place[value].values)

    def overlap(self, a: Value, b: Value) -> bool:
        """Whether both hold something at one time."""
        if self.first[a] > self.first[b]:
            a, b = b, a
        if exclusive(self.path[a], self.path[b]):
            return False
        handover, last = self.first[b], self.last(a, self.path[b])
        if self.first[a] == handover or last > handover:
            return True
        if last < handover:
            return False
        # The last use of a is where b is made. A chain reads an element before it writes the same one (but not if it reads a
        # part of a, elsewhere); a loop's carried values change hands by copies that act as one.
        op = self.at[handover]
        if isinstance(op, Chain):
            elsewhere = [self.views[value] for value in op.inputs if value in self.views]
            if isinstance(op, Product):
                elsewhere += [self.views.get(value, value) for value in (op.lhs, op.rhs, op.where) if value is not None]
            return a not in op.inputs or a in elsewhere
        return not isinstance(op, For | If)

    def copies(self, pairs: list[tuple[Value, Value]], clock: int) -> list[tuple[Value, Value]]:
        """Copies that act as one: what another copy overwrites is set aside first."""
        moves = [(a, b) for a, b in pairs if a not in self.place or self.place[a] is not self.place[b]]
        targets = [self.place[b] for _, b in moves]
        aside: list[tuple[Value, Value]] = []
        for index, (a, b) in enumerate(moves):
            root = self.views.get(a, a)
            if root in self.place and any(self.place[root] is p for p in targets):
                kept = argument(b.type)
                self.first[kept], self.path[kept], self.uses[kept] = clock, (), [(clock, ())]
                self.place[kept] = Place([kept])
                aside.append((a, kept))
                moves[index] = (kept, b)
        return aside + moves

    # ---- addresses

    def strides(self, type: TensorType) -> dict[str, int]:
        """Bytes between neighbours along each axis: dense in the order of the axes, the last one padded to whole vectors."""
        found: dict[str, int] = {}
        step = type.element.bytes
        for index, (name, extent) in enumerate(reversed(type.axes)):
            found[name] = step
            step *= bound(extent) if index else -(-max(bound(extent), 1) // self.target.lanes) * self.target.lanes
        return {name: found[name] for name in type.names}

    def size(self, value: Value) -> int:
        last = bound(value.tensor.axes[-1][1]) if value.tensor.axes else 1
        padded = -(-max(last, 1) // self.target.lanes) * self.target.lanes
        bytes = prod(bound(e) for _, e in value.tensor.axes[:-1]) * padded * value.element.bytes
        return -(-bytes // ALIGNMENT) * ALIGNMENT

    def places(self) -> list[Place]:
        return list({id(p): p for p in self.place.values()}.values())

    def arrange(self) -> int:
        """Give each place the lowest offset that is free while it is needed, large ones first; the bytes in all."""
        done: list[tuple[int, int, int, int]] = []
        for p in sorted(self.places(), key=lambda p: -self.size(p.values[0])):
            start, end = min(self.first[value] for value in p.values), max(self.last(value) for value in p.values)
            size = self.size(p.values[0])
            busy = sorted((low, high) for first, last, low, high in done if first <= end and start <= last)
            for low, high in busy:
                if p.offset + size <= low:
                    break
                p.offset = max(p.offset, high)
            done.append((start, end, p.offset, p.offset + size))
        return max((high for *_, high in done), default=0)

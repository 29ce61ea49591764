"""From ops to steps: which of them run as one phase.

This follows the CPU backend's `form-chains`, but reductions and contractions take part in chains here, and what cannot is
read from memory, so that a chain needs no op of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from attngen.backends.cuda.scalar.reads import Reads
from attngen.backends.cuda.scalar.steps import LANES, Branch, Copy, Loop, Partial, Phase, Put, Slot, Space, Step, Work, size
from attngen.ir import elementwise as ew
from attngen.ir.core import Op, Value, argument, walk
from attngen.ir.loop import For, If, Load, Parallel, Store
from attngen.ir.nd import Contract, Reduce
from attngen.ir.types import Axis, TensorType, bound

MOST_STAGED = 32 << 10
"""Bytes of an operand that is copied to shared memory."""
OFTEN = 8
"""How often each of its elements is read then, at least."""
FEW = 16
"""A reduction of fewer elements is not shared between threads."""


class Planner(Reads):
    """Plans one nest."""

    def __init__(self, nest: Parallel, arrays: Mapping[Value, str]) -> None:
        super().__init__(nest, arrays)
        inside = [
            x for op in walk(nest.body) if not isinstance(op, Store) for x in op.results if isinstance(x.type, TensorType)
        ]
        largest = max((size(self.axes(x)) for x in inside), default=1)
        self.threads = min(128, max(32, 1 << (largest - 1).bit_length()))

    def home_space(self, work: Work) -> tuple[Space, tuple[Axis, ...]]:
        value = (
            work.value
            if isinstance(work, Store | Copy)
            else argument(work.slot.type)
            if isinstance(work, Put)
            else self.made(work)[0]
        )
        return self.space(value), self.ordered_axes(value)

    # ---- blocks

    def block(self, ops: Sequence[Op], ends: list[Put]) -> list[Step]:
        """The steps of a block. ends: what it stores at its end."""
        staged = self.staged(ops)
        works: list[Work] = []
        for op in ops:
            works += self.stage(op) if op in staged else self.works(op)
        overwritten = {put.overwrites for put in ends if put.overwrites is not None}
        for put in ends:
            # Carried values that change places: what one of them was must outlast the other's new value.
            if (overwritten - {put.overwrites}) & self.sources((put.value,)).keys():
                copy = Copy(put.value)
                works.append(copy)
                put.value = copy.result
        works += ends
        steps: list[Step] = []
        lasting = {put.slot for put in ends}
        groups = self.ordered(self.groups(works))
        for group in groups:
            others = set[Value]().union(*(self.reads(work) for other in groups if other is not group for work in other))
            steps.append(self.step(group, others, lasting))
        for step in steps:
            if isinstance(step, Phase):
                self.find_reads(step)
        return steps

    def staged(self, ops: Sequence[Op]) -> set[Op]:
        """Operands of contractions that are copied from global memory first, because neighbouring threads would read them from
        different rows: those that are contiguous along a summed axis, while the threads run along another one."""
        found: set[Op] = set()
        for op in ops:
            if not isinstance(op, Contract) or not self.axes(op.result):
                continue
            name, _ = self.ordered_axes(op.result)[-1]
            for operand in (op.lhs, op.rhs):
                load = self.resolve(operand).op
                while isinstance(load, ew.Cast):
                    load = self.resolve(load.value).op
                if not isinstance(load, Load) or load not in ops or name not in load.result.names:
                    continue
                others = [axis for axis in self.axes(op.result) if axis[0] not in load.result.names]
                bytes = load.result.tensor.size * load.result.element.bytes
                if self.arrays.get(self.resolve(load.source)) in op.over and size(others) >= OFTEN and bytes <= MOST_STAGED:
                    found.add(load)
        return found

    def stage(self, op: Op) -> list[Work]:
        assert isinstance(op, Load)
        copy, last = Copy(replace(op).result), self.arrays[self.resolve(op.source)]
        self.orders.setdefault(self.space(op.result), tuple(sorted(self.axes(op.result), key=lambda axis: axis[0] == last)))
        self.aliases[op.result] = copy.result
        return [copy]

    def works(self, op: Op) -> list[Work]:
        """What is to be done for an op; nothing where its value is computed where it is read."""
        match op:
            case For():
                return [*self.carried(op), op]
            case If():
                for region in (op.then, op.otherwise):
                    self.aliases |= zip(region.args, op.inputs, strict=True)
                self.slots |= {x: Slot(x.tensor, x.hint) for x in op.results if self.axes(x)}
                return [op]
            case Store():
                self.aliases[op.result] = op.target
                return [op]
            case Reduce() | Contract():
                return self.shared(op)
            case _:
                return [] if self.virtual(op.results[0]) else [op]

    def carried(self, op: For) -> list[Work]:
        """A slot for each value that a loop carries and changes, and what puts the first value there."""
        found: list[Work] = []
        for arg, init, new, result in zip(op.body.args[1:], op.inits, op.body.yields, op.results, strict=True):
            if new is arg:
                self.aliases |= {arg: init, result: init}
            elif self.axes(arg):
                slot = Slot(arg.tensor, arg.hint)
                self.slots |= {arg: slot, result: slot}
                found.append(Put(init, slot, starts=arg))
        return found

    def shared(self, op: Reduce | Contract) -> list[Work]:
        """A reduction whose results are fewer than the threads is shared between them, if it is worth it."""
        axes = [(name, op.operands[0].tensor.extents[name]) for name in op.over]
        axes = [axis for axis in axes if not self.unit(*axis)]
        if size(axes) < FEW:
            return [op]
        name, extent = max(axes, key=lambda axis: bound(axis[1]))
        most = min(self.threads // max(size(self.axes(op.result)), 1), bound(extent))
        lanes = 1 << (most.bit_length() - 1) if most > 1 else 1
        if lanes == 1:
            return [op]
        partial = Partial(op, name, lanes)
        kind = op.kind if isinstance(op, Reduce) else "sum"
        whole = Reduce(value=partial.result, kind=kind, over=(LANES,), acc=op.acc, loc=op.loc)
        whole.result.hint = op.result.hint
        self.aliases[op.result] = whole.result
        return [partial, whole]

    def groups(self, works: Iterable[Work]) -> list[list[Work]]:
        """Work that may be one phase, each group in order. Work joins the last group of its space that it can join."""
        found: list[list[Work]] = []
        spaces: list[Space | None] = []
        below: list[set[int]] = []
        home: dict[Value, int] = {}
        readers: dict[Value, list[tuple[int, bool]]] = {}

        def reaches(start: int, goal: int) -> bool:
            return start == goal or any(reaches(n, goal) for n in below[start])

        for work in works:
            reads = self.reads(work)
            needed = {home[value] for value in reads if value in home}
            apart = {home[value] for value, far in reads.items() if far and value in home}
            if isinstance(work, Put) and work.overwrites is not None:
                needed |= {n for n, _ in readers.get(work.overwrites, ())}
                apart |= {n for n, far in readers.get(work.overwrites, ()) if far}
            space = None if isinstance(work, For | If) else self.home_space(work)[0]
            where = len(found)
            if space is not None:
                own = home.get(self.resolve(work.value), -1) if isinstance(work, Put) else -1
                for index in (*([own] if own >= 0 else ()), *reversed(range(len(found)))):
                    if spaces[index] == space and index not in apart:
                        if not any(n != index and reaches(n, index) for n in needed):
                            where = index
                            break
            if where == len(found):
                found.append([])
                spaces.append(space)
                below.append(set())
            found[where].append(work)
            below[where] |= needed - {where}
            home |= dict.fromkeys(self.made(work), where)
            for value, far in reads.items():
                readers.setdefault(value, []).append((where, far or space != self.space(value)))
        self.below = below
        return found

    def ordered(self, found: list[list[Work]]) -> list[list[Work]]:
        """Groups such that each comes after what it needs."""
        waiting, result = dict(enumerate(found)), list[list[Work]]()
        below = [set(needs) for needs in self.below]
        while waiting:
            ready = next(n for n in waiting if not below[n] & waiting.keys())
            result.append(waiting.pop(ready))
        return result

    def step(self, group: list[Work], others: set[Value], lasting: set[Slot]) -> Step:
        """others: the values that other groups of the block read; lasting: slots that the block's end fills."""
        match group[0]:
            case For() as op:
                ends: list[Put] = []
                for arg, new in zip(op.body.args[1:], op.body.yields, strict=True):
                    if new is not arg and self.axes(arg):
                        ends.append(Put(new, self.slots[arg], overwrites=arg))
                return Loop(op, self.block(op.body.ops, ends))
            case If() as op:
                then, otherwise = (
                    self.block(
                        region.ops,
                        [Put(x, self.slots[y]) for x, y in zip(region.yields, op.results, strict=True) if self.axes(y)],
                    )
                    for region in (op.then, op.otherwise)
                )
                return Branch(op, then, otherwise)
            case _:
                pass
        axes = self.home_space(group[0])[1]
        puts: list[tuple[Value, Slot]] = []
        for work in group:
            if isinstance(work, Put):
                puts.append((work.value, work.slot))
        work = [work for work in group if not isinstance(work, Put)]
        made = [value for x in work for value in self.made(x) if self.axes(value)]
        for value, slot in puts:
            # From here on the slot holds it for all who read it.
            if self.resolve(value) in made and slot in lasting:
                self.slots.setdefault(self.resolve(value), slot)
        for value in made:
            if value in others and value not in self.slots:
                self.slots[value] = Slot(value.tensor, value.hint)
                puts.append((value, self.slots[value]))
        return Phase(axes, work, {}, puts)

    def find_reads(self, phase: Phase) -> None:
        space, made = frozenset(phase.axes), {value for work in phase.work for value in self.made(work)}
        reads = [self.reads(work) for work in phase.work] + [self.sources((value,)) for value, _ in phase.puts]
        for value, far in (item for found in reads for item in found.items()):
            if value not in made and value in self.slots:
                slot = self.slots[value]
                phase.reads[slot] = phase.reads.get(slot, True) and not far and self.space(value) == space

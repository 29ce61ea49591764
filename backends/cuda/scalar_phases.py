"""What the threads of a block do together, step by step: phases, and the loops and branches around them.

A phase runs over the elements of one space, each of which belongs to one thread; a thread computes all values of the phase
for its element, and what nothing else reads stays in its registers. The axes of one element do not count: values without other
axes are variables that every thread has.

This follows the CPU backend's `form-chains`, but reductions and contractions take part in chains here, and what cannot is
read from memory, so that a chain needs no op of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from attngen.backends.cuda.scalar_ops import MOST_QUICK, QUICK
from attngen.ir import elementwise as ew
from attngen.ir.core import Op, Value, argument, walk
from attngen.ir.loop import Bound, For, If, Load, Parallel, Store
from attngen.ir.nd import Constant, Contract, Expand, Gather, Index, Reduce
from attngen.ir.types import Axis, Extent, RangeType, TensorType, bound

LANES = "_lanes"
"""The axis of partial results: which share of the elements to be reduced."""
MOST_STAGED = 32 << 10
"""Bytes of an operand that is copied to shared memory."""
OFTEN = 8
"""How often each of its elements is read then, at least."""
FEW = 16
"""A reduction of fewer elements is not shared between threads."""

Space = frozenset[Axis]


@dataclass(eq=False)
class Slot:
    """A tile that has a place in memory."""

    type: TensorType
    hint: str = ""


@dataclass(eq=False)
class Partial:
    """A reduction or contraction, each element of which `lanes` threads share: thread k takes every lanes-th coordinate along
    `axis`, from the k-th on."""

    op: Reduce | Contract
    axis: str
    lanes: int
    result: Value = field(init=False)

    def __post_init__(self) -> None:
        own = self.op.result.tensor
        self.result = argument(TensorType((*own.axes, (LANES, self.lanes)), own.element), "part")


@dataclass(eq=False)
class Copy:
    """A value once more, in a place of its own."""

    value: Value
    result: Value = field(init=False)

    def __post_init__(self) -> None:
        self.result = argument(self.value.type, self.value.hint)


@dataclass(eq=False)
class Put:
    """Stores a value in a slot. starts: the carried value whose first one it is; overwrites: the one whose next it is."""

    value: Value
    slot: Slot
    starts: Value | None = None
    overwrites: Value | None = None


Work = Op | Partial | Copy | Put


@dataclass(eq=False)
class Phase:
    """axes: the space, the fastest axis last; reads: the slots it reads, and whether only at the element that is computed;
    puts: what it stores, after all else."""

    axes: tuple[Axis, ...]
    work: list[Op | Partial | Copy]
    reads: dict[Slot, bool]
    puts: list[tuple[Value, Slot]]

    @property
    def size(self) -> int:
        return size(self.axes)


@dataclass(eq=False)
class Loop:
    op: For
    body: list[Step]


@dataclass(eq=False)
class Branch:
    op: If
    then: list[Step]
    otherwise: list[Step]


Step = Phase | Loop | Branch


def size(axes: Iterable[Axis]) -> int:
    count = 1
    for _, extent in axes:
        count *= bound(extent)
    return count


class Planner:
    """Plans one nest.

    aliases: values that are others under another name; slots: where tiles are kept.
    """

    def __init__(self, nest: Parallel, arrays: Mapping[Value, str | None]) -> None:
        """arrays: those in global memory, and the axis that is likely to be contiguous in them."""
        self.nest, self.arrays = nest, arrays
        self.aliases: dict[Value, Value] = {}
        self.slots: dict[Value, Slot] = {}
        self.orders: dict[Space, tuple[Axis, ...]] = {}
        self.cut = {*nest.axes, *(op.axis for op in walk(nest.body) if isinstance(op, For))}
        self.known: dict[Value, frozenset[Op]] = {}
        inside = [v for op in walk(nest.body) for v in (*op.operands, *op.results) if isinstance(v.type, TensorType)]
        largest = max((size(self.axes(v)) for v in inside if v not in self.arrays and v.op and not isinstance(v.op, Store)), default=1)
        self.threads = min(128, max(32, 1 << (largest - 1).bit_length()))

    def plan(self, ops: Sequence[Op]) -> list[Step]:
        """The steps of the nest's body. ops: those of the body, and what it needs from outside."""
        return self.block(ops, [])

    # ---- what a value is

    def resolve(self, value: Value) -> Value:
        while value in self.aliases:
            value = self.aliases[value]
        return value

    def unit(self, axis: str, extent: Extent) -> bool:
        """Whether there is one coordinate: a part of a loop is never empty."""
        return extent == 1 or not isinstance(extent, int) and extent.bound == 1 and axis in self.cut

    def axes(self, value: Value) -> tuple[Axis, ...]:
        """The axes that count."""
        return tuple(axis for axis in value.tensor.axes if not self.unit(*axis))

    def space(self, value: Value) -> Space:
        return frozenset(self.axes(value))

    def ordered_axes(self, value: Value) -> tuple[Axis, ...]:
        """The axes in the order in which threads run over this space, the same one in all phases."""
        return self.orders.setdefault(self.space(value), self.axes(value))

    def virtual(self, value: Value) -> bool:
        """Whether a value is computed wherever it is read."""
        op = value.op
        if op is None or value in self.arrays:
            return False
        if not self.axes(value):
            return isinstance(op, Constant | Index | Expand | Bound)
        if isinstance(op, Load | Expand | Index):
            return True
        if isinstance(op, ew.Cast) and self.virtual(self.resolve(op.value)):
            return True
        return 0 < len(self.quick(value)) <= MOST_QUICK

    def quick(self, value: Value) -> frozenset[Op]:
        """All ops that make a value of coordinates, constants and variables; none if it takes more than that."""
        value = self.resolve(value)
        if value not in self.known:
            self.known[value] = self.find_quick(value)
        return self.known[value]

    def find_quick(self, value: Value) -> frozenset[Op]:
        op = value.op
        if op is None or not isinstance(op, QUICK) or value in self.arrays:
            return frozenset()
        found = {op}
        for x in map(self.resolve, op.operands):
            if isinstance(x.type, TensorType) and self.axes(x):
                parts = self.quick(x)
                if not parts or len(found) + len(parts) > MOST_QUICK + 1:
                    return frozenset()
                found |= parts
        return frozenset(found)

    def sources(self, values: Iterable[Value], far: bool = False) -> dict[Value, bool]:
        """What has to be at hand where values are read, and whether also at other elements than the one that is computed."""
        found: dict[Value, bool] = {}
        for value in map(self.resolve, values):
            if not isinstance(value.type, TensorType) or value in self.arrays:
                continue
            below = {value: far}
            if self.virtual(value) and value.op is not None:
                below = self.sources(value.op.operands, far or isinstance(value.op, Load))
            for x, there in below.items():
                found[x] = there or found.get(x, False)
        return found

    def reads(self, work: Work) -> dict[Value, bool]:
        match work:
            case Put() | Copy():
                return self.sources((work.value,))
            case Partial():
                return self.sources(work.op.operands)
            case For():
                inner = uses(work) - set(work.inits) | set(work.limits)
                return self.sources(inner, True) | dict.fromkeys(work.body.args[1:], True)
            case If():
                return self.sources(uses(work), True)
            case Store():
                return self.sources((work.value,))
            case Gather():
                found = self.sources(work.at)
                return found | self.sources((work.table,), True)
            case _:
                return self.sources(work.operands)

    def made(self, work: Work) -> tuple[Value, ...]:
        match work:
            case Put():
                return () if work.starts is None else (work.starts,)
            case Store():
                return ()
            case Partial() | Copy():
                return (work.result,)
            case _:
                return work.results

    def home_space(self, work: Work) -> tuple[Space, tuple[Axis, ...]]:
        value = (
            work.value if isinstance(work, Store | Copy) else argument(work.slot.type) if isinstance(work, Put) else self.made(work)[0]
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
                self.slots |= {v: Slot(v.tensor, v.hint) for v in op.results if self.axes(v)}
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
                        [Put(x, self.slots[v]) for x, v in zip(region.yields, op.results, strict=True) if self.axes(v)],
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


def uses(op: Op) -> set[Value]:
    """Everything an op reads, its regions included."""
    inner = [x for region in op.regions for x in walk(region)]
    yields = {value for x in (op, *inner) for region in x.regions for value in region.yields}
    return {*op.operands, *(value for x in inner for value in x.operands), *yields}

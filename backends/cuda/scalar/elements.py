"""Phases as source: which elements a thread has, and what it computes for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from attngen.backends.cuda.scalar import ops
from attngen.backends.cuda.scalar.steps import LANES, Branch, Copy, Loop, Partial, Phase, Space, Step
from attngen.backends.cuda.scalar.values import At, Values
from attngen.ir.core import Value
from attngen.ir.loop import Store
from attngen.ir.nd import Contract, Reduce, identity
from attngen.ir.types import Axis, bound


@dataclass(frozen=True)
class Element:
    """One of the elements that a thread works on at once: its coordinates, and when it exists, if not always."""

    at: At
    exists: str = ""


class Elements(Values):
    """blocked: spaces of which a thread has several elements along some axes, and how many; see `find_blocked`."""

    threads: int
    blocked: Mapping[Space, Mapping[str, int]]

    def phase(self, phase: Phase) -> None:
        """The loop of a phase. What it computes for an element nothing after it knows."""
        self.memo.append({})
        counts = {axis: max(bound(extent), 1) // self.several(phase).get(axis, 1) for axis, extent in phase.axes}
        total = prod(counts.values())
        if not phase.axes:
            self.compute(phase, [Element({})])
        elif total == self.threads:
            self.elements(phase, "thread", counts)
        elif total > self.threads:
            with self.counting("n", "thread", str(total), self.threads):
                self.elements(phase, "n", counts)
        else:
            with self.indented(f"if thread < {total}:"):
                self.elements(phase, "thread", counts)
        self.memo.pop()

    def several(self, phase: Phase) -> Mapping[str, int]:
        return self.blocked.get(frozenset(phase.axes), {})

    def elements(self, phase: Phase, number: str, counts: Mapping[str, int]) -> None:
        """The first coordinate along each axis, from the number of the elements that a thread takes at once."""
        firsts: dict[str, str] = {}
        many = [axis for axis, count in counts.items() if count > 1]
        for axis, count in counts.items():
            if axis not in many:
                firsts[axis] = "0"
                continue
            behind = prod(counts[x] for x in many[many.index(axis) + 1 :])
            index = f"div({number}, {behind})" if behind > 1 else number
            firsts[axis] = index if axis == many[0] else f"rem({index}, {count})"
        self.along(phase, phase.axes, firsts, counts, [Element({})])

    def along(
        self, phase: Phase, axes: Sequence[Axis], firsts: At, counts: Mapping[str, int], found: Sequence[Element]
    ) -> None:
        """Lines for the coordinates along the axes, then those for the elements.

        In a phase with a contraction, a thread's elements have variables of their own; else it takes them one after the other.
        """
        if not axes:
            self.compute(phase, found)
            return
        (axis, extent), rest = axes[0], axes[1:]
        name, length, several = self.axis_name(axis), self.length(axis, extent), self.several(phase).get(axis, 1)

        def with_coordinate(text: str, exists: str = "") -> list[Element]:
            both = (" and ".join(filter(None, (x.exists, exists))) for x in found)
            return [Element({**x.at, axis: text}, condition) for x, condition in zip(found, both, strict=True)]

        if several > 1 and not contracts(phase):
            with self.counting(name, firsts[axis], length, counts[axis]):
                self.along(phase, rest, firsts, counts, with_coordinate(name))
            return
        self.put(f"{name} = {firsts[axis]}")
        elements = with_coordinate(name)
        for n in range(1, several):
            further, text = self.axis_name(f"{axis}_{n}"), f"{name} + {n * counts[axis]}"
            if isinstance(extent, int):
                self.put(f"{further} = {text}")
                elements += with_coordinate(further)
            else:
                # Instead of an element past the end, the thread's first one is computed again, and not stored.
                self.put(f"{further} = {text} if {text} < {length} else {name}")
                elements += with_coordinate(further, f"{text} < {length}")
        if isinstance(extent, int):
            self.along(phase, rest, firsts, counts, elements)
        else:
            with self.indented(f"if {name} < {length}:"):
                self.along(phase, rest, firsts, counts, elements)

    def compute(self, phase: Phase, elements: Sequence[Element]) -> None:
        """The work of a phase for some elements. All that is read is read before anything is written."""
        stores: list[tuple[Element, Callable[[], None]]] = []
        for work in phase.work:
            match work:
                case Contract():
                    self.contract(work, work.result, elements)
                case Reduce():
                    self.reduce(work, work.result, elements)
                case Partial(op=Contract() as op):
                    self.contract(op, work.result, elements, work)
                case Partial():
                    assert isinstance(work.op, Reduce)
                    self.reduce(work.op, work.result, elements, work)
                case Copy():
                    for x in elements:
                        self.know(work.result, x.at, self.read(work.value, x.at))
                case Store():
                    stores += [(x, lambda work=work, x=x: self.store(work, x.at)) for x in elements]
                case _:
                    for x in elements:
                        text = self.expression(work, x.at)
                        name = self.variable(work.results[0])
                        self.put(f"{name} = {text}")
                        self.know(work.results[0], x.at, name)
        texts = [(slot, x, self.read(value, x.at)) for value, slot in phase.puts for x in elements]
        stores += [(x, lambda slot=slot, x=x, text=text: self.fill(slot, x.at, text)) for slot, x, text in texts]
        for x in elements:
            mine = [store for element, store in stores if element is x]
            if mine and x.exists:
                with self.indented(f"if {x.exists}:"):
                    for store in mine:
                        store()
            else:
                for store in mine:
                    store()

    # ---- reductions

    def accumulate(
        self,
        op: Contract | Reduce,
        result: Value,
        elements: Sequence[Element],
        partial: Partial | None,
        start: str,
        step: Callable[[str, At], None],
    ) -> None:
        """Variables for the results, and loops over the axes that are summed. step: one line for a variable and coordinates."""
        names = [self.fresh(result.hint or getattr(op, "kind", "sum")) for _ in elements]
        for name in names:
            self.put(f"{name} = {start}")
        axes = [(axis, op.operands[0].tensor.extents[axis]) for axis in op.over]
        axes = [axis for axis in axes if not self.plan.unit(*axis)]
        inner = {axis: self.axis_name(axis) for axis, _ in axes}

        def nested(depth: int) -> None:
            if depth == len(axes):
                for name, element in zip(names, elements, strict=True):
                    step(name, {**element.at, **inner})
                return
            axis, extent = axes[depth]
            first, stride = ("0", 1) if partial is None or axis != partial.axis else (elements[0].at[LANES], partial.lanes)
            with self.counting(inner[axis], first, self.length(axis, extent), stride):
                nested(depth + 1)

        nested(0)
        for name, element in zip(names, elements, strict=True):
            self.know(result, element.at, name)

    def contract(self, op: Contract, result: Value, elements: Sequence[Element], partial: Partial | None = None) -> None:
        def step(name: str, at: At) -> None:
            a, b = (ops.cast(self.read(x, at), x.element, op.acc) for x in (op.lhs, op.rhs))
            line = f"{name} += {a} * {b}"
            if op.where is None:
                self.put(line)
            else:
                with self.indented(f"if {self.read(op.where, at)}:"):
                    self.put(line)

        self.accumulate(op, result, elements, partial, ops.literal(0, op.acc), step)

    def reduce(self, op: Reduce, result: Value, elements: Sequence[Element], partial: Partial | None = None) -> None:
        def step(name: str, at: At) -> None:
            x = ops.cast(self.read(op.value, at), op.value.element, op.acc)
            self.put(f"{name} = {ops.combined(op.kind, name, x)}")

        self.accumulate(op, result, elements, partial, ops.literal(identity(op.kind, op.acc), op.acc), step)


def contracts(phase: Phase) -> bool:
    return any(isinstance(work, Contract) for work in phase.work)


def find_blocked(steps: Sequence[Step], threads: int) -> dict[Space, dict[str, int]]:
    """Spaces of contractions of which a thread has several elements, so that it reads operands less often: how many along the
    last two axes. They lie apart, so that neighbouring threads have neighbouring elements."""
    found: dict[Space, dict[str, int]] = {}
    for phase in phases(steps):
        if contracts(phase):
            factors, room = found.setdefault(frozenset(phase.axes), {}), phase.size // threads
            for axis, extent in reversed(phase.axes[-2:]):
                factor = next((f for f in (4, 2) if f <= room and bound(extent) % f == 0), 1)
                if factor > 1 and axis not in factors:
                    factors[axis] = factor
                room //= factor
    return found


def phases(steps: Sequence[Step]) -> Iterator[Phase]:
    for step in steps:
        match step:
            case Phase():
                yield step
            case Loop():
                yield from phases(step.body)
            case Branch():
                yield from phases((*step.then, *step.otherwise))

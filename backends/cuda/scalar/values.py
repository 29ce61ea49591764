"""Values at some coordinates, as expressions: what is read from memory, and what is computed where it is read."""

from __future__ import annotations

from collections.abc import Mapping

from attngen.backends import Unsupported
from attngen.backends.cuda.scalar import ops
from attngen.backends.cuda.scalar.memory import Place
from attngen.backends.cuda.scalar.source import Source
from attngen.backends.cuda.scalar.steps import Slot
from attngen.ir.core import Op, Value
from attngen.ir.elementwise import Elementwise
from attngen.ir.loop import Bound, Load, Store
from attngen.ir.nd import Constant, Expand, Gather, Index

At = Mapping[str, str]
"""Coordinates by axis, as text. Axes of one element have none."""


class Values(Source):
    """bases: where the parts of arrays begin that `tile.load` selects."""

    bases: dict[tuple[Value, ...], str]

    def know(self, value: Value, at: At, name: str) -> None:
        """From now on a variable holds the value at these coordinates."""
        if self.plan.axes(value):
            self.memo[-1][self.key(value, at)] = name
        else:
            self.names[value] = name

    def key(self, value: Value, at: At) -> tuple[Value, tuple[str, ...]]:
        return value, tuple(sorted(f"{axis}={at[axis]}" for axis, _ in self.plan.axes(value)))

    def read(self, value: Value, at: At) -> str:
        """A value at these coordinates, as a variable or a constant; lines before compute it."""
        value = self.plan.resolve(value)
        if value in self.names:
            return self.names[value]
        key = self.key(value, at)
        for known in reversed(self.memo):
            if key in known:
                return known[key]
        op = value.op
        if value in self.arrays:
            text = self.array(value, self.address(self.arrays[value]), at)
        elif value in self.plan.slots:
            text = self.tile(value, at)
        elif isinstance(op, Constant):
            return ops.literal(op.value, op.element)
        elif isinstance(op, Expand):
            return self.read(op.value, at)
        elif isinstance(op, Bound):
            first, length = self.ranges[self.plan.resolve(op.range)]
            return first if op.end == "first" else f"({first} + {length} - 1)"
        else:
            assert op is not None, f"{value} has no place"
            text = self.expression(op, at)
        if text.isidentifier() or text.isdigit():
            return text
        name = self.variable(value)
        self.put(f"{name} = {text}")
        if self.plan.axes(value):
            self.memo[-1][key] = name
        return name

    def expression(self, op: Op, at: At) -> str:
        match op:
            case Load():
                return self.load(op, at)
            case Gather():
                return self.gather(op, at)
            case Index():
                first = "0" if op.range is None else self.ranges[self.plan.resolve(op.range)][0]
                return total(first, at.get(op.result.names[0], "0"))
            case Expand():
                return self.read(op.value, at)
            case Elementwise():
                return ops.elementwise(op, [self.read(x, at) for x in op.operands])
            case _:
                what, help = f"does not know {op.name}", "choose target cpu or numpy"
                raise Unsupported("backend cuda", what, loc=op.loc, ir=repr(op)[1:-1], help=help)

    # ---- memory

    def array(self, array: Value, first: str, at: At) -> str:
        """An element of an array. first: the address of the one from which coordinates are counted."""
        if array in self.nest.body.args:
            raise Unsupported("backend cuda", "a nest reads what it stores", loc=self.nest.loc)
        for axis, _ in array.tensor.axes:
            if at.get(axis, "0") != "0":
                first += f" + {at[axis]} * {self.stride(self.arrays[array], axis)}"
        return f"load_{array.element}({first})"

    def tile(self, value: Value, at: At) -> str:
        slot = self.plan.slots[value]
        place, name = self.places[slot], self.slot_name(slot)
        index = indexed(place, at)
        if place.shared:
            return f"get_{place.element}({name}, {index})"
        return f"load_{place.element}({name} + ({index}) * {place.element.bytes})"

    def fill(self, slot: Slot, at: At, text: str) -> None:
        place, name = self.places[slot], self.slot_name(slot)
        index = indexed(place, at)
        if place.shared:
            self.put(f"put_{place.element}({name}, {index}, {text})")
        else:
            self.put(f"store_{place.element}({name} + ({index}) * {place.element.bytes}, {text})")

    def base(self, op: Load) -> None:
        """A line for where the part of an array begins."""
        if (array := self.plan.resolve(op.source)) not in self.arrays:
            return
        number = self.arrays[array]
        text = self.address(number)
        for range in op.ranges:
            first, axis = self.ranges[self.plan.resolve(range)][0], range.range.axis
            if first != "0":
                text += f" + {first} * {self.stride(number, axis)}"
        if text != self.address(number):
            name = self.fresh(f"{self.array_name(number)}_at")
            self.put(f"{name} = {text}")
            text = name
        self.bases[self.part_of(op)] = text

    def part_of(self, op: Load) -> tuple[Value, ...]:
        return tuple(map(self.plan.resolve, op.operands))

    def load(self, op: Load, at: At) -> str:
        source = self.plan.resolve(op.source)
        if source in self.arrays:
            return self.array(source, self.bases[self.part_of(op)], at)
        moved = dict(at)
        for range in op.ranges:
            first, axis = self.ranges[self.plan.resolve(range)][0], range.range.axis
            moved[axis] = f"({text})" if "+" in (text := total(first, at.get(axis, "0"))) else text
        return self.read(op.source, moved)

    def gather(self, op: Gather, at: At) -> str:
        """Where a coordinate is outside of the table, the first one takes its place."""
        moved = dict(at)
        for axis, coordinate in zip(op.over, op.at, strict=True):
            index, length = self.read(coordinate, at), self.length(axis, op.table.tensor.extents[axis])
            moved[axis] = name = self.fresh(f"{axis}_at")
            self.put(f"{name} = i64({index})")
            self.put(f"{name} = {name} if 0 <= {name} and {name} < {length} else 0")
        return self.read(op.table, moved)

    def store(self, op: Store, at: At) -> None:
        number = self.arrays[self.plan.resolve(op.target)]
        ranges = {range.range.axis: self.ranges[self.plan.resolve(range)][0] for range in op.ranges}
        address = self.address(number)
        for axis, _ in op.target.tensor.axes:
            if (text := total(ranges.get(axis, "0"), at.get(axis, "0"))) != "0":
                address += f" + {f'({text})' if '+' in text else text} * {self.stride(number, axis)}"
        line = f"store_{op.target.element}({address}, {self.read(op.value, at)})"
        if at:
            self.put(line)
        else:
            with self.indented("if thread == 0:"):
                self.put(line)


def total(*terms: str) -> str:
    return " + ".join(x for x in terms if x != "0") or "0"


def indexed(place: Place, at: At) -> str:
    """The number of an element in its slot."""
    return total(
        *(at[axis] if step == 1 or at[axis] == "0" else f"{at[axis]} * {step}" for axis, step in place.strides.items())
    )

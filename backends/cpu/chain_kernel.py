"""The function of a chain: one loop nest that loads, computes and stores vector by vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attngen.backends.cpu import scalars
from attngen.backends.cpu.kernels import Kernel, Pointers
from attngen.backends.cpu.vector import Code, Ir, Size, ll
from attngen.ir.core import Block
from attngen.ir.nd import Constant
from attngen.ir.types import ElementType


@dataclass(frozen=True)
class Chain(Kernel):
    """`cpu.map`: for each row and vector of lanes load the inputs, run the scalar ops on vectors, store the results.

    inputs: for each argument of the region the role of an operand, or an axis and where its coordinates start.
    """

    body: Block
    inputs: tuple[str | tuple[str, Size], ...]
    space: tuple[str, ...]

    def arguments(self) -> tuple[str, ...]:
        starts = [x[1] for x in self.inputs if isinstance(x, tuple) and isinstance(x[1], str)]
        return tuple(dict.fromkeys((*super().arguments(), *starts)))

    def write(self, c: Code) -> None:
        elements = [value.element for value in self.body.args] + [value.element for op in self.body.ops for value in op.results]
        width = c.target.width(max((e.bytes for e in elements if e is not ElementType.INDEX), default=8))
        if not self.space:
            self.step(c, self.start(c), {}, "", 1, {})
            return
        lane = self.space[-1]
        row = next((n for n in reversed(self.space[:-1]) if self.lengths[n] != 1), "")
        outer = [n for n in self.space[:-1] if n != row]
        length, sizes = self.lanes(c, lane, width, (1,))

        def walk(axes: Sequence[str], at: Pointers, where: Mapping[str, Ir]) -> None:
            if axes:

                def trip(x: Ir, _: list[Ir]) -> list[Ir]:
                    walk(axes[1:], self.move(c, at, axes[0], x), {**where, axes[0]: x})
                    return []

                c.loop(0, self.lengths[axes[0]], 1, (), trip)
                return

            def piece(x: Ir, size: int, _: list[Ir]) -> list[Ir]:
                here, place = self.move(c, at, lane, x), {**where, lane: x}
                if not row:
                    self.step(c, here, place, lane, size, {})
                    return []
                fixed = self.read(
                    c, here, place, lane, size, [index for index in range(len(self.inputs)) if row not in self.axes(index)]
                )

                def line(y: Ir, _: list[Ir]) -> list[Ir]:
                    self.step(c, self.move(c, here, row, y), {**place, row: y}, lane, size, fixed)
                    return []

                c.loop(0, self.lengths[row], 1, (), line)
                return []

            c.cut(length, sizes, (), piece)

        walk(outer, self.start(c), {})

    def axes(self, index: int) -> Sequence[str]:
        """The axes along which an argument of the region varies."""
        x = self.inputs[index]
        return tuple(self.operands[x].strides) if isinstance(x, str) else x[:1]

    def read(
        self, c: Code, at: Pointers, where: Mapping[str, Ir], lane: str, width: int, which: Sequence[int]
    ) -> dict[int, Ir]:
        """Arguments of the region by position: elements of inputs, and coordinates."""
        found: dict[int, Ir] = {}
        for index in which:
            x = self.inputs[index]
            if isinstance(x, str):
                found[index] = c.load(at[x], self.operands[x], lane, width)
                continue
            axis, start = x
            first = c.splat(c.b.add(c.size(start), where[axis]), width)
            steps = ll.Constant(first.type, list(range(width)) if width > 1 else 0)
            found[index] = c.b.add(first, steps) if axis == lane else first
        return found

    def step(self, c: Code, at: Pointers, where: Mapping[str, Ir], lane: str, width: int, known: Mapping[int, Ir]) -> None:
        """One vector. Everything is read before anything is written: a result may take the place of an input."""
        values = {
            **known,
            **self.read(c, at, where, lane, width, [index for index in range(len(self.inputs)) if index not in known]),
        }
        env: dict[Any, Ir] = {arg: values[index] for index, arg in enumerate(self.body.args)}

        def get(value: Any) -> Ir:
            if value not in env and isinstance(value.op, Constant):
                number = int(value.op.value) if not value.element.is_float else value.op.value
                env[value] = c.constant(number, c.vector_type(value.element, width))
            return env[value]

        for op in self.body.ops:
            if not isinstance(op, Constant):
                env[op.result] = scalars.build(c, op, [get(value) for value in op.operands])
        for index, value in enumerate(self.body.yields):
            c.store(get(value), at[f"out{index}"], self.operands[f"out{index}"], lane, width)

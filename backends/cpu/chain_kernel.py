"""Kernels that run scalar ops on vectors: `cpu.map` as a loop nest of its own, and what contractions share with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attngen.backends.cpu import half, scalars
from attngen.backends.cpu.kernels import Kernel, Pointers
from attngen.backends.cpu.vector import Code, Ir, Size, ll
from attngen.ir.core import Block
from attngen.ir.nd import Constant, identity
from attngen.ir.types import ElementType

Where = Mapping[str, Ir]
"""How far along each axis the kernel is."""


@dataclass(frozen=True)
class Chained(Kernel):
    """A kernel that ends in scalar ops.

    inputs: for each argument of the region (after the leading ones) the role of an operand, or an axis and where its
    coordinates start, or no axis and a number. kinds: how the last results are reduced, along the rows.
    """

    body: Block
    inputs: tuple[str | tuple[str, Size], ...]
    kinds: tuple[str, ...]

    def arguments(self) -> tuple[str, ...]:
        starts = [x[1] for x in self.inputs if isinstance(x, tuple) and isinstance(x[1], str)]
        return tuple(dict.fromkeys((*super().arguments(), *starts)))

    def axes(self, index: int) -> Sequence[str]:
        """The axes along which an input varies."""
        x = self.inputs[index]
        return tuple(self.operands[x].strides) if isinstance(x, str) else tuple(filter(None, x[:1]))

    def read(self, c: Code, at: Pointers, where: Where, lane: str, width: int, index: int) -> Ir:
        """A vector of an input: elements of an operand, or coordinates."""
        x = self.inputs[index]
        if isinstance(x, str):
            return c.load(at[x], self.operands[x], lane, width)
        axis, start = x
        if not axis:
            element = self.body.args[len(self.body.args) - len(self.inputs) + index].element
            return scalars.cast(c, c.splat(c.size(start), width), ElementType.INDEX, element)
        first = c.splat(c.b.add(c.size(start), where[axis]), width)
        steps = ll.Constant(first.type, list(range(width)) if width > 1 else 0)
        return c.b.add(first, steps) if axis == lane else first

    def compute(self, c: Code, args: Sequence[Ir], width: int) -> list[Ir]:
        """What the region yields."""
        env: dict[Any, Ir] = dict(zip(self.body.args, args, strict=True))

        def get(value: Any) -> Ir:
            if value not in env and isinstance(value.op, Constant):
                number = int(value.op.value) if not value.element.is_float else value.op.value
                number = half.encode(number, value.element) if value.element in half.HALVES else number
                env[value] = c.constant(number, c.vector_type(value.element, width))
            return env[value]

        for op in self.body.ops:
            if not isinstance(op, Constant):
                env[op.result] = scalars.build(c, op, [get(value) for value in op.operands])
        return [get(value) for value in self.body.yields]

    @property
    def stored(self) -> int:
        return len(self.body.yields) - len(self.kinds)

    def identities(self, c: Code, width: int, vectors: int = 1) -> list[Ir]:
        """What reductions start from: for each kind as many vectors."""
        found: list[Ir] = []
        for kind, value in zip(self.kinds, self.body.yields[self.stored :], strict=True):
            start = identity(kind, value.element)
            found += [c.constant(start, c.vector_type(value.element, width))] * vectors
        return found

    def keep(self, c: Code, at: Pointers, results: Sequence[Ir], lane: str, width: int) -> None:
        """Store the results that have the whole space."""
        for n in range(self.stored):
            c.store(results[n], at[f"out{n}"], self.operands[f"out{n}"], lane, width)

    def widest(self) -> int:
        """Bytes of the largest element that is computed with."""
        elements = [value.element for value in self.body.args] + [value.element for op in self.body.ops for value in op.results]
        return max((e.bytes for e in elements if e is not ElementType.INDEX), default=8)

    def walk(self, c: Code, axes: Sequence[str], at: Pointers, where: Where, body: Callable[[Pointers, Where], None]) -> None:
        """Loops over axes, outermost first."""
        if not axes:
            body(at, where)
            return

        def trip(x: Ir, _: list[Ir]) -> list[Ir]:
            self.walk(c, axes[1:], self.move(c, at, axes[0], x), {**where, axes[0]: x}, body)
            return []

        c.loop(0, self.lengths[axes[0]], 1, (), trip)


@dataclass(frozen=True)
class Chain(Chained):
    """`cpu.map`: for each row and vector of lanes load the inputs, run the scalar ops on vectors, store the results."""

    space: tuple[str, ...]
    down: tuple[str, ...]

    def write(self, c: Code) -> None:
        if not self.space:
            self.step(c, self.start(c), {}, "", 1, {})
            return
        lane = self.space[-1]
        row = chain_row(self.space, self.lengths, self.down)
        outer = [n for n in self.space[:-1] if n != row]
        width = c.target.width(self.widest())

        def lines(at: Pointers, where: Where) -> None:
            def piece(x: Ir, size: int) -> None:
                here, place = self.move(c, at, lane, x), {**where, lane: x}
                fixed = [n for n in range(len(self.inputs)) if row not in self.axes(n)] if row else []
                known = {n: self.read(c, here, place, lane, size, n) for n in fixed}

                def line(y: Ir, sums: list[Ir]) -> list[Ir]:
                    at_line = self.move(c, here, row, y) if row else here
                    new = self.step(c, at_line, {**place, row: y}, lane, size, known)
                    return [scalars.combine(c, kind, a, b) for kind, a, b in zip(self.kinds, sums, new, strict=True)]

                sums = c.loop(0, self.lengths[row] if row else 1, 1, self.identities(c, size), line)
                for n, total in enumerate(sums, self.stored):
                    c.store(total, here[f"out{n}"], self.operands[f"out{n}"], lane, size)

            self.lanes(c, lane, width, (1,), piece)

        self.walk(c, outer, self.start(c), {}, lines)

    def step(self, c: Code, at: Pointers, where: Where, lane: str, width: int, known: Mapping[int, Ir]) -> list[Ir]:
        """One vector; what is to be reduced. Everything is read before anything is written: a result may take the place of
        an input."""
        args = [known[n] if n in known else self.read(c, at, where, lane, width, n) for n in range(len(self.inputs))]
        results = self.compute(c, args, width)
        self.keep(c, at, results, lane, width)
        return results[self.stored :]


def chain_row(space: Sequence[str], lengths: Mapping[str, Size], down: Sequence[str]) -> str:
    """The axis of the innermost loop: the one that is reduced, else the last before the lanes that is longer than 1."""
    rows = [n for n in space[:-1] if lengths[n] != 1]
    return next((n for n in reversed(rows) if n in down), rows[-1] if rows else "")

"""One LLVM function per op: the loops over its axes, a register tile in the middle, remainders by smaller tiles.

Each kernel knows its operands' places and the lengths of its axes; the axis that vectors run along is the last one of its
result. Whatever is not in order for that is still right, only slower.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from attngen.backends.cpu import scalars
from attngen.backends.cpu.target import Target
from attngen.backends.cpu.vector import BYTE, I64, REGISTER, VOID, Code, Ir, Operand, Size, ll
from attngen.ir.nd import identity
from attngen.ir.types import ElementType

Pointers = dict[str, Ir]
"""Where each operand stands, by its role: `in0`, `out1`, …"""


@dataclass(frozen=True)
class Kernel:
    """A call in the generated source, and how to build the function it calls.

    operands: by role; lengths: of each axis, at run time or known now.
    """

    returns: ClassVar[bool] = False
    """Whether the function gives an integer."""

    operands: Mapping[str, Operand]
    lengths: Mapping[str, Size]

    def arguments(self) -> tuple[str, ...]:
        """The names that the function needs, in order of first use."""
        names = [n for operand in self.operands.values() for n in operand.names()]
        names += [n for n in self.lengths.values() if isinstance(n, str)]
        return tuple(dict.fromkeys(names))

    def build(self, module: Ir, name: str, target: Target) -> Ir:
        code = Code(module, name, self.arguments(), target, I64 if self.returns else VOID)
        self.write(code)
        return code.function if self.returns else code.finish()

    def write(self, c: Code) -> None:
        raise TypeError(f"{type(self).__name__} does not define write()")

    # ---- shared

    def start(self, c: Code) -> Pointers:
        return {role: c.pointer(operand) for role, operand in self.operands.items()}

    def move(self, c: Code, at: Pointers, axis: str, by: int | Ir) -> Pointers:
        """Every operand `by` elements further along an axis."""
        return {role: c.move(pointer, self.operands[role], axis, by) for role, pointer in at.items()}

    def over(self, c: Code, axes: Sequence[str], at: Pointers, body: Callable[[Pointers], None]) -> None:
        """Loops over axes, outermost first, nothing carried."""
        if not axes:
            body(at)
            return

        def trip(x: Ir, _: list[Ir]) -> list[Ir]:
            self.over(c, axes[1:], self.move(c, at, axes[0], x), body)
            return []

        c.loop(0, self.lengths[axes[0]], 1, (), trip)

    def folded(
        self, c: Code, axes: Sequence[str], at: Pointers, state: list[Ir], body: Callable[[Pointers, list[Ir]], list[Ir]]
    ) -> list[Ir]:
        """Loops over axes that carry values; the pointers move along with them."""
        if not axes:
            return body(at, state)
        axis = axes[0]
        roles = [r for r in at if axis in self.operands[r].strides]

        def trip(_: Ir, carried: list[Ir]) -> list[Ir]:
            here = at | dict(zip(roles, carried, strict=False))
            after = self.folded(c, axes[1:], here, carried[len(roles) :], body)
            return [*(c.move(here[r], self.operands[r], axis, 1) for r in roles), *after]

        return c.loop(0, self.lengths[axis], 1, [*(at[r] for r in roles), *state], trip)[len(roles) :]

    def lanes(self, c: Code, axis: str, width: int, vectors: Sequence[int], body: Callable[[Ir, int], None]) -> None:
        """Run along the lanes in pieces of whole vectors: `body(start, lanes)`. The last, partial vector is a whole one where
        every operand that has the axis has room for it, a masked one where elements lie side by side; else single lanes."""
        length = self.lengths[axis]
        along = [o for o in self.operands.values() if axis in o.strides]
        tight = [o for o in along if not o.room(axis)]
        sizes = [n * width for n in vectors if n * width > 1]
        if isinstance(length, int):
            sizes = [s for s in sizes if s <= max(-(-length // width) * width, 1)]

        def piece(x: Ir, size: int, _: list[Ir]) -> list[Ir]:
            body(x, size)
            return []

        if not tight:
            whole = -(-length // width) * width if isinstance(length, int) else c.round_up(length, width)
            c.cut(whole, sizes, (), piece)
        elif all(o.unit(axis) for o in tight) and width > 1:
            c.cut(length, sizes, (), piece)
            with c.tail(length, width) as start:
                if start is not None:
                    body(start, width)
        else:
            c.cut(length, [*sizes, 1], (), piece)


@dataclass(frozen=True)
class Reduction(Kernel):
    """`nd.reduce`: whole vectors are combined where the lanes stay; else lane by lane at the end."""

    kind: str
    summed: tuple[str, ...]
    acc: ElementType

    def combine(self, c: Code, a: Ir, b: Ir) -> Ir:
        return scalars.combine(c, self.kind, a, b)

    def write(self, c: Code) -> None:
        source, out = self.operands["in0"], self.operands["out0"]
        lane = source.order[-1] if source.order else ""
        width = c.target.width(self.acc.bytes)
        start = identity(self.kind, self.acc)

        def load(at: Pointers, size: int) -> Ir:
            return scalars.cast(c, c.load(at["in0"], source, lane, size), source.element, self.acc)

        def across(at: Pointers) -> None:
            """The lanes are kept: several vectors at once hide the latency of the combination."""

            def piece(x: Ir, size: int) -> None:
                one, vectors = (1, 1) if size == 1 else (width, size // width)
                here = self.move(c, at, lane, x) if lane else at

                def step(now: Pointers, sums: list[Ir]) -> list[Ir]:
                    moved = [self.move(c, now, lane, n * one) if n else now for n in range(vectors)]
                    return [self.combine(c, s, load(p, one)) for s, p in zip(sums, moved, strict=True)]

                begin = [c.constant(start, c.vector_type(self.acc, one))] * vectors
                for n, s in enumerate(self.folded(c, self.summed, {"in0": here["in0"]}, begin, step)):
                    c.store(s, c.move(here["out0"], out, lane, n * one), out, lane, one)

            if lane:
                self.lanes(c, lane, width, (4, 1), piece)
            else:
                piece(c.size(0), 1)

        def along(at: Pointers) -> None:
            """The lanes are summed: one vector of partial results, then its lanes, then the elements left over."""

            def line(now: Pointers, state: list[Ir]) -> list[Ir]:
                def piece(x: Ir, size: int, s: list[Ir]) -> list[Ir]:
                    new = load(self.move(c, now, lane, x), size)
                    return [s[0], self.combine(c, s[1], new)] if size == 1 else [self.combine(c, s[0], new), s[1]]

                return c.cut(self.lengths[lane], [width, 1], state, piece)

            scalar = REGISTER[self.acc.value]
            begin = [c.constant(start, c.vector_type(self.acc, width)), c.constant(start, scalar)]
            rest = [n for n in self.summed if n != lane]
            many, total = self.folded(c, rest, {"in0": at["in0"]}, begin, line)
            parts = [c.b.extract_element(many, ll.Constant(ll.IntType(32), index)) for index in range(width)]
            while len(parts) > 1:
                parts = [self.combine(c, a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
            c.store(self.combine(c, total, parts[0]), at["out0"], out, "", 1)

        if lane in self.summed:
            self.over(c, out.order, self.start(c), along)
        else:
            self.over(c, [n for n in source.order if n != lane and n not in self.summed], self.start(c), across)


@dataclass(frozen=True)
class Scalar(Kernel):
    """Reads one truth value or index, for a branch or a loop of the generated source."""

    returns = True

    def write(self, c: Code) -> None:
        truth = self.operands["in0"].element is ElementType.I1
        value = c.b.load(c.pointer(self.operands["in0"]), align=1, typ=BYTE if truth else I64)
        c.b.ret(c.b.zext(value, I64) if truth else value)

"""One LLVM function per op: the loops over its axes, a register tile in the middle, remainders by smaller tiles.

Each kernel knows its operands' places and the lengths of its axes; the axis that vectors run along is the last one of its
result. Whatever is not in order for that is still right, only slower.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from attngen.backends.cpu import scalars
from attngen.backends.cpu.target import Target
from attngen.backends.cpu.vector import REGISTER, Code, Ir, Operand, Size, ll
from attngen.ir.types import ElementType

Pointers = dict[str, Ir]
"""Where each operand stands, by its role: `in0`, `out1`, …"""


@dataclass(frozen=True)
class Kernel:
    """A call in the generated source, and how to build the function it calls.

    operands: by role; lengths: of each axis, at run time or known now.
    """

    operands: Mapping[str, Operand]
    lengths: Mapping[str, Size]

    def arguments(self) -> tuple[str, ...]:
        """The names that the function needs, in order of first use."""
        names = [n for operand in self.operands.values() for n in operand.names()]
        names += [n for n in self.lengths.values() if isinstance(n, str)]
        return tuple(dict.fromkeys(names))

    def build(self, module: Ir, name: str, target: Target) -> Ir:
        code = Code(module, name, self.arguments(), target)
        self.write(code)
        return code.finish()

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

    def lanes(self, c: Code, axis: str, width: int, vectors: Sequence[int]) -> tuple[Size | Ir, list[int]]:
        """The length to run along the lanes, and the pieces to cut it in: whole vectors only, where every operand that has
        the axis has room for them."""
        length = self.lengths[axis]
        room = all(o.padded and o.order[-1] == axis for o in self.operands.values() if axis in o.strides)
        sizes = [vector * width for vector in vectors if vector * width > 1]
        if not room:
            return length, [*sizes, 1]
        if isinstance(length, int):
            return -(-length // width) * width, sizes
        return c.b.and_(c.b.add(c.size(length), c.size(width - 1)), c.size(-width)), sizes


@dataclass(frozen=True)
class Contraction(Kernel):
    """`nd.contract`: rows of the operand without the lane axis, broadcast, times vectors of the other."""

    summed: tuple[str, ...]
    acc: ElementType

    def write(self, c: Code) -> None:
        out = self.operands["out0"]
        lane = out.order[-1] if out.order else ""
        width = c.target.width(self.acc.bytes) if lane else 1
        row = self.row(lane)
        # The long sums are innermost.
        known = {n: x if isinstance(x, int) else 1 << 30 for n, x in self.lengths.items()}
        summed = sorted(self.summed, key=lambda n: known[n])
        length, sizes = self.lanes(c, lane, width, (2, 1)) if lane else (1, [1])
        if isinstance(length, int) and length < 2 * width:
            sizes = [s for s in sizes if s <= width]

        def block(at: Pointers) -> None:
            def lanes(x: Ir, size: int, _: list[Ir]) -> list[Ir]:
                one, vectors = (1, 1) if size == 1 else (width, size // width)
                here = self.move(c, at, lane, x) if lane else at

                def rows(y: Ir, count: int, _: list[Ir]) -> list[Ir]:
                    self.tile(c, self.move(c, here, row, y) if row else here, lane, one, vectors, row, count, summed)
                    return []

                c.cut(self.lengths[row] if row else 1, [c.target.register_rows, 1] if row else [1], (), rows)
                return []

            c.cut(length, sizes, (), lanes)

        self.over(c, [n for n in out.order if n not in (lane, row)], self.start(c), block)

    def row(self, lane: str) -> str:
        """The axis of the register tile's rows: the longest that the vectors' operand lacks, so that rows share its loads."""
        out, a, b = (self.operands[r].strides for r in ("out0", "in0", "in1"))
        if lane in a and lane not in b:
            a, b = b, a
        length = {n: x if isinstance(x, int) else 1 << 30 for n, x in self.lengths.items()}
        found = [n for n in out if n != lane and n not in b and length[n] > 1]
        return max(found, key=lambda n: length[n], default="")

    def tile(
        self, c: Code, at: Pointers, lane: str, width: int, vectors: int, row: str, rows: int, summed: Sequence[str]
    ) -> None:
        kind = c.vector_type(self.acc, width)
        cells = [(r, vector) for r in range(rows) for vector in range(vectors)]

        def step(here: Pointers, sums: list[Ir]) -> list[Ir]:
            loaded: dict[tuple[str, int, int], Ir] = {}

            def value(role: str, r: int, vector: int) -> Ir:
                """An operand for one cell; loaded once for all cells that share it."""
                operand = self.operands[role]
                key = (role, r if row in operand.strides else 0, vector if lane in operand.strides else 0)
                if key not in loaded:
                    pointer = c.move(c.move(here[role], operand, row, key[1]), operand, lane, key[2] * width)
                    x = c.load(pointer, operand, lane, width)
                    loaded[key] = x if operand.element is ElementType.I1 else scalars.cast(c, x, operand.element, self.acc)
                return loaded[key]

            result: list[Ir] = []
            for (r, vector), total in zip(cells, sums, strict=True):
                new = c.intrinsic("fma", value("in0", r, vector), value("in1", r, vector), total)
                if "where" in self.operands:
                    new = c.b.select(value("where", r, vector), new, total)
                result.append(new)
            return result

        sources = {role: pointer for role, pointer in at.items() if role != "out0"}
        sums = self.folded(c, summed, sources, [c.constant(0.0, kind)] * len(cells), step)
        out = self.operands["out0"]
        for (r, vector), total in zip(cells, sums, strict=True):
            c.store(total, c.move(c.move(at["out0"], out, row, r), out, lane, vector * width), out, lane, width)


@dataclass(frozen=True)
class Reduction(Kernel):
    """`nd.reduce`: whole vectors are combined where the lanes stay; else lane by lane at the end."""

    kind: str
    summed: tuple[str, ...]
    acc: ElementType

    def combine(self, c: Code, a: Ir, b: Ir) -> Ir:
        return scalars.maximum(c, a, b) if self.kind == "max" else c.b.fadd(a, b)

    def write(self, c: Code) -> None:
        source, out = self.operands["in0"], self.operands["out0"]
        lane = source.order[-1] if source.order else ""
        width = c.target.width(self.acc.bytes)
        start = -math.inf if self.kind == "max" else 0.0

        def load(at: Pointers, size: int) -> Ir:
            return scalars.cast(c, c.load(at["in0"], source, lane, size), source.element, self.acc)

        def across(at: Pointers) -> None:
            """The lanes are kept: several vectors at once hide the latency of the combination."""
            length, sizes = self.lanes(c, lane, width, (4, 1)) if lane else (1, [1])
            if isinstance(length, int):
                sizes = [s for s in sizes if s <= max(length, 1)]

            def piece(x: Ir, size: int, _: list[Ir]) -> list[Ir]:
                one, vectors = (1, 1) if size == 1 else (width, size // width)
                here = self.move(c, at, lane, x) if lane else at

                def step(now: Pointers, sums: list[Ir]) -> list[Ir]:
                    moved = [self.move(c, now, lane, vector * one) if vector else now for vector in range(vectors)]
                    return [self.combine(c, s, load(p, one)) for s, p in zip(sums, moved, strict=True)]

                begin = [c.constant(start, c.vector_type(self.acc, one))] * vectors
                for vector, s in enumerate(self.folded(c, self.summed, {"in0": here["in0"]}, begin, step)):
                    c.store(s, c.move(here["out0"], out, lane, vector * one), out, lane, one)
                return []

            c.cut(length, sizes, (), piece)

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
class Copy(Kernel):
    """`cpu.pack`, `tile.store` and copies of carried values: from one order and element spacing to another."""

    def write(self, c: Code) -> None:
        source, out = self.operands["in0"], self.operands["out0"]
        order = out.order if out.padded or not source.padded else source.order
        if not order:
            at = self.start(c)
            c.store(c.load(at["in0"], source, "", 1), at["out0"], out, "", 1)
            return
        lane = order[-1]
        width = c.target.width(source.element.bytes)

        def along(operands: tuple[Operand, Operand], sizes: Sequence[int], length: Size | Ir) -> None:
            def line(at: Pointers) -> None:
                def piece(x: Ir, size: int, _: list[Ir]) -> list[Ir]:
                    here = self.move(c, at, lane, x)
                    c.store(c.load(here["in0"], operands[0], lane, size), here["out0"], operands[1], lane, size)
                    return []

                c.cut(length, sizes, (), piece)

            self.over(c, order[:-1], self.start(c), line)

        length, sizes = self.lanes(c, lane, width, (1,))
        spaced = [o.strides.get(lane, 0) for o in (source, out)]
        if all(s == o.element.bytes for s, o in zip(spaced, (source, out), strict=True)):
            along((source, out), sizes, length)
            return
        if any(isinstance(s, int) and s != source.element.bytes for s in spaced):
            along((source, out), [1], self.lengths[lane])
            return
        # The spacing in user memory is known only at run time: vectors where elements lie next to each other.
        tests = [c.b.icmp_signed("==", c.size(s), c.size(source.element.bytes)) for s in spaced if isinstance(s, str)]
        together = tests[0] if len(tests) == 1 else c.b.and_(*tests)
        dense = tuple(
            Operand(o.address, {**o.strides, lane: o.element.bytes}, o.order, o.element, o.padded) for o in (source, out)
        )
        with c.b.if_else(together) as (then, otherwise):
            with then:
                along((dense[0], dense[1]), sizes, length)
            with otherwise:
                along((source, out), [1], self.lengths[lane])

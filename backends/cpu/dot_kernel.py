"""The function of a contraction whose operands both lie along the summed axis: vectors of products, added across at the end.

For few rows, such as the queries of one decoding step: they would not fill a vector, and with the other axis in the lanes its
operand would be transposed for few uses. One key at a time is read from end to end, so that each load instruction meets
addresses at equal distances, which is what processors foresee; the sums wait in a small buffer until they fill a vector.
"""

from __future__ import annotations

from dataclasses import dataclass

from attngen.backends.cpu import scalars
from attngen.backends.cpu.chain_kernel import Chained, Where
from attngen.backends.cpu.kernels import Pointers
from attngen.backends.cpu.vector import I32, I64, POINTER, Code, Ir, Operand, ll
from attngen.ir.types import ElementType

BLOCK = 16
"""Bytes within which instructions shuffle two vectors into one."""
UNROLL = 8
"""Vectors along the summed axis in one turn of the loop."""


@dataclass(frozen=True)
class Dots(Chained):
    """space: the axes of the sums, last the one along the lanes, which the second operand has. along: the summed axis, which
    lies along the lanes of both operands; the region's first argument is the sum. row: the axis that the first operand has
    several of at once; may be empty."""

    space: tuple[str, ...]
    along: str
    row: str
    acc: ElementType

    def write(self, c: Code) -> None:
        key, width = self.space[-1], c.target.width(max(self.acc.bytes, self.widest()))
        length, one = self.lengths[key], c.vector_type(self.acc, 1)
        heights = (4, 2, 1) if self.row else (1,)
        buffer = c.b.inttoptr(c.b.ptrtoint(c.b.alloca(ll.ArrayType(one, heights[0] * width)), I64), POINTER)
        sums = Operand("", {self.row: width * self.acc.bytes, key: self.acc.bytes}, (self.row, key), self.acc)

        def lines(at: Pointers, where: Where) -> None:
            def rows(y: Ir, height: int, _: list[Ir]) -> list[Ir]:
                here, place = self.move(c, at, self.row, y), {**where, self.row: y}

                def keys(x: Ir, count: int | Ir, mask: Ir | None = None) -> None:
                    c.mask = None

                    def one_key(n: Ir, _: list[Ir]) -> list[Ir]:
                        found = self.sums(c, here, c.b.add(x, n), height, width)
                        for r, total in enumerate(found):
                            c.store(total, c.move(c.move(buffer, sums, self.row, r), sums, key, n), sums, "", 1)
                        return []

                    c.loop(0, count, 1, (), one_key)
                    c.mask = mask
                    for r in range(height):
                        total = c.load(
                            c.move(buffer, sums, self.row, r), Operand("", sums.strides, sums.order, self.acc, True), key, width
                        )
                        self.finish(
                            c,
                            self.move(c, self.move(c, here, self.row, r), key, x),
                            {**place, key: x, self.row: c.b.add(y, c.size(r))},
                            total,
                            key,
                            width,
                        )

                def whole(x: Ir, size: int, _: list[Ir]) -> list[Ir]:
                    keys(x, size)
                    return []

                c.cut(length, [width], (), whole)
                with c.tail(length, width) as start:
                    if start is not None:
                        keys(start, c.b.sub(c.size(length), start), c.mask)
                return []

            c.cut(self.lengths[self.row] if self.row else 1, heights, (), rows)

        self.walk(c, [n for n in self.space if n not in (key, self.row)], self.start(c), {}, lines)

    def finish(self, c: Code, at: Pointers, where: Where, total: Ir, key: str, width: int) -> None:
        args = [total, *(self.read(c, at, where, key, width, n) for n in range(len(self.inputs)))]
        self.keep(c, at, self.compute(c, args, width), key, width)

    def sums(self, c: Code, at: Pointers, key: Ir, height: int, width: int) -> list[Ir]:
        """The sums of one key with `height` rows."""
        lhs, rhs, length = self.operands["in0"], self.operands["in1"], self.lengths[self.along]
        rows = [c.move(at["in0"], lhs, self.row, r) for r in range(height)]
        pointer = c.move(at["in1"], rhs, self.space[-1], key)

        def step(start: Ir, state: list[Ir]) -> list[Ir]:
            x = self.elements(c, pointer, rhs, start, width)
            return [
                c.intrinsic("fma", self.elements(c, row, lhs, start, width), x, total)
                for row, total in zip(rows, state, strict=True)
            ]

        def turn(start: Ir, size: int, state: list[Ir]) -> list[Ir]:
            for n in range(0, size, width):
                state = step(c.b.add(start, c.size(n)), state)
            return state

        state = [c.constant(0.0, c.vector_type(self.acc, width))] * height
        state = c.cut(length, [UNROLL * width, width], state, turn)
        if not isinstance(length, int) or length % width:
            start = c.size(length // width * width) if isinstance(length, int) else c.whole(length, width)
            lanes = ll.Constant(ll.VectorType(I64, width), list(range(width)))
            c.mask = c.b.icmp_signed("<", lanes, c.splat(c.b.sub(c.size(length), start), width))
            state = step(start, state)
            c.mask = None
        return across(c, state, BLOCK // self.acc.bytes)

    def elements(self, c: Code, pointer: Ir, operand: Operand, start: Ir, width: int) -> Ir:
        """Elements along the summed axis; 0 where there are none."""
        x = c.load(c.move(pointer, operand, self.along, start), operand, self.along, width)
        x = scalars.cast(c, x, operand.element, self.acc)
        return x if c.mask is None or not operand.room(self.along) else c.b.select(c.mask, x, ll.Constant(x.type, None))


def across(c: Code, vectors: list[Ir], per: int) -> list[Ir]:
    """The sum of the lanes of each vector. per: lanes of a block."""
    together = 1
    while len(vectors) > 1 and together < per:
        # Neighbours within each block: two vectors become one.
        width = vectors[0].type.count
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        first = [[start + n for n in range(0, per, 2)] for start in range(0, width, per)]
        even = [lane for lanes in first for lane in (*lanes, *(width + n for n in lanes))]
        vectors = [c.b.fadd(shuffled(c, a, b, even), shuffled(c, a, b, [n + 1 for n in even])) for a, b in pairs]
        together *= 2
    found: list[Ir] = []
    for x in vectors:
        while (width := x.type.count) > together:
            half = width // 2
            low, high = (range(half), range(half, width)) if width > per else (range(0, width, 2), range(1, width, 2))
            x = c.b.fadd(shuffled(c, x, x, list(low)), shuffled(c, x, x, list(high)))
        found += [c.b.extract_element(x, ll.Constant(I32, n)) for n in range(together)]
    return found


def shuffled(c: Code, a: Ir, b: Ir, lanes: list[int]) -> Ir:
    return c.b.shuffle_vector(a, b, ll.Constant(ll.VectorType(I32, len(lanes)), lanes))

"""The function of a copy: `cpu.pack`, `tile.store` and carried values that change places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from attngen.backends.cpu import scalars
from attngen.backends.cpu.kernels import Kernel, Pointers
from attngen.backends.cpu.vector import I32, Code, Ir, Size, ll
from attngen.ir.types import ElementType

Ways = list[tuple[list[tuple[Size, int]], Callable[[], None]]]
"""Strides that must be those of neighbours, with the bytes that these are apart, and what to write where they are."""


@dataclass(frozen=True)
class Copy(Kernel):
    """From one order, element spacing and type to another. Vectors where elements lie side by side on both sides, blocks that
    are transposed in registers where they do so along another axis in the source, else single elements.

    The spacing in user memory is known only at run time: each way is tested for where it may apply.
    """

    def write(self, c: Code) -> None:
        if all(o.element is ElementType.I1 for o in self.operands.values()):
            # Truth values are bytes here, and no tests are needed to copy those.
            bytes = {role: replace(o, element=ElementType.I8) for role, o in self.operands.items()}
            replace(self, operands=bytes).write(c)
            return
        source, out = self.operands["in0"], self.operands["out0"]
        order = out.order if out.padded or not source.padded else source.order
        if not order:
            at = self.start(c)
            c.store(self.load(c, at["in0"], "", 1), at["out0"], out, "", 1)
            return
        lane, other = order[-1], source.order[-1]
        ways: Ways = []
        spaced = [(o.strides.get(lane, 0), o.element.bytes) for o in (source, out)]
        if all(isinstance(s, str) or s == size for s, size in spaced):
            dense = {role: replace(o, strides={**o.strides, lane: o.element.bytes}) for role, o in self.operands.items()}
            ways.append((spaced, lambda: replace(self, operands=dense).along(c, order)))
        near, size = source.strides[other], source.element.bytes
        blocks = out.room(lane) and isinstance(self.lengths[other], int) and source.element is not ElementType.INDEX
        if other != lane and blocks and (isinstance(near, str) or near == size):
            turned = {"in0": replace(source, strides={**source.strides, other: size}), "out0": out}
            ways.append(([(near, size)], lambda: replace(self, operands=turned).transposed(c, order, other)))
        self.choose(c, ways, lambda: self.along(c, order))

    def choose(self, c: Code, ways: Ways, otherwise: Callable[[], None]) -> None:
        """The first way whose strides are those of neighbours."""
        if not ways:
            otherwise()
            return
        strides, write = ways[0]
        tests = [c.b.icmp_signed("==", c.size(s), c.size(size)) for s, size in strides if isinstance(s, str)]
        if not tests:
            write()
            return
        with c.b.if_else(tests[0] if len(tests) == 1 else c.b.and_(*tests)) as (then, other):
            with then:
                write()
            with other:
                self.choose(c, ways[1:], otherwise)

    def load(self, c: Code, pointer: Ir, axis: str, width: int) -> Ir:
        """Elements of the source, as the other side has them."""
        source = self.operands["in0"]
        return scalars.cast(c, c.load(pointer, source, axis, width), source.element, self.operands["out0"].element)

    @property
    def widest(self) -> int:
        return max(o.element.bytes for o in self.operands.values())

    def along(self, c: Code, order: Sequence[str]) -> None:
        """Vectors along the lanes; where they are not neighbours, their elements one by one."""
        lane, out = order[-1], self.operands["out0"]

        def line(at: Pointers) -> None:
            def piece(x: Ir, size: int) -> None:
                here = self.move(c, at, lane, x)
                c.store(self.load(c, here["in0"], lane, size), here["out0"], out, lane, size)

            self.lanes(c, lane, c.target.width(self.widest), (1,), piece)

        self.over(c, order[:-1], self.start(c), line)

    def transposed(self, c: Code, order: Sequence[str], other: str) -> None:
        """Square blocks: a vector of `other` for each lane, turned into a vector of lanes for each of `other`."""
        lane, source, out = order[-1], self.operands["in0"], self.operands["out0"]
        width = c.target.width(self.widest)
        length, lanes = self.lengths[other], self.lengths[lane]

        def plane(at: Pointers) -> None:
            def block(x: Ir, y: Ir, count: int, last: Ir | None) -> None:
                """count: how many of `other`; last: the last lane that exists, read again for those that do not."""
                rows: list[Ir] = []
                for r in range(width):
                    row = c.b.add(x, c.size(r))
                    row = row if last is None else c.b.select(c.b.icmp_signed("<", row, last), row, last)
                    pointer = c.move(c.move(at["in0"], source, lane, row), source, other, y)
                    rows.append(self.load(c, pointer, other, width))
                to = c.move(c.move(at["out0"], out, lane, x), out, other, y)
                for n, value in enumerate(transpose(c, rows)[:count]):
                    c.b.store(value, c.move(to, out, other, n), align=1)

            def strip(x: Ir, last: Ir | None) -> None:
                def piece(y: Ir, size: int, _: list[Ir]) -> list[Ir]:
                    block(x, y, size, last)
                    return []

                assert isinstance(length, int)
                c.cut(length, [width], (), piece)
                with c.tail(length, width) as start:
                    if start is not None:
                        block(x, start, length % width, last)

            def full(x: Ir, size: int, _: list[Ir]) -> list[Ir]:
                strip(x, None)
                return []

            c.cut(lanes, [width], (), full)
            last = c.b.sub(c.size(lanes), c.size(1))
            if isinstance(lanes, int):
                if lanes % width:
                    strip(c.size(lanes // width * width), last)
                return
            start = c.whole(lanes, width)
            with c.b.if_then(c.b.icmp_signed("<", start, c.size(lanes))):
                strip(start, last)

        self.over(c, [n for n in order if n not in (lane, other)], self.start(c), plane)


def transpose(c: Code, rows: list[Ir]) -> list[Ir]:
    """A square block by shuffles of two vectors, half as far apart in each round."""
    width = len(rows)
    step = width // 2
    while step:
        new = list(rows)
        for n in range(width):
            if not n & step:
                pair = rows[n], rows[n + step]
                low = [j if not j & step else width + j - step for j in range(width)]
                high = [j + step if not j & step else width + j for j in range(width)]
                for at, picks in ((n, low), (n + step, high)):
                    new[at] = c.b.shuffle_vector(*pair, ll.Constant(ll.VectorType(I32, width), picks))
        rows, step = new, step // 2
    return rows

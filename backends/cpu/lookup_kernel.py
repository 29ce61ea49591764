"""The function of `cpu.lookup`: elements of a table at computed coordinates."""

from __future__ import annotations

from dataclasses import dataclass

from attngen.backends.cpu import scalars
from attngen.backends.cpu.kernels import Kernel, Pointers
from attngen.backends.cpu.vector import BIT, I32, I64, POINTER, Code, Ir, Size, ll, mangled
from attngen.ir.types import ElementType

OUTSIDE = "outside"
"""The argument that holds the address of one 64-bit flag for each axis that something is looked up along."""


@dataclass(frozen=True)
class Lookup(Kernel):
    """Vectors of addresses, and one gathering load for each. Nothing is read outside of the table; that a coordinate lies
    there is noted in a flag.

    operands: `in0`, the table along the axes that stay; `at0`, `at1`, … the coordinates; `out0`. lookups: for each coordinate
    the bytes from element to element of the table, the length of its axis, and the number of its flag.
    """

    lookups: tuple[tuple[Size, Size, int], ...]

    def arguments(self) -> tuple[str, ...]:
        names = [x for stride, length, _ in self.lookups for x in (stride, length) if isinstance(x, str)]
        return tuple(dict.fromkeys((*super().arguments(), *names, OUTSIDE)))

    def write(self, c: Code) -> None:
        out = self.operands["out0"]
        if not out.order:
            self.vector(c, self.start(c), "", c.size(0), 1)
            return
        lane = out.order[-1]
        # Lanes that do not exist are neither read nor checked.
        lanes = c.target.width(max(out.element.bytes, 4))

        def line(at: Pointers) -> None:
            self.lanes(c, lane, lanes, (1,), lambda x, size: self.vector(c, self.move(c, at, lane, x), lane, x, size))

        self.over(c, out.order[:-1], self.start(c), line)

    def vector(self, c: Code, at: Pointers, lane: str, x: Ir, width: int) -> None:
        """One vector that begins at x."""
        table, out = self.operands["in0"], self.operands["out0"]
        kind = c.vector_type(ElementType.INDEX, width)
        steps = ll.Constant(kind, list(range(width)) if width > 1 else 0)
        exists = ll.Constant(c.vector_type(ElementType.I1, width), [1] * width if width > 1 else 1)
        if lane:
            exists = c.b.icmp_signed("<", c.b.add(c.splat(x, width), steps), c.splat(c.size(self.lengths[lane]), width))
        address = c.splat(c.b.ptrtoint(at["in0"], I64), width)
        if lane in table.strides:
            address = c.b.add(address, c.b.mul(steps, c.splat(c.size(table.strides[lane]), width)))
        inside = exists
        for n, (stride, length, flag) in enumerate(self.lookups):
            operand = self.operands[f"at{n}"]
            place = scalars.cast(c, c.load(at[f"at{n}"], operand, lane, width), operand.element, ElementType.INDEX)
            fits = c.b.icmp_unsigned("<", place, c.splat(c.size(length), width))
            self.note(c, c.b.and_(exists, c.b.xor(fits, ll.Constant(fits.type, [1] * width if width > 1 else 1))), flag, width)
            inside = c.b.and_(inside, fits)
            address = c.b.add(address, c.b.mul(place, c.splat(c.size(stride), width)))
        c.store(self.gathered(c, address, inside, at["out0"], width), at["out0"], out, lane, width)

    def note(self, c: Code, wrong: Ir, flag: int, width: int) -> None:
        some = c.named(f"llvm.vector.reduce.or.{mangled(wrong.type)}", BIT, [wrong]) if width > 1 else wrong
        with c.b.if_then(some, likely=False):
            to = c.b.inttoptr(c.b.add(c.values[OUTSIDE], c.size(8 * flag)), POINTER)
            c.b.store(c.size(1), to, align=8)

    def gathered(self, c: Code, address: Ir, inside: Ir, instead: Ir, width: int) -> Ir:
        """The elements at these addresses; `instead` can be read in any case."""
        element = self.operands["in0"].element
        kind = c.vector_type(element, width, memory=True)
        if width == 1:
            pointer = c.b.select(inside, c.b.inttoptr(address, POINTER), instead)
            return c.truth(c.b.load(pointer, align=1, typ=kind), element)
        pointers = c.b.inttoptr(address, ll.VectorType(POINTER, width))
        args = [pointers, ll.Constant(I32, 1), inside, ll.Constant(kind, None)]
        return c.truth(c.named(f"llvm.masked.gather.{mangled(kind)}.v{width}p0", kind, args), element)

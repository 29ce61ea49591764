"""The function of a contraction: a register tile of sums, and the scalar ops that its sums go through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attngen.backends.cpu import scalars
from attngen.backends.cpu.chain_kernel import Chained, Where
from attngen.backends.cpu.kernels import Pointers
from attngen.backends.cpu.vector import Code, Ir, Operand, Size
from attngen.ir.types import ElementType


@dataclass(frozen=True)
class Contraction(Chained):
    """`nd.contract` and `cpu.product`: rows of the operand without the lane axis, broadcast, times vectors of the other.

    space: the axes of the sums, the lane axis last. The region's first argument is the sum.
    """

    space: tuple[str, ...]
    summed: tuple[str, ...]
    acc: ElementType
    down: tuple[str, ...]

    def write(self, c: Code) -> None:
        lane = self.space[-1] if self.space else ""
        width = c.target.width(max(self.acc.bytes, self.widest())) if lane else 1
        lhs, rhs = (tuple(self.operands[role].strides) for role in ("in0", "in1"))
        row = product_row(self.space, self.lengths, lhs, rhs, self.down)
        # The long sums are innermost.
        summed = sorted(self.summed, key=lambda n: known_length(self.lengths[n]))
        most = 2 * c.target.row_counts[0]

        def block(at: Pointers, where: Where) -> None:
            def piece(x: Ir, size: int) -> None:
                one, vectors = (1, 1) if size == 1 else (width, size // width)
                here, place = (self.move(c, at, lane, x), {**where, lane: x}) if lane else (at, where)

                def rows(y: Ir, count: int, state: list[Ir]) -> list[Ir]:
                    tile = Tile(self, c, lane, one, vectors, row, count)
                    return tile.run(self.move(c, here, row, y), {**place, row: y}, summed, state)

                heights = [n for n in c.target.row_counts if n * vectors <= most] if row else [1]
                state = c.cut(self.lengths[row] if row else 1, heights, self.identities(c, one, vectors), rows)
                for n, total in enumerate(state):
                    role = f"out{self.stored + n // vectors}"
                    out = self.operands[role]
                    c.store(total, c.move(here[role], out, lane, n % vectors * one), out, lane, one)

            if lane:
                # Few rows leave registers to more vectors, up to whole rows of the vectors' operand: addresses at equal
                # distances, which processors foresee.
                few = known_length(self.lengths[row]) if row else 1
                self.lanes(c, lane, width, (8, 4, 2, 1) if 2 * few <= c.target.row_counts[0] else (2, 1), piece)
            else:
                piece(c.size(0), 1)

        self.walk(c, [n for n in self.space if n not in (lane, row)], self.start(c), {}, block)


@dataclass(frozen=True)
class Tile:
    """Rows times vectors of sums that are in registers together."""

    kernel: Contraction
    c: Code
    lane: str
    width: int
    vectors: int
    row: str
    rows: int

    @property
    def cells(self) -> list[tuple[int, int]]:
        return [(r, n) for r in range(self.rows) for n in range(self.vectors)]

    def place(self, pointer: Ir, operand: Operand, r: int, n: int) -> Ir:
        return self.c.move(self.c.move(pointer, operand, self.row, r), operand, self.lane, n * self.width)

    def run(self, at: Pointers, where: Where, summed: Sequence[str], state: list[Ir]) -> list[Ir]:
        """The sums, then the chain for each of them; the state of the reductions after it."""
        c, kernel = self.c, self.kernel
        sources = {role: at[role] for role in ("in0", "in1", "where") if role in at}
        zero = c.constant(0.0, c.vector_type(kernel.acc, self.width))
        sums = kernel.folded(c, summed, sources, [zero] * len(self.cells), self.step)
        inputs: dict[tuple[int, int, int], Ir] = {}
        reduced: list[list[Ir]] = [[] for _ in state]
        for (r, n), total in zip(self.cells, sums, strict=True):
            args = [total, *(self.input(at, where, index, r, n, inputs) for index in range(len(kernel.inputs)))]
            results = kernel.compute(c, args, self.width)
            here = {role: self.place(at[role], kernel.operands[role], r, n) for role in at if role.startswith("out")}
            kernel.keep(c, here, results, self.lane, self.width)
            for index, new in enumerate(results[kernel.stored :]):
                reduced[index * self.vectors + n].append(new)
        kinds = [kind for kind in kernel.kinds for _ in range(self.vectors)]
        return [scalars.combine(c, kind, x, *new) for kind, x, new in zip(kinds, state, reduced, strict=True)]

    def step(self, here: Pointers, sums: list[Ir]) -> list[Ir]:
        """One element of the summed axis: each operand is loaded once for all cells that share it."""
        c, kernel = self.c, self.kernel
        loaded: dict[tuple[str, int, int], Ir] = {}

        def value(role: str, r: int, n: int) -> Ir:
            operand = kernel.operands[role]
            key = (role, r if self.row in operand.strides else 0, n if self.lane in operand.strides else 0)
            if key not in loaded:
                x = c.load(self.place(here[role], operand, key[1], key[2]), operand, self.lane, self.width)
                loaded[key] = x if operand.element is ElementType.I1 else scalars.cast(c, x, operand.element, kernel.acc)
            return loaded[key]

        result: list[Ir] = []
        for (r, n), total in zip(self.cells, sums, strict=True):
            new = c.intrinsic("fma", value("in0", r, n), value("in1", r, n), total)
            if "where" in kernel.operands:
                new = c.b.select(value("where", r, n), new, total)
            result.append(new)
        return result

    def input(self, at: Pointers, where: Where, index: int, r: int, n: int, seen: dict[tuple[int, int, int], Ir]) -> Ir:
        """An input of the chain for one cell; what varies along neither rows nor lanes is read once."""
        c, kernel = self.c, self.kernel
        axes = kernel.axes(index)
        key = (index, r if self.row in axes else 0, n if self.lane in axes else 0)
        if key not in seen:
            source = kernel.inputs[index]
            here = {source: self.place(at[source], kernel.operands[source], key[1], key[2])} if isinstance(source, str) else {}
            place: Mapping[str, Ir] = where
            if isinstance(source, tuple) and source[0]:
                step = key[1] if source[0] == self.row else key[2] * self.width if source[0] == self.lane else 0
                place = {source[0]: c.b.add(where[source[0]], c.size(step))}
            seen[key] = kernel.read(c, here, place, self.lane, self.width, index)
        return seen[key]


def known_length(x: Size) -> int:
    """A length for comparison; one that is known only at run time counts as long."""
    return x if isinstance(x, int) else 1 << 30


def product_row(
    space: Sequence[str], lengths: Mapping[str, Size], lhs: Sequence[str], rhs: Sequence[str], down: Sequence[str]
) -> str:
    """The axis of the register tile's rows: the one that is reduced, else the longest that the vectors' operand lacks, so
    that rows share its loads."""
    lane = space[-1] if space else ""
    vectors = lhs if lane in lhs and lane not in rhs else rhs
    found = [n for n in space if n != lane and n not in vectors and known_length(lengths[n]) > 1]
    return max(found, key=lambda n: (n in down, known_length(lengths[n])), default="")

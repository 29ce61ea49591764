"""How the threads of a block hold a value: which elements lie in the registers of each thread.

Fragments are those of mma.sync's accumulators: of a tile of 16 rows per warp, lane l holds the rows l / 4 and l / 4 + 8 of its
warp, and of each 8 columns the columns 2 (l % 4) and the next one. wgmma's accumulators lie the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

Layout = Literal["one", "row", "col", "tile"]
Carrier = Literal["f32", "f16", "bf16", "i32", "i64", "i1"]


class Place(NamedTuple):
    """Of an element in a thread's registers: column block n of 8, row r of two, column c of two."""

    n: int
    r: int
    c: int


@dataclass(frozen=True)
class Tile:
    """layout: one (the same in all threads), row (one value per row), col (one per column) or tile; element: what registers
    hold; blocks: of 8 columns."""

    layout: Layout
    element: Carrier
    blocks: int = 0

    @property
    def packed(self) -> bool:
        """Whether two columns share a register, as tensor cores read them."""
        return self.layout == "tile" and self.element in ("f16", "bf16")

    @property
    def registers(self) -> int:
        """How many values the tuple of a thread has; a single value is no tuple."""
        if self.layout == "one":
            return 1
        if self.layout == "row":
            return 2
        return self.blocks * (2 if self.layout == "col" or self.packed else 4)

    def index(self, at: Place) -> int:
        """Where an element is in the tuple. Values that do not vary along rows or columns are the same at each of them."""
        match self.layout:
            case "one":
                return 0
            case "row":
                return at.r
            case "col":
                return 2 * at.n + at.c
            case "tile":
                return 2 * at.n + at.r if self.packed else 4 * at.n + 2 * at.r + at.c

    def places(self) -> Iterator[Place]:
        """The elements in the order of registers (of a packed register: both)."""
        match self.layout:
            case "one":
                yield Place(0, 0, 0)
            case "row":
                yield from (Place(0, r, 0) for r in range(2))
            case "col":
                yield from (Place(n, 0, c) for n in range(self.blocks) for c in range(2))
            case "tile":
                yield from (Place(n, r, c) for n in range(self.blocks) for r in range(2) for c in range(2))

"""What a grid's text is made of: names, lines, and how values are held."""

from __future__ import annotations

import builtins
import keyword
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attngen.backends import Unsupported
from attngen.backends.cuda.ops import Grid
from attngen.backends.cuda.passes.distribute import Roles
from attngen.backends.cuda.target import Target
from attngen.backends.cuda.tensor_cores.calls import Calls
from attngen.backends.cuda.tensor_cores.index_width import Widths
from attngen.backends.cuda.tensor_cores.parameters import Parameters
from attngen.backends.cuda.tensor_cores.tiles import Carrier, Layout, Tile
from attngen.backends.unique import Unique
from attngen.ir.core import Op, Value, walk
from attngen.ir.loop import For, trips
from attngen.ir.nd import Constant
from attngen.ir.types import BF16, F16, F32, I1, I8, I32, I64, ElementType, Extent, RangeType, bound

CARRIERS: Mapping[ElementType, Carrier] = {F32: "f32", F16: "f16", BF16: "bf16", I1: "i1", I8: "i32", I32: "i32", I64: "i64"}
RESERVED = (
    *("cuda", "f32", "i32", "i64", "i1", "inf", "nan", "block", "shared", "lane", "warp", "group", "thread", "row", "column"),
    *(*keyword.kwlist, *keyword.softkwlist, *dir(builtins)),
)


@dataclass(frozen=True)
class Range:
    """The part of an axis in the text: variables of its first coordinate and of how many it has."""

    first: str
    count: str


@dataclass(frozen=True)
class Buffer:
    """A stage in the text: the variable with its address, in bytes, of the buffer in use; where its buffers begin in shared
    memory."""

    variable: str
    offset: int


class TileText(ABC):
    """What the parts of a writer share. numbers: of the arrays it may read or write, see `Program.arrays`; words: their names
    in the text, by number; top: scalars from outside."""

    def __init__(
        self, name: str, grid: Grid, numbers: Mapping[Value, int], words: Mapping[int, str], top: Sequence[Op], target: Target
    ) -> None:
        self.name, self.grid, self.target, self.top = name, grid, target, top
        self.roles = Roles(grid)
        self.numbers = dict(numbers)
        self.parameters, self.words = Parameters(words), words
        self.widths = Widths(longest(grid))
        self.variables: dict[Value, str] = {}
        self.kinds: dict[Value, Tile] = {}
        self.ranges: dict[Value, Range] = {}
        self.buffers: dict[Value, Buffer] = {}
        self.lines: list[str] = []
        self.opening: list[str] = []
        """Lines at the start of the kernel: what does not change."""
        self.known: dict[str, str] = {}
        """Expressions in `opening` and their variables."""
        self.fresh = Unique((*RESERVED, name))
        self.calls = Calls(self.fresh)
        self.shared: int = 0
        self.pending = False
        """Whether copies of this block's own tiles have begun and nobody has waited for them."""
        self.depth: int = 1
        self.rows = tuple(self.roles.cut[n] for n in self.roles.rows)
        self.place = "row", "column"
        """Variables of this thread's first row and first column."""

    # ---- names and lines

    def put(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def define(self, value: Value, expression: str, comment: str = "") -> str:
        name = self.fresh(value.hint or (value.op.name.split(".")[-1] if value.op else "x"))
        self.variables[value] = name
        self.kinds[value] = self.tile(value)
        line = f"{name} = {expression}"
        self.put(f"{line:<60}  # {comment or value.type}")
        return name

    def constant(self, expression: str, wish: str) -> str:
        """A variable of something that does not change."""
        if expression not in self.known:
            name = self.fresh(wish)
            self.opening.append(f"    {name} = {expression}")
            self.known[expression] = name
        return self.known[expression]

    def call(self, wish: str, maker: str, *given: Any) -> str:
        return self.calls.name(wish, maker, *given)

    # ---- tiles

    def carrier(self, value: Value) -> Carrier:
        if value.element is ElementType.INDEX:
            return "i32" if self.widths.narrow(value) else "i64"
        return CARRIERS[value.element]

    def column(self, value: Value) -> str:
        columns = self.roles.columns(value.tensor)
        return columns[0] if columns else ""

    def layout(self, value: Value) -> Layout:
        rows = any(n in self.roles.rows for n in value.names)
        if self.column(value):
            return "tile" if rows else "col"
        return "row" if rows else "one"

    def tile(self, value: Value) -> Tile:
        layout, column = self.layout(value), self.column(value)
        return Tile(layout, self.carrier(value), bound(value.tensor.extents[column]) // 8 if column else 0)

    def use(self, value: Value) -> str:
        """The variable of a value, or a constant as a literal."""
        if value not in self.variables:
            op = value.op
            if isinstance(op, Constant):
                return literal(op.value, self.carrier(value))
            raise Unsupported("backend cuda", f"nothing makes {value!r}")
        return self.variables[value]

    def kind(self, value: Value) -> Tile:
        return self.kinds.get(value) or self.tile(value)

    def length(self, axis: str, extent: Extent) -> str:
        return str(extent) if isinstance(extent, int) else self.parameters.length(axis)

    @abstractmethod
    def op(self, op: Op) -> None:
        """Write the lines of an op."""


def longest(grid: Grid) -> dict[str, int]:
    """The largest coordinate that tiles have along each axis."""
    found: dict[str, int] = {}
    for op in walk(grid.body):
        for x in (*op.operands, *op.results):
            if not isinstance(x.type, RangeType):
                found |= {n: max(found.get(n, 0), bound(e) + 256) for n, e in x.tensor.axes}
        if isinstance(op, For):
            found[op.axis] = max(found.get(op.axis, 0), trips(op.extent, op.step) * op.step)
    for name, extent, step in zip(grid.axes, grid.extents, grid.steps, strict=True):
        found[name] = max(found.get(name, 0), trips(extent, step) * step)
    return found


def literal(value: float, carrier: Carrier) -> str:
    if carrier == "i1":
        return f"i1({bool(value)})"
    if carrier in ("i32", "i64"):
        return f"{carrier}({int(value)})"
    if math.isinf(value) or math.isnan(value):
        return f"f32({'nan' if math.isnan(value) else 'inf' if value > 0 else '-inf'})"
    return f"f32({value!r})"

"""A grid as Numba source: one line per op, each a call of an intrinsic on tiles, and the loops in plain Python."""

from __future__ import annotations

import builtins
import keyword
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from attngen.backends import Unsupported
from attngen.backends.cuda.calls import Calls
from attngen.backends.cuda.distribute import Roles
from attngen.backends.cuda.index_width import Widths
from attngen.backends.cuda.ops import Cut, Finite, Fragments, Grid, Inside, Mma, Pad, Stage
from attngen.backends.cuda.parameters import Parameters
from attngen.backends.cuda.pipelining import row_bytes, stage_bytes, stage_rows
from attngen.backends.cuda.program import Address, Entry, Map, Part
from attngen.backends.cuda.target import Target
from attngen.backends.cuda.tiles import Carrier, Layout, Tile
from attngen.ir.core import Block, Op, Value, walk
from attngen.ir.elementwise import Cast, Compare, Elementwise
from attngen.ir.loop import Bound, For, If, Load, Parallel, Store, trips
from attngen.ir.nd import REDUCTIONS, Constant, Expand, Gather, Index, Reduce
from attngen.ir.types import I8, BF16, F16, F32, I1, I32, I64, ElementType, RangeType, bound

CARRIERS: Mapping[ElementType, Carrier] = {F32: "f32", F16: "f16", BF16: "bf16", I1: "i1", I8: "i32", I32: "i32", I64: "i64"}
RESERVED = (
    *("cuda", "f32", "i32", "i64", "i1", "inf", "nan", "block", "shared", "lane", "warp", "thread", "row", "column"),
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


class TileWriter:
    """Writes one grid. numbers: of the arrays it may read or write, see `Program.arrays`; top: scalars from outside."""

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
        self.used: set[str] = {*RESERVED, name}
        self.calls = Calls(self.used)
        self.shared = 0
        self.pending = False
        """Whether copies of this block's own tiles have begun and nobody has waited for them."""
        self.depth = 1
        self.rows = tuple(self.roles.cut[n] for n in self.roles.rows)
        self.place = "row", "column"
        """Variables of this thread's first row and first column."""

    # ---- names and lines

    def fresh(self, wish: str) -> str:
        base = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in wish) or "x"
        base = base if base[0].isalpha() else f"v{base}"
        name, count = base, 1
        while name in self.used:
            count += 1
            name = f"{base}{count}" if not base[-1].isdigit() else f"{base}_{count}"
        self.used.add(name)
        return name

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

    # ---- the kernel

    def entry(self) -> Entry:
        grid = self.grid
        body = grid.body
        self.put(f"shared = {self.call('shared_base', 'shared_base')}()")
        rest = "block"
        self.put("block = i32(cuda.blockIdx.x)")
        each = [*zip(body.args, grid.axes, grid.extents, grid.steps, strict=False)]
        for k, (value, axis, extent, step) in enumerate(reversed(each)):
            first = self.fresh(f"{axis}_first")
            length = self.length(axis, extent)
            parts = f"i32(({length} + {step - 1}) // {step})" if not isinstance(extent, int) else str(-(-extent // step))
            last = k == len(each) - 1
            number = f"i32({rest}{'' if last else f' % {parts}'})"
            if axis in self.roles.rows and self.grows:
                number = f"i32({parts} - 1 - {number})"  # the longest loops first, so that short ones fill the end
            self.put(f"{first} = i32({number} * {step})")
            if not last:
                self.put(f"{rest} = i32({rest} // {parts})")
            count = str(step) if isinstance(extent, int) and extent % step == 0 else self.fresh(f"{axis}_count")
            if not count.isdigit():
                self.put(f"{count} = i32(min({step}, i32({length} - {first})))")
            self.ranges[value] = Range(first, count)
        head = len(self.lines)
        for op in self.top:
            self.op(op)
        self.body()
        self.lines[head:head] = self.opening
        opening = [
            f"def {self.name}({', '.join(self.parameters.names)}):",
            *self.heading(),
            *(
                f"    {n} = i64({n})"
                for n, p in zip(self.parameters.names, self.parameters.all, strict=True)
                if isinstance(p, Address | Map)
            ),
        ]
        text = "\n".join((*opening, *self.lines)) + "\n"
        if self.shared > self.target.shared_bytes:
            need, most = f"{self.shared / 1024:.0f} KB", f"{self.target.shared_bytes / 1024:.0f} KB"
            raise Unsupported(
                "backend cuda",
                f"@{self.name} needs {need} of shared memory, a block of {self.target.name} has at most {most}",
                help="give shorter parts, such as tile{i=64 j=32}",
            )
        calls = self.calls.all
        grid_parts = tuple(Part(a, e, s) for a, e, s in zip(grid.axes, grid.extents, grid.steps, strict=True))
        return Entry(
            self.name,
            text,
            partial(load_namespace, calls),
            tuple(self.parameters.all),
            grid_parts,
            self.threads,
            self.shared,
            # The assembler otherwise spills to let two blocks share a multiprocessor.
            least_blocks_per_multiprocessor=1,
        )

    @property
    def grows(self) -> bool:
        """Whether a loop ends where the rows say, as it does under a causal mask: then later rows have more to do."""
        return any(isinstance(op, For) and op.end is not None for op in self.grid.body.ops)

    @property
    def threads(self) -> int:
        return 32 * self.grid.warps

    def heading(self) -> list[str]:
        """The place of a thread in its block."""
        return [
            "    thread = i32(cuda.threadIdx.x)",
            "    lane = i32(thread & 31)",
            "    warp = i32(thread >> 5)",
            "    row = i32(i32(warp * 16) + i32(lane >> 2))",
            "    column = i32(i32(lane & 3) * 2)",
        ]

    def body(self) -> None:
        self.block(self.grid.body)

    def length(self, axis: str, extent: Any) -> str:
        return str(extent) if isinstance(extent, int) else self.parameters.length(axis)

    # ---- ops

    def block(self, block: Block) -> None:
        for op in block.ops:
            self.op(op)

    def op(self, op: Op) -> None:
        match op:
            case Load() | Pad() | Constant() | Cut():
                self.quiet(op)
            case Stage():
                self.stage(op)
            case Fragments():
                self.settle()
                at = self.constant(f"i32(i32({self.lane_a(op.value)}) + i32(warp * {16 * self.stride(op.value)}))", "left_lane")
                name = self.call(
                    "left_fragments",
                    "left_fragments",
                    self.tile(op.result),
                )
                self.define(op.result, f"{name}(i32({self.buffers[op.value].variable} + {at}))")
            case Mma():
                self.product(op)
            case Finite():
                self.settle()
                stage = op.value
                assert isinstance(stage.op, Stage)
                pieces = bound(stage.tensor.extents[stage.op.order[-1]]) * 2 // 16
                given = (CARRIERS[stage.element], stage_rows(stage.op), pieces, self.stride(stage))
                self.define(op.result, f"{self.call('finite', 'finite', *given)}({self.buffers[stage].variable}, lane)")
            case Inside():
                self.inside(op)
            case Index():
                pass  # made where it is padded, or below if it is not
            case Bound():
                r = self.ranges[op.range]
                text = f"i32({r.first})" if op.end == "first" else f"i32(i32({r.first} + {r.count}) - 1)"
                self.define(op.result, text if self.carrier(op.result) == "i32" else f"i64({text})")
            case Expand():
                self.spread(op.value, op.result)
            case Reduce():
                self.reduce(op)
            case Gather():
                self.gather(op)
            case For():
                self.loop(op)
            case If():
                self.choice(op)
            case Store():
                self.store(op)
            case Elementwise():
                self.elementwise(op)
            case _:
                raise op.error("tensor cores' grids have no such op", help="report this: the pass distribute let it through")

    def quiet(self, op: Op) -> None:
        """What is made where it is read: loads, in the form that their reader needs; fronts of tiles."""
        if isinstance(op, Cut) and op.value in self.variables:
            self.variables[op.result], self.kinds[op.result] = self.variables[op.value], self.kind(op.value)

    def operand(self, value: Value) -> str:
        """The variable of an operand, made now if it is a part of an array or a coordinate."""
        op = value.op
        if value not in self.variables and op is not None:
            inner = op.value if isinstance(op, Pad) else value
            if isinstance(inner.op, Load):
                self.load(value, inner.op)
            elif isinstance(inner.op, Index):
                self.coordinates(value, inner.op)
        return self.use(value)

    def elementwise(self, op: Elementwise) -> None:
        operands = [self.operand(v) for v in op.operands]
        result = self.tile(op.result)
        kinds = tuple(self.kind(v) for v in op.operands)
        if isinstance(op, Cast) and kinds[0] == result and op.to is not I8 and op.value.element is op.to:
            self.variables[op.result], self.kinds[op.result] = operands[0], kinds[0]
            return
        predicate = op.predicate if isinstance(op, Compare) else ""
        word = op.name.removeprefix("nd.")
        wish = f"{predicate or word}_{result.layout}" if result.layout != "one" else f"{predicate or word}_one"
        name = self.call(wish, "elementwise", op.name, predicate, op.element_type() is I8, result, kinds)
        self.define(op.result, f"{name}({', '.join(operands)})")

    def spread(self, value: Value, result: Value) -> None:
        operand = self.operand(value)
        kind, tile = self.kind(value), self.tile(result)
        if kind == tile:
            self.variables[result], self.kinds[result] = operand, kind
        else:
            self.define(result, f"{self.call(f'spread_{tile.layout}', 'spread', kind, tile)}({operand})")

    # ---- arrays

    def address(self, load: Load | Store, source: Value) -> tuple[str, int]:
        """Where a part of an array begins, and the array's number."""
        number = self.numbers[source]
        terms = [self.parameters.address(number)]
        for r in load.ranges:
            first = self.ranges[r].first
            terms.append(f"i64({first}) * {self.parameters.stride(number, r.range.axis)}")
        return " + ".join(terms), number

    def row_arguments(self, value: Value, number: int, ranges: Sequence[Value]) -> list[str]:
        """Strides and limits of the row axes; an axis that an array lacks has stride 0."""
        strides, limits = list[str](), list[str]()
        for axis in self.roles.rows:
            strides.append(self.parameters.stride(number, axis) if axis in value.names else "i64(0)")
            limits.append(self.row_range(axis).count)
        return strides + [f"i32({x})" for x in limits]

    def row_range(self, axis: str) -> Range:
        value = self.grid.body.args[self.grid.axes.index(axis)]
        return self.ranges[value]

    def column_arguments(self, value: Value, number: int, ranges: Sequence[Value], cut: Mapping[str, Any]) -> tuple[str, str]:
        """Stride and count of the column axis."""
        column = self.column(value)
        if not column:
            return "i64(0)", "i32(1)"
        stride = self.parameters.stride(number, column)
        mine = [r for r in ranges if r.range.axis == column]
        return stride, f"i32({self.ranges[mine[0]].count if mine else cut[column]})"

    def load(self, value: Value, load: Load) -> None:
        """A part of an array in registers."""
        address, number = self.address(load, load.source)
        tile = self.tile(value)
        element = str(load.source.element)
        if tile.layout == "one":
            name = self.call(f"load_{element}", "load_one", element, tile)
            self.define(value, f"{name}({address})")
            return
        step, count = self.column_arguments(value, number, load.ranges, load.source.tensor.extents)
        rows = self.row_arguments(value, number, load.ranges)
        name = self.call(f"load_{tile.layout}_{element}", "load_tile", element, tile, self.rows)
        self.define(value, f"{name}({', '.join((address, *self.place, step, count, *rows))})")

    def coordinates(self, value: Value, index: Index) -> None:
        tile = self.tile(value)
        axis = index.axis or (index.range.range.axis if index.range else "")
        first = self.ranges[index.range].first if index.range else "0"
        if tile.layout == "one":
            self.define(value, f"{tile.element}({first})")
            return
        number = self.roles.rows.index(axis) if axis in self.roles.rows else 0
        name = self.call(f"coordinates_{axis}", "coordinates", tile, self.rows, number)
        self.define(value, f"{name}(i64({first}), {', '.join(self.place)})")

    def inside(self, op: Inside) -> None:
        count = op.length if op.range is None else self.ranges[op.range].count
        name = self.call("inside", "inside", self.tile(op.result))
        self.define(op.result, f"{name}(i32({count}), {self.place[1]})")

    def store(self, op: Store) -> None:
        number = self.numbers[op.target]
        address, _ = self.address(op, op.target)
        value = self.operand(op.value)
        kind = self.kind(op.value)
        extents = op.value.op.value.tensor.extents if isinstance(op.value.op, Cut) else op.value.tensor.extents
        del extents
        step, count = self.column_arguments(op.value, number, op.ranges, op.target.tensor.extents)
        column = self.column(op.value)
        pairs = self.parameters.copyable(number, column) if kind.packed else "i32(0)"
        rows = self.row_arguments(op.value, number, op.ranges)
        name = self.call(f"store_{kind.layout}", "store_tile", str(op.target.element), kind, self.rows)
        self.put(f"{name}({', '.join((value, address, 'row', 'column', step, count, pairs, *rows))})")
        self.numbers[op.result] = number

    def gather(self, op: Gather) -> None:
        load = op.table.op
        assert isinstance(load, Load)
        address, number = self.address(load, load.source)
        at = [self.operand(v) for v in op.at]
        kinds = tuple(self.kind(v) for v in op.at)
        extents = load.source.tensor.extents
        strides = [self.parameters.stride(number, n) for n in op.over]
        lengths = [f"i64({self.length(n, extents[n])})" for n in op.over]
        own = [n for n in op.table.names if n not in op.over]
        column = self.column(op.result)
        along = column in own
        step, count = "i64(0)", "i32(1)"
        if along:
            mine = [r for r in load.ranges if r.range.axis == column]
            step = self.parameters.stride(number, column)
            count = f"i32({self.ranges[mine[0]].count if mine else self.length(column, extents[column])})"
        shared_rows = any(n in self.roles.rows for n in own)
        rows = self.row_arguments(op.table, number, load.ranges) if shared_rows else []
        tile = self.tile(op.result)
        given = (str(load.source.element), tile, kinds, self.rows if shared_rows else (), along)
        name = self.call("look_up", "look_up", *given)
        self.define(op.result, f"{name}({', '.join((address, *at, *strides, *lengths, *self.place, step, count, *rows))})")

    def reduce(self, op: Reduce) -> None:
        if isinstance(op.value.op, Load) and set(op.over) == set(op.value.names):
            self.scan(op, op.value.op)
            return
        operand = self.operand(op.value)
        kind, result = self.kind(op.value), self.tile(op.result)
        if not any(n == self.column(op.value) for n in op.over):
            self.spread(op.value, op.result)  # over axes of one element
            return
        name = self.call(f"{op.kind}_{'columns' if kind.layout == 'tile' else 'all'}", "reduce", op.kind, kind, result)
        self.define(op.result, f"{name}({operand})")

    def scan(self, op: Reduce, load: Load) -> None:
        """A part of an array reduced to one number, by each warp for itself."""
        address, number = self.address(load, load.source)
        element: Carrier = self.carrier(op.value)
        one = Tile("one", element)
        long: list[tuple[str, str]] = []
        for name, extent in load.result.tensor.axes:
            mine = [r for r in load.ranges if r.range.axis == name]
            count = self.ranges[mine[0]].count if mine else self.length(name, extent)
            if count != "1":
                long.append((self.parameters.stride(number, name), count))
        total, n = self.fresh("total"), self.fresh("n")
        first = REDUCTIONS[op.kind][1]
        if not op.acc.is_float:
            low, high = (
                (0, 1)
                if element == "i1"
                else (-(1 << (63 if element == "i64" else 31)), (1 << (63 if element == "i64" else 31)) - 1)
            )
            first = low if op.kind == "max" else high
        self.put(f"{total} = {literal(first, element)}")
        count = " * ".join(f"i32({c})" for _, c in long) or "1"
        self.put(f"for {n} in range(lane, i32({count}), 32):")
        self.depth += 1
        place, rest = address, f"i32({n})"
        for k, (stride, length) in enumerate(reversed(long)):
            last = k == len(long) - 1
            place += f" + i64({rest}{'' if last else f' % {length}'}) * {stride}"
            rest = f"i32({rest} // {length})"
        load_name = self.call(f"load_{load.source.element}", "load_one", str(load.source.element), one)
        step_name = self.call(f"{op.kind}_of", "step", op.kind, element)
        self.put(f"{total} = {step_name}({total}, {load_name}({place}))")
        self.depth -= 1
        result = f"{self.call(f'{op.kind}_warp', 'reduce_warp', op.kind, element)}({total})"
        self.define(op.result, f"i64({result})" if self.tile(op.result).element == "i64" else result)

    # ---- shared memory and products

    def stride(self, stage: Value) -> int:
        assert isinstance(stage.op, Stage)
        return row_bytes(stage.op)

    def lane_a(self, stage: Value) -> str:
        return f"i32(lane & 15) * {self.stride(stage)} + i32(lane >> 4) * 16"

    def lane_b(self, stage: Value, trans: bool) -> str:
        stride = self.stride(stage)
        if trans:
            return f"i32({self.lane_a(stage)})"
        return f"i32((i32(lane & 7) + i32(i32(lane >> 4) * 8)) * {stride} + (i32(lane >> 3) & 1) * 16)"

    def product(self, op: Mma) -> None:
        self.settle()
        stage = op.rhs
        assert isinstance(stage.op, Stage)
        left = self.operand(op.lhs)
        kind, result = self.kind(op.lhs), self.tile(op.result)
        trans = stage.op.order[-1] not in op.over
        buffer = self.buffers[stage].variable
        sums = [self.operand(op.add)] if op.add is not None else []
        if op.where is None:
            self.multiply(op, left, sums)
            return
        mask = self.operand(op.where)
        total = self.fresh("masked")
        self.put(f"{total} = {sums[0] if sums else self.zeros(result)}")
        x = self.fresh("x")
        for k in range(kind.blocks // 2):
            given = (kind, self.kind(op.where), result, *self.rows_of(stage), trans, k)
            name = self.call("masked_products", "masked_step", *given)
            self.put(f"for {x} in range(16):")
            self.put(f"    {total} = {name}({left}, {mask}, {buffer}, {self.place[1]}, i32({x}), {total})")
        self.variables[op.result], self.kinds[op.result] = total, result

    def multiply(self, op: Mma, left: str, sums: list[str]) -> None:
        """A product without a mask."""
        stage = op.rhs
        assert isinstance(stage.op, Stage)
        trans = stage.op.order[-1] not in op.over
        at = self.constant(self.lane_b(stage, trans), "right_lane")
        name = self.call("product", "product", self.kind(op.lhs), self.tile(op.result), self.stride(stage), trans, bool(sums))
        self.define(op.result, f"{name}({', '.join((left, f'i32({self.buffers[stage].variable} + {at})', *sums))})")

    def rows_of(self, stage: Value) -> tuple[int, int]:
        """Bytes between rows of a tile in shared memory, and of a panel of it, if it lies in panels."""
        return self.stride(stage), 0

    def zeros(self, tile: Tile) -> str:
        return f"{self.call(f'zeros_{tile.layout}', 'spread', Tile('one', 'f32'), tile)}(f32(0.0))"

    def settle(self) -> None:
        """Wait for the block's own copies, if they may be under way."""
        if self.pending:
            self.put(f"{self.call('wait_0', 'wait', 0)}()")
            self.put(f"{self.call('barrier', 'barrier')}()")
            self.pending = False

    def stage(self, op: Stage) -> None:
        """A tile that is copied once, where it is made."""
        self.reserve(op)
        self.put(f"{self.buffers[op.result].variable} = i32(shared + {self.buffers[op.result].offset})")
        self.copy(op, self.buffers[op.result].variable, None)
        self.put(f"{self.call('commit', 'commit')}()")
        self.pending = True

    def reserve(self, op: Stage) -> None:
        if op.result not in self.buffers:
            self.buffers[op.result] = Buffer(self.fresh(f"{op.result.hint or 'tile'}_at"), self.shared)
            self.shared += op.stages * stage_bytes(op)

    def copy(self, op: Stage, target: str, part: Range | None) -> None:
        """Begin to copy a tile. part: of the loop's axis, if it is not the one that the trip is at."""
        pad = op.value.op if isinstance(op.value.op, Pad) else None
        load = pad.value.op if pad else op.value.op
        assert isinstance(load, Load)
        saved = dict(self.ranges)
        if part is not None:
            self.ranges |= {r: part for r in load.ranges if r not in self.grid.body.args}
        address, number = self.address(load, load.source)
        extents = load.source.tensor.extents
        *outer, last = op.order
        rows = [n for n in outer if bound(op.result.tensor.extents[n]) > 1 or n in self.roles.rows]
        lengths = tuple(bound(op.result.tensor.extents[n]) for n in rows)
        by_axis = {r.range.axis: self.ranges[r] for r in load.ranges}
        limits = [f"i32({by_axis[n].count if n in by_axis else extents[n]})" for n in rows]
        strides = [self.parameters.stride(number, n) for n in rows]
        if last in by_axis:
            held_text, held = by_axis[last].count, bound(by_axis_extent(load, last))
        else:
            held_text, held = str(extents[last]), bound(extents[last])
        self.ranges = saved
        threads, total = 32 * self.grid.warps, stage_rows(op)
        columns = bound(op.result.tensor.extents[last])
        fast = self.call(
            "copy_rows", "copy_rows", lengths, total, columns * 2 // 16, -(-held * 2 // 16), row_bytes(op), threads
        )
        slow = self.call("copy_element", "copy_element", lengths, row_bytes(op))
        at = self.fresh("at")
        self.put(f"{at} = {address}")
        whole = last not in by_axis or held_text.isdigit()
        copyable = self.parameters.copyable(number, last)
        self.put(f"if {copyable} != 0{'' if whole else f' and {held_text} == {held}'}:")
        self.put(f"    {fast}({', '.join((target, at, 'thread', *strides, *limits))})")
        self.put("else:")
        n = self.fresh("n")
        self.put(f"    for {n} in range(thread, {total * columns}, {threads}):")
        step = self.parameters.stride(number, last)
        where = f"i32({n} // {columns}), i32({n} % {columns}), {step}, i32({held_text})"
        self.put(f"        {slow}({', '.join((target, at, where, *strides, *limits))})")

    # ---- control

    def loop(self, op: For) -> None:
        carried = op.body.args[1:]
        names: list[str] = []
        for value, init in zip(carried, op.inits, strict=True):
            source = self.operand(init)
            name = self.fresh(value.hint or "carried")
            if value.element is ElementType.INDEX and self.kind(init).element == "i32":
                source = f"i64({source})" if self.kind(init).layout == "one" else self.wide(init, source)
            self.put(f"{name} = {source}")
            self.variables[value], self.kinds[value] = name, self.tile(value)
            names.append(name)
        self.trips(op, [x for x in op.body.ops if isinstance(x, Stage)], names)
        for result, name, value in zip(op.results, names, carried, strict=True):
            self.variables[result], self.kinds[result] = name, self.kinds[value]

    def limits(self, op: For) -> tuple[str, str, str]:
        """Variables of the first coordinate of a trip and of the loop's end, and how many coordinates a trip has."""
        length = self.length(op.axis, op.extent)
        first, end = self.fresh(f"{op.axis}_first"), self.fresh(f"{op.axis}_end")
        low = "0" if op.first is None else f"i32(max({self.use(op.first)}, 0)) // {op.step} * {op.step}"
        high = length if op.end is None else f"min({self.use(op.end)}, {length})"
        self.put(f"{first} = i32({low})")
        self.put(f"{end} = i32({high})")
        if isinstance(op.extent, int) and op.extent % op.step == 0:
            return first, end, str(op.step)
        return first, end, f"i32(min({op.step}, i32({length} - {first})))"

    def start_trip(self, op: For, first: str, count: str) -> None:
        if not count.isdigit():
            name = self.fresh(f"{op.axis}_count")
            self.put(f"{name} = {count}")
            count = name
        self.ranges[op.body.args[0]] = Range(first, count)

    def trips(self, op: For, stages: Sequence[Stage], names: Sequence[str]) -> None:
        """The loop itself: copies run ahead of their use by one trip less than there are buffers."""
        first, end, count = self.limits(op)
        length = self.length(op.axis, op.extent)
        depth = max((s.stages for s in stages), default=0)
        for s in stages:
            self.reserve(s)
        turn = self.fresh("turn")
        if depth > 1:
            for ahead in range(depth - 1):
                self.fill(op, stages, f"i32({first} + {ahead * op.step})", end, str(ahead), length)
            self.put(f"{turn} = i32(0)")
        if depth != 1:
            self.settle()
        self.put(f"while {first} < {end}:")
        self.depth += 1
        self.start_trip(op, first, count)
        if depth > 1:
            self.put(f"{self.call(f'wait_{depth - 2}', 'wait', depth - 2)}()")
            self.put(f"{self.call('barrier', 'barrier')}()")
            ahead = f"i32(i32({turn} + {depth - 1}) % {depth})"
            self.fill(op, stages, f"i32({first} + {(depth - 1) * op.step})", end, ahead, length)
            for s in stages:
                b = self.buffers[s.result]
                self.put(f"{b.variable} = i32(shared + i32({turn} * {stage_bytes(s)}) + {b.offset})")
        elif depth == 1:
            self.put(f"{self.call('barrier', 'barrier')}()")
            for s in stages:
                b = self.buffers[s.result]
                self.put(f"{b.variable} = i32(shared + {b.offset})")
                self.copy(s, b.variable, None)
            self.put(f"{self.call('commit', 'commit')}()")
            self.put(f"{self.call('wait_0', 'wait', 0)}()")
            self.put(f"{self.call('barrier', 'barrier')}()")
        for x in op.body.ops:
            if not isinstance(x, Stage):
                self.op(x)
        self.hand_on(op.body.args[1:], names, op.body.yields)
        self.put(f"{first} = i32({first} + {op.step})")
        if depth > 1:
            self.put(f"{turn} = i32(i32({turn} + 1) % {depth})")
        self.depth -= 1

    def fill(self, op: For, stages: Sequence[Stage], first: str, end: str, slot: str, length: str) -> None:
        """Begin the copies of a trip, if it takes place, and commit them as a group in any case."""
        at = self.fresh(f"{op.axis}_next")
        self.put(f"{at} = {first}")
        self.put(f"if {at} < {end}:")
        self.depth += 1
        counted = isinstance(op.extent, int) and op.extent % op.step == 0
        count = str(min(op.step, bound(op.extent))) if counted else f"min({op.step}, i32({length} - {at}))"
        part = Range(at, count)
        for s in stages:
            target = self.fresh("target")
            self.put(f"{target} = i32(shared + i32({slot} * {stage_bytes(s)}) + {self.buffers[s.result].offset})")
            self.copy(s, target, part)
        self.depth -= 1
        self.put(f"{self.call('commit', 'commit')}()")

    def wide(self, value: Value, source: str) -> str:
        kind = self.kind(value)
        to = Tile(kind.layout, "i64", kind.blocks)
        return f"{self.call('wide', 'spread', kind, to)}({source})"

    def hand_on(self, carried: Sequence[Value], names: Sequence[str], yields: Sequence[Value]) -> None:
        """The carried values of the next trip, all at once."""
        sources = [self.conform(value, y) for value, y in zip(carried, yields, strict=True)]
        clash = any(s in names and s != n for s, n in zip(sources, names, strict=True))
        if clash:
            kept = [self.fresh("next") for _ in sources]
            for name, source in zip(kept, sources, strict=True):
                self.put(f"{name} = {source}")
            sources = kept
        for name, source in zip(names, sources, strict=True):
            if name != source:
                self.put(f"{name} = {source}")

    def conform(self, value: Value, y: Value) -> str:
        """What a region hands on, as the kind of the value that takes it."""
        source, kind, want = self.operand(y), self.kind(y), self.tile(value)
        if kind == want:
            return source
        return f"{self.call(f'spread_{want.layout}', 'spread', kind, want)}({source})"

    def anew(self, name: str) -> str:
        """A number of which the compiler does not know that it is the same: what is computed from it in a branch that is rarely
        taken is computed there, and fills no registers before."""
        again = self.fresh(name)
        self.put(f"{again} = {self.call('again', 'again', Tile('one', 'i32'))}({name})")
        return again

    def choice(self, op: If) -> None:
        condition = self.operand(op.condition)
        self.settle()
        names: list[str] = []
        for r in op.results:
            names.append(self.fresh(r.hint or "chosen"))
        pending = self.pending
        for word, block in ((f"if {condition}:", op.then), ("else:", op.otherwise)):
            self.put(word)
            self.depth += 1
            saved = len(self.lines)
            outside = dict(self.variables)
            for arg, value in zip(block.args, op.inputs, strict=True):
                if isinstance(arg.type, RangeType):
                    self.ranges[arg] = self.ranges[value]
                else:
                    self.variables[arg], self.kinds[arg] = self.operand(value), self.kind(value)
            self.pending = pending
            if isinstance(op.condition.op, Finite) and block is op.otherwise:
                self.place = self.anew("row"), self.anew("column")
            self.block(block)
            self.place = "row", "column"
            for r, name, y in zip(op.results, names, block.yields, strict=True):
                self.put(f"{name} = {self.conform(r, y)}")
            if len(self.lines) == saved:
                self.put("pass")
            self.depth -= 1
            # What a branch makes is not there in the other.
            self.variables = outside
        for r, name in zip(op.results, names, strict=True):
            self.variables[r], self.kinds[r] = name, self.tile(r)


def by_axis_extent(load: Load, axis: str) -> Any:
    return next(r.range.extent for r in load.ranges if r.range.axis == axis)


def longest(grid: Grid) -> dict[str, int]:
    """The largest coordinate that tiles have along each axis."""
    found: dict[str, int] = {}
    for op in walk(grid.body):
        for v in (*op.operands, *op.results):
            if not isinstance(v.type, RangeType):
                found |= {n: max(found.get(n, 0), bound(e) + 256) for n, e in v.tensor.axes}
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


def load_namespace(calls: Sequence[Any]) -> Mapping[str, Any]:
    from attngen.backends.cuda.intrinsics import namespace

    return namespace(calls)


__all__ = ["F32", "Parallel", "TileWriter"]

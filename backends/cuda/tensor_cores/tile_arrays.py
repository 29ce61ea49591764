"""Parts of arrays in registers: loads and stores of a grid's text, coordinates, look-ups, and scans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attngen.backends.cuda.ops import Inside, Pad, loaded
from attngen.backends.cuda.tensor_cores.index_width import NARROW, WIDE
from attngen.backends.cuda.tensor_cores.tile_text import Range, TileText, literal
from attngen.backends.cuda.tensor_cores.tiles import Carrier, Tile
from attngen.ir.core import Value
from attngen.ir.loop import Load, Store
from attngen.ir.nd import REDUCTIONS, Gather, Index, Reduce
from attngen.ir.types import Extent


class ArrayText(TileText):
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

    def address(self, load: Load | Store, source: Value) -> tuple[str, int]:
        """Where a part of an array begins, and the array's number."""
        number = self.numbers[source]
        terms = [self.parameters.address(number)]
        for r in load.ranges:
            first = self.ranges[r].first
            terms.append(f"i64({first}) * {self.parameters.stride(number, r.range.axis)}")
        return " + ".join(terms), number

    def row_arguments(self, value: Value, number: int) -> list[str]:
        """Strides and limits of the row axes; an axis that an array lacks has stride 0."""
        strides, limits = list[str](), list[str]()
        for axis in self.roles.rows:
            strides.append(self.parameters.stride(number, axis) if axis in value.names else "i64(0)")
            limits.append(self.row_range(axis).count)
        return strides + [f"i32({x})" for x in limits]

    def row_range(self, axis: str) -> Range:
        value = self.grid.body.args[self.grid.axes.index(axis)]
        return self.ranges[value]

    def column_arguments(
        self, value: Value, number: int, ranges: Sequence[Value], extents: Mapping[str, Extent]
    ) -> tuple[str, str]:
        """Stride and count of the column axis."""
        column = self.column(value)
        if not column:
            return "i64(0)", "i32(1)"
        stride = self.parameters.stride(number, column)
        mine = [r for r in ranges if r.range.axis == column]
        return stride, f"i32({self.ranges[mine[0]].count if mine else extents[column]})"

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
        rows = self.row_arguments(value, number)
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
        step, count = self.column_arguments(op.value, number, op.ranges, op.target.tensor.extents)
        column = self.column(op.value)
        pairs = self.parameters.copyable(number, column) if kind.packed else "i32(0)"
        rows = self.row_arguments(op.value, number)
        name = self.call(f"store_{kind.layout}", "store_tile", str(op.target.element), kind, self.rows)
        self.put(f"{name}({', '.join((value, address, 'row', 'column', step, count, pairs, *rows))})")
        self.numbers[op.result] = number

    def gather(self, op: Gather) -> None:
        load = loaded(op.table)
        address, number = self.address(load, load.source)
        at = [self.operand(item) for item in op.at]
        kinds = tuple(self.kind(item) for item in op.at)
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
        rows = self.row_arguments(op.table, number) if shared_rows else []
        tile = self.tile(op.result)
        given = (str(load.source.element), tile, kinds, self.rows if shared_rows else (), along)
        name = self.call("look_up", "look_up", *given)
        self.define(op.result, f"{name}({', '.join((address, *at, *strides, *lengths, *self.place, step, count, *rows))})")

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
            low, high = {"i1": (0, 1), "i32": NARROW, "i64": WIDE}[element]
            first = low if op.kind == "max" else high
        self.put(f"{total} = {literal(first, element)}")
        count = " * ".join(f"i32({c})" for _, c in long) or "1"
        self.put(f"for {n} in range(lane, i32({count}), 32):")
        self.depth += 1
        place, rest = address, f"i32({n})"
        for position, (stride, length) in enumerate(reversed(long)):
            last = position == len(long) - 1
            place += f" + i64({rest}{'' if last else f' % {length}'}) * {stride}"
            rest = f"i32({rest} // {length})"
        load_name = self.call(f"load_{load.source.element}", "load_one", str(load.source.element), one)
        step_name = self.call(f"{op.kind}_of", "step", op.kind, element)
        self.put(f"{total} = {step_name}({total}, {load_name}({place}))")
        self.depth -= 1
        result = f"{self.call(f'{op.kind}_warp', 'reduce_warp', op.kind, element)}({total})"
        self.define(op.result, f"i64({result})" if self.tile(op.result).element == "i64" else result)

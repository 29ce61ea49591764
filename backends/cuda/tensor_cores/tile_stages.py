"""Tiles in shared memory: copies that bring them there, and products that read them."""

from __future__ import annotations

from attngen.backends.cuda.ops import Mma, Stage, loaded, staged
from attngen.backends.cuda.passes.pipelining import row_bytes, stage_bytes, stage_rows
from attngen.backends.cuda.tensor_cores.tile_arrays import ArrayText
from attngen.backends.cuda.tensor_cores.tile_text import Buffer, Range
from attngen.backends.cuda.tensor_cores.tiles import Tile
from attngen.ir.core import Value
from attngen.ir.types import bound


class StageText(ArrayText):
    def stride(self, stage: Value) -> int:
        return row_bytes(staged(stage))

    def lane_a(self, stage: Value) -> str:
        return f"i32(lane & 15) * {self.stride(stage)} + i32(lane >> 4) * 16"

    def lane_b(self, stage: Value, trans: bool) -> str:
        stride = self.stride(stage)
        if trans:
            return f"i32({self.lane_a(stage)})"
        return f"i32((i32(lane & 7) + i32(i32(lane >> 4) * 8)) * {stride} + (i32(lane >> 3) & 1) * 16)"

    def product(self, op: Mma) -> None:
        self.settle()
        left = self.operand(op.lhs)
        sums = [self.operand(op.add)] if op.add is not None else []
        if op.where is None:
            self.multiply(op, left, sums)
            return
        stage, kind, result = op.rhs, self.kind(op.lhs), self.tile(op.result)
        trans = staged(stage).order[-1] not in op.over
        buffer = self.buffers[stage].variable
        mask = self.operand(op.where)
        total = self.fresh("masked")
        self.put(f"{total} = {sums[0] if sums else self.zeros(result)}")
        x = self.fresh("x")
        for index in range(kind.blocks // 2):
            given = (kind, self.kind(op.where), result, *self.rows_of(stage), trans, index)
            name = self.call("masked_products", "masked_step", *given)
            self.put(f"for {x} in range(16):")
            self.put(f"    {total} = {name}({left}, {mask}, {buffer}, {self.place[1]}, i32({x}), {total})")
        self.variables[op.result], self.kinds[op.result] = total, result

    def multiply(self, op: Mma, left: str, sums: list[str]) -> None:
        """A product without a mask."""
        stage = op.rhs
        trans = staged(stage).order[-1] not in op.over
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
        load = loaded(op.value)
        saved = dict(self.ranges)
        if part is not None:
            self.ranges |= {r: part for r in load.ranges if r not in self.grid.body.args}
        address, number = self.address(load, load.source)
        extents = load.source.tensor.extents
        *outer, last = op.order
        rows = [n for n in outer if bound(op.result.tensor.extents[n]) > 1 or n in self.roles.rows]
        lengths = tuple(bound(op.result.tensor.extents[n]) for n in rows)
        by_axis = {r.range.axis: self.ranges[r] for r in load.ranges}
        longest = {**extents, **{r.range.axis: r.range.extent for r in load.ranges}}
        limits = [f"i32({by_axis[n].count if n in by_axis else extents[n]})" for n in rows]
        strides = [self.parameters.stride(number, n) for n in rows]
        held_text, held = by_axis[last].count if last in by_axis else str(extents[last]), bound(longest[last])
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

"""A grid as Numba source: one line per op, each a call of an intrinsic on tiles, and the loops in plain Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from attngen.backends import Unsupported
from attngen.backends.cuda.ops import Cut, Finite, Fragments, Inside, Mma, Pad, Stage, staged
from attngen.backends.cuda.passes.pipelining import stage_rows
from attngen.backends.cuda.program import Address, Entry, Map, Part
from attngen.backends.cuda.tensor_cores.tile_control import ControlText
from attngen.backends.cuda.tensor_cores.tile_text import CARRIERS, Range
from attngen.ir.core import Op, Value
from attngen.ir.elementwise import Cast, Compare, Elementwise
from attngen.ir.loop import Bound, For, If, Load, Store
from attngen.ir.nd import Constant, Contract, Expand, Gather, Index, Reduce
from attngen.ir.types import I8, bound


class TileWriter(ControlText):
    """Writes one grid. Its bases, each on top of the one before: `tile_text.py`, `tile_arrays.py`, `tile_stages.py`,
    `tile_control.py`."""

    # ---- the kernel

    def entry(self) -> Entry:
        grid = self.grid
        body = grid.body
        self.put(f"shared = {self.call('shared_base', 'shared_base')}()")
        rest = "block"
        self.put("block = i32(cuda.blockIdx.x)")
        each = [*zip(body.args, grid.axes, grid.extents, grid.steps, strict=False)]
        for index, (value, axis, extent, step) in enumerate(reversed(each)):
            first = self.fresh(f"{axis}_first")
            length = self.length(axis, extent)
            parts = f"i32(({length} + {step - 1}) // {step})" if not isinstance(extent, int) else str(-(-extent // step))
            last = index == len(each) - 1
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

    # ---- ops

    def op(self, op: Op) -> None:
        match op:
            case Load() | Pad() | Constant() | Cut():
                self.quiet(op)
            case Stage():
                self.stage(op)
            case Fragments():
                self.settle()
                at = self.constant(f"i32(i32({self.lane_a(op.value)}) + i32(warp * {16 * self.stride(op.value)}))", "left_lane")
                name = self.call("left_fragments", "left_fragments", self.tile(op.result))
                self.define(op.result, f"{name}(i32({self.buffers[op.value].variable} + {at}))")
            case Mma():
                self.product(op)
            case Finite():
                self.settle()
                stage = op.value
                pieces = bound(stage.tensor.extents[staged(stage).order[-1]]) * 2 // 16
                given = (CARRIERS[stage.element], stage_rows(staged(stage)), pieces, self.stride(stage))
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
            case Contract():
                raise op.error(
                    "no fragments were chosen for it", help="run the passes `pad-tiles` and `choose-fragments` before"
                )
            case _:
                raise op.error("tensor cores' grids have no such op", help="report this: the pass distribute let it through")

    def quiet(self, op: Op) -> None:
        """What is made where it is read: loads, in the form that their reader needs; fronts of tiles."""
        if isinstance(op, Cut) and op.value in self.variables:
            self.variables[op.result], self.kinds[op.result] = self.variables[op.value], self.kind(op.value)

    def elementwise(self, op: Elementwise) -> None:
        operands = [self.operand(x) for x in op.operands]
        result = self.tile(op.result)
        kinds = tuple(self.kind(x) for x in op.operands)
        if isinstance(op, Cast) and kinds[0] == result and op.to is not I8 and op.value.element is op.to:
            self.variables[op.result], self.kinds[op.result] = operands[0], kinds[0]
            return
        predicate = op.predicate if isinstance(op, Compare) else ""
        word = op.name.removeprefix("nd.")
        given = (op.name, predicate, op.element_type() is I8, result, kinds)
        name = self.call(f"{predicate or word}_{result.layout}", "elementwise", *given)
        self.define(op.result, f"{name}({', '.join(operands)})")

    def spread(self, value: Value, result: Value) -> None:
        operand = self.operand(value)
        kind, tile = self.kind(value), self.tile(result)
        if kind == tile:
            self.variables[result], self.kinds[result] = operand, kind
        else:
            self.define(result, f"{self.call(f'spread_{tile.layout}', 'spread', kind, tile)}({operand})")

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


def load_namespace(calls: Sequence[Any]) -> Mapping[str, Any]:
    from attngen.backends.cuda.tensor_cores.intrinsics import namespace

    return namespace(calls)

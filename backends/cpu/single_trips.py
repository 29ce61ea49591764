"""inline-single-trips: a loop that runs once is its body."""

from __future__ import annotations

import dataclasses

from attngen.ir.core import Block, Op, Value, at
from attngen.ir.diagnostics import remark
from attngen.ir.func import Func
from attngen.ir.loop import For, Load, Store
from attngen.ir.nd import Expand, Index
from attngen.ir.pipeline import register_pass


@register_pass("inline-single-trips")
def inline_single_trips(func: Func) -> Func:
    """Replace a loop of one trip by its body: what it carries is what it starts from, and its range is the whole axis.

    before: %r = loop.for %j: j = 0 to 100 step 128 carry (%sum = %zero) { … nd.add %sum, %part }
    after:  %r = nd.add %zero, %part
    """
    inlining = Inlining()
    return func.with_body(inlining.block(func.body))


class Inlining:
    """What the values of the loops that are gone have become; their ranges are `gone` altogether."""

    def __init__(self) -> None:
        self.env: dict[Value, Value] = {}
        self.gone: set[Value] = set()

    def get(self, value: Value) -> Value:
        return self.env.get(value, value)

    def block(self, old: Block) -> Block:
        ops: list[Op] = []
        self.inline(old, ops)
        yields = tuple(map(self.get, old.yields))
        return old if tuple(ops) == old.ops and yields == old.yields else Block(old.args, tuple(ops), yields)

    def inline(self, old: Block, ops: list[Op]) -> None:
        """Append the ops of a block, loops of one trip opened."""
        for op in old.ops:
            if isinstance(op, For) and isinstance(op.extent, int) and 0 < op.extent <= op.step and not op.limits:
                remark(f"the loop over {op.axis} runs once: {op.extent} elements in parts of {op.step}", op.loc)
                range, *carried = op.body.args
                self.gone.add(range)
                self.env.update(zip(carried, map(self.get, op.inits), strict=True))
                self.inline(op.body, ops)
                results = map(self.get, op.body.yields)
            else:
                with at(op.loc):
                    new = self.whole(op).rebuild(self.get, self.block)
                ops.append(new)
                results = new.results
            self.env.update(zip(op.results, results, strict=True))

    def whole(self, op: Op) -> Op:
        """The op on the whole of axes whose ranges are gone."""
        gone = [value for value in op.operands if value in self.gone]
        if not gone:
            return op
        axes = tuple((value.range.axis, value.range.extent) for value in gone)
        match op:
            case Index():
                ((axis, extent),) = axes
                return Index(axis=axis, extent=extent)
            case Load() | Store():
                return dataclasses.replace(op, ranges=tuple(value for value in op.ranges if value not in gone))
            case Expand():
                return dataclasses.replace(
                    op, ranges=tuple(value for value in op.ranges if value not in gone), axes=(*op.axes, *axes)
                )
            case _:
                raise op.error(
                    "needs the range of a loop that runs once", help="leave such loops alone in passes that come before"
                )

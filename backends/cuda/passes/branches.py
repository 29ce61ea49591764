"""share-branches: what both branches of a choice compute is computed once, before it."""

from __future__ import annotations

import dataclasses

from attngen.backends.cuda.ops import Grid
from attngen.backends.cuda.passes.grids import fresh, over_grids
from attngen.ir.core import Block, Op, Value
from attngen.ir.func import Func
from attngen.ir.loop import If
from attngen.ir.pipeline import register_pass
from attngen.ir.rewrite import Interner


@register_pass("share-branches")
def share_branches(func: Func) -> Func:
    """Compute what both regions of a `loop.if` in a grid compute before it, once.

    before: loop.if %certain { %s = cuda.mma %q, %k; … %s … } { %s = cuda.mma %q, %k; … nd.select %keep, %s, -inf … }
    after:  %s = cuda.mma %q, %k;  loop.if %certain { … %s … } { … nd.select %keep, %s, -inf … }
    """
    return over_grids(func, shared)


def shared(grid: Grid) -> Grid:
    return dataclasses.replace(grid, body=Sharing().block(grid.body, grid.body.args, Interner()))


class Sharing:
    """One run on one grid. env: what values have become."""

    def __init__(self) -> None:
        self.env: dict[Value, Value] = {}

    def get(self, x: Value) -> Value:
        return self.env.get(x, x)

    def block(self, block: Block, args: tuple[Value, ...], interner: Interner) -> Block:
        self.env |= dict(zip(block.args, args, strict=True))
        interner = Interner(seen=dict(interner.seen))
        ops: list[Op] = []
        for op in block.ops:
            if isinstance(op, If):
                new: Op = self.choice(op, ops, interner)
            elif op.regions:
                new = op.rebuild(self.get, lambda b: self.block(b, fresh(b), interner))
            else:
                self.plain(op, ops, interner)
                continue
            self.done(op, new)
            ops.append(new)
        return Block(args, tuple(ops), tuple(map(self.get, block.yields)))

    def done(self, op: Op, new: Op) -> None:
        for old, value in zip(op.results, new.results, strict=True):
            value.hint = value.hint or old.hint
            self.env[old] = value

    def plain(self, op: Op, ops: list[Op], interner: Interner) -> None:
        """An op without regions: once, if an equal one has been computed."""
        new = op.rebuild(self.get, lambda b: b)
        found = interner.op(new)
        if found is new:
            ops.append(new)
        self.done(op, found)

    def choice(self, op: If, ops: list[Op], interner: Interner) -> Op:
        inputs = tuple(map(self.get, op.inputs))
        tried = Interner(seen=dict(interner.seen))
        first, second = (self.outside(b, inputs, tried) for b in (op.then, op.otherwise))
        common = set(second.values())
        for old, new in first.items():
            if new in common and new not in ops:
                interner.op(new)
                ops.append(new)
                self.done(old, new)
        for old, new in second.items():
            if new in ops:
                self.done(old, new)
        blocks = [self.region(b, interner) for b in (op.then, op.otherwise)]
        return dataclasses.replace(op, condition=self.get(op.condition), inputs=inputs, then=blocks[0], otherwise=blocks[1])

    def outside(self, block: Block, inputs: tuple[Value, ...], interner: Interner) -> dict[Op, Op]:
        """The ops of a region that read nothing it alone computes, as ops before the choice."""
        env = dict(self.env) | dict(zip(block.args, inputs, strict=True))
        found: dict[Op, Op] = {}
        inner: set[Value] = set()
        for op in block.ops:
            if op.regions or any(x in inner for x in op.operands):
                inner.update(op.results)
                continue
            new = interner.op(op.rebuild(lambda x: env.get(x, x), lambda b: b))
            env.update(zip(op.results, new.results, strict=True))
            found[op] = new
        return found

    def region(self, block: Block, interner: Interner) -> Block:
        known = {r for r in self.env if r.op is not None}
        kept = tuple(op for op in block.ops if not (op.results and all(r in known for r in op.results)))
        return self.block(Block(block.args, kept, block.yields), fresh(block), interner)

"""What passes over grids share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from attngen.backends.cuda.ops import Grid
from attngen.ir.core import Block, Op, Value, argument, uses, walk
from attngen.ir.diagnostics import has_remarked, remark
from attngen.ir.func import Func
from attngen.ir.loop import Parallel
from attngen.ir.rewrite import postorder, rewrite, rewrite_block


def grids_of(func: Func) -> list[Grid]:
    """All grids. If there are none, a remark says so, unless there is one that says why."""
    found = [op for op in func.body.ops if isinstance(op, Grid)]
    if not found and not has_remarked("distribute"):
        remark("no cuda.grid to work on; run distribute first")
    return found


def over_grids(func: Func, change: Callable[[Grid], Grid]) -> Func:
    """The function with each grid changed."""
    if not grids_of(func):
        return func
    return rewrite(func, lambda op: change(op).results if isinstance(op, Grid) else None)


def outside(grid: Grid) -> set[Op]:
    """The ops around a grid whose results it reads."""
    return {x.op for x in uses(grid) if x.op is not None} - {*walk(grid.body)}


def drawn_in(grid: Grid) -> Grid:
    """The grid with tiles of its own in place of those that are made around it."""
    around = outside(grid)
    read = [x for op in walk(grid.body) for x in (*op.operands, *(x for region in op.regions for x in region.yields))]

    def stays(op: Op) -> bool:
        return isinstance(op, Parallel) or not op.results[0].names

    made, env = copies(postorder((x for x in read if x.op in around), stop=stays))
    if not made:
        return grid
    known = {*around, *made, *(x.op for op in made for x in op.operands if x.op is not None)}
    body = rewrite_block(grid.body, lambda _: None, env, known)
    return dataclasses.replace(grid, body=Block(body.args, (*made, *body.ops), body.yields))


def copies(ops: Iterable[Op]) -> tuple[list[Op], dict[Value, Value]]:
    """The ops once more, and what their results are there."""
    made: list[Op] = []
    env: dict[Value, Value] = {}
    for op in ops:
        new = dataclasses.replace(op.rebuild(lambda x: env.get(x, x), lambda b: b))
        made.append(new)
        env.update(zip(op.results, new.results, strict=True))
    return made, env


def fresh(block: Block) -> tuple[Value, ...]:
    """Arguments for another version of a block."""
    return tuple(argument(x.type, x.hint) for x in block.args)

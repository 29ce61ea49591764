"""What passes over grids share."""

from __future__ import annotations

from collections.abc import Callable

from attngen.backends.cuda.ops import Grid
from attngen.ir.core import Block, Op, Value, argument, uses, walk
from attngen.ir.func import Func
from attngen.ir.rewrite import rewrite


def over_grids(func: Func, change: Callable[[Grid], Grid]) -> Func:
    """The function with each grid changed."""
    return rewrite(func, lambda op: change(op).results if isinstance(op, Grid) else None)


def outside(grid: Grid) -> set[Op]:
    """The ops around a grid whose results it reads."""
    return {x.op for x in uses(grid) if x.op is not None} - {*walk(grid.body)}


def fresh(block: Block) -> tuple[Value, ...]:
    """Arguments for another version of a block."""
    return tuple(argument(x.type, x.hint) for x in block.args)

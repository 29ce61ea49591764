"""drop-scans: no part of a table is read twice, once to see whether it can be left out and once to apply it."""

from __future__ import annotations

from attngen.backends.cuda.ops import Grid
from attngen.backends.cuda.passes.distribute import Roles
from attngen.backends.cuda.passes.grids import grids_of
from attngen.ir.core import Op, Value, constant_value, walk
from attngen.ir.diagnostics import remark
from attngen.ir.elementwise import And, Or
from attngen.ir.func import Func
from attngen.ir.loop import If, Load
from attngen.ir.nd import Constant, Reduce
from attngen.ir.pipeline import register_pass
from attngen.ir.rewrite import place, rewrite, substitute
from attngen.ir.types import I1


@register_pass("drop-scans")
def drop_scans(func: Func) -> Func:
    """Apply a boolean table that varies along rows and columns in every trip: each warp would have to read all of a part, also
    the rows of other warps, to see whether all of it is true. Tables along one axis are short, and are still looked through.

    before: %certain = nd.reduce (tile.load %mask, %i, %j) kind min over [i, j];  loop.if %certain { … } { … nd.select … }
    after:  … nd.select …
    """
    scans = dict.fromkeys(load for grid in grids_of(func) for load in long_scans(grid))
    for load in scans:
        names = ", ".join(load.result.names)
        remark(
            f"{load.source.hint or 'a table'} is applied in every part along {names}: to look through it costs as much",
            load.loc,
        )
    if not scans:
        return func

    def rule(op: Op) -> Value | tuple[Value, ...] | None:
        if isinstance(op, Reduce) and scan(op) in scans:
            return Constant(value=int(op.kind == "max"), element=I1).result
        if isinstance(op, And | Or):
            decided = [x for x in op.operands if constant_value(x) == int(isinstance(op, Or)) and not x.names]
            return decided[0] if decided and not op.result.names else op.fold()
        if isinstance(op, If) and (known := constant_value(op.condition)) is not None:
            chosen = op.then if known else op.otherwise
            return substitute(chosen.yields, dict(zip(chosen.args, op.inputs, strict=True)))
        return op.fold() if not op.regions and not op.results[0].names else None

    func = rewrite(func, rule)
    return func.with_body(place(func.args, func.outputs))


def scan(op: Reduce) -> Load | None:
    """The part of a table that is reduced to one number, if that is what the op does."""
    load = op.value.op
    return load if isinstance(load, Load) and set(op.over) == set(op.value.names) else None


def long_scans(grid: Grid) -> list[Load]:
    roles = Roles(grid)
    found: list[Load] = []
    for op in walk(grid.body):
        if isinstance(op, Reduce) and op.value.element is I1 and (load := scan(op)):
            long = {name for name in load.result.names if roles.cut.get(name, 2) > 1}
            if long & set(roles.rows) and roles.columns(load.result.tensor):
                found.append(load)
    return found

"""distribute: nests of loops that tensor cores can work on become grids of blocks; the others are declined, with the reason."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from attngen.backends.cuda.ops import Grid
from attngen.backends.cuda.passes.blocks import operand
from attngen.ir.core import Op, Value, walk
from attngen.ir.diagnostics import remark
from attngen.ir.func import Func
from attngen.ir.loop import For, Load, Parallel
from attngen.ir.nd import Contract, Gather, Reduce
from attngen.ir.pipeline import register_pass
from attngen.ir.rewrite import rewrite
from attngen.ir.types import F32, F64, Extent, TensorType, bound

MOST_WARPS = 8
WARP_ROWS, GROUP_WARPS = 16, 4
GROUP_ROWS, MOST_COLUMNS, MAP_AXES = 64, 256, 5


@register_pass("distribute")
def distribute(func: Func, *, engine: str = "mma") -> Func:
    """Give the parts of a nest to blocks of threads, and the rows of its tiles to their warps, 16 to each.

    before: loop.parallel %b: b = 0 to 2 step 1, %i: i = 0 to 500 step 128 { %s = nd.contract %q, %k over [d] … }
    after:  cuda.grid axes [b, i] … rows [i] warps 8 { … }

    A nest is declined, and left to threads that work on single elements, if it has no product of 16-bit floats or one that
    does not fit tensor cores: the remark says which.
    """

    layouts = {x: p.layout.names for x, p in zip(func.args, func.params, strict=True)}

    def rule(op: Op) -> tuple[Value, ...] | None:
        if not isinstance(op, Parallel) or isinstance(op, Grid):
            return None
        roles = Roles(op)
        why = roles.why_not(engine)
        if why:
            remark(f"declined, its elements are computed one by one: {why}", op.loc)
            return None
        chosen = engine
        if engine == "wgmma" and (why := roles.why_no_warpgroups(layouts)):
            remark(f"products of warps in place of warpgroups: {why}", op.loc)
            chosen = "mma"
        warps = roles.warps(chosen)
        shown = ", ".join(roles.rows) or "nothing"
        remark(f"{roles.height} rows along {shown} for {warps} warp{'s' * (warps > 1)} of 16", op.loc)
        given = {name: getattr(op, name) for name in ("axes", "extents", "steps", "body", "loc")}
        return Grid(**given, rows=roles.rows, warps=warps, engine=chosen).results

    return rewrite(func, rule)


@dataclass(frozen=True)
class Sides:
    """A product as tensor cores see it. left: varies along the rows; right: a part of an array, along `column` and `inner`,
    the summed axis."""

    op: Contract
    left: Value
    right: Value
    column: str
    inner: str


class Roles:
    """What the axes of a nest are to a block: rows of fragments, columns (one at a time), or batch axes, cut into single
    elements."""

    def __init__(self, parallel: Parallel) -> None:
        self.parallel = parallel
        each = zip(parallel.axes, parallel.steps, strict=True)
        self.cut: Mapping[str, int] = dict(each)
        self.ops = [*walk(parallel.body)]

    @cached_property
    def rows(self) -> tuple[str, ...]:
        """Axes cut into parts longer than one; if there are none, those of one side of products, one row of fragments."""
        if isinstance(self.parallel, Grid):
            return self.parallel.rows
        long = tuple(name for name, step in self.cut.items() if step > 1)
        products = [op for op in self.ops if isinstance(op, Contract)]
        both = {n for op in products for n in self.cut if n in op.lhs.names and n in op.rhs.names}
        return long or tuple(n for n in self.cut if n not in both and any(n in op.result.names for op in products))

    @cached_property
    def looped(self) -> set[str]:
        loops = {op.axis for op in self.ops if isinstance(op, For)}
        return loops | {n for op in self.ops if isinstance(op, Contract | Reduce) for n in op.over}

    @property
    def height(self) -> int:
        return math.prod(self.cut[name] for name in self.rows)

    def warps(self, engine: str) -> int:
        least = -(-self.height // WARP_ROWS)
        return least if engine == "mma" else -(-least // GROUP_WARPS) * GROUP_WARPS

    def is_column(self, name: str, extent: Extent) -> bool:
        return name not in self.cut and (extent != 1 or name in self.looped)

    def columns(self, type: TensorType) -> list[str]:
        return [name for name, extent in type.axes if self.is_column(name, extent)]

    def step(self, name: str, extent: Extent) -> int:
        """The extent that tiles have along an axis: columns fill products of 16."""
        if name in self.cut:
            return self.cut[name]
        return -(-bound(extent) // 16) * 16 if self.is_column(name, extent) else bound(extent)

    def sides(self, op: Contract) -> Sides | str:
        """The sides of a product, or why it has none."""
        columns = self.columns(op.result.tensor)
        over = [n for n in op.over if self.is_column(n, op.lhs.tensor.extents[n])]
        if len(columns) != 1 or len(over) != 1:
            return f"{op.name} has {len(columns)} columns and sums over {len(over)} axes, tensor cores take one of each"
        (column,) = columns
        right, left = (op.rhs, op.lhs) if column in op.rhs.names else (op.lhs, op.rhs)
        if column in left.names or set(right.names) & set(self.rows):
            return f"both operands of {op.name} vary along the same axes"
        return Sides(op, left, right, column, over[0])

    def why_not(self, engine: str) -> str:
        """Why tensor cores do not fit the nest; empty if they do."""
        products = [op for op in self.ops if isinstance(op, Contract)]
        if not products:
            return "it has no products"
        if self.warps(engine) > MOST_WARPS:
            return f"its parts have {self.height} rows, a block has at most {MOST_WARPS * WARP_ROWS}"
        loops = [op for op in self.ops if isinstance(op, For)]
        if any(isinstance(inner, For) for op in loops for inner in walk(op.body)):
            return "a loop runs inside of another"
        found = [self.sides(op) for op in products]
        sides = [s for s in found if isinstance(s, Sides)]
        whys = [s for s in found if isinstance(s, str)] + [why for s in sides if (why := self.unfit(s))]
        if whys:
            return whys[0]
        only_read = {x for s in sides for x in (s.right, operand(s.right), s.left, operand(s.left))}
        for op in self.ops:
            why = self.unfit_op(op, only_read)
            if why:
                return why
        return ""

    def why_no_warpgroups(self, layouts: Mapping[Value, tuple[str, ...]]) -> str:
        """Why products of whole warpgroups do not fit; empty if they do."""
        if self.height not in (GROUP_ROWS, 2 * GROUP_ROWS):
            return f"its parts have {self.height} rows, warpgroups take {GROUP_ROWS} or {2 * GROUP_ROWS}"
        loops = [op for op in self.ops if isinstance(op, For)]
        if any(op not in self.parallel.body.ops for op in loops):
            return "a loop runs inside of a choice"
        for s in (s for op in self.ops if isinstance(op, Contract) and isinstance(s := self.sides(op), Sides)):
            extents = s.op.result.tensor.extents
            if self.step(s.column, extents[s.column]) > MOST_COLUMNS:
                return f"{s.op.name} has more than {MOST_COLUMNS} columns"
            for side, lasts in ((operand(s.left), (s.inner,)), (operand(s.right), (s.inner, s.column))):
                if not isinstance(side.op, Load):
                    continue
                source = side.op.source
                memory = layouts.get(source, source.names)
                if len(memory) > MAP_AXES:
                    return f"an array has {len(memory)} axes, tensor maps have at most {MAP_AXES}"
                if memory[-1] not in lasts:
                    return f"the innermost axis {memory[-1]} of an array is none that {s.op.name} sums over"
        return ""

    def unfit(self, s: Sides) -> str:
        """Why a product does not fit."""
        right, left = operand(s.right), operand(s.left)
        if right.element.bytes != 2 or not right.element.is_float:
            return f"{s.op.name} reads {right.element}, tensor cores multiply f16 and bf16"
        if not isinstance(right.op, Load):
            return f"an operand of {s.op.name} is computed, and is not one of rows"
        if isinstance(left.op, Load) and left.element is not right.element:
            return f"{s.op.name} multiplies {left.element} and {right.element}"
        if s.op.acc is not F32:
            return f"{s.op.name} sums in {s.op.acc}"
        return ""

    def unfit_op(self, op: Op, only_read: set[Value]) -> str:
        for x in op.results:
            type = x.type
            if not isinstance(type, TensorType):
                continue
            if type.element is F64:
                return "it computes in f64"
            if any(
                not isinstance(extent, int) and name not in self.cut and name not in self.looped for name, extent in type.axes
            ):
                return "an axis that no loop cuts has a runtime extent"
            if len(self.columns(type)) > 1 and x not in only_read and not isinstance(op, Load):
                return f"{op.name} makes a tile with {len(self.columns(type))} columns, {', '.join(self.columns(type))}"
        match op:
            case Reduce() if isinstance(op.value.op, Load) and set(op.over) == set(op.value.names):
                return ""
            case Reduce() if set(op.over) & set(self.rows):
                return f"{op.name} runs along rows"
            case Gather() if not isinstance(op.table.op, Load):
                return "a table that is looked up is computed"
            case _:
                return ""

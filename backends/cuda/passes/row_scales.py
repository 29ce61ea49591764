"""scale-rows: operands of products that f16 might not hold are scaled, each row by a power of two."""

from __future__ import annotations

import dataclasses

from attngen.backends.cuda.ops import Grid, Mma
from attngen.backends.cuda.passes.blocks import operand
from attngen.backends.cuda.passes.distribute import Roles, Sides
from attngen.backends.cuda.passes.grids import outside, over_grids
from attngen.ir.build import div, exp2, maximum, minimum, mul, neg, reduce, select, unary
from attngen.ir.core import Op, Value, constant_value
from attngen.ir.diagnostics import remark
from attngen.ir.elementwise import Abs, Cast, Floor, Log2, Mul, Select, Sub
from attngen.ir.facts import ANYTHING, Interval
from attngen.ir.func import Func
from attngen.ir.loop import For, If, Load
from attngen.ir.nd import Contract, Expand
from attngen.ir.pipeline import register_pass
from attngen.ir.rewrite import postorder, rewrite_block
from attngen.ir.types import F16, F32

LARGEST = 125.0
"""The exponent of the largest power of two whose reciprocal is no subnormal number."""


@register_pass("scale-rows")
def scale_rows(func: Func) -> Func:
    """Scale the rows of a computed operand that is multiplied in f16, unless it is proven to lie between -1 and 1.

    before: %o = nd.contract %p, (nd.cast %v to f32) over [j]
    after:  %e = nd.floor (nd.log2 (nd.reduce (nd.abs %p) kind max over [j]))
            %o = nd.div (nd.contract (nd.mul %p, 2^-%e), (nd.cast %v to f32) over [j]), 2^-%e
    """

    def scale(grid: Grid) -> Grid:
        roles = Roles(grid)
        return dataclasses.replace(grid, body=rewrite_block(grid.body, lambda op: rule(op, roles), {}, outside(grid)))

    def rule(op: Op, roles: Roles) -> Value | None:
        sides = roles.sides(op) if isinstance(op, Contract) and not isinstance(op, Mma) else None
        if not isinstance(sides, Sides) or operand(sides.right).element is not F16 or operand(sides.left).element is F16:
            return None
        return None if small(sides.left) else scaled(sides)

    return over_grids(func, scale)


def scaled(sides: Sides) -> Value:
    op, left = sides.op, sides.left
    remark(
        f"the rows of an operand of the sum over {sides.inner} are scaled, each by a power of two: f16 might not hold it",
        op.loc,
    )
    if op.where is not None:
        left = select(op.where, left, 0.0)
    top = maximum(reduce("max", unary(Abs, left), (sides.inner,)), F32.tiny)
    factor = exp2(neg(minimum(unary(Floor, unary(Log2, top)), LARGEST)))
    new = dataclasses.replace(op, **{"lhs" if sides.left is op.lhs else "rhs": mul(left, factor)})
    return div(new.result, factor)


def small(x: Value) -> bool:
    """Whether a value is proven to lie within what f16 can hold: between -1 and 1, say."""
    while isinstance(x.op, Expand | Cast) and x.op.operands[0].element.is_float:
        x = x.op.operands[0]
    op = x.op
    if op is None:
        return False
    if isinstance(op, Select):
        return all(small(item) for item in (op.lhs, op.rhs))
    if op.facts.sum_to_product and isinstance(op.operands[0].op, Sub):
        return bounds(op.operands[0].op.rhs, op.operands[0].op.lhs)
    if isinstance(op, Load | If | For):
        return False
    found = interval(x)
    return -1 <= found[0] and found[1] <= 1


def interval(x: Value) -> tuple[float, float]:
    known: dict[Value, Interval] = {}
    for op in postorder((x,), regions=False):
        given = tuple(known.get(item, ANYTHING) for item in op.operands)
        for r in op.results:
            known[r] = ANYTHING if op.regions else op.interval(given)
    found = known.get(x, ANYTHING)
    return found.lo, found.hi


def bounds(r: Value, y: Value) -> bool:
    """Whether r is proven to be at least y: it is a maximum that y went into, both perhaps times the same positive number."""
    op = r.op
    if r is y:
        return True
    if isinstance(op, Expand):
        return bounds(op.value, y)
    if isinstance(op, Mul) and isinstance(y.op, Mul):
        factors = {constant_value(op.rhs), constant_value(y.op.rhs)}
        return len(factors) == 1 and (factors.pop() or 0) > 0 and bounds(op.lhs, y.op.lhs)
    if op is None or not op.algebra.upper_bound:
        return False
    return any(bounds(item, y) for item in op.operands)

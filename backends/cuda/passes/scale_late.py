"""scale-late: positive constant factors go behind maxima and selects, where one multiply-add takes them."""

from __future__ import annotations

import dataclasses
import math

from attngen.backends.cuda.ops import Grid, Pad
from attngen.ir.core import Op, Value, constant_value
from attngen.ir.diagnostics import remark
from attngen.ir.elementwise import Mul
from attngen.ir.func import Func
from attngen.ir.loop import Parallel
from attngen.ir.pipeline import register_pass
from attngen.ir.rewrite import place, rewrite

PASSED = (0.0, math.inf, -math.inf)
"""Constants that are the same times any positive number."""


@register_pass("scale-late")
def scale_late(func: Func) -> Func:
    """Let positive constant factors pass operations that are homogeneous: max(c·x) = c·max(x), also to the last bit.

    before: %x = nd.mul %s, 0.18;  %m = nd.reduce %x kind max over [j];  %e = nd.sub %x, %m
    after:  %r = nd.reduce %s kind max over [j];  %m = nd.mul %r, 0.18;  %x = nd.mul %s, 0.18;  %e = nd.sub %x, %m

    What is left of the product is read by the subtraction alone, and both are one instruction.
    """
    if any(isinstance(op, Pad) for op in func.walk()):
        remark("declined: tiles have been padded; run it before pad-tiles")
        return func  # what reads no range any more must not leave its grid
    func = rewrite(func, lambda op: None if isinstance(op, Parallel | Grid) else later(op))
    return func.with_body(place(func.args, func.outputs))


def later(op: Op) -> Value | None:
    """The op without a factor that its operands share, times that factor; nothing if there is none."""
    places = op.algebra.positively_homogeneous
    if not places or op.regions or len(op.results) != 1 or not op.results[0].element.is_float:
        return None
    factors: set[float] = set()
    bare: dict[Value, Value] = {}
    for index in places:
        item = op.operands[index]
        known = constant_value(item)
        if known is not None and known in PASSED:
            continue
        if not isinstance(item.op, Mul) or item.element is not op.results[0].element:
            return None
        factor, x = constant_value(item.op.rhs), item.op.lhs
        if factor is None or not 0 < factor < math.inf or set(x.names) != set(item.names):
            return None
        factors.add(factor)
        bare[item] = x
    if len(factors) != 1:
        return None
    scaled = next(iter(bare)).op
    assert isinstance(scaled, Mul)
    inner = op.rebuild(lambda item: bare.get(item, item), lambda b: b)
    return dataclasses.replace(scaled, lhs=inner.results[0], loc=op.loc).result

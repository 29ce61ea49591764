"""canonicalize: fold constants, merge equal values, drop dead ones, and keep nothing in a loop that does not vary in it."""

from __future__ import annotations

import dataclasses

from attngen.ir.core import Op, Value
from attngen.ir.diagnostics import Error
from attngen.ir.func import Func
from attngen.ir.nd import Constant
from attngen.ir.pipeline import register_pass
from attngen.ir.rewrite import Interner, place, rewrite, substitute

LIMIT = 100


@register_pass("canonicalize")
def canonicalize(func: Func) -> Func:
    """Bring a function into its normal form, to a fixed point.

    before: %2 = nd.mul %one, %x;  %3 = nd.exp %2;  %4 = nd.exp %x;  %5 = nd.add %3, %4;  %6 = nd.log %x;  return %5
    after:  %0 = nd.exp %x;  %1 = nd.add %0, %0;  return %1
    """
    for _ in range(LIMIT):
        new = once(func)
        if new == func:
            return func
        func = new
    raise Error(f"canonicalize did not come to rest after {LIMIT} rounds: two folds undo each other")


def once(func: Func) -> Func:
    folded = rewrite(func, simpler)
    yields = substitute(folded.outputs, {}, Interner())
    return func.with_body(place(func.args, yields))


def simpler(op: Op) -> Value | None:
    """What an op folds to; of a commutative op, the constant goes to the right."""
    found = op.fold()
    if found is not None:
        return found
    if op.facts.commutative and len(op.fields.operands) == 2:
        left, right = op.operands
        if isinstance(left.op, Constant) and not isinstance(right.op, Constant):
            names = op.fields.operands
            return dataclasses.replace(op, **{names[0]: right, names[1]: left}).result
    return None

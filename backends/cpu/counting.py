"""Scalars that the generated source computes by itself: bounds of loops' parts and what follows from them, for its branches."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attngen.ir import elementwise as ew
from attngen.ir.core import Op, Value
from attngen.ir.loop import Bound
from attngen.ir.nd import Constant
from attngen.ir.types import ElementType

TEXT: Mapping[type[Op], str] = {
    ew.Add: "({0} + {1})",
    ew.Sub: "({0} - {1})",
    ew.Mul: "({0} * {1})",
    ew.FloorDiv: "({0} // {1})",
    ew.Mod: "({0} % {1})",
    ew.Max: "max({0}, {1})",
    ew.Min: "min({0}, {1})",
    ew.Neg: "(-{0})",
    ew.And: "({0} and {1})",
    ew.Or: "({0} or {1})",
    ew.Not: "(not {0})",
    ew.Select: "({1} if {0} else {2})",
}
SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def counted(op: Op) -> bool:
    """Whether an op needs no memory: it is made of coordinates and constants, and has no axes."""
    if isinstance(op, Bound):
        return True
    if type(op) not in TEXT and not isinstance(op, ew.Compare | ew.Cast):
        return False
    inner = [value.op for value in op.operands]
    whole = all(
        value.element in (ElementType.INDEX, ElementType.I1) and not value.names for value in (*op.operands, *op.results)
    )
    some = any(x is not None and not isinstance(x, Constant) for x in inner)
    return whole and some and all(x is not None and (isinstance(x, Constant) or counted(x)) for x in inner)


def expression(op: Op, text: Callable[[Value], str]) -> str:
    """A counted op as Python source; `text` gives its operands."""
    args = [text(value) for value in op.operands]
    if isinstance(op, ew.Compare):
        return f"({args[0]} {SIGNS[op.predicate]} {args[1]})"
    if isinstance(op, ew.Cast):
        return f"({args[0]} != 0)" if op.to is ElementType.I1 else args[0]
    return TEXT[type(op)].format(*args)

"""Functions that build values, folding what is known on the way: the vocabulary of rewrite rules.

Each returns a value, not an op; a Python number becomes a constant of the other operand's element type.
"""

from __future__ import annotations

from attngen.ir import elementwise as ew
from attngen.ir.core import Op, Value
from attngen.ir.nd import Constant, Contract, Expand, Index, Reduce, accumulator
from attngen.ir.types import Axis, ElementType, Extent

Operand = Value | float


def folded(op: Op) -> Value:
    """The result of an op, or what it folds to."""
    return op.fold() or op.result


def constant(value: float, element: ElementType) -> Value:
    return Constant(value=value, element=element).result


def lift(operands: tuple[Operand, ...]) -> tuple[Value, ...]:
    """Numbers as constants of the element type that the values have."""
    (element, *_) = [x.element for x in operands if isinstance(x, Value)]
    return tuple(x if isinstance(x, Value) else constant(x, element) for x in operands)


def unary(cls: type[ew.Unary], x: Value) -> Value:
    return folded(cls(value=x))


def binary(cls: type[ew.Binary], a: Operand, b: Operand) -> Value:
    """a op b; of a commutative op, constants go to the right."""
    a, b = lift((a, b))
    if cls.facts.commutative and isinstance(a.op, Constant) and not isinstance(b.op, Constant):
        a, b = b, a
    return folded(cls(lhs=a, rhs=b))


def add(a: Operand, b: Operand) -> Value:
    return binary(ew.Add, a, b)


def sub(a: Operand, b: Operand) -> Value:
    return binary(ew.Sub, a, b)


def mul(a: Operand, b: Operand) -> Value:
    return binary(ew.Mul, a, b)


def div(a: Operand, b: Operand) -> Value:
    return binary(ew.Div, a, b)


def maximum(a: Operand, b: Operand) -> Value:
    return binary(ew.Max, a, b)


def minimum(a: Operand, b: Operand) -> Value:
    return binary(ew.Min, a, b)


def neg(x: Value) -> Value:
    return unary(ew.Neg, x)


def exp(x: Value) -> Value:
    return unary(ew.Exp, x)


def exp2(x: Value) -> Value:
    return unary(ew.Exp2, x)


def log(x: Value) -> Value:
    return unary(ew.Log, x)


def compare(predicate: str, a: Operand, b: Operand) -> Value:
    a, b = lift((a, b))
    return folded(ew.Compare(lhs=a, rhs=b, predicate=predicate))


def select(condition: Value, a: Operand, b: Operand) -> Value:
    a, b = lift((a, b))
    return folded(ew.Select(condition=condition, lhs=a, rhs=b))


def cast(x: Value, to: ElementType) -> Value:
    return folded(ew.Cast(value=x, to=to))


def contract(a: Value, b: Value, over: tuple[str, ...], where: Value | None = None) -> Value:
    return Contract(lhs=a, rhs=b, where=where, over=over, acc=accumulator(a, b)).result


def reduce(kind: str, x: Value, over: tuple[str, ...]) -> Value:
    return Reduce(value=x, kind=kind, over=over, acc=accumulator(x)).result


def index(axis: str, extent: Extent) -> Value:
    return Index(axis=axis, extent=extent).result


def expand(x: Value, ranges: tuple[Value, ...] = (), axes: tuple[Axis, ...] = ()) -> Value:
    return folded(Expand(value=x, ranges=ranges, axes=axes))

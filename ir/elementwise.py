"""`nd`: elementwise ops. One class each: its NumPy meaning beside its algebraic facts.

Operands broadcast by axis name. They agree in element type (`nd.select`: the last two).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from attngen.ir.core import Arrays, Env, Op, Value, constant_value
from attngen.ir.facts import TRUTH, Facts, Interval
from attngen.ir.nd import Constant, align, rounded
from attngen.ir.types import ElementType, TensorType, Type, union

LOG2E, LN2 = math.log2(math.e), math.log(2)


class Elementwise(Op):
    """An op on each element alone."""

    numpy: ClassVar[Callable[..., Any]]
    accepts: ClassVar[str] = "float"
    """float, number (float or integer), integer, logic (i1), or any"""

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The operands that agree in element type."""
        return self.operands

    def element_type(self) -> ElementType:
        return self.inputs[0].element

    def infer(self) -> tuple[Type, ...]:
        first = self.inputs[0]
        for v in self.inputs:
            if v.element != first.element:
                raise self.error(f"element types differ: {first.element} and {v.element}", at=v, help="cast one of them")
        e = first.element
        fits = {
            "float": e.is_float,
            "number": e is not ElementType.I1,
            "integer": e.is_integer,
            "logic": e is ElementType.I1,
            "any": True,
        }[self.accepts]
        if not fits:
            raise self.error(f"is not defined on {e}", at=first)
        return (TensorType(union(v.tensor for v in self.operands), self.element_type()),)

    def evaluate(self, args: Arrays, env: Env) -> Any:
        names = self.result.names
        aligned = [align(x, v.names, names) for x, v in zip(args, self.operands, strict=True)]
        return rounded(type(self).numpy(*aligned), self.element_type(), env)

    def fold(self) -> Value | None:
        values = [constant_value(v) for v in self.operands]
        if all(v is not None for v in values) and not self.result.names:
            types = [np.float64 if v.element.is_float else v.element.numpy.type for v in self.operands]
            with np.errstate(all="ignore"):
                result = type(self).numpy(*(t(v) for t, v in zip(types, values, strict=True)))
            return Constant(value=result.item(), element=self.element_type()).result
        if len(values) == 2:
            for k, identity in enumerate(self.facts.identity):
                other = self.operands[1 - k]
                if identity is not None and values[k] == identity and set(self.operands[k].names) <= set(other.names):
                    return other
        return None

    @property
    def flops(self) -> int:
        return self.result.tensor.size if self.element_type().is_float else 0


class Unary(Elementwise):
    value: Value


class Binary(Elementwise):
    lhs: Value
    rhs: Value


# ---------------------------------------------------------------- arithmetic


class Add(Binary, name="nd.add"):
    """`%2 = nd.add %0, %1 : tensor<i=4, f32>`"""

    numpy = np.add
    accepts = "number"
    facts = Facts(
        commutative=True,
        associative=True,
        identity=(0.0, 0.0),
        combination=(1.0, 1.0),
        monotone=(+1, +1),
        reduces="sum",
    )

    def interval(self, operands: tuple[Interval, ...]) -> Interval:
        a, b = operands
        return Interval(_sum(a.lo, b.lo, -math.inf), _sum(a.hi, b.hi, math.inf))


class Sub(Binary, name="nd.sub"):
    """`%2 = nd.sub %0, %1 : tensor<i=4, f32>`"""

    numpy = np.subtract
    accepts = "number"
    facts = Facts(identity=(None, 0.0), combination=(1.0, -1.0), monotone=(+1, -1))

    def interval(self, operands: tuple[Interval, ...]) -> Interval:
        a, b = operands
        return Interval(_sum(a.lo, -b.hi, -math.inf), _sum(a.hi, -b.lo, math.inf))


class Mul(Binary, name="nd.mul"):
    """`%2 = nd.mul %0, %1 : tensor<i=4, f32>`"""

    numpy = np.multiply
    accepts = "number"
    facts = Facts(commutative=True, associative=True, identity=(1.0, 1.0), multilinear=(0, 1))

    def interval(self, operands: tuple[Interval, ...]) -> Interval:
        a, b = operands
        if self.lhs is self.rhs:
            return Interval(0)
        ends = [x * y if x and y else 0.0 for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
        return Interval(min(ends), max(ends))


class Div(Binary, name="nd.div"):
    """`%2 = nd.div %0, %1 : tensor<i=4, f32>`"""

    numpy = np.true_divide
    facts = Facts(identity=(None, 1.0), multilinear=(0,))

    def interval(self, operands: tuple[Interval, ...]) -> Interval:
        a, b = operands
        return Interval(0) if a.nonnegative and b.nonnegative else Interval()


class Max(Binary, name="nd.max"):
    """`%2 = nd.max %0, %1 : tensor<i=4, f32>`: NaN if either is."""

    numpy = np.maximum
    accepts = "number"
    facts = Facts(
        commutative=True,
        associative=True,
        identity=(-math.inf, -math.inf),
        positively_homogeneous=(0, 1),
        monotone=(+1, +1),
        upper_bound=True,
        chooses=(0, 1),
        reduces="max",
    )

    def interval(self, operands: tuple[Interval, ...]) -> Interval:
        a, b = operands
        return Interval(max(a.lo, b.lo), max(a.hi, b.hi))


class Min(Binary, name="nd.min"):
    """`%2 = nd.min %0, %1 : tensor<i=4, f32>`: NaN if either is."""

    numpy = np.minimum
    accepts = "number"
    facts = Facts(
        commutative=True,
        associative=True,
        identity=(math.inf, math.inf),
        positively_homogeneous=(0, 1),
        monotone=(+1, +1),
        lower_bound=True,
        chooses=(0, 1),
    )

    def interval(self, operands: tuple[Interval, ...]) -> Interval:
        a, b = operands
        return Interval(min(a.lo, b.lo), min(a.hi, b.hi))


class Neg(Unary, name="nd.neg"):
    """`%1 = nd.neg %0 : tensor<i=4, f32>`"""

    numpy = np.negative
    accepts = "number"
    facts = Facts(combination=(-1.0,), monotone=(-1,), inverse=lambda: Neg)

    def interval(self, operands: tuple[Interval, ...]) -> Interval:
        return Interval(-operands[0].hi, -operands[0].lo)

    def fold(self) -> Value | None:
        inner = self.value.op
        return inner.value if isinstance(inner, Neg) else super().fold()


class Abs(Unary, name="nd.abs"):
    """`%1 = nd.abs %0 : tensor<i=4, f32>`"""

    numpy = np.abs
    accepts = "number"
    facts = Facts(positively_homogeneous=(0,))

    def interval(self, operands: tuple[Interval, ...]) -> Interval:
        return Interval(0)


class FloorDiv(Binary, name="nd.floordiv"):
    """`%2 = nd.floordiv %0, %1 : tensor<i=4, index>`: rounds towards minus infinity, as Python does."""

    numpy = np.floor_divide
    accepts = "number"


class Mod(Binary, name="nd.mod"):
    """`%2 = nd.mod %0, %1 : tensor<i=4, index>`: the sign of the divisor, as in Python."""

    numpy = np.mod
    accepts = "number"


class Floor(Unary, name="nd.floor"):
    """`%1 = nd.floor %0 : tensor<i=4, f32>`"""

    numpy = np.floor
    facts = Facts(monotone=(+1,))


class Round(Unary, name="nd.round"):
    """`%1 = nd.round %0 : tensor<i=4, f32>`: to the nearest integer, ties to even."""

    numpy = np.round
    facts = Facts(monotone=(+1,))


# ---------------------------------------------------------------- functions


class Exp(Unary, name="nd.exp"):
    """`%1 = nd.exp %0 : tensor<i=4, f32>`"""

    numpy = np.exp
    facts = Facts(monotone=(+1,), sum_to_product=True, inverse=lambda: Log, base_two=lambda: (Exp2, LOG2E))

    def interval(self, operands: tuple[Interval, ...]) -> Interval:
        with np.errstate(over="ignore"):
            return Interval(float(np.exp(operands[0].lo)), float(np.exp(operands[0].hi)))


class Exp2(Unary, name="nd.exp2"):
    """`%1 = nd.exp2 %0 : tensor<i=4, f32>`"""

    numpy = np.exp2
    facts = Facts(monotone=(+1,), sum_to_product=True, inverse=lambda: Log2)

    def interval(self, operands: tuple[Interval, ...]) -> Interval:
        with np.errstate(over="ignore"):
            return Interval(float(np.exp2(operands[0].lo)), float(np.exp2(operands[0].hi)))


class Log(Unary, name="nd.log"):
    """`%1 = nd.log %0 : tensor<i=4, f32>`: natural logarithm"""

    numpy = np.log
    facts = Facts(monotone=(+1,), domain=(0, math.inf), product_to_sum=True, inverse=lambda: Exp, base_two=lambda: (Log2, LN2))


class Log2(Unary, name="nd.log2"):
    """`%1 = nd.log2 %0 : tensor<i=4, f32>`"""

    numpy = np.log2
    facts = Facts(monotone=(+1,), domain=(0, math.inf), product_to_sum=True, inverse=lambda: Exp2)


class Tanh(Unary, name="nd.tanh"):
    """`%1 = nd.tanh %0 : tensor<i=4, f32>`"""

    numpy = np.tanh
    facts = Facts(monotone=(+1,))

    def interval(self, operands: tuple[Interval, ...]) -> Interval:
        return Interval(-1, 1)


def _sigmoid(x: np.ndarray | np.generic) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return np.where(np.signbit(x), e / (1 + e), 1 / (1 + e)).astype(x.dtype)


class Sigmoid(Unary, name="nd.sigmoid"):
    """`%1 = nd.sigmoid %0 : tensor<i=4, f32>`: 1 / (1 + exp(-x))"""

    numpy = _sigmoid
    facts = Facts(monotone=(+1,))

    def interval(self, operands: tuple[Interval, ...]) -> Interval:
        return TRUTH


class Sqrt(Unary, name="nd.sqrt"):
    """`%1 = nd.sqrt %0 : tensor<i=4, f32>`"""

    numpy = np.sqrt
    facts = Facts(monotone=(+1,), domain=(0, math.inf))

    def interval(self, operands: tuple[Interval, ...]) -> Interval:
        return Interval(0)


class Rsqrt(Unary, name="nd.rsqrt"):
    """`%1 = nd.rsqrt %0 : tensor<i=4, f32>`: 1 / sqrt(x)"""

    @staticmethod
    def numpy(x: Any) -> Any:
        return np.reciprocal(np.sqrt(x))

    def interval(self, operands: tuple[Interval, ...]) -> Interval:
        return Interval(0)


# ---------------------------------------------------------------- logic


PREDICATES = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


class Compare(Binary, name="nd.compare"):
    """`%2 = nd.compare %0, %1 predicate le : tensor<i=4, j=8, i1>`: eq ne lt le gt ge; false on NaN, but for ne."""

    accepts = "any"
    predicate: str

    def infer(self) -> tuple[Type, ...]:
        if self.predicate not in PREDICATES:
            raise self.error(f"no predicate {self.predicate}", help=f"one of {', '.join(PREDICATES)}")
        return super().infer()

    def element_type(self) -> ElementType:
        return ElementType.I1

    def evaluate(self, args: Arrays, env: Env) -> Any:
        names = self.result.names
        return PREDICATES[self.predicate](*(align(x, v.names, names) for x, v in zip(args, self.operands, strict=True)))

    def fold(self) -> Value | None:
        a, b = constant_value(self.lhs), constant_value(self.rhs)
        if a is None or b is None or self.result.names:
            return None
        return Constant(value=bool(PREDICATES[self.predicate](a, b)), element=ElementType.I1).result

    def interval(self, operands: tuple[Interval, ...]) -> Interval:
        return TRUTH


class And(Binary, name="nd.and"):
    """`%2 = nd.and %0, %1 : tensor<i=4, i1>`"""

    numpy = np.logical_and
    accepts = "logic"
    facts = Facts(commutative=True, associative=True, identity=(1.0, 1.0), monotone=(+1, +1))


class Or(Binary, name="nd.or"):
    """`%2 = nd.or %0, %1 : tensor<i=4, i1>`"""

    numpy = np.logical_or
    accepts = "logic"
    facts = Facts(commutative=True, associative=True, identity=(0.0, 0.0), monotone=(+1, +1))


class Not(Unary, name="nd.not"):
    """`%1 = nd.not %0 : tensor<i=4, i1>`"""

    numpy = np.logical_not
    accepts = "logic"
    facts = Facts(inverse=lambda: Not)


class Select(Elementwise, name="nd.select"):
    """`%3 = nd.select %keep, %a, %b : tensor<i=4, f32>`: a where keep, else b; what is not chosen never counts."""

    numpy = np.where
    accepts = "any"
    facts = Facts(jointly_linear=(1, 2), positively_homogeneous=(1, 2), monotone=(0, +1, +1), chooses=(1, 2))

    condition: Value
    lhs: Value
    rhs: Value

    @property
    def inputs(self) -> tuple[Value, ...]:
        return (self.lhs, self.rhs)

    def infer(self) -> tuple[Type, ...]:
        if self.condition.element is not ElementType.I1:
            raise self.error(f"the condition must be i1, not {self.condition.element}", at=self.condition)
        return super().infer()

    def fold(self) -> Value | None:
        known = constant_value(self.condition)
        if known is not None and not self.condition.names:
            chosen = self.lhs if known else self.rhs
            return chosen if set(chosen.names) == set(self.result.names) else None
        return self.lhs if self.lhs is self.rhs and set(self.lhs.names) == set(self.result.names) else None

    def interval(self, operands: tuple[Interval, ...]) -> Interval:
        _, a, b = operands
        return Interval(min(a.lo, b.lo), max(a.hi, b.hi))


class Cast(Elementwise, name="nd.cast"):
    """`%1 = nd.cast %0 to f32 : tensor<i=4, f32>`: floats round to nearest even; to an integer, towards zero."""

    accepts = "any"
    value: Value
    to: ElementType

    def element_type(self) -> ElementType:
        return self.to

    def evaluate(self, args: Arrays, env: Env) -> Any:
        return rounded(args[0], self.to, env)

    def fold(self) -> Value | None:
        if self.value.element is self.to:
            return self.value
        known = constant_value(self.value)
        if known is None or self.value.names:
            return None
        if self.to is ElementType.I1:
            return Constant(value=bool(known), element=self.to).result
        if not self.to.is_float:
            limits = np.iinfo(self.to.numpy.name)
            if not limits.min <= known <= limits.max:
                return None
            known = int(known)
        return Constant(value=known, element=self.to).result

    def interval(self, operands: tuple[Interval, ...]) -> Interval:
        if self.to.is_float and self.value.element.bytes <= self.to.bytes:
            return operands[0]
        return Interval(0) if self.to.is_float and operands[0].nonnegative else Interval()

    @property
    def flops(self) -> int:
        return 0


def _sum(a: float, b: float, unknown: float) -> float:
    total = a + b
    return unknown if math.isnan(total) else total

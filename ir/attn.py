"""`attn`: the four steps of attention as people think of them. Each knows its decomposition into `nd` ops.

Vaswani et al. 2017, "Attention Is All You Need", equation 1: softmax(Q·Kᵀ / √d_k)·V.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from attngen.ir.build import add, cast, constant, contract, div, exp, log, maximum, mul, reduce, select, sub
from attngen.ir.core import Arrays, Env, Op, Value
from attngen.ir.facts import TRUTH, Interval
from attngen.ir.nd import align
from attngen.ir.types import ElementType, TensorType, Type, union


class AttnOp(Op):
    """A step of attention. `decompose` gives the same value in `nd` ops."""

    def decompose(self) -> Value:
        raise TypeError(f"{type(self).__name__} does not define decompose()")

    def evaluate(self, args: Arrays, env: Env) -> Any:
        """Direct NumPy, independent of `decompose`: the two are compared by the tests."""
        raise TypeError(f"{type(self).__name__} does not define evaluate()")


def _float(op: Op, *values: Value) -> None:
    for v in values:
        if not v.element.is_float:
            raise op.error(f"needs floats, not {v.element}", at=v)
        if v.element != values[0].element:
            raise op.error(f"element types differ: {values[0].element} and {v.element}", at=v, help="cast one of them")


class Score(AttnOp, name="attn.score"):
    """`%s = attn.score %q, %k over [d] : tensor<i=37, j=53, f32>`: S = Q·Kᵀ, how similar each query is to each key."""

    query: Value
    key: Value
    over: tuple[str, ...]

    def infer(self) -> tuple[Type, ...]:
        _float(self, self.query, self.key)
        return (contract(self.query, self.key, self.over).type,)

    def decompose(self) -> Value:
        return contract(self.query, self.key, self.over)

    def evaluate(self, args: Arrays, env: Env) -> Any:
        op = self.decompose().op
        assert op is not None
        return op.evaluate((*args, None), env)

    @property
    def flops(self) -> int:
        op = self.decompose().op
        assert op is not None
        return op.flops


class Scale(AttnOp, name="attn.scale"):
    """`%t = attn.scale %s by 0.125 : tensor<i=37, j=53, f32>`: S' = S·scale; 1/√d_k keeps the softmax smooth."""

    value: Value
    by: float

    def infer(self) -> tuple[Type, ...]:
        _float(self, self.value)
        if not math.isfinite(self.by):
            raise self.error(f"the scale must be a finite number, not {self.by}")
        return (self.value.type,)

    def decompose(self) -> Value:
        return mul(self.value, constant(self.by, self.value.element))

    def evaluate(self, args: Arrays, env: Env) -> Any:
        return args[0] * env.dtype(self.value.element).type(self.by)

    @property
    def flops(self) -> int:
        return self.value.tensor.size


class Mask(AttnOp, name="attn.mask"):
    """`%t = attn.mask %s, %keep : tensor<i=37, j=53, f32>`: the score where keep is true, else -inf."""

    value: Value
    keep: Value

    def infer(self) -> tuple[Type, ...]:
        _float(self, self.value)
        if self.keep.element is not ElementType.I1:
            raise self.error(f"the mask must be i1, not {self.keep.element}", at=self.keep)
        return (TensorType(union([self.value.tensor, self.keep.tensor]), self.value.element),)

    def decompose(self) -> Value:
        return select(self.keep, self.value, constant(-math.inf, self.value.element))

    def evaluate(self, args: Arrays, env: Env) -> Any:
        names = self.result.names
        x, keep = (align(a, v.names, names) for a, v in zip(args, self.operands, strict=True))
        return np.where(keep, x, np.asarray(-math.inf, x.dtype))


def softmax_parts(x: Value, over: tuple[str, ...]) -> tuple[Value, Value, Value]:
    """(e, l, t): e = exp(x - t), l = Σ e, t = max(max x, LOWEST). The guard t makes an empty row come out as e = 0, l = 0."""
    top = maximum(reduce("max", x, over), constant(x.element.lowest, x.element.accumulator))
    e = exp(sub(x, top))
    return e, reduce("sum", e, over), top


class Softmax(AttnOp, name="attn.softmax"):
    """`%a = attn.softmax %s over [j] : tensor<i=37, j=53, f32>`: A = exp(s - max) / Σ exp(s - max); a fully masked row is 0."""

    value: Value
    over: tuple[str, ...]

    def infer(self) -> tuple[Type, ...]:
        _float(self, self.value)
        for name in self.over:
            if name not in self.value.names:
                raise self.error(
                    f"the operand has no axis {name}", at=self.value, help="softmax runs over an axis of its operand"
                )
        if self.value.element is not self.value.element.accumulator:
            raise self.error(f"is computed in {self.value.element.accumulator}", at=self.value, help="cast the scores")
        return (self.value.type,)

    def decompose(self) -> Value:
        """softmax(x)  ->  exp(x - max(m, LOWEST)) / max(l, TINY),  m = max x,  l = Σ exp(x - max(m, LOWEST))"""
        e, total, _ = softmax_parts(self.value, self.over)
        return div(e, maximum(total, constant(self.value.element.tiny, total.element)))

    def evaluate(self, args: Arrays, env: Env) -> Any:
        (x,) = args
        axes = tuple(self.value.names.index(name) for name in self.over)
        with np.errstate(all="ignore"):
            top = np.max(x, axis=axes, keepdims=True, initial=-np.inf)
            e = np.where(top == -np.inf, 0, np.exp(x - top))
            total = e.sum(axis=axes, keepdims=True)
            return np.where(total == 0, 0, e / total).astype(x.dtype)

    def interval(self, operands: tuple[Interval, ...]) -> Interval:
        return TRUTH

    @property
    def flops(self) -> int:
        return 4 * self.value.tensor.size


class Weigh(AttnOp, name="attn.weigh"):
    """`%o = attn.weigh %a, %v, %keep over [j] : tensor<i=37, e=5, f32>`: O = A·V, each row a blend of the values.

    With `keep`, a value whose mask is false takes no part, even if it is NaN or infinite.
    """

    weights: Value
    value: Value
    keep: Value | None = None
    over: tuple[str, ...]

    def infer(self) -> tuple[Type, ...]:
        _float(self, self.weights)
        _float(self, self.value)
        return (self.decompose().type,)

    def decompose(self) -> Value:
        return contract(self.weights, cast(self.value, self.weights.element), self.over, self.keep)

    def evaluate(self, args: Arrays, env: Env) -> Any:
        op = self.decompose().op
        assert op is not None
        return op.evaluate(args, env)

    @property
    def flops(self) -> int:
        op = self.decompose().op
        assert op is not None
        return op.flops


def logsumexp(x: Value, over: tuple[str, ...]) -> Value:
    """log Σ exp(x), from the same parts as softmax, so that the two share their reductions. A fully masked row gives -inf."""
    _, total, top = softmax_parts(x, over)
    return add(top, log(total))

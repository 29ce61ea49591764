"""fold-scale: constant factors meet, and move into the base change of the exponential."""

from __future__ import annotations

import dataclasses
import math

from attngen.ir.build import compare, constant, folded, maximum, minimum, mul, select, unary
from attngen.ir.core import Op, Value, constant_value
from attngen.ir.diagnostics import remark
from attngen.ir.elementwise import Abs, Elementwise
from attngen.ir.func import Func
from attngen.ir.nd import Reduce
from attngen.ir.pipeline import register_pass
from attngen.ir.rewrite import place, postorder, rewrite, substitute


@register_pass("fold-scale")
def fold_scale(func: Func) -> Func:
    """Compute exponentials and logarithms to base 2, with all constant factors in one.

    before: %m = nd.reduce (%s * 0.125) kind max;  %e = nd.exp (%s * 0.125 - max(%m, LOWEST))
    after:  %m = nd.reduce (%s * 0.18) kind max;   %e = nd.exp2 (%s * 0.18 - max(%m, LOWEST))      0.18 = 0.125 · log2(e)

    A positive constant may pass through a maximum; a negative or run-time factor may not, and then the maximum is of the
    scaled values. LOWEST is not multiplied. An input that is added to the scores is not driven to infinity by its factor:
    where it is finite, it stays finite.
    """
    if func.level == "loop":
        remark("declined: runs on whole tensors, before tile")
        return func
    folding = Folding()
    func = rewrite(func, folding.rule)
    # Whoever else reads a maximum that was scaled gets it scaled back.
    table = {old: mul(new, 1 / factor) for old, (factor, new) in folding.maxima.items()}
    return func.with_body(place(func.args, substitute(func.outputs, table)))


class Folding:
    """One run of the pass."""

    def __init__(self) -> None:
        self.maxima: dict[Value, tuple[float, Value]] = {}
        self.scaled: dict[tuple[Value, float], Value] = {}

    def rule(self, op: Op) -> Value | None:
        if op.facts.base_two and isinstance(op, Elementwise):
            cls, c = op.facts.base_two()
            (x,) = op.operands
            if op.facts.sum_to_product:
                return folded(cls(value=self.scale(x, c)))  # pyright: ignore[reportCallIssue]  # a unary op
            return mul(folded(cls(value=x)), c)  # pyright: ignore[reportCallIssue]  # a unary op
        factor = constant_factor(op)
        if factor is not None:
            return self.scale(factor[1], factor[0]) if constant_factor(factor[1].op) else None
        return self.pull(op)

    def pull(self, op: Op) -> Value | None:
        """(c·x)·(d·y) = cd·(x·y): factors meet outside of a product; one that sits at an operand with fewer axes stays."""
        if not isinstance(op, Elementwise):
            return None
        names, c = op.fields.operands, 1.0
        changes: dict[str, Value] = {}
        for k in op.facts.multilinear:
            inner = constant_factor(op.operands[k].op)
            if inner is not None and len(inner[1].names) == len(op.results[0].names):
                c, changes[names[k]] = c * inner[0], inner[1]
        return self.scale(dataclasses.replace(op, **changes).result, c) if changes else None

    def scale(self, x: Value, c: float) -> Value:
        """c·x, with c as deep as it goes: to the other constants, or to an operand with fewer axes."""
        if c == 1:
            return x
        if (x, c) not in self.scaled:
            self.scaled[x, c] = self.sink(x, c)
        return self.scaled[x, c]

    def sink(self, x: Value, c: float) -> Value:
        op, known = x.op, constant_value(x)
        if known is not None and not x.names:
            return constant(c * known, x.element)
        if op is None:
            return kept_finite(x, c)
        if (factor := constant_factor(op)) is not None:
            return self.scale(factor[1], c * factor[0])
        facts = op.facts
        if isinstance(op, Reduce) and op.algebra.positively_homogeneous and c > 0:
            new = dataclasses.replace(op, value=self.scale(op.value, c)).result
            self.maxima[x] = (c, new)
            return new
        linear = range(len(facts.combination)) if facts.combination else facts.jointly_linear
        if not linear and c > 0:
            linear = facts.positively_homogeneous
        if linear and isinstance(op, Elementwise):
            return self.with_operands(op, {k: self.guard_or_scaled(op.operands[k], c) for k in linear})
        if facts.multilinear and isinstance(op, Elementwise):
            narrow = min(facts.multilinear, key=lambda k: len(op.operands[k].names))
            if len(op.operands[narrow].names) < len(x.names):
                return self.with_operands(op, {narrow: times(op.operands[narrow], c)})
        return kept_finite(x, c) if is_input(x) else mul(x, c)

    def guard_or_scaled(self, x: Value, c: float) -> Value:
        """LOWEST stands in for the maximum over nothing, in whatever unit: it is not multiplied."""
        return x if constant_value(x) == x.element.lowest else self.scale(x, c)

    def with_operands(self, op: Elementwise, changes: dict[int, Value]) -> Value:
        table = {op.operands[k]: v for k, v in changes.items()}
        return folded(op.rebuild(lambda v: table.get(v, v), lambda b: b))


def constant_factor(op: Op | None) -> tuple[float, Value] | None:
    """(c, x) if the op is a plain c·x or x/(1/c)."""
    if op is None or not op.facts.multilinear or not isinstance(op, Elementwise):
        return None
    a, b = op.operands
    known = constant_value(b)
    if known is None or b.names:
        known, a, b = constant_value(a), b, a
        if known is None or b.names or len(op.facts.multilinear) < 2:
            return None
    if len(op.facts.multilinear) == 2:
        return known, a
    return (1 / known, a) if known else None


def times(x: Value, c: float) -> Value:
    """c·x, joined with a factor that x has already."""
    factor = constant_factor(x.op)
    return mul(x, c) if factor is None else mul(factor[1], c * factor[0])


def is_input(x: Value) -> bool:
    """Whether x is made from parameters alone, element by element: it may then hold any float, finfo.min included."""
    below = postorder((x,))
    reads = any(v.op is None for op in below for v in op.operands) or x.op is None
    return reads and x.element.is_float and all(isinstance(op, Elementwise) or not op.operands for op in below)


def kept_finite(x: Value, c: float) -> Value:
    """c·x, but finite where x is: a row of finfo.min is a uniform average, a row of -inf is masked."""
    scaled = mul(x, c)
    if abs(c) <= 1:
        return scaled
    bounded = minimum(maximum(scaled, x.element.lowest), x.element.largest)
    return select(compare("eq", unary(Abs, x), math.inf), scaled, bounded)

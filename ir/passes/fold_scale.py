"""fold-scale: constant factors meet, and move into the base change of the exponential."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator

from attngen.ir.build import add, binary, compare, constant, folded, maximum, minimum, mul, select, unary
from attngen.ir.core import Op, Value, at, constant_value
from attngen.ir.diagnostics import remark
from attngen.ir.elementwise import LOG2E, Abs, Div, Elementwise, Exp2, Sigmoid
from attngen.ir.func import Func
from attngen.ir.nd import Reduce
from attngen.ir.pipeline import register_pass
from attngen.ir.rewrite import place, postorder, rewrite, substitute
from attngen.ir.types import ElementType


@register_pass("fold-scale")
def fold_scale(func: Func) -> Func:
    """Compute exponentials, logarithms and 1 / (1 + e**-x) to base 2, with all constant factors in one.

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
    table: dict[Value, Value] = {}
    for old, (factor, new) in folding.maxima.items():  # whoever else reads a maximum that was scaled gets it scaled back
        assert old.op is not None
        with at(old.op.loc):
            table[old] = mul(new, 1 / factor)
    return func.with_body(place(func.args, substitute(func.outputs, table)))


Factored = tuple[Value, float]
Sinking = Generator[Factored, Value, Value]
"""A computation of c·x that asks for others, (y, d) for d·y: recursion as deep as the program is long, off Python's stack."""


class Folding:
    """One run of the pass."""

    def __init__(self) -> None:
        self.maxima: dict[Value, tuple[float, Value]] = {}
        self.scaled: dict[Factored, Value] = {}

    def rule(self, op: Op) -> Value | None:
        if op.facts.base_two and isinstance(op, Elementwise):
            cls, c = op.facts.base_two()
            (x,) = op.operands
            if op.facts.sum_to_product:
                return folded(cls(value=self.scale(x, c)))  # pyright: ignore[reportCallIssue]  # a unary op
            return mul(folded(cls(value=x)), c)  # pyright: ignore[reportCallIssue]  # a unary op
        if isinstance(op, Sigmoid):
            power = unary(Exp2, self.scale(op.value, -LOG2E))
            return binary(Div, constant(1, power.element), add(power, 1))
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
            whole = inner is not None and len(inner[1].names) == len(op.results[0].names)
            if inner is not None and whole and held(c * inner[0], inner[1].element):
                c, changes[names[k]] = c * inner[0], inner[1]
        return self.scale(dataclasses.replace(op, **changes).result, c) if changes else None

    def scale(self, x: Value, c: float) -> Value:
        """c·x, with c as deep as it goes: to the other constants, or to an operand with fewer axes."""
        stack = [((x, c), self.sink(x, c))] if c != 1 and (x, c) not in self.scaled else []
        answer: Value | None = None
        while stack:
            key, sinking = stack[-1]
            try:
                wanted = next(sinking) if answer is None else sinking.send(answer)
            except StopIteration as done:
                answer = self.scaled[key] = done.value
                stack.pop()
                continue
            answer = wanted[0] if wanted[1] == 1 else self.scaled.get(wanted)
            if answer is None:
                stack.append((wanted, self.sink(*wanted)))
        return x if c == 1 else self.scaled[x, c]

    def sink(self, x: Value, c: float) -> Sinking:
        op, known = x.op, constant_value(x)
        if known is not None and not x.names:
            return constant(c * known, x.element)
        if op is None:
            return kept_finite(x, c)
        if (factor := constant_factor(op)) is not None:
            return (yield factor[1], c * factor[0]) if held(c * factor[0], x.element) else mul(x, c)
        facts = op.facts
        if isinstance(op, Reduce) and op.algebra.positively_homogeneous and c > 0:
            new = dataclasses.replace(op, value=(yield op.value, c)).result
            self.maxima[x] = (c, new)
            return new
        linear = range(len(facts.combination)) if facts.combination else facts.jointly_linear
        if not linear and c > 0:
            linear = facts.positively_homogeneous
        if linear and isinstance(op, Elementwise):
            changes: dict[int, Value] = {}
            for k in linear:
                # LOWEST stands in for the maximum over nothing, in whatever unit: it is not multiplied.
                lowest = constant_value(op.operands[k]) == x.element.lowest
                changes[k] = op.operands[k] if lowest else (yield op.operands[k], c)
            scaled = self.with_operands(op, changes)
            return kept_finite(x, c, scaled) if facts.combination and adds_inputs(x) else scaled
        if facts.multilinear and isinstance(op, Elementwise):
            narrow = min(facts.multilinear, key=lambda k: len(op.operands[k].names))
            if len(op.operands[narrow].names) < len(x.names):
                return self.with_operands(op, {narrow: times(op.operands[narrow], c)})
        return kept_finite(x, c) if is_input(x) else mul(x, c)

    def with_operands(self, op: Elementwise, changes: dict[int, Value]) -> Value:
        table = {op.operands[k]: v for k, v in changes.items()}
        return folded(op.rebuild(lambda v: table.get(v, v), lambda b: b))


def constant_factor(op: Op | None) -> tuple[float, Value] | None:
    """(c, x) if the op is a plain c·x or x/(1/c), of floats."""
    if not isinstance(op, Elementwise) or not op.facts.multilinear or not op.result.element.is_float:
        return None
    a, b = op.operands
    known = constant_value(b)
    if known is None or b.names:
        known, a, b = constant_value(a), b, a
        if known is None or b.names or len(op.facts.multilinear) < 2:
            return None
    if len(op.facts.multilinear) == 2:
        return known, a
    return (1 / known, a) if known and held(1 / known, a.element) else None


def held(c: float, element: ElementType) -> bool:
    """Whether a factor neither overflows nor vanishes in the type: 0 · (1e30 · 1e30) is not a number."""
    return c == 0 or element.tiny <= abs(c) <= element.largest


def times(x: Value, c: float) -> Value:
    """c·x, joined with a factor that x has already."""
    factor = constant_factor(x.op)
    return mul(x, c) if factor is None or not held(c * factor[0], x.element) else mul(factor[1], c * factor[0])


def is_input(x: Value) -> bool:
    """Whether x is made from parameters alone, element by element: it may then hold any float, finfo.min included."""
    below = postorder((x,))
    reads = any(v.op is None for op in below for v in op.operands) or x.op is None
    return reads and x.element.is_float and all(isinstance(op, Elementwise) or not op.operands for op in below)


def adds_inputs(x: Value) -> bool:
    """Whether x is a score that adds several inputs, each of which may be near the largest float."""
    below = postorder((x,), stop=lambda op: not op.facts.combination)
    inputs = {
        v for op in below for v in op.operands if (v.op is None or not v.op.facts.combination) and is_input(v) and v.names
    }
    return len(inputs) > 1 and not any(isinstance(op, Reduce) for op in postorder((x,)))


def kept_finite(x: Value, c: float, scaled: Value | None = None) -> Value:
    """c·x, but finite where x is: a row of finfo.min is a uniform average, a row of -inf is masked."""
    scaled = mul(x, c) if scaled is None else scaled
    if abs(c) <= 1:
        return scaled
    bounded = minimum(maximum(scaled, x.element.lowest), x.element.largest)
    return select(compare("eq", unary(Abs, x), math.inf), scaled, bounded)

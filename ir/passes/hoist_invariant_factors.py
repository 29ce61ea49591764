"""hoist-invariant-factors: what does not depend on the summed axis leaves the sum."""

from __future__ import annotations

import dataclasses
import math
from functools import reduce as chain

from attngen.ir.build import add, constant, contract, div, expand, folded, mul, reduce, select
from attngen.ir.core import Op, Value, constant_value
from attngen.ir.diagnostics import remark
from attngen.ir.elementwise import Elementwise, Select
from attngen.ir.func import Func
from attngen.ir.intervals import Intervals
from attngen.ir.nd import Contract, Reduce
from attngen.ir.pipeline import register_pass
from attngen.ir.rewrite import Interner, postorder, rewrite
from attngen.ir.types import Extent

Term = tuple[Value | None, Value | None]
"""(coefficient, rest) of a sum of products; None is 1."""

MOST_TERMS = 16
"""What has more terms when it is multiplied out stays as it is."""


@register_pass("hoist-invariant-factors")
def hoist_invariant_factors(func: Func) -> Func:
    """Use distributivity: a factor without the summed axis leaves the sum, an addend leaves the maximum.

    before: %a = %e / %l;  %o = nd.contract %a, %v over [j]
    after:  %n = nd.contract %e, %v over [j];  %o = (1 / %l) * %n

    A sum of terms with different factors is split, one sum each, only if a factor reads a reduction over the same axis
    (differential attention): each term costs an accumulator, and splitting can cancel. An exponent's shift is not a factor.
    What is summed before the division is larger by the divisor: with values near the largest float the sum overflows.
    """
    if func.level == "loop":
        remark("declined: runs on whole tensors, before tile")
        return func
    return Hoisting().run(func)


class Hoisting:
    """One run of the pass; values are interned, so that equal factors are seen to be equal."""

    def __init__(self) -> None:
        self.interner = Interner()
        self.interval = Intervals()
        self.reading: dict[tuple[Value, tuple[str, ...]], bool] = {}
        self.sums: dict[tuple[Value, tuple[str, ...]], list[Term]] = {}

    def run(self, func: Func) -> Func:
        return rewrite(func, self.rule)

    def rule(self, op: Op) -> Value | None:
        match op:
            case Contract():
                found = self.distribute(op, op.lhs, op.rhs, op.over)
            case Reduce(kind="sum"):
                found = self.distribute(op, op.value, None, op.over)
            case Reduce():
                found = self.leave_maximum(op)
            case _:
                return self.interner.op(op).results[0] if op.results and not op.regions else None
        return self.interner.value(found) if found is not None else self.interner.op(op).results[0]

    # ---- sums

    def distribute(self, op: Contract | Reduce, a: Value, b: Value | None, over: tuple[str, ...]) -> Value | None:
        if any(op.operands[0].tensor.extents[n] == 0 for n in over):
            return None  # a sum over nothing is 0, whatever its factors are
        first, second = self.terms(a, over), self.terms(b, over) if b is not None else [(None, None)]
        products = [(times(c, d), r, s) for c, r in first for d, s in second]
        if products == [(None, a, b)]:
            return None
        if isinstance(op, Contract) and op.where is not None:
            # Masked terms must still be products along the summed axes.
            if not all(v is not None and set(over) <= set(v.names) for _, r, s in products for v in (r, s)):
                return None
        if len(products) > 1:
            remark(f"{op.name} over {', '.join(over)} became {len(products)} sums, one accumulator each", op.loc)
        extents = {n: e for v in op.operands for n, e in v.tensor.axes}
        sums = [times(c, self.total(r, s, over, extents, op)) for c, r, s in products]
        result = chain(lambda x, y: add(x, y), [s for s in sums if s is not None])
        missing = tuple(axis for axis in op.result.tensor.axes if axis[0] not in result.names)
        return expand(result, (), missing) if missing else result

    def terms(self, x: Value, over: tuple[str, ...]) -> list[Term]:
        """x as a sum of coefficient · rest, or as it is where a split has no reason."""
        found = self.linear(x, over)
        if len(found) == 1:
            return found
        if any(c is not None and self.reads(c, over) for c, _ in found):
            return found
        return [(None, x)]

    def linear(self, x: Value, over: tuple[str, ...]) -> list[Term]:
        """x = Σ coefficient · rest, no coefficient having a summed axis. Equal rests are collected."""
        # Operands first: chains are long, and what is read twice is multiplied out once.
        for op in postorder((x,), stop=lambda op: (op.results[0], over) in self.sums or not splits(op, over)):
            found = self.terms_of(op.results[0], over)
            self.sums[op.results[0], over] = found if len(found) <= MOST_TERMS else [(None, op.results[0])]
        return self.sums.get((x, over)) or self.terms_of(x, over)

    def terms_of(self, x: Value, over: tuple[str, ...]) -> list[Term]:
        op = x.op
        if not set(over) & set(x.names):
            return [(x, None)]
        if not isinstance(op, Elementwise):
            return [(None, x)]
        facts, operands = op.facts, op.operands
        if facts.combination:
            each = zip(facts.combination, operands, strict=True)
            return self.collect([(times(c, sign_of(sign, x)), r) for sign, v in each for c, r in self.linear(v, over)])
        if facts.multilinear:
            if len(facts.multilinear) == len(operands) == 2:
                pairs = [(p, q) for p in self.linear(operands[0], over) for q in self.linear(operands[1], over)]
                return self.collect([(times(c, d), times(r, s)) for (c, r), (d, s) in pairs])
            (k,) = facts.multilinear
            if k == 0 and len(below := self.linear(operands[1], over)) == 1:
                (d, s), *_ = below
                return [(over_(c, d), over_(r, s)) for c, r in self.linear(operands[0], over)]
        if isinstance(op, Select) and constant_value(op.rhs) == 0 and facts.jointly_linear:
            return [(c, select(op.condition, one_like(r, x), op.rhs)) for c, r in self.linear(op.lhs, over)]
        if facts.product_to_sum:
            return self.logarithm(op, over)
        return [(None, x)]

    def logarithm(self, op: Elementwise, over: tuple[str, ...]) -> list[Term]:
        """log(c·r) = log c + log r, where c and r are known to be positive; log(exp y) = y."""
        (inner,) = op.operands
        assert op.facts.inverse is not None
        if isinstance(inner.op, op.facts.inverse()):
            return self.linear(inner.op.operands[0], over)
        parts = self.linear(inner, over)
        coefficient, rest = parts[0]
        if len(parts) != 1 or coefficient is None or rest is None:
            return [(None, op.result)]
        if not (self.interval(coefficient).nonnegative and self.interval(rest).nonnegative):
            return [(None, op.result)]

        def log(v: Value) -> Value:
            return folded(op.rebuild(lambda _: v, lambda b: b))

        return self.collect([*self.linear(self.interner.value(log(rest)), over), (log(coefficient), None)])

    def collect(self, terms: list[Term]) -> list[Term]:
        """Add the coefficients of terms that have the same rest."""
        table: dict[Value | None, Value | None] = {}
        for c, r in terms:
            c, r = (None if v is None else self.interner.value(v) for v in (c, r))
            if r in table:
                like = next(v for v in (c, table[r], r) if v is not None) if (c or table[r] or r) else None
                if like is None:
                    return terms
                table[r] = add(table[r] or one(like), c or one(like))
            else:
                table[r] = c
        return [(c, r) for r, c in table.items()]

    def reads(self, x: Value, over: tuple[str, ...]) -> bool:
        """Whether x depends on a reduction over the same axes."""
        for op in postorder((x,), stop=lambda op: (op.results[0], over) in self.reading):
            below = any(self.reading.get((v, over), False) for v in op.operands)
            self.reading[op.results[0], over] = below or op.attributes.get("over") == over
        return self.reading.get((x, over), False)

    def total(
        self, a: Value | None, b: Value | None, over: tuple[str, ...], extents: dict[str, Extent], op: Contract | Reduce
    ) -> Value | None:
        """Σ a·b: a contraction, a sum, or a count."""
        present = [v for v in (a, b) if v is not None]
        names = {n for v in present for n in v.names}
        lost = [n for n in over if n not in names]
        over = tuple(n for n in over if n in names)
        summed: Value | None = None
        if len(present) == 2 and all(n in present[0].names and n in present[1].names for n in over) and over:
            summed = contract(present[0], present[1], over, op.where if isinstance(op, Contract) else None)
        elif present:
            product = chain(mul, present)
            summed = reduce("sum", product, over) if over else product
        counts = [extents[n] for n in lost]
        if all(isinstance(n, int) for n in counts) and counts:
            return times(summed, constant(math.prod(n for n in counts if isinstance(n, int)), op.acc))
        if counts:
            # The count is a runtime extent: sum ones along the axis.
            ones = expand(constant(1, op.acc), (), tuple((n, extents[n]) for n in lost))
            return times(summed, reduce("sum", ones, tuple(lost)))
        return summed

    # ---- maxima

    def leave_maximum(self, op: Reduce) -> Value | None:
        """max(x + c) = max x + c. (A factor stays: the maximum over nothing is -inf, and 0 · -inf is not a number.)"""
        inner, over = op.value.op, set(op.over)
        if not isinstance(inner, Elementwise) or len(inner.facts.combination) != 2:
            return None
        outside = [not over & set(v.names) for v in inner.operands]
        if sum(outside) != 1:
            return None
        kept = outside.index(False)
        x = inner.operands[kept]
        if inner.facts.combination[kept] != 1 or set(x.names) != set(inner.result.names):
            return None
        top = dataclasses.replace(op, value=x).result
        return folded(inner.rebuild(lambda v: top if v is x else v, lambda b: b))


def splits(op: Op, over: tuple[str, ...]) -> bool:
    """Whether an op with the summed axes may be a sum of products of what it reads."""
    facts = op.facts
    known = facts.combination or facts.multilinear or facts.jointly_linear or facts.product_to_sum
    return isinstance(op, Elementwise) and bool(known) and bool(set(over) & set(op.results[0].names))


def one(like: Value) -> Value:
    return constant(1, like.element)


def one_like(x: Value | None, like: Value) -> Value:
    return x if x is not None else one(like)


def times(a: Value | None, b: Value | None) -> Value | None:
    return b if a is None else a if b is None else mul(a, b)


def over_(a: Value | None, b: Value | None) -> Value | None:
    if b is None:
        return a
    return div(one(b) if a is None else a, b)


def sign_of(sign: float, like: Value) -> Value | None:
    return None if sign == 1 else constant(sign, like.element)

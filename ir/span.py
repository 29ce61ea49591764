"""Which coordinates of a loop's axis can meet a condition: a scalar condition on a part, solved for the ends of the part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from attngen.ir import elementwise as ew
from attngen.ir.build import add, binary, compare, constant, maximum, minimum, mul, neg, select, sub, unary
from attngen.ir.core import Value, constant_value
from attngen.ir.loop import Bound, For
from attngen.ir.rewrite import free
from attngen.ir.tile_bounds import TileBounds, as_index
from attngen.ir.types import ElementType, bound

OPPOSITE = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}
STRICT = {"lt": -1, "le": 0, "gt": 1, "ge": 0}


@dataclass(frozen=True)
class Span:
    """The coordinates from `first` to before `end`; None: no limit on that side. A part without any of them does not meet the
    condition; if `exact`, every other part does."""

    first: Value | None = None
    end: Value | None = None
    exact: bool = False

    def and_(self, other: Span) -> Span:
        """What both have. A part that meets both conditions although the spans share nothing meets them in different places:
        it need not be visited."""
        first, end = tighter(maximum, self.first, other.first), tighter(minimum, self.end, other.end)
        return Span(first, end, self.exact and other.exact)

    def or_(self, other: Span) -> Span:
        """From the least to the greatest coordinate that one of them has: exact if both are open on the same side."""
        first, end = looser(minimum, self.first, other.first), looser(maximum, self.end, other.end)
        same_side = self.first is other.first is None or self.end is other.end is None
        return Span(first, end, self.exact and other.exact and same_side)


def tighter(choose: Callable[[Value, Value], Value], a: Value | None, b: Value | None) -> Value | None:
    return choose(a, b) if a is not None and b is not None else a if b is None else b


def looser(choose: Callable[[Value, Value], Value], a: Value | None, b: Value | None) -> Value | None:
    return choose(a, b) if a is not None and b is not None else None


def divided(x: Value, by: int) -> Value:
    return x if by == 1 else binary(ew.FloorDiv, x, by)


class Solver:
    """Solves conditions that are linear in the first or last coordinate of a loop's part, floor-divided or not, for it. All
    else must be known before the loop: coordinates of the loops around it, tables."""

    def __init__(self, loop: For) -> None:
        self.loop = loop
        self.linear = TileBounds().linear

    def varies(self, x: Value) -> bool:
        return not free((x,))[x].isdisjoint(self.loop.body.args)

    def span(self, x: Value, wanted: bool = True) -> Span:
        """Where the condition x is `wanted`."""
        op = x.op
        if not self.varies(x):
            whole = constant(bound(self.loop.extent), ElementType.INDEX)
            return Span(None, select(x if wanted else unary(ew.Not, x), whole, 0), True)
        match op:
            case ew.Not():
                return self.span(op.value, not wanted)
            case ew.And() | ew.Or():
                a, b = self.span(op.lhs, wanted), self.span(op.rhs, wanted)
                return a.and_(b) if isinstance(op, ew.And) == wanted else a.or_(b)
            case ew.Compare() if op.predicate in OPPOSITE and op.lhs.element.is_integer:
                predicate = op.predicate if wanted else OPPOSITE[op.predicate]
                difference = sub(as_index(op.lhs), as_index(op.rhs))
                limit = constant(STRICT[predicate], ElementType.INDEX)
                return self.at_least(difference, limit) if predicate[0] == "g" else self.at_most(difference, limit)
            case _:
                return Span()

    def at_least(self, x: Value, limit: Value) -> Span:
        return self.at_most(neg(x), neg(limit))

    def at_most(self, x: Value, limit: Value) -> Span:
        """Where x <= limit; the limit does not vary in the loop."""
        terms, offset = self.linear(x)
        varying = [leaf for leaf in terms if self.varies(leaf)]
        if not varying:
            # Terms that cancel each other may still vary in x itself.
            total = constant(offset, ElementType.INDEX)
            for leaf, factor in terms.items():
                total = add(total, mul(as_index(leaf), factor))
            return self.span(compare("le", total, limit))
        if len(varying) != 1:
            return Span()
        (leaf,) = varying
        k = terms.pop(leaf)
        sign = 1 if k > 0 else -1
        limit = add(mul(limit, sign), -sign * offset)
        for other, factor in terms.items():
            limit = add(limit, mul(as_index(other), -sign * factor))
        # Now |k|·leaf <= limit, or for a negative k, |k|·leaf >= limit.
        if k > 0:
            return self.below(leaf, divided(limit, k))
        return self.above(leaf, divided(add(limit, -k - 1), -k))

    def below(self, leaf: Value, limit: Value) -> Span:
        """Where leaf <= limit."""
        match leaf.op:
            case Bound(end=end):
                return Span(None, add(limit, 1), end == "first")
            case ew.FloorDiv(lhs=x, rhs=by) if (n := constant_value(by)) and n > 0:
                return self.at_most(x, add(mul(limit, n), n - 1))
            case ew.Max(lhs=x, rhs=y):
                return self.at_most(x, limit).and_(self.at_most(y, limit))
            case ew.Min(lhs=x, rhs=y):
                return self.at_most(x, limit).or_(self.at_most(y, limit))
            case ew.Cast(value=x) if isinstance(x.op, Bound) and leaf.element.bytes >= 4:
                return self.below(x, limit)
            case _:
                return Span()

    def above(self, leaf: Value, limit: Value) -> Span:
        """Where leaf >= limit."""
        match leaf.op:
            case Bound(end=end):
                return Span(limit, None, end == "last")
            case ew.FloorDiv(lhs=x, rhs=by) if (n := constant_value(by)) and n > 0:
                return self.at_least(x, mul(limit, n))
            case ew.Max(lhs=x, rhs=y):
                return self.at_least(x, limit).or_(self.at_least(y, limit))
            case ew.Min(lhs=x, rhs=y):
                return self.at_least(x, limit).and_(self.at_least(y, limit))
            case ew.Cast(value=x) if isinstance(x.op, Bound) and leaf.element.bytes >= 4:
                return self.above(x, limit)
            case _:
                return Span()

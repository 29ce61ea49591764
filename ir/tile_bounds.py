"""What a mask can be on a part of its axes: bounds of integer and boolean values over a tile, as scalar IR.

Interval analysis whose intervals are values: an index lies between the first and last coordinate of its range, and a table's
part between its minimum and maximum. A boolean's bounds are (certainly true, possibly true). Sides of a comparison are
subtracted before they are compared, so that i - j >= 0 is seen as one linear form and bounded exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from attngen.ir import elementwise as ew
from attngen.ir.build import add, binary, compare, constant, folded, maximum, minimum, mul, neg, select, unary
from attngen.ir.core import Op, Value, constant_value
from attngen.ir.loop import Bound, Load
from attngen.ir.nd import Expand, Index, Reduce
from attngen.ir.types import I1, ElementType

Bounds = tuple[Value, Value]
"""(lowest, highest), both without axes; of integers of any type as an index."""


class Unbounded(Exception):
    """Why nothing useful is known of a value over a tile."""


class TileBounds:
    """Bounds of values over the tile that the loops' ranges select."""

    def __init__(self) -> None:
        self.memo: dict[Value, Bounds] = {}

    def of(self, x: Value) -> Bounds:
        if x not in self.memo:
            lo, hi = self.derive(x)
            self.memo[x] = (as_index(lo), as_index(hi)) if x.element.is_integer else (lo, hi)
        return self.memo[x]

    def derive(self, x: Value) -> Bounds:
        op = x.op
        known = constant_value(x)
        if known is not None:
            c = constant(known, x.element)
            return c, c
        if op is None or op.regions:
            raise Unbounded("a carried value")
        if x.element.is_float:
            raise Unbounded(f"{op.name} of floats")
        rule = RULES.get(type(op))
        if rule is None:
            raise Unbounded(op.name)
        return rule(self, op)

    # ---- linear forms

    def linear(self, x: Value) -> tuple[dict[Value, int], int]:
        """x = Σ coefficient · leaf + constant, over the integers."""
        known = constant_value(x)
        op = x.op
        if known is not None:
            return {}, int(known)
        if isinstance(op, Expand):
            return self.linear(op.value)
        if op is not None and op.facts.combination and len(op.facts.combination) == len(op.operands):
            total: dict[Value, int] = {}
            offset = 0
            for sign, v in zip(op.facts.combination, op.operands, strict=True):
                terms, c = self.linear(v)
                offset += int(sign) * c
                for leaf, coefficient in terms.items():
                    total[leaf] = total.get(leaf, 0) + int(sign) * coefficient
            return {leaf: c for leaf, c in total.items() if c}, offset
        if isinstance(op, ew.Mul):
            for factor, v in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
                c = constant_value(factor)
                if c is not None:
                    terms, offset = self.linear(v)
                    return {leaf: int(c) * k for leaf, k in terms.items() if c}, int(c) * offset
        return {x: 1}, 0

    def linear_bounds(self, x: Value, minus: Value | None = None) -> Bounds:
        """Bounds of x, or of x - minus, from those of the leaves of its linear form."""
        terms, offset = self.linear(x)
        if minus is not None:
            others, c = self.linear(minus)
            offset -= c
            for leaf, k in others.items():
                terms[leaf] = terms.get(leaf, 0) - k
        lo = hi = constant(offset, ElementType.INDEX)
        for leaf, k in terms.items():
            if k:
                low, high = self.memo[leaf] if leaf in self.memo else self.leaf(leaf)
                low, high = (low, high) if k > 0 else (high, low)
                lo, hi = add(lo, mul(low, k)), add(hi, mul(high, k))
        return lo, hi

    def leaf(self, x: Value) -> Bounds:
        if x.op is not None and x.op.facts.combination and len(x.op.facts.combination) == len(x.op.operands):
            raise Unbounded(x.op.name)
        return self.of(x)


def as_index(x: Value) -> Value:
    return folded(ew.Cast(value=x, to=ElementType.INDEX))


def both(a: Value, b: Value) -> Value:
    return binary(ew.And, a, b)


def negation(x: Value) -> Value:
    return unary(ew.Not, x)


def index_bounds(tiles: TileBounds, op: Op) -> Bounds:
    assert isinstance(op, Index)
    if op.range is None:
        if not isinstance(op.extent, int):
            raise Unbounded("an index along a runtime extent that no loop cuts")
        return constant(0, ElementType.INDEX), constant(max(op.extent - 1, 0), ElementType.INDEX)
    return tuple(Bound(range=op.range, end=end).result for end in ("first", "last"))  # pyright: ignore[reportReturnType]


def linear_rule(tiles: TileBounds, op: Op) -> Bounds:
    return tiles.linear_bounds(op.results[0])


def product_rule(tiles: TileBounds, op: Op) -> Bounds:
    if constant_value(op.operands[0]) is not None or constant_value(op.operands[1]) is not None:
        return tiles.linear_bounds(op.results[0])
    (a, b), (c, d) = (tiles.of(v) for v in op.operands)
    ends = [mul(x, y) for x in (a, b) for y in (c, d)]
    lo, hi = ends[0], ends[0]
    for e in ends[1:]:
        lo, hi = minimum(lo, e), maximum(hi, e)
    return lo, hi


def divided(tiles: TileBounds, op: Op) -> tuple[Bounds, Value]:
    """The bounds of a dividend, and the divisor, which must be a positive constant."""
    divisor = constant_value(op.operands[1])
    if divisor is None or divisor <= 0:
        raise Unbounded(f"{op.name} by what is not known to be positive")
    lo, hi = tiles.of(op.operands[0])
    return (lo, hi), constant(divisor, lo.element)


def floordiv_rule(tiles: TileBounds, op: Op) -> Bounds:
    (lo, hi), by = divided(tiles, op)
    return binary(ew.FloorDiv, lo, by), binary(ew.FloorDiv, hi, by)


def mod_rule(tiles: TileBounds, op: Op) -> Bounds:
    """Exact where the part lies within one period."""
    (lo, hi), by = divided(tiles, op)
    same = compare("eq", binary(ew.FloorDiv, lo, by), binary(ew.FloorDiv, hi, by))
    zero, last = constant(0, lo.element), binary(ew.Sub, by, constant(1, lo.element))
    return select(same, binary(ew.Mod, lo, by), zero), select(same, binary(ew.Mod, hi, by), last)


def monotone_rule(tiles: TileBounds, op: Op) -> Bounds:
    """An op that rises with every operand: its bounds are its values at theirs."""
    bounds = [tiles.of(v) for v in op.operands]
    found: list[Value] = []
    for k in (0, 1):
        table = {v: b[k] for v, b in zip(op.operands, bounds, strict=True)}
        found.append(folded(op.rebuild(lambda v, table=table: table[v], lambda b: b)))
    return found[0], found[1]


def abs_rule(tiles: TileBounds, op: Op) -> Bounds:
    lo, hi = tiles.of(op.operands[0])
    return maximum(maximum(lo, neg(hi)), 0), maximum(neg(lo), hi)


def compare_rule(tiles: TileBounds, op: Op) -> Bounds:
    assert isinstance(op, ew.Compare)
    if op.lhs.element.is_float or op.lhs.element is I1:
        raise Unbounded(f"a comparison of {op.lhs.element}")
    lo, hi = tiles.linear_bounds(op.lhs, op.rhs)
    certain: dict[str, Callable[[], Bounds]] = {
        "lt": lambda: (compare("lt", hi, 0), compare("lt", lo, 0)),
        "le": lambda: (compare("le", hi, 0), compare("le", lo, 0)),
        "gt": lambda: (compare("gt", lo, 0), compare("gt", hi, 0)),
        "ge": lambda: (compare("ge", lo, 0), compare("ge", hi, 0)),
        "eq": lambda: (equal(lo, hi), both(compare("le", lo, 0), compare("ge", hi, 0))),
        "ne": lambda: (negation(both(compare("le", lo, 0), compare("ge", hi, 0))), negation(equal(lo, hi))),
    }
    return certain[op.predicate]()


def equal(lo: Value, hi: Value) -> Value:
    return both(compare("eq", lo, 0), compare("eq", hi, 0))


def not_rule(tiles: TileBounds, op: Op) -> Bounds:
    certain, possible = tiles.of(op.operands[0])
    return negation(possible), negation(certain)


def select_rule(tiles: TileBounds, op: Op) -> Bounds:
    assert isinstance(op, ew.Select)
    (certain, possible), (a, b), (c, d) = (tiles.of(v) for v in op.operands)
    if op.lhs.element is I1:
        lo, hi = both(a, c), binary(ew.Or, b, d)
    else:
        lo, hi = minimum(a, c), maximum(b, d)
    return select(certain, a, select(possible, lo, c)), select(certain, b, select(possible, hi, d))


def load_rule(tiles: TileBounds, op: Op) -> Bounds:
    """A part of a table lies between its minimum and its maximum."""
    assert isinstance(op, Load)
    x = op.result
    ends = (Reduce(value=x, kind=kind, over=x.names, acc=x.element).result for kind in ("min", "max"))
    return tuple(ends) if x.names else (x, x)  # pyright: ignore[reportReturnType]


def cast_rule(tiles: TileBounds, op: Op) -> Bounds:
    assert isinstance(op, ew.Cast)
    if op.to is I1 and op.value.element is not I1:
        raise Unbounded("a cast to i1")
    lo, hi = (replace(op, value=v).result for v in tiles.of(op.value))
    return lo, hi


RULES: dict[type[Op], Callable[[TileBounds, Op], Bounds]] = {
    Index: index_bounds,
    Load: load_rule,
    Expand: lambda tiles, op: tiles.of(op.operands[0]),
    ew.Add: linear_rule,
    ew.Sub: linear_rule,
    ew.Neg: linear_rule,
    ew.Abs: abs_rule,
    ew.Mul: product_rule,
    ew.FloorDiv: floordiv_rule,
    ew.Mod: mod_rule,
    ew.Max: monotone_rule,
    ew.Min: monotone_rule,
    ew.And: monotone_rule,
    ew.Or: monotone_rule,
    ew.Not: not_rule,
    ew.Compare: compare_rule,
    ew.Select: select_rule,
    ew.Cast: cast_rule,
}
"""How the bounds of a result follow from those of the operands."""

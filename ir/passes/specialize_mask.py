"""specialize-mask: parts of a loop where a mask is all false are not visited; where it is all true, it is not applied."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Sequence

from attngen.ir import elementwise as ew
from attngen.ir.build import binary, constant, folded
from attngen.ir.core import Block, Op, Value, argument, at, attribute_key, constant_value
from attngen.ir.diagnostics import remark
from attngen.ir.facts import ANYTHING, Interval
from attngen.ir.func import Func
from attngen.ir.loop import For, If, trips
from attngen.ir.nd import Contract, Reduce
from attngen.ir.pipeline import register_pass
from attngen.ir.rewrite import clone, free, place, postorder, rewrite, substitute, unplaced
from attngen.ir.span import Solver, Span
from attngen.ir.tile_bounds import TileBounds, Unbounded
from attngen.ir.types import I1


@register_pass("specialize-mask")
def specialize_mask(func: Func) -> Func:
    """Limit a loop to where its masks can be true, from their bounds over a tile; leave them away where all is true.

    before: loop.for %j: j = 0 to 512 step 64 … { %keep = %index_j <= %index_i;  %x = nd.select %keep, %s, -inf;  … }
    after:  %end = last of %i + 1
            loop.for %j: j = 0 to 512 step 64 until %end … {
              %certain = last of %j <= first of %i
              loop.if %certain { … %s … } { … nd.select %keep, %s, -inf … } }

    Where the limits do not tell all (alternatives, remainders, tables that are read along the loop), a test `%possible` goes
    around the body. A trip is left out only if it is proven that with the mask false the carried values do not change.
    """

    def rule(op: Op) -> tuple[Value, ...] | None:
        return specialized(op) if isinstance(op, For) else None

    func = rewrite(func, rule)
    return func.with_body(place(func.args, func.outputs))


def specialized(loop: For) -> tuple[Value, ...] | None:
    known = conditions(loop) if trips(loop.extent, loop.step) > 1 else None
    if known is None:
        return None
    with at(loop.loc):
        inputs = loop.body.args
        whole = region(inputs, loop.body.yields)
        full = region(inputs, without(loop.body.yields, known.masks))
        body = If(condition=known.certain, inputs=inputs, then=full, otherwise=whole).results
        first, end = known.span.first, known.span.end
        how = "by the loop's limits"
        if known.possible is None:
            remark(f"no trip over {loop.axis} is left out: with the mask false the carried values may change", loop.loc)
        else:
            if not known.span.exact:
                how = "by a test" if first is end is None else "by the loop's limits and a test"
                inner, same = region(inputs, body), region(inputs, inputs[1:])
                body = If(condition=known.possible, inputs=inputs, then=inner, otherwise=same).results
            remark(
                f"parts along {loop.axis} where the mask is false are left out {how}, and where it is true it is not applied",
                loop.loc,
            )
    return dataclasses.replace(loop, body=unplaced(inputs, body), first=first, end=end).results


@dataclasses.dataclass(frozen=True)
class Conditions:
    """What is known of a loop's masks on the part of a trip, as scalars. certain: they are true everywhere; possible: one is
    true somewhere, None if a trip counts even with all of them false; span: where along the loop that is."""

    masks: Collection[Value]
    certain: Value
    possible: Value | None
    span: Span


def conditions(loop: For) -> Conditions | None:
    """Nothing if no bounds of a mask are known, or the loop is specialized already."""
    range, *carried = loop.body.args
    masks = [v for v in masks_of(loop.body.yields) if range in free((v,))[v]]
    if not masks or any(isinstance(op, If) for op in loop.body.ops):
        return None
    tiles = TileBounds()
    bounds: dict[Value, tuple[Value, Value]] = {}
    with at(loop.loc):
        for v in masks:
            try:
                bounds[v] = tiles.of(v)
            except Unbounded as reason:
                remark(f"a mask along {loop.axis} is applied everywhere: nothing is known of {reason} over a tile", loop.loc)
        if not bounds:
            return None
        certain = all_of(ew.And, [b[0] for b in bounds.values()])
        possible = all_of(ew.Or, [b[1] for b in bounds.values()])
        given = Span(loop.first, loop.end, exact=True)
        if not unchanged(carried, loop.body.yields, bounds):
            return Conditions(bounds, certain, None, given)
        return Conditions(bounds, certain, possible, given.and_(Solver(loop).span(possible)))


def all_of(cls: type[ew.Binary], values: list[Value]) -> Value:
    found, *rest = values
    for v in rest:
        found = binary(cls, found, v)
    return found


def region(inputs: tuple[Value, ...], yields: tuple[Value, ...]) -> Block:
    """A region that computes the yields from arguments of its own in place of the inputs."""
    args = tuple(argument(v.type, v.hint) for v in inputs)
    return clone(unplaced(args, substitute(yields, dict(zip(inputs, args, strict=True)))))


def masks_of(roots: Sequence[Value]) -> list[Value]:
    """The booleans that choose between a value and nothing: of a select with a constant, or of a contraction. What conditions
    themselves are computed from is no such value."""
    found: list[Value] = []
    used = set(roots)
    for op in reversed(postorder(roots)):
        if used.isdisjoint(op.results):
            continue
        condition = op.condition if isinstance(op, ew.Select) else op.where if isinstance(op, Contract) else None
        used.update(v for v in op.operands if v is not condition)
        used.update(v for b in op.regions for v in b.yields)
        if condition is not None and (not isinstance(op, ew.Select) or constant_value(op.rhs) is not None):
            found.append(condition)
    return [v for v in dict.fromkeys(reversed(found)) if v.element is I1]


def without(yields: tuple[Value, ...], masks: Collection[Value]) -> tuple[Value, ...]:
    """The values where the masks are true everywhere: selects and `where` are gone."""
    memo: dict[Value, Value] = {}

    def get(v: Value) -> Value:
        return memo.get(v, v)

    for op in postorder(yields):
        if isinstance(op, ew.Select) and op.condition in masks and set(op.lhs.names) == set(op.result.names):
            memo[op.result] = get(op.lhs)
            continue
        new = op.rebuild(get, lambda b: b)
        if isinstance(new, Contract) and isinstance(op, Contract) and op.where in masks and new.where is not None:
            if set(new.where.names) <= set(new.lhs.names) | set(new.rhs.names):
                new = dataclasses.replace(new, where=None)
        memo |= {old: r for old, r in zip(op.results, new.results, strict=True) if old is not r}
    return tuple(map(get, yields))


# ---------------------------------------------------------------- a trip that changes nothing


def unchanged(carried: list[Value], yields: tuple[Value, ...], masks: Collection[Value]) -> bool:
    """Whether every yield equals its carried value when all the masks are false.

    Each value is known as a constant, as the same as another value, or not at all. A product with a weight of 0 counts as 0:
    a masked NaN must not reach the output.
    """
    known: dict[Value, float | Value] = dict.fromkeys(masks, 0.0)
    bounds: dict[Value, Interval] = {}
    first: dict[object, Value] = {}

    def of(v: Value) -> float | Value:
        return known.get(v, v)

    def interval(v: Value) -> Interval:
        found = of(v)
        return bounds.get(found, ANYTHING) if isinstance(found, Value) else Interval(found, found)

    for op in postorder(yields, regions=False):
        for result in op.results:
            if result not in known:
                found = simplest(op, result, of, interval)
                alike = (type(op), attribute_key(op), tuple(map(of, op.operands)), result.index)
                known[result] = first.setdefault(alike, result) if found is result and not op.regions else found
            if not op.regions:
                exact = known[result]
                bounds[result] = op.interval(tuple(map(interval, op.operands))) if exact is result else interval(result)
    return all(of(y) is c for y, c in zip(yields, carried, strict=True))


Known = Callable[[Value], "float | Value"]


def simplest(op: Op, result: Value, of: Known, interval: Callable[[Value], Interval]) -> float | Value:
    """The constant or other value that a result is known to equal, else the result itself."""
    operands = [of(v) for v in op.operands]
    constants = [v for v in operands if not isinstance(v, Value)]
    exact = constant_value(result)
    if exact is not None:
        return exact
    if isinstance(op, ew.Select) and not isinstance(operands[0], Value):
        return operands[1] if operands[0] else operands[2]
    if isinstance(op, ew.And) and 0.0 in constants:
        return 0.0
    if isinstance(op, Contract):
        nothing = op.where is not None and of(op.where) == 0.0
        return 0.0 if nothing or 0.0 in [v for v in operands[:2] if not isinstance(v, Value)] else result
    if isinstance(op, Reduce):
        alone = operands[0]
        return alone if not isinstance(alone, Value) and (op.kind != "sum" or alone == 0) else result
    if isinstance(op, ew.Elementwise) and len(constants) == len(operands):
        elements = [constant(c, v.element) for c, v in zip(constants, op.operands, strict=True)]
        table = dict(zip(op.operands, elements, strict=True))
        value = constant_value(folded(op.rebuild(lambda v: table[v], lambda b: b)))
        return result if value is None else value
    if (
        len(operands) == 2
        and op.facts.combination == (1.0, -1.0)
        and isinstance(operands[0], Value)
        and operands[0] is operands[1]
    ):
        return 0.0  # unless infinite or NaN, and then what is carried is NaN already
    for k, identity in enumerate(op.facts.identity if len(operands) == 2 else ()):
        if identity is not None and operands[k] == identity and isinstance(operands[1 - k], Value):
            return operands[1 - k]
    if isinstance(op, ew.Elementwise):
        bounds = op.interval(tuple(map(interval, op.operands)))
        if bounds.lo == bounds.hi and not math.isnan(bounds.lo):
            return bounds.lo
    if op.facts.combination == (1.0,) and not isinstance(operands[0], Value):
        return operands[0]
    return result

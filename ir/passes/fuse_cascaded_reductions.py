"""fuse-cascaded-reductions: loops over one axis, where later ones read earlier results, become as few as dependences allow.

Sources: Milakov and Gimelshein 2018 (online softmax, arXiv 1805.02867); RedFuser (arXiv 2603.10026), cascaded reductions;
Flashlight (arXiv 2511.02043), fusion from plain array code; Neptune (PLDI 2026), rolling update.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from attngen.ir.build import constant, folded, mul
from attngen.ir.core import Block, Op, Value, argument, at, attribute_key, constant_value, walk
from attngen.ir.diagnostics import remark
from attngen.ir.facts import ANYTHING, Interval
from attngen.ir.func import Func
from attngen.ir.intervals import Intervals
from attngen.ir.loop import For
from attngen.ir.passes.separable import NotSeparable, Separability, Shifts, unless_equal
from attngen.ir.pipeline import register_pass
from attngen.ir.rewrite import Interner, free, place, postorder, rewrite, substitute, unplaced
from attngen.ir.types import Extent, RangeType, UpTo, tile_extent


@register_pass("fuse-cascaded-reductions")
def fuse_cascaded_reductions(func: Func) -> Func:
    """Let later reductions follow the running results of earlier ones, each corrected by a known ratio.

    before: %m = loop.for %j … { yield max(%max, %pm) }           and then
            %l = loop.for %j … { yield %sum + reduce sum exp2(%y - %m) }
    after:  %m, %l = loop.for %j … {
              %new = max(%max, %pm)
              yield %new, %sum * exp2(%max - %new) + reduce sum exp2(%y - %new) }

    A reference that may be -inf on an empty prefix is replaced by max(%m, LOWEST); with that, a row of nothing but -inf gives
    0 where a program without a guard of its own would divide NaN by NaN. The ratio is 1 where %max does not change, be it
    infinite.

    A reduction that cannot follow starts a further loop, in which earlier results are finished, and others may join it. The
    ratios also give each loop its `merge` region: how the results over two parts of the axis combine.
    """

    def rule(op: Op) -> tuple[Value, ...] | None:
        if not op.regions or op.level != "loop" or not hasattr(op, "body"):
            return None
        (block, *_), name = op.regions, op.fields.regions[0]
        new = fuse_block(block, nested=True)
        return None if new is block else dataclasses.replace(op, **{name: new}).results

    func = rewrite(func, rule)
    return func.with_body(place(func.args, fuse_block(func.body).yields))


def fuse_block(block: Block, nested: bool = False) -> Block:
    """Fuse the loops that lie directly in a block, axis by axis."""
    done: set[tuple[str, Extent, int]] = set()
    while True:
        groups: dict[tuple[str, Extent, int], list[For]] = {}
        for op in block.ops:
            if isinstance(op, For) and is_reduction(op):
                groups.setdefault((op.axis, op.extent, op.step), []).append(op)
        group = next((members for key, members in groups.items() if key not in done), None)
        if group is None:
            return block
        done.add((group[0].axis, group[0].extent, group[0].step))
        block = place(block.args, Fusion(block, group, nested).run(), nested=nested)


def is_reduction(loop: For) -> bool:
    """Whether each carried value is combined with a partial result that reads no carried value, from the identity on."""
    if loop.merge is not None or loop.limits:
        return False
    carried = set(loop.body.args[1:])
    for arg, combined, init in zip(loop.body.args[1:], loop.body.yields, loop.inits, strict=True):
        op = combined.op
        if op is None or not op.algebra.reduces or op.operands[0] is not arg:
            return False
        if carried & free((op.operands[1],))[op.operands[1]] or constant_value(init) != op.algebra.identity[0]:
            return False
    return True


@dataclass
class Reduction:
    """One carried value of one of the loops: result = combine(carried, partial) over the axis."""

    result: Value
    init: Value
    carried: Value
    combine: Op
    partial: Value
    shifts: Shifts = ()
    stage: int = 0

    def combined(self, carried: Value, partial: Value) -> Value:
        old = self.combine.operands
        table = {old[0]: carried, old[1]: partial}
        return folded(self.combine.rebuild(lambda v: table[v], lambda b: b))


class Fusion:
    """The loops of one block over one axis."""

    def __init__(self, block: Block, group: list[For], nested: bool) -> None:
        self.block, self.group = block, group
        # Equal values are one value from here on; the loops themselves are found again by their place in the list.
        roots = (*block.yields, *(r for loop in group for r in loop.results))
        # What is bound in the block or deeper: an op that needs none of it lies outside.
        args = {*block.args, *(arg for op in walk(block) for region in op.regions for arg in region.args)}
        needs = free(roots)

        def elsewhere(op: Op) -> bool:
            """A loop of another block: it must stay the one that others refer to."""
            return bool(op.regions) and nested and op.results[0] in needs and not needs[op.results[0]] & args

        self.interner = Interner(fixed=elsewhere)
        interned = substitute(roots, {}, self.interner)
        self.yields = interned[: len(block.yields)]
        self.loops: list[For] = []
        for v in interned[len(block.yields) :]:
            if isinstance(v.op, For) and v.op not in self.loops:
                self.loops.append(v.op)
        first = self.loops[0]
        self.axis, self.extent, self.step = first.axis, first.extent, first.step
        self.range = argument(RangeType(self.axis, tile_extent(self.extent, self.step)), self.axis)
        # A reduction that is carried out twice is carried once.
        self.same: dict[Value, Value] = {}
        distinct: dict[object, Reduction] = {}
        for loop in self.loops:
            for k, result in enumerate(loop.results):
                x = self.reduction(loop, k)
                first_alike = distinct.setdefault((type(x.combine), attribute_key(x.combine), x.partial, x.init.type), x)
                if first_alike is not x:
                    self.same[result] = first_alike.result
        self.reductions = list(distinct.values())
        self.results = {x.result: x for x in self.reductions}
        self.needs = free([x.partial for x in self.reductions])
        self.maxima = {x.result: terms for x in self.reductions if (terms := self.terms(x)) is not None}
        plain = Intervals()
        self.bounds = Intervals({x.result: self.result_bounds(x, plain(x.partial)) for x in self.reductions})

    def terms(self, x: Reduction) -> Value | None:
        """The value whose maximum a reduction is."""
        op = x.partial.op
        top = x.combine.algebra.upper_bound and op is not None and op.algebra.upper_bound and len(op.operands) == 1
        return op.operands[0] if op is not None and top else None

    def reduction(self, loop: For, k: int) -> Reduction:
        combine = loop.body.yields[k].op
        assert combine is not None
        (partial,) = substitute((combine.operands[1],), {loop.body.args[0]: self.range, **self.same}, self.interner)
        return Reduction(loop.results[k], loop.inits[k], loop.body.args[1 + k], combine, partial)

    def varying(self, x: Value) -> bool:
        if x not in self.needs:
            self.needs |= free((x,))
        return self.range in self.needs[x]

    def run(self) -> tuple[Value, ...]:
        """What the block hands on, from fewer loops."""
        for x in self.reductions:
            with at(x.combine.loc):
                self.choose_stage(x)
        final: dict[Value, Value] = {}
        for stage in sorted({x.stage for x in self.reductions}):
            members = [x for x in self.reductions if x.stage == stage]
            final |= zip((x.result for x in members), self.loop(members, final).results, strict=True)
        stages = len({x.stage for x in self.reductions})
        if len(self.loops) > 1:
            remark(f"{len(self.loops)} loops over {self.axis} became {stages}, carrying {len(self.reductions)} values")
        final |= {again: final[value] for again, value in self.same.items()}
        return substitute(self.yields, final)

    def choose_stage(self, x: Reduction) -> None:
        """The first loop in which all that x reads is finished, or x can follow it."""
        below = postorder((x.partial,), stop=lambda op: op.results[0] in self.results)
        read = {v for op in below for v in op.operands if v in self.results} | ({x.partial} & set(self.results))
        x.stage = max((self.results[v].stage for v in read), default=0)
        running = {v for v in read if self.results[v].stage == x.stage}
        try:
            x.shifts = self.separability(running).shifts(x.partial)
            if x.combine.algebra.upper_bound and x.shifts:
                self.require_nonnegative(x)
        except NotSeparable as reason:
            remark(f"a reduction by {x.combine.name} needs another loop over {self.axis}: {reason}", x.combine.loc)
            x.stage, x.shifts = x.stage + 1, ()

    def separability(self, running: set[Value]) -> Separability:
        return Separability(running, self.maxima, self.varying, self.bounds, self.interner)

    def result_bounds(self, x: Reduction, partial: Interval) -> Interval:
        """Bounds of a running result: on an empty prefix it is still the identity."""
        if x.combine.algebra.upper_bound:
            return Interval(ANYTHING.lo, partial.hi)
        return Interval(0) if partial.nonnegative else ANYTHING

    def require_nonnegative(self, x: Reduction) -> None:
        """A rescaled maximum starts from 0, since -inf · 0 is not a number; that is right only for terms >= 0."""
        if not Intervals()(self.terms(x) or x.partial).nonnegative:
            raise NotSeparable("the maximum of values that may be negative is scaled, and -inf · 0 is not a number")
        if self.extent == 0 or isinstance(self.extent, UpTo):
            raise NotSeparable("the maximum may be over nothing, which is -inf and not 0")
        zero = constant(0, x.init.element)
        init = x.init.op
        x.init = zero if init is None or not init.operands else substitute((x.init,), {init.operands[0]: zero})[0]

    # ---- building

    def loop(self, members: list[Reduction], final: Mapping[Value, Value]) -> For:
        """One loop that carries all members, each following those before it."""
        carried = {x.result: argument(x.carried.type, x.carried.hint) for x in members}
        running: dict[Value, Value] = {}
        for x in members:
            with at(x.combine.loc):
                guards = self.guards(x)
                (partial,) = substitute((x.partial,), guards, self.interner)
                old = self.corrected(x, carried[x.result], {**final, **carried}, {**final, **running}, guards)
                (partial,) = substitute((partial,), {**final, **running}, self.interner)
                running[x.result] = x.combined(old, partial)
        # The body gets a range of its own: other stages may use the shared one.
        range = argument(self.range.type, self.axis)
        yields = substitute(tuple(running.values()), {self.range: range})
        body = unplaced((range, *carried.values()), yields)
        with at(members[0].combine.loc):
            return For(
                inits=substitute(tuple(x.init for x in members), final),
                axis=self.axis,
                extent=self.extent,
                step=self.step,
                body=body,
                merge=self.merge(members, final),
            )

    def guards(self, x: Reduction) -> dict[Value, Value]:
        separable = self.separability(set())
        return {s.reference: g for s in x.shifts if (g := separable.guarded(s)) is not s.reference}

    def corrected(
        self, x: Reduction, value: Value, was: Mapping[Value, Value], now: Mapping[Value, Value], guards: Mapping[Value, Value]
    ) -> Value:
        """value · ρ(t(was), t(now)) for every shift t."""
        for s in x.shifts:
            t = guards.get(s.reference, s.reference)
            (old,), (new,) = substitute((t,), was, self.interner), substitute((t,), now, self.interner)
            value = mul(value, unless_equal(old, new, s.ratio(old, new)))
        return value

    def merge(self, members: list[Reduction], final: Mapping[Value, Value]) -> Block:
        """Two states of the loop into one: both corrected to the merged running results, then combined."""
        left = {x.result: argument(x.carried.type, "left") for x in members}
        right = {x.result: argument(x.carried.type, "right") for x in members}
        whole: dict[Value, Value] = {}
        for x in members:
            with at(x.combine.loc):
                guards, now = self.guards(x), {**final, **whole}
                sides = [self.corrected(x, side[x.result], {**final, **side}, now, guards) for side in (left, right)]
                whole[x.result] = x.combined(*sides)
        return unplaced((*left.values(), *right.values()), tuple(whole.values()))

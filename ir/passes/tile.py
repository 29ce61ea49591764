"""tile: chosen axes are cut into parts; each output gets a nest of parallel loops, each reduction over a cut axis a loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from difflib import get_close_matches

from attngen.ir.build import add, constant, expand, maximum, minimum
from attngen.ir.core import Op, Value, argument, at
from attngen.ir.diagnostics import UNKNOWN, IRError, Loc, remark
from attngen.ir.elementwise import Elementwise
from attngen.ir.func import Func
from attngen.ir.loop import For, Load, Parallel, Store, trips
from attngen.ir.nd import REDUCTIONS, Contract, Expand, Gather, Index, Reduce
from attngen.ir.passes.tile_sizes import choose_steps, reasons
from attngen.ir.pipeline import register_pass
from attngen.ir.rewrite import place, postorder, unplaced
from attngen.ir.types import Extent, RangeType, tile_extent

COMBINE = {"sum": add, "max": maximum, "min": minimum}


@register_pass("tile", resolve=choose_steps)
def tile(func: Func, /, **steps: int) -> Func:
    """Cut axes into parts of the given lengths: `tile{i=64 j=128}`. Without options, lengths are chosen and explained.

    before: %m = nd.reduce %x kind max over [j] : tensor<i=100, f32>
    after:  %m = loop.parallel %i: i = 0 to 100 step 64 out (%dst) {
              %r = loop.for %j: j = 0 to 500 step 128 carry (%max = -inf) { … nd.max %max, (nd.reduce (tile.load %x, %i, %j)) }
              %w = tile.store %r, %dst, %i }

    Outputs with the same cut axes share a nest. Producers are computed again in each loop that needs them, but for two kinds
    of reductions, which an earlier nest stores: over an axis that the consumer's nest cuts, and such that would be repeated
    for every part of an axis that they do not have. What has the axes of scores is never stored.
    """
    return cut(func, steps, reasons)


def cut(func: Func, steps: Mapping[str, int], why: Callable[[Func, Mapping[str, int]], Mapping[str, str]]) -> Func:
    """The function cut into parts. why: the reasons for the lengths, by axis."""
    if func.level == "loop":
        remark("declined: the function has loops already")
        return func
    extents = {name: extent for v in func.args for name, extent in v.tensor.axes}
    for op in func.body.ops:
        for v in op.results:
            extents |= dict(v.tensor.axes)
    for op in func.body.ops:
        whole = set(op.attributes.get("over", ())) & set(steps)
        if whole and not isinstance(op, Contract | Reduce | Gather):
            raise op.error(f"cannot be cut along {', '.join(sorted(whole))}", help="run decompose-attn before tile")
    for name, step in steps.items():
        if name not in extents:
            close = get_close_matches(name, extents, 1)
            raise IRError(
                "pass tile",
                f"there is no axis {name!r}; axes: {', '.join(extents)}",
                help=f"did you mean {close[0]}?" if close else "",
            )
        if step < 1:
            raise IRError("pass tile", f"axis {name}: the length of a part must be at least 1, not {step}")
    for name, reason in why(func, steps).items():
        remark(f"{name}: parts of {steps[name]} of {extents[name]}; {reason}")
    return Tiling(func, extents, steps).run()


class Tiling:
    """One run of the pass."""

    def __init__(self, func: Func, extents: Mapping[str, Extent], steps: Mapping[str, int]) -> None:
        self.func, self.extents, self.steps = func, extents, steps
        self.done: dict[Value, Value] = {}
        self.levels: dict[Value, int] = {}

    def run(self) -> Func:
        stored = list(dict.fromkeys(self.func.outputs))
        for x in stored:  # grows while it is walked
            for y in self.stored_below(x):
                if y not in stored:
                    stored.append(y)
                    self.explain(y, x)
        groups: dict[tuple[int, tuple[str, ...]], list[Value]] = {}
        for x in stored:
            groups.setdefault((self.level(x), self.cut(x)), []).append(x)
        results: dict[Value, list[Value]] = {}
        for (_, axes), members in sorted(groups.items(), key=lambda group: group[0]):
            # A value that is returned twice is written twice.
            copies = [x for x in members for _ in range(max(self.func.outputs.count(x), 1))]
            for x, result in zip(copies, self.nest(axes, copies), strict=True):
                results.setdefault(x, []).append(result)
                self.done.setdefault(x, result)
        return self.func.with_body(place(self.func.args, tuple(results[x].pop() for x in self.func.outputs)))

    def explain(self, y: Value, user: Value) -> None:
        if not isinstance(y.op, Contract | Reduce):
            remark("a table that is looked up is stored by a nest of its own", loc_of(y))
            return
        clash = [axis for axis in y.op.over if axis in self.cut(user)]
        why = f"its user's nest cuts {', '.join(clash)}" if clash else "a part of it serves many parts of its user"
        remark(f"{y.op.name} over {', '.join(y.op.over)} is stored by a nest of its own: {why}", y.op.loc)

    # ---- what is stored

    def cut(self, x: Value) -> tuple[str, ...]:
        """The axes of x that are cut: those of its nest, in the order of the function's axes."""
        return tuple(n for n in self.extents if n in self.steps and n in x.names)

    def stored_below(self, x: Value) -> list[Value]:
        """The reductions that x's nest cannot or should not compute itself, nearest first."""
        nest = self.cut(x)
        several = {n for n in nest if trips(self.extents[n], self.steps[n]) > 1}

        def blocked(op: Op) -> bool:
            if op is x.op or op in tables:
                return op in tables
            if not isinstance(op, Contract | Reduce) or not self.may_store(op.result):
                return False
            return bool(set(op.over) & set(nest)) or not several <= set(op.result.names)

        # A table is looked up in memory, whatever it was computed from.
        tables = {op.table.op for op in postorder((x,)) if isinstance(op, Gather) and op.table.op and op.table is not x}

        found: list[Value] = []
        for op in postorder((x,), stop=blocked):
            found += [v for v in op.operands if v.op and blocked(v.op) and v not in found]
        return found

    def may_store(self, x: Value) -> bool:
        """Only what is cut along axes that meet in an input or output: never scores, however they are used."""
        return any(set(self.cut(x)) <= set(v.names) for v in (*self.func.args, *self.func.outputs))

    def level(self, x: Value) -> int:
        """How many nests must come before x's."""
        if x not in self.levels:
            self.levels[x] = max((1 + self.level(y) for y in self.stored_below(x)), default=0)
        return self.levels[x]

    # ---- nests

    def nest(self, axes: tuple[str, ...], members: list[Value]) -> tuple[Value, ...]:
        """One nest of parallel loops that stores its members."""
        ranges = {n: self.range(n) for n in axes}
        outs = tuple(argument(x.type, "out" if len(members) == 1 else f"out{k}") for k, x in enumerate(members))
        lowering = Lowering(self)
        yields: list[Value] = []
        for x, out in zip(members, outs, strict=True):
            with at(loc_of(x)):
                value = lowering.value(x, ranges)
                yields.append(Store(value=value, target=out, ranges=tuple(ranges[n] for n in axes)).result)
        body = unplaced((*ranges.values(), *outs), tuple(yields))
        extents, steps = tuple(self.extents[n] for n in axes), tuple(self.steps[n] for n in axes)
        return Parallel(axes=axes, extents=extents, steps=steps, body=body, loc=loc_of(members[0])).results

    def range(self, name: str) -> Value:
        return argument(RangeType(name, tile_extent(self.extents[name], self.steps[name])), name)


class Lowering:
    """The values of one nest on the parts that its loops select."""

    def __init__(self, tiling: Tiling) -> None:
        self.tiling = tiling
        self.memo: dict[tuple[Value, tuple[Value, ...]], Value] = {}

    def value(self, x: Value, ranges: Mapping[str, Value]) -> Value:
        """x on the given parts; only the parts of its own axes matter."""

        def known(op: Op) -> bool:
            return not isinstance(op, Elementwise) or self.key(op.results[0], ranges) in self.memo

        # Operands first, so that a long chain of elementwise ops needs no deep recursion.
        for op in postorder((x,), stop=known):
            self.one(op.results[0], ranges)
        return self.one(x, ranges)

    def key(self, x: Value, ranges: Mapping[str, Value]) -> tuple[Value, tuple[Value, ...]]:
        return x, tuple(ranges[n] for n in self.tiling.cut(x))

    def one(self, x: Value, ranges: Mapping[str, Value]) -> Value:
        key = _, cut = self.key(x, ranges)
        if key not in self.memo:
            if x in self.tiling.done or x.op is None:
                self.memo[key] = self.load(x, ranges)
            else:
                with at(x.op.loc):
                    self.memo[key] = self.op(x.op, cut, ranges)
        return self.memo[key]

    def load(self, x: Value, ranges: Mapping[str, Value], whole: tuple[str, ...] = ()) -> Value:
        """The given parts of a tensor in memory; axes in `whole` are not cut."""
        cut = tuple(ranges[n] for n in self.tiling.cut(x) if n not in whole)
        return Load(source=self.tiling.done.get(x, x), ranges=cut).result

    def op(self, op: Op, cut: tuple[Value, ...], ranges: Mapping[str, Value]) -> Value:
        match op:
            case Gather():
                # Its coordinates may lead anywhere along these axes of the table.
                return dataclasses.replace(
                    op, table=self.load(op.table, ranges, whole=op.over), at=tuple(self.value(v, ranges) for v in op.at)
                ).result
            case Index() if cut:
                return Index(range=cut[0]).result
            case Expand():
                steps = self.tiling.steps
                new = tuple(ranges[n] for n, _ in op.axes if n in steps)
                return expand(self.value(op.value, ranges), new, tuple(axis for axis in op.axes if axis[0] not in steps))
            case Contract() | Reduce():
                return self.reduction(op, [n for n in op.over if n in self.tiling.steps], ranges)
            case _:
                return op.rebuild(lambda v: self.value(v, ranges), lambda b: b).result

    def reduction(self, op: Contract | Reduce, axes: list[str], ranges: Mapping[str, Value]) -> Value:
        """One loop per cut axis that is summed; innermost, the reduction of the parts."""
        if not axes:
            return op.rebuild(lambda v: self.value(v, ranges), lambda b: b).result
        axis, *rest = axes
        kind = op.kind if isinstance(op, Reduce) else "sum"
        range = self.tiling.range(axis)
        partial = self.reduction(op, rest, {**ranges, axis: range})
        static = tuple(a for a in op.result.tensor.axes if a[0] not in self.tiling.steps)
        start = expand(constant(REDUCTIONS[kind][1], op.acc), tuple(ranges[n] for n in self.tiling.cut(op.result)), static)
        carried = argument(start.type, kind)
        body = unplaced((range, carried), (COMBINE[kind](carried, partial),))
        loop = For(inits=(start,), axis=axis, extent=self.tiling.extents[axis], step=self.tiling.steps[axis], body=body)
        return loop.result


def loc_of(x: Value) -> Loc:
    return x.op.loc if x.op else UNKNOWN

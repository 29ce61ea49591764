"""`loop` and `tile`: loops over parts of axes, and the loads and stores between whole tensors and tiles.

Everything is a value: a loop returns its results, a store returns the tensor it has written to.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from attngen.ir.core import Arrays, Block, Env, Op, Value, constant_value, walk
from attngen.ir.diagnostics import Error
from attngen.ir.types import ElementType, Extent, RangeType, TensorType, Type, bound, scalar, tile_extent


def trips(extent: Extent, step: int) -> int:
    """How often a loop runs at the largest extent."""
    return -(-bound(extent) // step)


def parts(extent: int, step: int, first: int = 0, end: int | None = None) -> Iterator[tuple[int, int]]:
    """(start, stop) of each part that holds a coordinate from `first` to before `end`; the last part may be shorter."""
    first, end = max(first, 0), extent if end is None else min(end, extent)
    starts = range(first // step * step, end, step) if first < end else ()
    return ((start, min(start + step, extent)) for start in starts)


class For(Op, name="loop.for"):
    """`%m = loop.for %j: j = 0 to 53 step 8 carry (%max = %init) : (tensor<i=16, f32>) { … loop.yield %new }`

    Runs the parts of an axis in order. The body takes the range of its part and the carried values, and yields the carried
    values of the next trip; the results are the last ones. The region `merge`, where present, combines the results of two
    loops over different parts of the axis into those of one over both.

    `step 8 from %first until %end` runs only the parts that hold a coordinate from the one to before the other. The parts
    themselves stay where they are: from a multiple of the step to the next one, or to the end of the axis.
    """

    level = "loop"

    inits: tuple[Value, ...]
    axis: str
    extent: Extent
    step: int
    body: Block
    merge: Block | None = None
    first: Value | None = None
    end: Value | None = None

    def infer(self) -> tuple[Type, ...]:
        if self.step < 1:
            raise self.error(f"the step must be at least 1, not {self.step}")
        types = tuple(v.type for v in self.inits)
        check_region(self, "body", self.body, (RangeType(self.axis, tile_extent(self.extent, self.step)), *types), types)
        if self.merge is not None:
            check_region(self, "merge", self.merge, types + types, types)
        for v in self.limits:
            if v.type != scalar(ElementType.INDEX):
                raise self.error(f"a loop begins and ends at one index, not {v.type}", at=v)
        return types

    @property
    def limits(self) -> tuple[Value, ...]:
        """The first and the end coordinate, where they are given."""
        return tuple(v for v in (self.first, self.end) if v is not None)

    def evaluate(self, args: Arrays, env: Env) -> Any:
        *inits, first, end = args
        carried = reorder(tuple(inits), self.inits, self.body.args[1:])
        limits = 0 if first is None else int(first), None if end is None else int(end)
        for part in parts(env.extent(self.axis, self.extent), self.step, *limits):
            carried = reorder(env.run(self.body, (part, *carried)), self.body.yields, self.body.args[1:])
        return reorder(carried, self.body.args[1:], self.results)

    @property
    def flops(self) -> int:
        """At the largest extents; of limits, only a known distance between them counts."""
        count = trips(self.extent, self.step)
        last = None if self.end is None else self.end.op
        if last is not None and last.facts.combination == (1.0, 1.0) and last.operands[0] is self.first:
            distance = constant_value(last.operands[1])
            count = count if distance is None else min(count, trips(int(distance), self.step))
        return count * sum(op.flops for op in self.body.ops)


class Parallel(Op, name="loop.parallel"):
    """`%o = loop.parallel %i: i = 0 to 37 step 16 out (%dst) : (tensor<i=37, e=5, f32>) { … loop.yield %written }`

    Runs the parts of several axes in any order. The body takes one range per axis and one new tensor per result, and yields
    those tensors written at its place by `tile.store`. Together the parts must write every element.
    """

    level = "loop"

    axes: tuple[str, ...]
    extents: tuple[Extent, ...]
    steps: tuple[int, ...]
    body: Block

    def infer(self) -> tuple[Type, ...]:
        if not len(self.axes) == len(self.extents) == len(self.steps):
            raise self.error("axes, extents and steps differ in number")
        if any(step < 1 for step in self.steps):
            raise self.error(f"every step must be at least 1: {self.steps}")
        n = len(self.axes)
        outs = tuple(v.type for v in self.body.args[n:])
        check_region(self, "body", self.body, tuple(r for _, r in self.ranges) + outs, outs)
        return outs

    @property
    def ranges(self) -> tuple[tuple[int, RangeType], ...]:
        """(step, type of the range) per axis."""
        each = zip(self.axes, self.extents, self.steps, strict=True)
        return tuple((step, RangeType(axis, tile_extent(extent, step))) for axis, extent, step in each)

    def evaluate(self, args: Arrays, env: Env) -> Any:
        def fresh(t: TensorType) -> Any:
            # An element that no part writes must not look like a result.
            junk = math.nan if t.element.is_float else 0
            return np.full([env.extent(*axis) for axis in t.axes], junk, env.dtype(t.element))

        outs = tuple(fresh(v.tensor) for v in self.results)
        each = zip(self.axes, self.extents, self.steps, strict=True)
        for at in product(*(parts(env.extent(axis, extent), step) for axis, extent, step in each)):
            outs = env.run(self.body, (*at, *outs))
        return outs

    @property
    def flops(self) -> int:
        each = (trips(extent, step) for extent, step in zip(self.extents, self.steps, strict=True))
        return math.prod(each) * sum(op.flops for op in self.body.ops)


class If(Op, name="loop.if"):
    """`%n = loop.if %possible, %j, %max { ^(%j_1: range<j=?<=8>, %m: tensor<i=16, f32>): … loop.yield %new } { … }`

    One of two regions, each of which takes the operands after the condition. What only the chosen region needs is computed
    only there, because it reads the region's own arguments.
    """

    level = "loop"

    condition: Value
    inputs: tuple[Value, ...]
    then: Block
    otherwise: Block

    def infer(self) -> tuple[Type, ...]:
        if self.condition.names or self.condition.element is not ElementType.I1:
            raise self.error(f"the condition must be one i1, not {self.condition.type}", at=self.condition)
        types = tuple(v.type for v in self.inputs)
        yields = tuple(v.type for v in self.then.yields)
        check_region(self, "first region", self.then, types, yields)
        check_region(self, "second region", self.otherwise, types, yields)
        return yields

    def evaluate(self, args: Arrays, env: Env) -> Any:
        chosen = self.then if args[0] else self.otherwise
        return reorder(env.run(chosen, reorder(args[1:], self.inputs, chosen.args)), chosen.yields, self.results)

    @property
    def flops(self) -> int:
        return max(sum(op.flops for op in block.ops) for block in (self.then, self.otherwise))


class Bound(Op, name="loop.bound"):
    """`%first = loop.bound %j end first : tensor<index>`: the first or last coordinate of a part."""

    level = "loop"

    range: Value
    end: str

    def infer(self) -> tuple[Type, ...]:
        if self.end not in ("first", "last"):
            raise self.error(f"a part has a first and a last coordinate, no {self.end}")
        if not self.range.range.axis:
            raise self.error("needs the range of a loop", at=self.range)
        return (scalar(ElementType.INDEX),)

    def evaluate(self, args: Arrays, env: Env) -> Any:
        start, stop = args[0]
        return np.asarray(start if self.end == "first" else stop - 1)


class Load(Op, name="tile.load"):
    """`%t = tile.load %q, %i : tensor<i=?<=16, d=8, f32>`: the part of a tensor that the ranges select."""

    level = "loop"

    source: Value
    ranges: tuple[Value, ...]

    def infer(self) -> tuple[Type, ...]:
        extents = dict(self.source.tensor.axes)
        for v in self.ranges:
            check_selects(self, self.source, v)
            extents[v.range.axis] = v.range.extent
        return (TensorType(tuple(extents.items()), self.source.element),)

    def evaluate(self, args: Arrays, env: Env) -> Any:
        return args[0][selection(self.source, self.ranges, args[1:])]


class Store(Op, name="tile.store"):
    """`%o2 = tile.store %t, %o, %i : tensor<i=37, e=5, f32>`: the tensor %o with the tile in its place."""

    level = "loop"

    value: Value
    target: Value
    ranges: tuple[Value, ...]

    def infer(self) -> tuple[Type, ...]:
        extents = dict(self.target.tensor.axes)
        for v in self.ranges:
            check_selects(self, self.target, v)
            extents[v.range.axis] = v.range.extent
        want = TensorType(tuple(extents.items()), self.target.element)
        if self.value.type != want:
            raise self.error(f"the ranges select {want}, the tile is {self.value.type}", at=self.value)
        return (self.target.type,)

    def evaluate(self, args: Arrays, env: Env) -> Any:
        tile, target, *ranges = args
        order = [self.value.names.index(name) for name in self.target.names]
        target[selection(self.target, self.ranges, tuple(ranges))] = np.transpose(tile, order)
        return target


def reorder(arrays: Arrays, values: tuple[Value, ...], to: tuple[Value, ...]) -> Arrays:
    """The arrays of some values as those of others, whose types may list the same axes in another order."""
    each = zip(arrays, values, to, strict=True)
    return tuple(np.transpose(x, [v.names.index(n) for n in w.names]) if v.names else x for x, v, w in each)


def check_selects(op: Op, tensor: Value, range: Value) -> None:
    r = range.range
    if r.axis not in tensor.names:
        raise op.error(f"the range is along {r.axis}, which the tensor lacks", at=tensor)
    if bound(r.extent) > bound(tensor.tensor.extents[r.axis]):
        raise op.error(f"the range {r} is longer than the axis: {r.axis}={tensor.tensor.extents[r.axis]}", at=tensor)


def selection(tensor: Value, ranges: tuple[Value, ...], bounds: Arrays) -> tuple[slice, ...]:
    at = {v.range.axis: slice(*b) for v, b in zip(ranges, bounds, strict=True)}
    return tuple(at.get(name, slice(None)) for name in tensor.names)


def check_region(op: Op, what: str, block: Block, args: tuple[Type, ...], yields: tuple[Type, ...]) -> None:
    def show(types: tuple[Type, ...]) -> str:
        return f"({', '.join(map(str, types))})"

    got = tuple(v.type for v in block.args)
    if got != args:
        raise op.error(f"the {what} must take {show(args)}, but takes {show(got)}")
    got = tuple(v.type for v in block.yields)
    if got != yields:
        raise op.error(f"the {what} must yield {show(yields)}, but yields {show(got)}")


def loops(block: Block) -> list[For]:
    """Every sequential loop, outer ones first."""
    return [op for op in walk(block) if isinstance(op, For)]


def only(values: tuple[Value, ...]) -> Value:
    if len(values) != 1:
        raise Error(f"expected one value, got {len(values)}")
    return values[0]

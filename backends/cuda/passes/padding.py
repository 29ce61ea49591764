"""pad-tiles: tiles of fixed extents, zeros where an array ends, and sums and maxima that leave those elements out."""

from __future__ import annotations

import dataclasses

from attngen.backends.cuda.ops import Cut, Grid, Inside, Mma, Pad
from attngen.backends.cuda.passes.blocks import operand
from attngen.backends.cuda.passes.distribute import Roles
from attngen.backends.cuda.passes.grids import drawn_in, outside, over_grids
from attngen.ir.build import compare, constant, folded, sub
from attngen.ir.core import Block, Op, Value, argument, at
from attngen.ir.elementwise import Select
from attngen.ir.func import Func
from attngen.ir.loop import Bound, For, If, Load, Store
from attngen.ir.nd import Contract, Expand, Index, Reduce, identity
from attngen.ir.pipeline import register_pass
from attngen.ir.rewrite import postorder
from attngen.ir.types import Axis, ElementType, RangeType, TensorType


@register_pass("pad-tiles")
def pad_tiles(func: Func) -> Func:
    """Give the tiles of grids fixed extents: fragments have no other.

    before: %t = tile.load %k, %j : tensor<j=?<=64, d=40, bf16>;  %m = nd.reduce %s kind max over [j]
    after:  %p = cuda.pad %t to [j=64, d=48]
            %f = loop.if (%j is a whole part) { %s } { nd.select (cuda.inside %j), %s, -inf }
            %m = nd.reduce %f kind max over [j]

    Padded elements are never stored, and count in no reduction: there stands its identity in their place. A tile that is made
    around a grid, since no part cuts it, is made in the grid.
    """
    return over_grids(func, lambda grid: Padding(drawn_in(grid)).rebuild())


class Padding:
    """One run on one grid."""

    def __init__(self, grid: Grid) -> None:
        self.grid, self.roles = grid, Roles(grid)
        self.raw: dict[Value, Value] = {}
        """Loads before they are padded."""
        self.placed = outside(grid)
        """Ops that need no place any more."""

    def rebuild(self) -> Grid:
        body = self.grid.body
        ranges = {x.range.axis: x for x in body.args if isinstance(x.type, RangeType)}
        return dataclasses.replace(self.grid, body=self.block(body, body.args, {}, ranges))

    def extent(self, name: str, type: TensorType) -> int:
        return self.roles.step(name, type.extents[name])

    def wide(self, type: TensorType) -> tuple[Axis, ...]:
        """The axes that are to be padded, with their fixed extents."""
        return tuple((n, self.extent(n, type)) for n, e in type.axes if e != self.extent(n, type))

    def block(self, block: Block, args: tuple[Value, ...], env: dict[Value, Value], ranges: dict[str, Value]) -> Block:
        env |= dict(zip(block.args, args, strict=True))
        inner = Scope(self, env, ranges | {x.range.axis: x for x in args if isinstance(x.type, RangeType)})
        for op in block.ops:
            inner.op(op)
        return Block(args, tuple(inner.ops), tuple(env.get(x, x) for x in block.yields))


class Scope:
    """A block that is being rebuilt. ranges: the range of each axis here."""

    def __init__(self, padding: Padding, env: dict[Value, Value], ranges: dict[str, Value]) -> None:
        self.padding, self.roles, self.env, self.ranges = padding, padding.roles, env, ranges
        self.ops: list[Op] = []
        self.masked: dict[tuple[Value, str, float | int], Value] = {}

    def get(self, x: Value) -> Value:
        return self.env.get(x, x)

    def emit(self, value: Value) -> Value:
        """Append what a new value needs."""
        for op in postorder((value,), stop=self.padding.placed.__contains__, regions=False):
            self.append(op)
        return value

    def append(self, op: Op) -> None:
        self.padding.placed.add(op)
        self.ops.append(op)

    def put(self, old: Op, new: Op) -> None:
        self.append(new)
        for a, b in zip(old.results, new.results, strict=True):
            b.hint = a.hint
            self.env[a] = b

    def op(self, op: Op) -> None:
        with at(op.loc):
            match op:
                case Load() | Index():
                    self.put(op, op.rebuild(self.get, lambda b: b))
                    self.padding.raw[op.results[0]] = raw = self.env[op.results[0]]
                    if wide := self.padding.wide(raw.tensor):
                        self.put(op, Pad(value=raw, to=wide))
                case Pad():  # made again where the part is loaded
                    self.env[op.result] = self.get(op.value)
                case Expand():
                    axes = (*((x.range.axis, x.range.extent) for x in op.ranges), *op.axes)
                    whole = TensorType(axes, ElementType.F32)
                    fixed = tuple((n, self.padding.extent(n, whole)) for n, _ in axes)
                    self.put(op, Expand(value=self.get(op.value), axes=fixed))
                case Reduce() if isinstance(op.value.op, Load) and set(op.over) == set(op.value.names):
                    self.put(op, dataclasses.replace(op, value=self.padding.raw[op.value]))
                case Reduce():
                    value = self.get(op.value)
                    for name in op.over:
                        value = self.inside(value, op.value, name, identity(op.kind, op.acc))
                    self.put(op, dataclasses.replace(op, value=value))
                case Contract() if not isinstance(op, Mma):
                    self.contract(op)
                case Store():
                    value = self.get(op.value)
                    own = {r.range.axis for r in op.ranges}
                    axes = tuple((n, e) for n, e in op.value.tensor.axes if n not in own and e != value.tensor.extents[n])
                    ranges = tuple(self.get(r) for r in op.ranges)
                    if value.type != op.value.type:
                        value = self.emit(Cut(value=value, ranges=ranges, axes=axes).result)
                    self.put(op, dataclasses.replace(op, value=value, target=self.get(op.target), ranges=ranges))
                case For():
                    inits = tuple(map(self.get, op.inits))
                    carried = tuple(argument(x.type, a.hint) for x, a in zip(inits, op.body.args[1:], strict=True))
                    range = argument(op.body.args[0].type, op.body.args[0].hint)
                    body = self.padding.block(op.body, (range, *carried), dict(self.env), self.ranges)
                    limits = {n: None if x is None else self.get(x) for n, x in (("first", op.first), ("end", op.end))}
                    self.put(op, dataclasses.replace(op, inits=inits, body=body, merge=None, **limits))
                case If():
                    inputs = tuple(map(self.get, op.inputs))
                    blocks: list[Block] = []
                    for block in (op.then, op.otherwise):
                        args = tuple(argument(x.type, a.hint) for x, a in zip(inputs, block.args, strict=True))
                        blocks.append(self.padding.block(block, args, dict(self.env), self.ranges))
                    then, otherwise = blocks
                    condition = self.get(op.condition)
                    self.put(op, dataclasses.replace(op, condition=condition, inputs=inputs, then=then, otherwise=otherwise))
                case _:
                    self.put(op, op.rebuild(self.get, lambda b: b))

    def contract(self, op: Contract) -> None:
        """Arrays end in zeros; a computed operand gets zeros there. 0 times 0 adds nothing."""
        new = dict[str, Value]()
        for side in ("lhs", "rhs"):
            old: Value = getattr(op, side)
            value = self.get(old)
            if not isinstance(operand(old).op, Load):
                for name in op.over:
                    value = self.inside(value, old, name, 0.0)
            new[side] = value
        self.put(op, dataclasses.replace(op, where=op.where and self.get(op.where), **new))

    def inside(self, value: Value, old: Value, axis: str, other: float | int) -> Value:
        """The value, with another one behind the end of an axis."""
        before, extent = old.tensor.extents[axis], value.tensor.extents[axis]
        assert isinstance(extent, int)
        if before == extent:
            return value
        key = value, axis, other
        if key not in self.masked:
            identity = constant(other, value.element)
            if axis not in self.ranges:
                assert isinstance(before, int)
                mask = Inside(axis=axis, length=before, extent=extent).result
                self.masked[key] = self.emit(folded(Select(condition=mask, lhs=value, rhs=identity)))
            else:
                range = self.ranges[axis]
                length = sub(Bound(range=range, end="last").result, Bound(range=range, end="first").result)
                whole = self.emit(compare("eq", length, extent - 1))
                one, two = argument(value.type, value.hint), argument(value.type, value.hint)
                mask = Inside(range=range, extent=extent).result
                kept = folded(Select(condition=mask, lhs=two, rhs=identity))
                then = Block((one,), (), (one,))
                otherwise = Block((two,), tuple(postorder((kept,))), (kept,))
                self.masked[key] = self.emit(If(condition=whole, inputs=(value,), then=then, otherwise=otherwise).result)
        return self.masked[key]

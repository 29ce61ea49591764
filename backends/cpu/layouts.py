"""choose-layouts: the memory order of every tile.

Scratch values lie in memory in the order of their type's axes; the last axis is the one that vector lanes run along. This
pass picks that axis for each space, and packs what is not in order. Any order is right; these are meant to be fast.
"""

from __future__ import annotations

import dataclasses
import math

from attngen.backends.cpu.half import HALVES
from attngen.backends.cpu.ops import Lookup, Map, Pack
from attngen.ir.core import Block, Op, Value, argument, walk
from attngen.ir.diagnostics import UNKNOWN, remark
from attngen.ir.elementwise import Cast
from attngen.ir.func import Func
from attngen.ir.loop import For, If, Load, Parallel, Store
from attngen.ir.nd import Contract, Gather, Reduce
from attngen.ir.pipeline import register_pass
from attngen.ir.types import Axis, ElementType, TensorType, bound

Names = frozenset[str]

FEW = 8
"""Rows of a product that share the vectors of the other operand while these are in registers."""


@register_pass("choose-layouts")
def choose_layouts(func: Func, *, lanes: int = 16) -> Func:
    """Give each space the axis that its vectors run along, and pack operands that need another order.

    lanes: of a vector of 4-byte elements.

    before: %s = nd.contract %rows, %keys over [d] : tensor<i=64, j=64, f32>
    after:  %t = cpu.pack %rows order [d, i] element f32
            %s = nd.contract %keys, %t over [d] : tensor<j=64, i=64, f32>
    """
    ops: list[Op] = []
    env: dict[Value, Value] = {}
    for op in func.body.ops:
        new = Nest(op, lanes).rebuild(env) if isinstance(op, Parallel) else op
        env.update(zip(op.results, new.results, strict=True))
        ops.append(new)
    return func.with_body(Block(func.args, tuple(ops), tuple(env.get(value, value) for value in func.outputs)))


class Nest:
    """The layouts of one nest of loops."""

    def __init__(self, parallel: Parallel, lanes: int) -> None:
        self.parallel, self.lanes = parallel, lanes
        self.summed: dict[Names, set[str]] = {}
        for op in walk(parallel.body):
            match op:
                case Reduce():
                    space = long_names(op.value.tensor.axes)
                    if not space <= set(op.over):  # else every axis is as good as any other
                        self.summed.setdefault(space, set()).update(op.over)
                case Contract():
                    for value in (op.lhs, op.rhs):
                        self.summed.setdefault(long_names(value.tensor.axes), set()).update(op.over)
                case _:
                    pass
        self.root: list[Op] = []
        self.memory: set[Value] = set()
        """Values that are the nest's results, in user memory: they are written to, never packed."""
        self.packs: dict[tuple[Value, tuple[str, ...], ElementType], Value] = {}
        self.blocks: dict[Value, list[Op]] = {}
        """The block in which each new value is made: a pack goes right behind it."""
        self.widened: dict[Value, Value] = {}
        """Values that are others as wider floats: who reads them decides about their order, then they are made by packs."""

    def lane(self, axes: tuple[Axis, ...]) -> str:
        """An axis that nothing sums over, the longest of them, the last of the longest. Vectors run along it, so that a
        reduction over another axis combines whole vectors. If it would leave half of the lanes empty and another axis fills
        them: that one."""
        summed = self.summed.get(long_names(axes), set())
        ranked = [(name not in summed and bound(extent) > 1, bound(extent), index) for index, (name, extent) in enumerate(axes)]
        (_, length, best), (_, longest, other) = max(ranked), max((False, n, index) for _, n, index in ranked)
        lane, few = axes[best][0], 2 * length <= self.lanes <= longest
        if few:
            why = f"along {lane} they would leave half of their {self.lanes} lanes empty"
            lane = axes[other][0]
        elif lane in summed:
            why = "every axis is summed, this one is the longest"
        else:
            others = ", ".join(name for name, _ in axes if name in summed)
            why = f"sums and maxima over {others} combine whole vectors" if others else "nothing is summed, no axis is longer"
        if len(space := long_names(axes)) > 1:
            remark(f"in tiles of {', '.join(sorted(space))} vectors run along {lane}: {why}")
        return lane

    def order(self, axes: tuple[Axis, ...]) -> tuple[str, ...]:
        """The axes in order, the lane axis last."""
        names = tuple(name for name, _ in axes)
        return lane_last(names, self.lane(axes)) if axes else ()

    def rebuild(self, env: dict[Value, Value]) -> Op:
        self.memory.update(self.parallel.body.args)
        return self.parallel.rebuild(lambda value: env.get(value, value), lambda b: self.block(b, b.args, dict(env), self.root))

    def is_dense(self, value: Value) -> bool:
        """Whether the value lies in scratch memory in the order of its axes; else it is a view, with any strides."""
        return (
            value in self.blocks
            and value not in self.memory
            and isinstance(value.type, TensorType)
            and not isinstance(value.op, Load)
        )

    # ---- packs

    def packed(self, value: Value, order: tuple[str, ...], why: str, element: ElementType | None = None) -> Value:
        """The value in this memory order, as wider floats if need be: itself if it is so already. why: for the remark."""
        element = element or value.element
        if value in self.widened:
            value = self.widened[value]
        if self.is_dense(value) and value.names == order and value.element is element:
            return value
        key = value, order, element
        if key not in self.packs:
            new = Pack(value=value, order=order, element=element, loc=value.op.loc if value.op else UNKNOWN)
            new.result.hint = value.hint
            explain(new, why)
            here = self.blocks.get(value, self.root)
            at = next((index + 1 for index, op in enumerate(here) if value in op.results), 0)
            here.insert(at, new)
            self.blocks[new.result] = here
            self.packs[key] = new.result
        return self.packs[key]

    def as_tile(self, value: Value) -> Value:
        """The value as a tile that an op can read: one that is wider than what is in memory is made."""
        return self.packed(value, value.names, "it is widened for all that read it") if value in self.widened else value

    def ordered(self, value: Value) -> Value:
        """A value of scratch memory in the order of its space."""
        return self.packed(value, self.order(value.tensor.axes), "a loop carries it so") if self.is_dense(value) else value

    def with_lane(self, value: Value, lane: str) -> Value:
        """The value such that vectors can be loaded along an axis; as it is if it lacks the axis."""
        if lane not in value.names:
            return self.as_tile(value)
        return self.packed(value, lane_last(value.names, lane), f"vectors along {lane} read it")

    # ---- blocks

    def block(self, block: Block, args: tuple[Value, ...], env: dict[Value, Value], here: list[Op]) -> Block:
        self.blocks |= dict.fromkeys(args, here)
        env |= dict(zip(block.args, args, strict=True))
        for op in block.ops:
            new = self.op(op, env)
            if isinstance(new, Map) and is_widening(new):
                self.widened[new.results[0]] = new.inputs[0]
            else:
                here.append(new)
            self.blocks |= dict.fromkeys(new.results, here)
            for old, value in zip(op.results, new.results, strict=True):
                value.hint = old.hint
                env[old] = value
        return Block(args, tuple(here), tuple(self.as_tile(env.get(value, value)) for value in block.yields))

    def op(self, op: Op, env: dict[Value, Value]) -> Op:
        def found(value: Value) -> Value:
            return env.get(value, value)

        def get(value: Value) -> Value:
            return self.as_tile(found(value))

        match op:
            case Map() if is_widening(op):
                return dataclasses.replace(op, inputs=(get(op.inputs[0]),))
            case Map():
                order = self.order(op.space)
                inputs = tuple(self.with_lane(found(value), order[-1]) if order else get(value) for value in op.inputs)
                new = dataclasses.replace(op, inputs=inputs, order=())
                return new if tuple(name for name, _ in new.space) == order else dataclasses.replace(new, order=order)
            case Contract() if op.result.names:
                lane = self.lane(op.result.tensor.axes)
                lhs, rhs = found(op.lhs), found(op.rhs)
                # The operand that varies along the lanes comes second, if both do the larger one first: so that the lane axis
                # comes last in the result.
                if lane not in rhs.names or lane in lhs.names and set(lhs.names) < set(rhs.names):
                    lhs, rhs = rhs, lhs
                last = self.dot_axis(op, lhs, rhs, lane) or lane
                lhs, rhs = self.operand(op, lhs, last), self.operand(op, rhs, last)
                return dataclasses.replace(op, lhs=lhs, rhs=rhs, where=op.where and get(op.where))
            case Reduce() if set(op.over) == set(op.value.names):
                # A part of a table: whole vectors of it, if it is contiguous.
                return dataclasses.replace(
                    op, value=self.packed(get(op.value), op.value.names, "whole vectors of it are reduced")
                )
            case Gather():
                order = self.order(op.result.tensor.axes)
                at = tuple(self.with_lane(get(value), order[-1]) if order else get(value) for value in op.at)
                return Lookup(table=get(op.table), at=at, over=op.over, order=order, loc=op.loc)
            case For():
                inits = tuple(self.ordered(get(value)) for value in op.inits)
                carried = tuple(argument(value.type, arg.hint) for value, arg in zip(inits, op.body.args[1:], strict=True))
                self.memory.update(arg for value, arg in zip(inits, carried, strict=True) if value in self.memory)
                body = self.block(op.body, (op.body.args[0], *carried), env, [])
                first, end = op.first and get(op.first), op.end and get(op.end)
                new = dataclasses.replace(op, inits=inits, body=body, merge=None, first=first, end=end)
                self.memory.update(r for value, r in zip(inits, new.results, strict=True) if value in self.memory)
                return new
            case If():
                then, otherwise = (self.block(b, (), env, []) for b in (op.then, op.otherwise))
                new = dataclasses.replace(op, condition=get(op.condition), then=then, otherwise=otherwise)
                self.memory.update(r for r, y in zip(new.results, then.yields, strict=True) if y in self.memory)
                return new
            case Store():
                new = dataclasses.replace(op, value=get(op.value), target=get(op.target))
                self.memory.add(new.result)
                return new
            case _:
                return op.rebuild(get, lambda b: self.block(b, b.args, env, []))

    def dot_axis(self, op: Contract, lhs: Value, rhs: Value, lane: str) -> str:
        """The summed axis, if vectors of both operands should run along it instead; else nothing.

        Adding the lanes of a sum costs about 3 instructions; so do, per key, each 8 elements of a transposing pack."""
        (along, *others), lengths = op.over, rhs.tensor.extents
        if others or op.where is not None or lane not in rhs.names or lane in lhs.names:
            return ""
        if rhs.names[-1] != along or bound(lengths[along]) < self.lanes:
            return ""
        rows = math.prod(bound(extent) for name, extent in lhs.tensor.axes if name not in rhs.names)
        if 8 * rows > bound(lengths[along]):
            return ""
        remark(f"vectors run along {along}: {rows} rows of sums are too few to transpose {lane} into the lanes", op.loc)
        return along

    def operand(self, op: Contract, value: Value, lane: str) -> Value:
        """An operand of a product: packed with the lane axis last, the summed axes before it. Without it: as it is. Floats of
        16 bits are widened once, unless vectors of them are read where they are for a few rows alone."""
        value = self.widened.get(value, value)
        element = op.acc if value.element in HALVES else value.element
        over = f"the sum over {', '.join(op.over)}"
        if lane not in value.names:
            return (
                self.packed(value, value.names, f"{over} reads it widened", element) if element is not value.element else value
            )
        uses = math.prod(bound(extent) for name, extent in op.result.tensor.axes if name not in value.names)
        element = value.element if uses <= FEW and value.names[-1] == lane else element
        if self.is_dense(value) and value.names[-1] == lane and element is value.element:
            return value
        own = tuple(n for n in value.names if n not in op.over)
        order = lane_last((*own, *(n for n in value.names if n in op.over)), lane)
        once = f", widened once for {uses} uses" if element is not value.element else ""
        return self.packed(value, order, f"{over} reads vectors along {lane}{once}", element)


def explain(pack: Pack, why: str) -> None:
    """The remark on a pack; one element has no order."""
    source, order, long = pack.value.op, pack.order, long_names(pack.value.tensor.axes)
    if not long:
        return
    whole = source.source if isinstance(source, Load) else pack.value
    name = whole.hint or f"a tile of {', '.join(sorted(long))}"
    shown = ", ".join(n for n in order if n in long)
    # The generated source reads parts of arrays in place where it can.
    in_place = isinstance(source, Load) and whole.op is None and source.result.names[-1:] == order[-1:]
    unless = in_place and pack.element is pack.value.element
    remark(f"{name} is packed as [{shown}]{' unless its elements lie side by side' * unless}: {why}", pack.loc)


def is_widening(op: Map) -> bool:
    """Whether a chain is one cast of floats of 16 bits."""
    casts = len(op.inputs) == len(op.body.ops) == len(op.results) == 1 and isinstance(op.body.ops[0], Cast) and not op.axes
    return casts and op.inputs[0].element in HALVES and op.results[0].element.is_float


def long_names(axes: tuple[Axis, ...]) -> Names:
    """The axes of more than one element: the others separate no spaces."""
    return frozenset(name for name, extent in axes if bound(extent) > 1)


def lane_last(names: tuple[str, ...], lane: str) -> tuple[str, ...]:
    return (*(n for n in names if n != lane), lane)

"""choose-fragments: products become tensor-core products of registers and shared memory."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

from attngen.backends.cuda.ops import Finite, Fragments, Grid, Mma, Pad, Stage, loaded
from attngen.backends.cuda.passes.blocks import operand
from attngen.backends.cuda.passes.distribute import Roles, Sides
from attngen.backends.cuda.passes.grids import copies, fresh, outside, over_grids
from attngen.ir.build import cast, select
from attngen.ir.core import Block, Op, Value, at, constant_value, uses
from attngen.ir.diagnostics import remark
from attngen.ir.elementwise import Add, Mul, Select, Sub
from attngen.ir.func import Func
from attngen.ir.loop import For, If, Load
from attngen.ir.nd import Contract
from attngen.ir.pipeline import register_pass
from attngen.ir.rewrite import postorder
from attngen.ir.types import RangeType, TensorType, bound

KEPT = 128
"""Left operands up to so many columns stay in registers for a whole loop; longer ones are read again in each trip. (Warpgroups
read left operands from shared memory.)"""


@register_pass("choose-fragments")
def choose_fragments(func: Func) -> Func:
    """Let tensor cores multiply: the left operand in registers, the right one from shared memory, sums on top of what they
    are added to.

    before: %o = nd.contract %p, (nd.cast %v to f32) over [j];  %new = nd.add %old, %o
    after:  %s = cuda.stage %v order [j, e];  %new = cuda.mma (nd.cast %p to bf16), %s over [j] add %old

    A masked product does without its mask where its right operand is finite, since 0 times that is 0.
    """
    layouts = {item: p.layout.names for item, p in zip(func.args, func.params, strict=True)}
    return over_grids(func, lambda grid: Choice(grid, layouts).rebuild())


class Choice:
    """One run on one grid. layouts: the order of axes in memory of the function's parameters; homes: for each range, the ops
    that go first in the body that it belongs to."""

    def __init__(self, grid: Grid, layouts: Mapping[Value, tuple[str, ...]]) -> None:
        self.grid, self.layouts = grid, layouts
        self.roles = Roles(grid)
        self.env: dict[Value, Value] = {}
        self.placed = outside(grid)
        """Ops that need no place any more."""
        self.outer: dict[Value, Value] = {}
        """Ranges that a region takes, as the loops around it have them."""
        self.homes: dict[Value, list[Op]] = {}
        self.staged: dict[tuple[Value, tuple[Value, ...], tuple[str, ...]], Value] = {}
        self.kept: dict[Value, Value] = {}
        self.home: list[Op] = []

    def get(self, item: Value) -> Value:
        return self.env.get(item, item)

    def rebuild(self) -> Grid:
        for item in self.grid.body.args:
            if isinstance(item.type, RangeType):
                self.homes[item] = self.home
        return dataclasses.replace(self.grid, body=self.block(self.grid.body, self.grid.body.args, self.home))

    def block(self, block: Block, args: tuple[Value, ...], first: list[Op]) -> Block:
        self.env |= dict(zip(block.args, args, strict=True))
        ops: list[Op] = []
        products = [op for op in block.ops if isinstance(op, Contract) and not isinstance(op, Mma)]
        # Of two products that are added, the second one starts from the first.
        onto = {add: op for op in products if (add := sole_addition(op, block))}
        late = set(onto.values())
        for op in block.ops:
            with at(op.loc):
                if op in onto:
                    product = onto[op]
                    (other,) = (item for item in op.operands if item is not product.result)
                    self.product(product, self.get(other), op.results[0], ops)
                elif op in late:
                    continue
                elif isinstance(op, Contract) and not isinstance(op, Mma):
                    self.product(op, None, op.result, ops)
                else:
                    self.plain(op, ops)
        yields = tuple(map(self.get, block.yields))
        return Block(args, live((*first, *ops), yields), yields)

    def plain(self, op: Op, ops: list[Op]) -> None:
        match op:
            case For():
                args, first = fresh(op.body), list[Op]()
                self.homes[args[0]] = first
                inits = tuple(map(self.get, op.inits))
                limits = {n: None if item is None else self.get(item) for n, item in (("first", op.first), ("end", op.end))}
                new: Op = dataclasses.replace(op, inits=inits, body=self.block(op.body, args, first), **limits)
            case If():
                inputs = tuple(map(self.get, op.inputs))
                blocks: list[Block] = []
                for block in (op.then, op.otherwise):
                    args = fresh(block)
                    pairs = zip(args, inputs, strict=True)
                    self.outer |= {a: self.outer.get(item, item) for a, item in pairs if isinstance(item.type, RangeType)}
                    blocks.append(self.block(block, args, []))
                new = dataclasses.replace(
                    op, condition=self.get(op.condition), inputs=inputs, then=blocks[0], otherwise=blocks[1]
                )
            case _:
                new = op.rebuild(self.get, lambda b: b)
        for old, value in zip(op.results, new.results, strict=True):
            value.hint = value.hint or old.hint
            self.env[old] = value
        self.append(new, ops)

    def append(self, new: Op, ops: list[Op]) -> None:
        self.placed.add(new)
        ops.append(new)

    # ---- products

    def product(self, op: Contract, add: Value | None, result: Value, ops: list[Op]) -> None:
        """The sums of a product, on top of `add`; they are what `result` becomes."""
        sides = self.roles.sides(op)
        assert isinstance(sides, Sides)
        if any(self.roles.step(n, x.tensor.extents[n]) != x.tensor.extents[n] for x in (op.lhs, op.rhs) for n in x.names):
            raise op.error("its operands are no whole tiles", help="run the pass `pad-tiles` before")
        right = self.stage(operand(sides.right), self.order(sides))
        left = self.get(operand(sides.left))
        if isinstance(operand(sides.left).op, Load | Pad):
            left = self.left(operand(sides.left), sides, ops)
        if op.where is not None and not zero_behind(left, self.get(op.where)):
            left = self.put(select(self.get(op.where), left, 0.0), ops)
        left = self.put(cast(left, right.element), ops)
        made = Mma(lhs=left, rhs=right, over=op.over, acc=op.acc, add=add)
        if op.where is not None:
            remark(f"the mask of the sum over {', '.join(op.over)} counts only where {right.hint or 'the array'} is not finite")
            finite = self.put(Finite(value=right).result, ops)
            # The mask is computed again where it is needed, which is rare: until then it would fill registers.
            before, mask = self.again(self.get(op.where))
            exact = dataclasses.replace(made, where=mask)
            choice = If(
                condition=finite,
                inputs=(),
                then=Block((), (made,), made.results),
                otherwise=Block((), (*before, exact), exact.results),
            )
            self.append(choice, ops)
            self.env[result] = choice.results[0]
        else:
            self.append(made, ops)
            self.env[result] = made.result
        self.env[result].hint = result.hint

    def again(self, mask: Value) -> tuple[list[Op], Value]:
        """The ops that compute a mask once more, from scalars of the block."""

        def one(op: Op) -> bool:
            return bool(op.regions) or all(isinstance(item.type, TensorType) and self.is_scalar(item) for item in op.results)

        found, env = copies(postorder((mask,), stop=one, regions=False))
        return found, env.get(mask, mask)

    def is_scalar(self, item: Value) -> bool:
        return not self.roles.columns(item.tensor) and not {*item.names} & {*self.roles.rows}

    def put(self, value: Value, ops: list[Op]) -> Value:
        """Append what a new value needs."""
        for op in postorder((value,), stop=self.placed.__contains__, regions=False):
            self.append(op, ops)
        return value

    def order(self, sides: Sides) -> tuple[str, ...]:
        """Batch axes first, last the axis that is the innermost of the array, if it is one of the product's."""
        value = operand(sides.right)
        source = loaded(value).source
        memory = self.layouts.get(source, source.names)
        last = memory[-1] if memory[-1] in (sides.column, sides.inner) else sides.inner
        other = sides.column if last == sides.inner else sides.inner
        return (*(n for n in value.names if n not in (last, other)), other, last)

    def left(self, value: Value, sides: Sides, ops: list[Op]) -> Value:
        """A part of an array as the left operand, in registers."""
        rows = tuple(n for n in self.roles.rows if n in value.names)
        order = (*(n for n in value.names if n not in (*rows, sides.inner)), *rows, sides.inner)
        staged = self.stage(value, order)
        if self.grid.engine == "mma" and bound(value.tensor.extents[sides.inner]) > KEPT:
            return self.put(Fragments(value=staged).result, ops)
        if staged not in self.kept:
            fragments = Fragments(value=staged)
            fragments.result.hint = value.hint
            self.kept[staged] = fragments.result
            home = next(ops for ops in self.homes.values() if staged.op in ops)
            self.append(fragments, home)
        return self.kept[staged]

    def stage(self, value: Value, order: tuple[str, ...]) -> Value:
        """A part of an array in shared memory, read at the start of the loop that its ranges belong to."""
        load = loaded(value)
        ranges = tuple(self.outer.get(self.get(r), self.get(r)) for r in load.ranges)
        key = load.source, ranges, order
        if key not in self.staged:
            inner = [self.homes[r] for r in ranges if self.homes[r] is not self.home]
            home = inner[0] if inner else self.home
            part = Load(source=self.get(load.source), ranges=ranges, loc=load.loc)
            made: list[Op] = [part]
            if isinstance(value.op, Pad):
                made.append(Pad(value=part.result, to=value.op.to, loc=load.loc))
            made.append(Stage(value=made[-1].results[0], order=order, loc=load.loc))
            made[-1].results[0].hint = load.source.hint
            for new in made:
                self.append(new, home)
            self.staged[key] = made[-1].results[0]
        return self.staged[key]


def zero_behind(x: Value, mask: Value) -> bool:
    """Whether x is known to be 0 wherever the mask is false (or the row is NaN): a power whose exponent is -inf there."""
    op = x.op
    if op is None:
        return False
    if isinstance(op, If) and len(op.inputs) == 1 and not op.then.ops:  # what leaves out elements past the end
        return zero_behind(op.inputs[0], mask)
    if not op.facts.sum_to_product or not isinstance(op.operands[0].op, Sub):
        return False
    y = op.operands[0].op.lhs
    while isinstance(y.op, Mul) and (factor := constant_value(y.op.rhs)) is not None and factor > 0:
        y = y.op.lhs
    if isinstance(y.op, If) and len(y.op.inputs) == 1 and not y.op.then.ops:
        y = y.op.inputs[0]
    return isinstance(y.op, Select) and y.op.condition is mask and constant_value(y.op.rhs) == -math.inf


def sole_addition(op: Contract, block: Block) -> Op | None:
    """The addition that alone reads a product, if its other operand has the same axes."""
    readers = [o for o in block.ops if op.result in uses(o)]
    if len(readers) != 1 or op.result in block.yields or not isinstance(readers[0], Add):
        return None
    add = readers[0]
    return add if add.lhs is not add.rhs and add.lhs.type == add.rhs.type else None


def live(ops: Sequence[Op], yields: Iterable[Value]) -> tuple[Op, ...]:
    """The ops whose results somebody reads."""
    found: list[Op] = []
    read = set(yields)
    for op in reversed(ops):
        if not read.isdisjoint(op.results):
            found.append(op)
            read |= uses(op)
    return tuple(reversed(found))

"""fuse-nests: what reads a result element by element, or reduces it, moves into the nest of loops that makes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from attngen.backends.cpu.chain_kernel import chain_row
from attngen.backends.cpu.ops import Map, Product, dot_axis
from attngen.backends.cpu.product_kernel import product_row
from attngen.ir.core import Block, Op, Value, argument, uses
from attngen.ir.diagnostics import remark
from attngen.ir.func import Func
from attngen.ir.loop import For, If, Parallel
from attngen.ir.nd import Contract, Reduce
from attngen.ir.pipeline import register_pass
from attngen.ir.types import Axis, bound, scalar


@register_pass("fuse-nests")
def fuse_nests(func: Func) -> Func:
    """Run chains on the sums of a contraction while they are in registers, and reductions on the results of chains.

    before: %s = nd.contract %k, %q over [d] ; %t = cpu.map %s body … { nd.mul … } ; %m = nd.reduce %t kind max over [j]
    after:  %t, %m = cpu.product [], %k, %q, none kinds [max] down [j] over [d] body … { nd.mul … }

    Runs after `choose-layouts`: only what lies in memory in the same order shares a nest, and a reduction must run across the
    vectors, not along them.
    """
    return func.with_body(fuse_block(func.body, {}))


def fuse_block(block: Block, env: dict[Value, Value]) -> Block:
    fusion = Fusion(block, env)
    while fusion.attach_chain() or fusion.attach_reduction():
        pass
    return Block(block.args, tuple(fusion.ops), fusion.yields)


class Fusion:
    """One block while ops move into each other."""

    def __init__(self, block: Block, env: dict[Value, Value]) -> None:
        self.ops: list[Op] = []
        self.yields = block.yields
        self.rename(list(block.ops), env)

    def rename(self, ops: list[Op], env: dict[Value, Value]) -> None:
        """Take these ops, with values replaced, and what is inside of loops fused."""

        def get(value: Value) -> Value:
            while env.get(value, value) is not value:
                value = env[value]
            return value

        self.ops = []
        for op in ops:
            loop = isinstance(op, Parallel | For | If)
            new = op.rebuild(get, lambda b: fuse_block(b, env) if loop else b)  # noqa: B023  # called at once
            for old, value in zip(op.results, new.results, strict=True):
                value.hint = old.hint
                env[old] = value
            self.ops.append(new)
        self.yields = tuple(map(get, self.yields))

    def users(self, value: Value) -> list[Op]:
        return [op for op in self.ops if value in uses(op)]

    def attach_chain(self) -> bool:
        """One chain into the contraction whose result it reads; whether there was one."""
        for op in self.ops:
            if not isinstance(op, Contract) or not (users := self.users(op.result)):
                continue
            user = users[0]
            if isinstance(user, Map) and op.result in user.inputs and tuple(n for n, _ in user.space) == op.result.names:
                kept = len(users) > 1 or op.result in self.yields
                new = product(op, user, kept)
                space = ", ".join(op.result.names)
                remark(f"the chain over {space} runs on the sums over {', '.join(op.over)}: they are in registers", user.loc)
                env = dict(zip((*user.results, *[op.result] * kept), new.results, strict=True))
                for old, value in env.items():
                    value.hint = old.hint
                self.rename([new if x is user else x for x in self.ops if x is not op], env)
                return True
        return False

    def attach_reduction(self) -> bool:
        """One reduction into the nest that makes what it reduces; whether there was one."""
        for reduce in self.ops:
            maker = reduce.value.op if isinstance(reduce, Reduce) else None
            if not isinstance(reduce, Reduce) or maker not in self.ops or reduce.acc is not reduce.value.element:
                continue
            if isinstance(maker, Contract):
                maker = product(maker, None, True)
                position, old = 0, reduce.value
            elif isinstance(maker, Map | Product) and reduce.value.index < maker.stored:
                position, old = reduce.value.index, reduce.value
            else:
                continue
            if maker.kinds and maker.down != reduce.over or not across(maker, reduce.over):
                continue
            kept = len(self.users(old)) > 1 or old in self.yields
            remark(f"the {reduce.kind} over {', '.join(reduce.over)} is taken while its operand is computed", reduce.loc)
            self.move_reduction(reduce, maker, position, kept)
            return True
        return False

    def move_reduction(self, reduce: Reduce, maker: Map | Product, position: int, kept: bool) -> None:
        yields = maker.body.yields
        whole = [n for n in range(maker.stored) if kept or n != position]
        reduced = range(maker.stored, len(yields))
        order = [*whole, *reduced]
        body = dataclasses.replace(maker.body, yields=(*(yields[n] for n in order), yields[position]))
        new = dataclasses.replace(maker, body=body, kinds=(*maker.kinds, reduce.kind), down=reduce.over)
        source = reduce.value.op
        assert source is not None
        results = maker.results if source is maker else source.results
        env = {results[n]: value for n, value in zip(order, new.results, strict=False)} | {reduce.result: new.results[-1]}
        for old, value in env.items():
            value.hint = old.hint
        self.rename([new if x is source else x for x in self.ops if x is not reduce], env)


def product(op: Contract, chain: Map | None, kept: bool) -> Product:
    """The contraction with a chain on its sums; kept: the sums themselves are a result too, the last."""
    total = argument(scalar(op.acc), op.result.hint)
    args, ops, inputs, yields = [total], tuple[Op, ...](), list[Value](), list[Value]()
    if chain is not None:
        at = chain.inputs.index(op.result)
        total = chain.body.args[at]
        args = [total, *(value for n, value in enumerate(chain.body.args) if n != at)]
        inputs = [value for n, value in enumerate(chain.inputs) if n != at]
        ops, yields = chain.body.ops, list(chain.body.yields)
    body = Block(tuple(args), ops, tuple([*yields, total] if kept else yields))
    return Product(
        lhs=op.lhs,
        rhs=op.rhs,
        where=op.where,
        over=op.over,
        acc=op.acc,
        inputs=tuple(inputs),
        axes=chain.axes if chain else (),
        body=body,
        loc=op.loc,
    )


def across(maker: Map | Product, over: tuple[str, ...]) -> bool:
    """Whether the nest's rows are what a reduction runs over: along exactly one axis, and not along the vectors."""
    lengths = longest(maker.space)
    space = tuple(lengths)
    rows = [n for n in over if lengths[n] != 1]
    if len(rows) != 1 or space[-1] in over:
        return False
    if isinstance(maker, Map):
        return chain_row(space, lengths, over) == rows[0]
    if dot_axis(maker.contraction):
        return False
    return product_row(space, lengths, maker.lhs.names, maker.rhs.names, over) == rows[0]


def longest(axes: tuple[Axis, ...]) -> Mapping[str, int]:
    return {name: bound(extent) for name, extent in axes}

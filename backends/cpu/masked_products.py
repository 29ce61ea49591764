"""test-finite: masked products at the speed of plain ones, as long as nothing infinite or NaN is behind the mask."""

from __future__ import annotations

import dataclasses

from attngen.backends.cpu.recompute import long_axes
from attngen.ir.core import Block, Op, Value, at, uses
from attngen.ir.diagnostics import remark
from attngen.ir.elementwise import Compare, Elementwise, Select, Sub
from attngen.ir.func import Func
from attngen.ir.loop import If, Parallel
from attngen.ir.nd import Constant, Contract, Reduce
from attngen.ir.pipeline import register_pass


@register_pass("test-finite")
def test_finite(func: Func) -> Func:
    """Let masked products do without their mask where the other operand is finite: there 0 times anything is 0.

    before: %o = nd.contract %p, %v, %keep over [j]
    after:  %w = nd.select %keep, %p, 0
            %o = loop.if (the sum of %v - %v is not NaN) { nd.contract %w, %v over [j] } { nd.contract %w, %v, %keep over [j] }

    Applies inside of loops, where the mask's axes are those of one operand. What only continues with the result moves into
    both branches, so that it still runs on the sums.
    """
    env: dict[Value, Value] = {}
    ops: list[Op] = []
    for op in func.body.ops:
        new = op.rebuild(lambda x: env.get(x, x), lambda b: guarded(b, env)) if isinstance(op, Parallel) else op
        env.update(zip(op.results, new.results, strict=True))
        ops.append(new)
    return func.with_body(Block(func.args, tuple(ops), tuple(env.get(value, value) for value in func.outputs)))


def guarded(block: Block, outer: dict[Value, Value]) -> Block:
    env = dict(outer)
    ops: list[Op] = []
    replaced: dict[Op, Masked] = {}
    gone: set[Op] = set()
    for op in block.ops:
        if isinstance(op, Contract) and op not in gone and (found := Masked.find(op, block)):
            replaced[found.ops[-1]] = found
            gone.update(found.ops)
    for op in block.ops:
        if op in replaced:
            ops += replaced[op].build(env)
        elif op not in gone:
            new = op.rebuild(lambda x: env.get(x, x), lambda b: guarded(b, env))
            for old, value in zip(op.results, new.results, strict=True):
                value.hint = old.hint
                env[old] = value
            ops.append(new)
    return Block(block.args, tuple(ops), tuple(env.get(value, value) for value in block.yields))


@dataclasses.dataclass(frozen=True)
class Masked:
    """A masked product, what is zero under its mask, what has to be finite, and the ops that move into branches with it."""

    product: Contract
    weights: Value
    values: Value
    ops: tuple[Op, ...]

    @staticmethod
    def find(op: Contract, block: Block) -> Masked | None:
        if op.where is None:
            return None
        masked = long_axes(op.where)
        for weights, values in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
            if masked <= long_axes(weights) and weights is not values:
                return Masked(op, weights, values, continued(op, block))
        return None

    def build(self, env: dict[Value, Value]) -> list[Op]:
        def get(value: Value) -> Value:
            return env.get(value, value)

        op, last = self.product, self.ops[-1]
        assert op.where is not None
        weights, values, keep = get(self.weights), get(self.values), get(op.where)
        remark(f"the mask of the sum over {', '.join(op.over)} counts only where the values are not finite", op.loc)
        with at(op.loc):
            zero = Constant(value=0.0, element=weights.element)
            kept = Select(condition=keep, lhs=weights, rhs=zero.result)
            nothing = Sub(lhs=values, rhs=values)
            inner = tuple(n for n in values.names if n in op.over)
            outer = tuple(n for n in values.names if n not in op.over)
            lines = Reduce(value=nothing.result, kind="sum", over=inner, acc=op.acc)
            total = Reduce(value=lines.result, kind="sum", over=outer, acc=op.acc)
            finite = Compare(lhs=total.result, rhs=total.result, predicate="eq")
            plain = Contract(lhs=kept.result, rhs=values, over=op.over, acc=op.acc)
            exact = dataclasses.replace(plain, where=keep)
            branch = If(condition=finite.result, inputs=(), then=self.region(plain, env), otherwise=self.region(exact, env))
        env[last.result] = branch.results[0]
        branch.results[0].hint = last.result.hint
        return [zero, kept, nothing, lines, total, finite, branch]

    def region(self, product: Contract, env: dict[Value, Value]) -> Block:
        own = {**env, self.product.result: product.result}
        ops: list[Op] = [product]
        for op in self.ops:
            if op is not self.product:
                new = op.rebuild(lambda x: own.get(x, x), lambda b: b)
                new = dataclasses.replace(op) if new is op else new
                own[op.result] = new.result
                ops.append(new)
        return Block((), tuple(ops), (own[self.ops[-1].result],))


def continued(product: Contract, block: Block) -> tuple[Op, ...]:
    """The product, the elementwise ops that alone read its result one after another, and those that only they read; in
    order."""
    found: list[Op] = [product]

    def users(value: Value) -> list[Op | None]:
        return [op for op in block.ops if value in uses(op)] + [None] * (value in block.yields)

    while len(after := users(found[-1].results[0])) == 1 and isinstance(after[0], Elementwise):
        found.append(after[0])
    last = found[-1]
    for op in reversed(block.ops[: block.ops.index(last)]):
        if isinstance(op, Elementwise) and op not in found and all(user in found for user in users(op.result)):
            if op.result not in (product.lhs, product.rhs, product.where) and long_axes(op.result) == long_axes(last.result):
                found.append(op)
    return (*(op for op in block.ops if op in found and op is not last), last)

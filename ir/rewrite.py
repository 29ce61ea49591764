"""Rewriting: rules applied op by op, substitution, and placing a graph of ops into blocks.

Rules build new ops freely. `rewrite` puts them where the replaced op was; `place` rebuilds whole blocks from the values they
hand on, each op in the outermost loop that binds everything it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attngen.ir.core import Block, Op, Value, argument, at, block_key, op_key
from attngen.ir.func import Func

Rule = Callable[[Op], Value | tuple[Value, ...] | None]
"""What an op (its operands already rewritten) becomes: one value per result, or None to leave it."""


def postorder(roots: Iterable[Value], stop: Callable[[Op], bool] = lambda op: False, regions: bool = True) -> list[Op]:
    """The ops that the roots depend on, each after its operands; nothing at or below an op that `stop` names."""
    done: dict[Op, None] = {}
    stack: list[tuple[Op, bool]] = [(v.op, False) for v in reversed(tuple(roots)) if v.op]
    while stack:
        op, ready = stack.pop()
        if op in done or stop(op):
            continue
        if ready:
            done[op] = None
            continue
        stack.append((op, True))
        below = [*op.operands, *(v for b in op.regions for v in b.yields if regions)]
        stack += [(v.op, False) for v in reversed(below) if v.op and v.op not in done]
    return list(done)


def rewrite(func: Func, rule: Rule) -> Func:
    """Apply a rule once to every op, operands first, loop bodies included."""
    return func.with_body(rewrite_block(func.body, rule, {}, set()))


def rewrite_block(block: Block, rule: Rule, env: dict[Value, Value], known: set[Op]) -> Block:
    ops: list[Op] = []
    known = set(known)

    def emit(values: Iterable[Value]) -> None:
        for new in postorder(values, stop=known.__contains__, regions=False):
            known.add(new)
            ops.append(new)

    for op in block.ops:
        rebuilt = op.rebuild(lambda v: env.get(v, v), lambda b: rewrite_block(b, rule, env, known))
        with at(op.loc):
            new = rule(rebuilt)
        results = rebuilt.results if new is None else (new,) if isinstance(new, Value) else new
        emit(results)
        if new is None and rebuilt not in known:
            known.add(rebuilt)
            ops.append(rebuilt)
        env.update(zip(op.results, results, strict=True))
    yields = tuple(env.get(v, v) for v in block.yields)
    if tuple(ops) == block.ops and yields == block.yields:
        return block
    return Block(block.args, tuple(ops), yields)


@dataclass
class Interner:
    """Makes equal ops one op, so that equal values are identical. An op that is `fixed` stays as it is, with all below."""

    fixed: Callable[[Op], bool] = lambda _: False
    seen: dict[Any, Op] = field(default_factory=dict[Any, Op])

    def op(self, op: Op) -> Op:
        regions = tuple(block_key(b, {}) for b in op.regions)
        return self.seen.setdefault(op_key(op, lambda v: v, regions), op)

    def value(self, v: Value) -> Value:
        """The value with everything below it interned."""
        return substitute((v,), {}, self)[0]


def substitute(roots: Sequence[Value], table: Mapping[Value, Value], interner: Interner | None = None) -> tuple[Value, ...]:
    """The roots with values replaced, top-down: what is below a replaced value is not looked at. Region bodies are
    substituted too. With an interner, equal ops become one."""
    memo: dict[Value, Value] = dict(table)
    fixed: Callable[[Op], bool] = interner.fixed if interner is not None else lambda op: False

    def get(v: Value) -> Value:
        return memo.get(v, v)

    def block(b: Block) -> Block:
        yields = substitute_into(b.yields)
        return b if yields == b.yields else unplaced(b.args, yields)

    def substitute_into(values: Sequence[Value]) -> tuple[Value, ...]:
        replaced = [v.op for v in table if v.op and all(r in table for r in v.op.results)]
        for op in postorder(values, stop=lambda op: op in replaced or fixed(op) or all(r in memo for r in op.results)):
            with at(op.loc):
                new = op.rebuild(get, block)
                if new is not op and op.regions:
                    # The original may live on beside it: every region gets arguments of its own.
                    new = new.rebuild(lambda v: v, clone)
            if interner is not None:
                new = interner.op(new)
            for old, result in zip(op.results, new.results, strict=True):
                memo.setdefault(old, result)
        return tuple(map(get, values))

    return substitute_into(roots)


def free(values: Iterable[Value]) -> dict[Value, frozenset[Value]]:
    """For everything below the values: the block arguments that must be bound to compute it."""
    found: dict[Value, frozenset[Value]] = {}

    def of(v: Value) -> frozenset[Value]:
        return found[v] if v.op else frozenset((v,))

    for op in postorder(values):
        needs = frozenset[Value]().union(*map(of, op.operands))
        for b in op.regions:
            needs |= frozenset[Value]().union(*map(of, b.yields)) - frozenset(b.args)
        for r in op.results:
            found[r] = needs
    for v in values:
        if v.op is None:
            found[v] = frozenset((v,))
    return found


def place(args: tuple[Value, ...], yields: tuple[Value, ...], *, nested: bool = False) -> Block:
    """A block that computes the yields: each op once, in the outermost block that binds what it reads.

    nested: the block belongs to a loop; what reads none of its arguments stays outside of it, and is left as it is.
    """
    needs = free(yields)

    def build(args: tuple[Value, ...], yields: tuple[Value, ...], outer: tuple[tuple[set[Value], list[Op]], ...]) -> Block:
        here: list[Op] = []
        scopes = (*outer, (set(args), here))
        for op in postorder(yields, stop=placed.__contains__, regions=False):
            required = needs[op.results[0]]
            if op in placed:  # by the body of a loop above, which reads it too
                continue
            home = next((ops for bound, ops in reversed(scopes) if bound & required), None if nested else scopes[0][1])
            if home is None:
                continue
            new = op.rebuild(lambda v: env.get(v, v), lambda b: build(b.args, b.yields, scopes))
            placed.add(op)
            env.update(zip(op.results, new.results, strict=True))
            home.append(new)
        return Block(args, tuple(here), tuple(env.get(v, v) for v in yields))

    env: dict[Value, Value] = {}
    placed: set[Op] = set()
    return build(args, yields, ())


def unplaced(args: tuple[Value, ...], yields: tuple[Value, ...]) -> Block:
    """A region still to be placed: its ops are whatever the yields need, wherever that belongs."""
    return Block(args, tuple(postorder(yields)), yields)


def clone(block: Block) -> Block:
    """The same block with arguments of its own, for a second loop with the same body."""
    args = tuple(argument(v.type, v.hint) for v in block.args)
    return unplaced(args, substitute(block.yields, dict(zip(block.args, args, strict=True))))

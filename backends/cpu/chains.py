"""form-chains: elementwise ops over one space become one op, and later one nest of loops."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from attngen.backends.cpu.counting import counted
from attngen.backends.cpu.ops import Map
from attngen.backends.cpu.recompute import Recomputed, long_axes
from attngen.ir.core import Block, Op, Value, argument, at, uses
from attngen.ir.elementwise import Elementwise
from attngen.ir.func import Func
from attngen.ir.loop import For, If, Parallel
from attngen.ir.nd import Constant, Expand, Index
from attngen.ir.pipeline import register_pass
from attngen.ir.types import Axis, ElementType, RangeType, TensorType, scalar


@register_pass("form-chains")
def form_chains(func: Func) -> Func:
    """Gather the elementwise ops of a block that share a space into chains.

    before: %a = nd.sub %s, %m ; %p = nd.exp2 %a
    after:  %p = cpu.map %s, %m body (%0, %1) { %2 = nd.sub %0, %1 ; %3 = nd.exp2 %2 ; loop.yield %3 }

    A value used by its chain alone is never stored. A chain never spans an op that reads one of its values and feeds another.
    What stands outside of all loops moves into those that use it.
    """
    ops: list[Op] = []
    env: dict[Value, Value] = {}
    for op in func.body.ops:
        if isinstance(op, Parallel):
            body = Block(op.body.args, (*needed(op, func.body.ops), *op.body.ops), op.body.yields)
            new = dataclasses.replace(op, body=chain_block(body, env, Recomputed()))
            env.update(zip(op.results, new.results, strict=True))
            ops.append(new)
    kept = {value.op: None for value in func.outputs if value.op and not isinstance(value.op, Parallel)}
    return func.with_body(Block(func.args, (*kept, *ops), tuple(env.get(value, value) for value in func.outputs)))


def needed(loop: Parallel, ops: tuple[Op, ...]) -> list[Op]:
    """The ops outside of loops that a loop depends on."""
    wanted, found = uses(loop), list[Op]()
    for op in reversed(ops):
        if not isinstance(op, Parallel) and not wanted.isdisjoint(op.results):
            wanted |= uses(op)
            found.append(op)
    return found[::-1]


def chained(op: Op) -> bool:
    return isinstance(op, Elementwise | Index | Expand | Constant) and not counted(op)


def chain_block(block: Block, env: dict[Value, Value], quick: Recomputed) -> Block:
    """The block with its chains formed; `env` maps the values of blocks around it.

    Each chain computes what is quick for itself; what of that another op or the block's end reads as a tensor is made by a
    chain too.
    """
    env = dict(env)
    ops: list[Op] = []
    read = (value for op in block.ops if not chained(op) and not counted(op) for value in op.operands)
    known = {value for op in block.ops for value in numbered(op) if isinstance(value.op, Constant)}
    direct = [value for value in dict.fromkeys((*block.yields, *read)) if value not in known]
    around = [x.op for x in direct if x in quick and x.op and x.op not in block.ops and x not in env]
    inside = [op for op in (*around, *block.ops) if not chained(op) or op.result not in quick or op.result in direct]

    def escaping(group: list[Op]) -> list[Value]:
        """What a chain stores."""
        others = set(block.yields).union(*(reads(op, quick) for op in inside if op not in group))
        return [op.result for op in group if op.result in (direct if op.result in quick else others)]

    for group in ordered(split(groups(inside, quick), escaping), quick):
        if not chained(group[0]):
            (op,) = group
            if isinstance(op, For):
                # How partial results merge was of use only to passes that split loops.
                op = dataclasses.replace(op, merge=None)
            if isinstance(op, If):
                # Regions read what is around them from here on: nothing moves into or out of them any more.
                for region in (op.then, op.otherwise):
                    env.update((arg, env.get(value, value)) for arg, value in zip(region.args, op.inputs, strict=True))
                then, otherwise = (dataclasses.replace(region, args=()) for region in (op.then, op.otherwise))
                op = dataclasses.replace(op, inputs=(), then=then, otherwise=otherwise)
            numbers: dict[Value, Value] = {}
            for value in numbered(op):
                if isinstance(value.op, Constant):
                    ops.append(dataclasses.replace(value.op))
                    numbers[value] = ops[-1].result
            new = op.rebuild(lambda x: numbers.get(x, env.get(x, x)), lambda b: chain_block(b, env, quick))  # noqa: B023
            new = dataclasses.replace(op) if new is op else new  # several loops may take in the same op
            env.update(zip(group[0].results, new.results, strict=True))
            ops.append(new)
            continue
        if results := escaping(group):
            with at(group[-1].loc):
                new = chain(group, results, env, quick)
            env.update(zip(results, new.results, strict=True))
            ops.append(new)
    return Block(block.args, tuple(ops), tuple(env.get(value, value) for value in block.yields))


def numbered(op: Op) -> tuple[Value, ...]:
    """The operands that the generated source computes by itself, where they are made of coordinates and constants."""
    return op.limits if isinstance(op, For) else op.operands if counted(op) else ()


def reads(op: Op, quick: Recomputed) -> set[Value]:
    """What must be at hand for an op; a chain needs only what its quick values come from."""
    found = uses(op)
    return quick.sources(found) if chained(op) else found | quick.sources(found)


def groups(ops: Iterable[Op], quick: Recomputed) -> list[list[Op]]:
    """Ops that may run as one, each group in order. An op joins the last chain of its space that it can join."""
    found: list[list[Op]] = []
    home: dict[Value, int] = {}
    below: list[set[int]] = []

    def reaches(start: int, goal: int) -> bool:
        return start == goal or any(reaches(n, goal) for n in below[start])

    for op in ops:
        needed = {home[value] for value in reads(op, quick) if value in home}
        where = None
        if chained(op):
            for index in reversed(range(len(found))):
                same = chained(found[index][0]) and long_axes(found[index][0].result) == long_axes(op.result)
                if same and not any(n != index and reaches(n, index) for n in needed):
                    where = index
                    break
        if where is None:
            where = len(found)
            found.append([])
            below.append(set())
        found[where].append(op)
        below[where] |= needed - {where}
        home.update(dict.fromkeys(op.results, where))
    return found


def split(found: list[list[Op]], escaping: Callable[[list[Op]], list[Value]]) -> list[list[Op]]:
    """Axes of one element separate no spaces, unless a chain's result would get one more: those chains fall into pieces."""
    result: list[list[Op]] = []
    for group in found:
        if not chained(group[0]):
            result.append(group)
            continue
        spaces = [frozenset(op.result.tensor.axes) for op in group]
        whole = frozenset[Axis]().union(*spaces)
        if all(frozenset(value.tensor.axes) == whole for value in escaping(group)):
            result.append(group)
            continue
        for index, (op, own) in enumerate(zip(group, spaces, strict=True)):
            if index and own == spaces[index - 1]:
                result[-1].append(op)
            else:
                result.append([op])
    return result


def ordered(found: list[list[Op]], quick: Recomputed) -> list[list[Op]]:
    """Groups such that each comes after what it reads, otherwise in the order in which they are complete."""
    home = {value: index for index, group in enumerate(found) for op in group for value in op.results}
    position = {op: n for n, op in enumerate(op for group in found for op in group)}
    waiting = {
        index: {home[value] for op in group for value in reads(op, quick) if value in home} - {index}
        for index, group in enumerate(found)
    }
    result: list[list[Op]] = []
    while waiting:
        ready = min(
            (index for index, needs in waiting.items() if not needs & waiting.keys()),
            key=lambda index: position[found[index][0]],
        )
        del waiting[ready]
        result.append(found[ready])
    return result


def chain(group: list[Op], results: list[Value], env: dict[Value, Value], quick: Recomputed) -> Map:
    """The group as one op, its inputs in order of first use."""
    inputs: dict[Value, Value] = {}
    coordinates: dict[Axis, Value] = {}
    scalars: dict[Value, Value] = {}
    body: list[Op] = []

    def read(value: Value) -> Value:
        if value not in scalars and value in quick and value.op is not None:
            compute(value.op)
        if value in scalars:
            return scalars[value]
        outside = env.get(value, value)
        element = outside.element if isinstance(outside.type, TensorType) else ElementType.INDEX
        return inputs.setdefault(outside, argument(scalar(element), value.hint))

    def compute(op: Op) -> None:
        match op:
            case Constant():
                body.append(Constant(value=op.value, element=op.element, loc=op.loc))
                scalars[op.result] = body[-1].result
            case Index(range=None):
                (axis,) = op.result.tensor.axes
                scalars[op.result] = coordinates.setdefault(axis, argument(scalar(ElementType.INDEX), axis[0]))
            case Index():
                assert op.range is not None
                scalars[op.result] = read(op.range)
            case Expand():
                for r in op.ranges:
                    read(r)
                for axis in op.axes:
                    coordinates.setdefault(axis, argument(scalar(ElementType.INDEX), axis[0]))
                scalars[op.result] = read(op.value)
            case _:
                new = op.rebuild(read, lambda b: b)
                scalars[op.result] = new.result
                body.append(new)

    for op in group:
        if op.result not in scalars:
            compute(op)
    # Expansion along an axis that another input has needs neither the range nor the coordinate.
    used = {value for op in body for value in op.operands} | {scalars[value] for value in results}
    covered = {n for value in inputs for n in value.names}
    for value in [value for value, arg in inputs.items() if isinstance(value.type, RangeType) and arg not in used]:
        if value.range.axis in covered:
            del inputs[value]
        covered.add(value.range.axis)
    kept = {axis: value for axis, value in coordinates.items() if value in used or axis[0] not in covered}
    region = Block((*inputs.values(), *kept.values()), tuple(body), tuple(scalars[value] for value in results))
    made = Map(inputs=tuple(inputs), axes=tuple(kept), body=region)
    for old, new in zip(results, made.results, strict=True):
        new.hint = old.hint
    return made

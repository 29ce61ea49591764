"""`cpu`: the ops that only this backend has. They run in the interpreter like all others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attngen.ir.core import Arrays, Block, Env, Op, Value
from attngen.ir.facts import Facts, Interval
from attngen.ir.nd import REDUCTIONS, Contract, Gather, align
from attngen.ir.types import Axis, ElementType, RangeType, TensorType, Type, scalar, union


class Chain(Op):
    """What `cpu.map` and `cpu.product` share: scalar ops, run for every element of one space.

    The region takes what `leading` says, then one scalar per input (of a range: the coordinate along its axis), then one
    coordinate per axis of `axes`. What it yields becomes results over the space; the last of them are reduced over `down`
    instead, each in its way (`kinds`: sum, max), and only that is stored.
    """

    level = "loop"

    inputs: tuple[Value, ...]
    axes: tuple[Axis, ...] = ()
    kinds: tuple[str, ...] = ()
    down: tuple[str, ...] = ()
    body: Block

    @property
    def space(self) -> tuple[Axis, ...]:
        """The axes that the scalar ops run over, in memory order."""
        raise TypeError(f"{type(self).__name__} does not define space")

    @property
    def leading(self) -> tuple[ElementType, ...]:
        """Element types of the region's first arguments."""
        return ()

    @property
    def stored(self) -> int:
        """How many results have the whole space; the rest is reduced."""
        return len(self.body.yields) - len(self.kinds)

    def infer(self) -> tuple[Type, ...]:
        elements = [value.element if isinstance(value.type, TensorType) else ElementType.INDEX for value in self.inputs]
        want = [scalar(e) for e in (*self.leading, *elements, *(ElementType.INDEX for _ in self.axes))]
        if [value.type for value in self.body.args] != want:
            raise self.error(f"the region must take ({', '.join(map(str, want))})")
        for value in self.body.yields:
            if value.tensor.axes:
                raise self.error(f"the region must yield scalars, not {value.type}")
        if unknown := [kind for kind in self.kinds if kind not in REDUCTIONS]:
            raise self.error(f"cannot reduce by {unknown[0]}")
        if self.stored < 0 or missing(self.down, [name for name, _ in self.space]):
            raise self.error(f"cannot reduce {len(self.body.yields)} results over {', '.join(self.down)}")
        whole = TensorType(self.space, ElementType.F32)
        less = TensorType(whole.without(self.down), ElementType.F32)
        return tuple(
            (whole if n < self.stored else less).with_element(value.element) for n, value in enumerate(self.body.yields)
        )

    def chained(self, first: Arrays, args: Arrays, env: Env) -> Any:
        """The results, from the region's first arguments over the whole space and from the inputs."""
        names = tuple(name for name, _ in self.space)
        lengths: dict[str, int] = {name: env.extent(name, extent) for name, extent in self.axes}
        for array in first:
            lengths |= dict(zip(names, np.shape(array), strict=True))
        aligned: list[Any] = list(first)
        for value, x in zip(self.inputs, args, strict=True):
            own, array = value.names, x
            if isinstance(value.type, RangeType):
                own, array = (value.type.axis,), np.arange(*x, dtype=np.int64)
            lengths |= dict(zip(own, np.shape(array), strict=True))
            aligned.append(align(array, own, names))
        aligned += [align(np.arange(lengths[name], dtype=np.int64), (name,), names) for name, _ in self.axes]
        shape = [lengths[name] for name in names]
        results = [np.broadcast_to(x, shape) for x in env.run(self.body, tuple(aligned))]
        over = tuple(names.index(name) for name in self.down)
        for n, kind in enumerate(self.kinds, self.stored):
            repeat, identity = REDUCTIONS[kind]
            results[n] = repeat.reduce(results[n], axis=over, initial=identity) if over else results[n]
        return tuple(results)

    @property
    def flops(self) -> int:
        size = TensorType(self.space, ElementType.F32).size
        return size * (len(self.kinds) + sum(op.flops for op in self.body.ops))


class Map(Chain, name="cpu.map"):
    """`%p = cpu.map %s, %m : tensor<i=64, j=64, f32> { (%a: tensor<f32>, %b: tensor<f32>) … }`: a chain of scalar ops, run
    for every element of one space: the axes of the inputs and `axes`, in memory in the given order."""

    order: tuple[str, ...] = ()

    @property
    def space(self) -> tuple[Axis, ...]:
        inputs = [value.type if isinstance(value.type, TensorType) else coordinate(value.range) for value in self.inputs]
        found = dict(union([*inputs, TensorType(self.axes, ElementType.INDEX)]))
        return tuple((name, found[name]) for name in self.order) if self.order else tuple(found.items())

    def infer(self) -> tuple[Type, ...]:
        names = [
            n
            for value in self.inputs
            for n in (value.names or ((value.range.axis,) if isinstance(value.type, RangeType) else ()))
        ]
        if self.order and set(self.order) != {*names, *(n for n, _ in self.axes)} or len(set(self.order)) != len(self.order):
            raise self.error(f"the order {', '.join(self.order)} does not name each axis once")
        return super().infer()

    def evaluate(self, args: Arrays, env: Env) -> Any:
        return self.chained((), args, env)


class Product(Chain, name="cpu.product"):
    """`%s, %m = cpu.product [], %k, %q, none over [d] acc f32 kinds [max] down [j] { … }`: a contraction whose sums go through
    a chain of scalar ops before they are stored. The region's first argument is the sum."""

    lhs: Value
    rhs: Value
    where: Value | None = None
    over: tuple[str, ...]
    acc: ElementType

    @property
    def contraction(self) -> Contract:
        return Contract(lhs=self.lhs, rhs=self.rhs, where=self.where, over=self.over, acc=self.acc, loc=self.loc)

    @property
    def space(self) -> tuple[Axis, ...]:
        return self.contraction.result.tensor.axes

    @property
    def leading(self) -> tuple[ElementType, ...]:
        return (self.acc,)

    def infer(self) -> tuple[Type, ...]:
        names = {name for name, _ in self.space}
        for value in self.inputs:
            axes = {value.range.axis} if isinstance(value.type, RangeType) else set(value.names)
            if not axes <= names:
                raise self.error(f"an input has axis {min(axes - names)}, which the sums lack", at=value)
        return super().infer()

    def evaluate(self, args: Arrays, env: Env) -> Any:
        count = len(self.inputs)
        return self.chained((self.contraction.evaluate(args[count:], env),), args[:count], env)

    @property
    def flops(self) -> int:
        return super().flops + self.contraction.flops


def dot_axis(op: Contract) -> str:
    """The summed axis that vectors of both operands run along: it comes last in both. Empty if they run along the result's."""
    last = op.lhs.names[-1:]
    return last[0] if last == op.rhs.names[-1:] and last == op.over and op.where is None and op.result.names else ""


def missing(wanted: Sequence[str], names: Sequence[str]) -> list[str]:
    return [name for name in wanted if name not in names]


def widens(source: ElementType, to: ElementType) -> bool:
    """Whether every float of one type is one of the other, a wider one."""
    return source.is_float and to.is_float and source.bytes < to.bytes


class Pack(Op, name="cpu.pack"):
    """`%t = cpu.pack %rows order [d, i] element f32 : tensor<d=64, i=64, f32>`: the same values, copied to lie densely in
    the given order, as floats that are wider or the same."""

    facts = Facts(combination=(1.0,), monotone=(+1,))
    level = "loop"

    value: Value
    order: tuple[str, ...]
    element: ElementType

    def infer(self) -> tuple[Type, ...]:
        if sorted(self.order) != sorted(self.value.names):
            raise self.error(f"the order {', '.join(self.order)} does not name each axis once", at=self.value)
        if self.element is not self.value.element and not widens(self.value.element, self.element):
            raise self.error(f"{self.element} is no wider float than {self.value.element}", at=self.value)
        extents = self.value.tensor.extents
        return (TensorType(tuple((name, extents[name]) for name in self.order), self.element),)

    def evaluate(self, args: Arrays, env: Env) -> Any:
        array = np.transpose(args[0], [self.value.names.index(name) for name in self.order])
        return array.astype(env.dtype(self.element)) if self.element.is_float else array

    def interval(self, operands: tuple[Interval, ...]) -> Interval:
        return operands[0]


class Lookup(Op, name="cpu.lookup"):
    """`%x = cpu.lookup %table, [%at] over [n] order [j, i] : tensor<j=64, i=32, f32>`: `nd.gather` whose result lies in memory
    in the given order."""

    level = "loop"

    table: Value
    at: tuple[Value, ...]
    over: tuple[str, ...]
    order: tuple[str, ...]

    @property
    def gather(self) -> Gather:
        return Gather(table=self.table, at=self.at, over=self.over, loc=self.loc)

    def infer(self) -> tuple[Type, ...]:
        found = self.gather.result.tensor
        if sorted(self.order) != sorted(found.names):
            raise self.error(f"the order {', '.join(self.order)} does not name each axis once")
        return (TensorType(tuple((name, found.extents[name]) for name in self.order), found.element),)

    def evaluate(self, args: Arrays, env: Env) -> Any:
        gather = self.gather
        return np.transpose(gather.evaluate(args, env), [gather.result.names.index(name) for name in self.order])


def coordinate(range: RangeType) -> TensorType:
    """The type of the coordinates in a range."""
    return TensorType(((range.axis, range.extent),), ElementType.INDEX)

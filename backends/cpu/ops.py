"""`cpu`: the ops that only this backend has. They run in the interpreter like all others."""

from __future__ import annotations

from typing import Any

import numpy as np

from attngen.ir.core import Arrays, Block, Env, Op, Value
from attngen.ir.facts import Facts, Interval
from attngen.ir.nd import align
from attngen.ir.types import Axis, ElementType, RangeType, TensorType, Type, scalar, union


class Map(Op, name="cpu.map"):
    """`%p = cpu.map %s, %m : tensor<i=64, j=64, f32> { (%a: tensor<f32>, %b: tensor<f32>) … }`: a chain of scalar ops, run
    for every element of one space: the axes of the inputs and `axes`.

    The region takes one scalar per input (of a range: the coordinate along its axis), then one coordinate per axis of `axes`.
    Each scalar it yields becomes a result over the whole space, its axes in memory in the given order.
    """

    level = "loop"

    inputs: tuple[Value, ...]
    axes: tuple[Axis, ...] = ()
    order: tuple[str, ...] = ()
    body: Block

    @property
    def space(self) -> tuple[Axis, ...]:
        """The axes of every result."""
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
        scalars = [value.element if isinstance(value.type, TensorType) else ElementType.INDEX for value in self.inputs]
        want = [scalar(e) for e in (*scalars, *(ElementType.INDEX for _ in self.axes))]
        if [value.type for value in self.body.args] != want:
            raise self.error(f"the region must take ({', '.join(map(str, want))})")
        for value in self.body.yields:
            if value.tensor.axes:
                raise self.error(f"the region must yield scalars, not {value.type}")
        return tuple(TensorType(self.space, value.element) for value in self.body.yields)

    def evaluate(self, args: Arrays, env: Env) -> Any:
        names = tuple(name for name, _ in self.space)
        lengths: dict[str, int] = {name: env.extent(name, extent) for name, extent in self.axes}
        aligned: list[Any] = []
        for value, x in zip(self.inputs, args, strict=True):
            own, array = value.names, x
            if isinstance(value.type, RangeType):
                own, array = (value.type.axis,), np.arange(*x, dtype=np.int64)
            lengths |= dict(zip(own, np.shape(array), strict=True))
            aligned.append(align(array, own, names))
        aligned += [align(np.arange(lengths[name], dtype=np.int64), (name,), names) for name, _ in self.axes]
        shape = [lengths[name] for name in names]
        return tuple(np.broadcast_to(x, shape) for x in env.run(self.body, tuple(aligned)))

    @property
    def flops(self) -> int:
        size = self.results[0].tensor.size if self.results else 0
        return size * sum(op.flops for op in self.body.ops)


class Pack(Op, name="cpu.pack"):
    """`%t = cpu.pack %rows order [d, i] : tensor<d=64, i=64, f32>`: the same values, copied to lie densely in
    the given order."""

    facts = Facts(combination=(1.0,), monotone=(+1,))
    level = "loop"

    value: Value
    order: tuple[str, ...]

    def infer(self) -> tuple[Type, ...]:
        if sorted(self.order) != sorted(self.value.names):
            raise self.error(f"the order {', '.join(self.order)} does not name each axis once", at=self.value)
        extents = self.value.tensor.extents
        return (TensorType(tuple((name, extents[name]) for name in self.order), self.value.element),)

    def evaluate(self, args: Arrays, env: Env) -> Any:
        return np.transpose(args[0], [self.value.names.index(name) for name in self.order])

    def interval(self, operands: tuple[Interval, ...]) -> Interval:
        return operands[0]


def coordinate(range: RangeType) -> TensorType:
    """The type of the coordinates in a range."""
    return TensorType(((range.axis, range.extent),), ElementType.INDEX)

"""`nd`: arithmetic on tensors with named axes. The same ops at tensor level and on the tiles inside loops.

This file: products, reductions, coordinates, constants, gathers. Elementwise ops are in `elementwise.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from attngen.ir.core import Arrays, Env, Op, Value, elements
from attngen.ir.diagnostics import Error
from attngen.ir.facts import ANYTHING, Facts, Interval
from attngen.ir.types import Axis, ElementType, Extent, TensorType, Type, round_bf16, scalar, union


def align(array: Any, names: tuple[str, ...], to: tuple[str, ...]) -> Any:
    """The array with its axes in the order of `to`, and extent 1 for the axes it lacks: ready to broadcast."""
    if not names:
        return array
    array = np.transpose(array, [names.index(n) for n in to if n in names])
    lengths = iter(array.shape)
    return array.reshape([next(lengths) if n in names else 1 for n in to])


def rounded(array: Any, element: ElementType, env: Env) -> Any:
    """The array as the element type holds it."""
    if element is ElementType.BF16 and not env.wide:
        return round_bf16(array)
    return np.asarray(array, env.dtype(element))


class Constant(Op, name="nd.constant"):
    """`%c = nd.constant value 0.125 : tensor<f32>`: a number, without axes."""

    value: float | int
    element: ElementType

    def infer(self) -> tuple[Type, ...]:
        if self.element.is_float:
            # Kept in double precision and rounded where it is used: folding constants loses nothing.
            value = float(self.value)
            if math.isfinite(value) and abs(value) > self.element.largest:
                value = math.copysign(math.inf, value)
        else:
            try:
                value = self.element.numpy.type(self.value).item()
            except (OverflowError, ValueError):
                raise self.error(f"{self.value} is no {self.element}") from None
            if value != self.value:
                raise self.error(f"{self.value} is no {self.element}")
        object.__setattr__(self, "value", value)
        return (scalar(self.element),)

    def evaluate(self, args: Arrays, env: Env) -> Any:
        return rounded(np.asarray(self.value), self.element, env)

    def interval(self, operands: tuple[Interval, ...]) -> Interval:
        return ANYTHING if math.isnan(self.value) else Interval(self.value, self.value)


class Index(Op, name="nd.index"):
    """`%x = nd.index axis j : tensor<j=53, index>`: the coordinate along an axis.

    Inside a loop the range says which part: `%x = nd.index %j : tensor<j=?<=8, index>`.
    """

    range: Value | None = None
    axis: str = ""
    extent: Extent | None = None

    def infer(self) -> tuple[Type, ...]:
        if self.range is not None:
            r = self.range.range
            return (TensorType(((r.axis, r.extent),), ElementType.INDEX),)
        if not self.axis or self.extent is None:
            raise self.error("needs either a range, or an axis and its extent")
        return (TensorType(((self.axis, self.extent),), ElementType.INDEX),)

    def evaluate(self, args: Arrays, env: Env) -> Any:
        if args[0] is not None:
            return np.arange(*args[0], dtype=np.int64)
        assert self.extent is not None
        return np.arange(env.extent(self.axis, self.extent), dtype=np.int64)

    def interval(self, operands: tuple[Interval, ...]) -> Interval:
        return Interval(0, math.inf)


class Expand(Op, name="nd.expand"):
    """`%y = nd.expand %x, %i axes [d=8] : tensor<i=?<=16, d=8, f32>`: x repeated along axes that it lacks: those of the
    given ranges, and the given ones."""

    facts = Facts(combination=(1.0,), monotone=(+1,))

    value: Value
    ranges: tuple[Value, ...] = ()
    axes: tuple[Axis, ...] = ()

    def infer(self) -> tuple[Type, ...]:
        new = (*((r.range.axis, r.range.extent) for r in self.ranges), *self.axes)
        for name, _ in new:
            if name in self.value.names:
                raise self.error(f"the value already has axis {name}", at=self.value)
        return (TensorType((*self.value.tensor.axes, *new), self.value.element),)

    def evaluate(self, args: Arrays, env: Env) -> Any:
        x, *ranges = args
        shape = [*np.shape(x), *(stop - start for start, stop in ranges), *(env.extent(*axis) for axis in self.axes)]
        return np.broadcast_to(np.reshape(x, [*np.shape(x), *[1] * (len(shape) - np.ndim(x))]), shape)

    def fold(self) -> Value | None:
        return self.value if not self.ranges and not self.axes else None

    def interval(self, operands: tuple[Interval, ...]) -> Interval:
        return operands[0]


class Contract(Op, name="nd.contract"):
    """`%s = nd.contract %q, %k over [d] acc f32 : tensor<i=37, j=53, f32>`: the sum of products over named axes, of elements
    as the accumulation type has them.

    With `where`, a product whose mask is false does not exist: 0 · NaN never happens.
    """

    facts = Facts(multilinear=(0, 1))

    lhs: Value
    rhs: Value
    where: Value | None = None
    over: tuple[str, ...]
    acc: ElementType

    def infer(self) -> tuple[Type, ...]:
        for operand in (self.lhs, self.rhs):
            if not operand.element.is_float:
                raise self.error(f"sums products of floats, not of {operand.element}", at=operand)
            check_accumulator(self, operand.element, self.acc)
        operands = [self.lhs.tensor, self.rhs.tensor]
        if self.where is not None:
            if self.where.element is not ElementType.I1:
                raise self.error(f"the mask must be i1, not {self.where.element}", at=self.where)
            operands.append(self.where.tensor)
        axes = dict(union(operands))
        for name in self.over:
            for operand in (self.lhs, self.rhs):
                if name not in operand.names:
                    raise self.error(f"contracts over {name}, which an operand lacks", at=operand)
        return (TensorType(tuple(a for a in axes.items() if a[0] not in self.over), self.acc),)

    def evaluate(self, args: Arrays, env: Env) -> Any:
        dtype = env.dtype(self.acc)
        a, b = (np.asarray(x, dtype) for x in args[:2])
        out, (na, nb) = self.result.names, (self.lhs.names, self.rhs.names)
        if args[2] is not None:
            assert self.where is not None
            names = tuple(name for name, _ in union(v.tensor for v in self.operands))
            product = np.where(
                align(args[2], self.where.names, names), align(a, na, names) * align(b, nb, names), dtype.type(0)
            )
            summed = product.sum(axis=tuple(names.index(n) for n in self.over), dtype=dtype)
            return align(summed, tuple(n for n in names if n not in self.over), out)
        # As one matrix product: axes of both, of one side only, and summed ones.
        both = tuple(n for n in out if n in na and n in nb)
        left, right = (tuple(n for n in out if n in names and n not in both) for names in (na, nb))
        lengths = dict(zip(na, a.shape, strict=True)) | dict(zip(nb, b.shape, strict=True))

        def matrix(x: Any, names: tuple[str, ...], *order: tuple[str, ...]) -> Any:
            x = np.transpose(x, [names.index(n) for group in order for n in group])
            return x.reshape([*(lengths[n] for n in order[0]), *(math.prod(lengths[n] for n in g) for g in order[1:])])

        product = matrix(a, na, both, left, self.over) @ matrix(b, nb, both, self.over, right)
        return align(product.reshape([lengths[n] for n in both + left + right]), both + left + right, out)

    def interval(self, operands: tuple[Interval, ...]) -> Interval:
        return Interval(0) if operands[0].nonnegative and operands[1].nonnegative else ANYTHING

    @property
    def flops(self) -> int:
        return 2 * self.result.tensor.size * elements(self.lhs.tensor, self.over)


REDUCTIONS = {"sum": (np.add, 0.0), "max": (np.maximum, -math.inf), "min": (np.minimum, math.inf)}
"""kind -> (what it repeats, its identity)"""


def identity(kind: str, element: ElementType) -> float | int:
    """What a reduction in this type starts from."""
    if kind == "sum" or element.is_float:
        return REDUCTIONS[kind][1] if element.is_float else 0
    if element is ElementType.I1:
        return int(kind == "min")
    top = 2 ** (8 * element.bytes - 1)
    return -top if kind == "max" else top - 1


ALGEBRA = {
    "sum": Facts(multilinear=(0,)),
    "max": Facts(positively_homogeneous=(0,), upper_bound=True),
    "min": Facts(positively_homogeneous=(0,), lower_bound=True),
}


class Reduce(Op, name="nd.reduce"):
    """`%m = nd.reduce %s kind max over [j] acc f32 : tensor<i=37, f32>`: the sum, maximum or minimum over named axes.

    Integers and booleans have a maximum and a minimum over at least one element.
    """

    value: Value
    kind: str
    over: tuple[str, ...]
    acc: ElementType

    def infer(self) -> tuple[Type, ...]:
        if self.kind not in REDUCTIONS:
            raise self.error(f"cannot reduce by {self.kind}", help=f"one of {', '.join(REDUCTIONS)}")
        if self.value.element.is_float:
            check_accumulator(self, self.value.element, self.acc)
        elif self.kind == "sum" or self.acc is not self.value.element:
            raise self.error(f"cannot reduce {self.value.element} by {self.kind} in {self.acc}", at=self.value)
        for name in self.over:
            if name not in self.value.names:
                raise self.error(f"reduces over {name}, which the operand lacks", at=self.value)
        return (TensorType(self.value.tensor.without(self.over), self.acc),)

    def evaluate(self, args: Arrays, env: Env) -> Any:
        repeat, identity = REDUCTIONS[self.kind]
        axes = tuple(self.value.names.index(name) for name in self.over)
        array = np.asarray(args[0], env.dtype(self.acc))
        if not axes:
            return array.copy()
        if self.acc.is_float:
            return repeat.reduce(array, axis=axes, initial=identity)
        return repeat.reduce(array, axis=axes)

    def interval(self, operands: tuple[Interval, ...]) -> Interval:
        if self.kind == "max":
            return Interval(-math.inf, operands[0].hi)
        if self.kind == "min":
            return Interval(operands[0].lo, math.inf)
        return Interval(0) if operands[0].nonnegative else ANYTHING

    @property
    def algebra(self) -> Facts:
        return ALGEBRA[self.kind]

    @property
    def flops(self) -> int:
        return self.value.tensor.size


class Gather(Op, name="nd.gather"):
    """`%x = nd.gather %table, %at over [n] : tensor<i=4, f32>`: an element of a table at a computed coordinate.

    `over` names one table axis per coordinate; other axes of the table stay. Coordinates must lie within the table.
    """

    table: Value
    at: tuple[Value, ...]
    over: tuple[str, ...]

    def infer(self) -> tuple[Type, ...]:
        if len(self.at) != len(self.over):
            raise self.error(f"{len(self.at)} coordinates for {len(self.over)} axes")
        for name in self.over:
            if name not in self.table.names:
                raise self.error(f"looks up along {name}, which the table lacks", at=self.table)
        for v in self.at:
            if not v.element.is_integer:
                raise self.error(f"a coordinate must be an integer, not {v.element}", at=v)
        kept = TensorType(self.table.tensor.without(self.over), self.table.element)
        return (TensorType(union([*(v.tensor for v in self.at), kept]), self.table.element),)

    def evaluate(self, args: Arrays, env: Env) -> Any:
        table, *at = args
        names = self.result.names
        lengths = dict(zip(self.table.names, table.shape, strict=True))
        index: list[Any] = []
        for name in self.table.names:
            if name in self.over:
                where = at[self.over.index(name)]
                if np.size(where) and not (0 <= np.min(where) and np.max(where) < lengths[name]):
                    raise self.error(f"a coordinate along {name} lies outside 0 to {lengths[name] - 1}")
                index.append(align(where, self.at[self.over.index(name)].names, names))
            else:
                index.append(align(np.arange(lengths[name]), (name,), names))
        return table[tuple(np.broadcast_arrays(*index))] if index else table


def looked_up(ops: Iterable[Op]) -> set[str]:
    """The table axes along which coordinates are computed: they are neither cut nor shortened."""
    return {name for op in ops if isinstance(op, Gather) for name in op.over}


def check_accumulator(op: Op, element: ElementType, acc: ElementType) -> None:
    if not acc.is_float or acc.bytes < element.accumulator.bytes:
        raise op.error(f"cannot accumulate {element} in {acc}", help=f"use {element.accumulator}")


def accumulator(*values: Value) -> ElementType:
    """The accumulation type of operands of one element type."""
    kinds = {v.element for v in values}
    if len(kinds) != 1:
        raise Error(f"element types differ: {' and '.join(sorted(map(str, kinds)))}")
    return kinds.pop().accumulator

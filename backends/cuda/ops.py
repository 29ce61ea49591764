"""`cuda`: the ops that only this backend has. They run in the interpreter like all others."""

from __future__ import annotations

from typing import Any

import numpy as np

from attngen.ir.core import Arrays, Env, Op, Value
from attngen.ir.loop import Load, Parallel, check_selects
from attngen.ir.nd import Contract
from attngen.ir.types import Axis, ElementType, TensorType, Type, bound, scalar


class Pad(Op, name="cuda.pad"):
    """`%p = cuda.pad %t to [j=64, d=48] : tensor<j=64, d=48, bf16>`: the tile with zeros behind it, up to fixed extents."""

    level = "loop"

    value: Value
    to: tuple[Axis, ...]

    def infer(self) -> tuple[Type, ...]:
        extents = dict(self.value.tensor.axes)
        for name, extent in self.to:
            if name not in extents:
                raise self.error(f"pads along {name}, which the tile lacks", at=self.value)
            if not isinstance(extent, int) or bound(extents[name]) > extent:
                raise self.error(f"cannot pad {name}={extents[name]} to {extent}", at=self.value)
            extents[name] = extent
        return (TensorType(tuple(extents.items()), self.value.element),)

    def evaluate(self, args: Arrays, env: Env) -> Any:
        wide = {name: bound(extent) for name, extent in self.to}
        shape = np.shape(args[0])
        missing = [(0, wide[n] - length if n in wide else 0) for n, length in zip(self.value.names, shape, strict=True)]
        return np.pad(args[0], missing)

    def fold(self) -> Value | None:
        return self.value if self.value.type == self.result.type else None


class Cut(Op, name="cuda.cut"):
    """`%t = cuda.cut %p, %i axes [e=40] : tensor<i=?<=64, e=40, f32>`: the front of a padded tile: as long as the ranges are
    along their axes, and as the given extents along theirs."""

    level = "loop"

    value: Value
    ranges: tuple[Value, ...]
    axes: tuple[Axis, ...] = ()

    def infer(self) -> tuple[Type, ...]:
        extents = dict(self.value.tensor.axes)
        for x in self.ranges:
            check_selects(self, self.value, x)
            extents[x.range.axis] = x.range.extent
        for name, extent in self.axes:
            if name not in extents or bound(extent) > bound(extents[name]):
                raise self.error(f"cannot cut {name} to {extent}", at=self.value)
            extents[name] = extent
        return (TensorType(tuple(extents.items()), self.value.element),)

    def evaluate(self, args: Arrays, env: Env) -> Any:
        array, *ranges = args
        lengths = {x.range.axis: stop - start for x, (start, stop) in zip(self.ranges, ranges, strict=True)}
        lengths |= {name: env.extent(name, extent) for name, extent in self.axes}
        return array[tuple(slice(lengths.get(n)) for n in self.value.names)]


class Inside(Op, name="cuda.inside"):
    """`%x = cuda.inside %j extent 64 : tensor<j=64, i1>`: which elements of a padded tile lie in the part; of an axis that no
    loop cuts, `cuda.inside axis d length 40 extent 48`."""

    level = "loop"

    range: Value | None = None
    axis: str = ""
    length: int = 0
    extent: int

    def infer(self) -> tuple[Type, ...]:
        axis = self.range.range.axis if self.range is not None else self.axis
        if not axis:
            raise self.error("needs a range, or an axis and its length")
        return (TensorType(((axis, self.extent),), ElementType.I1),)

    def evaluate(self, args: Arrays, env: Env) -> Any:
        length = self.length if args[0] is None else args[0][1] - args[0][0]
        return np.arange(self.extent) < length


class Stage(Op, name="cuda.stage"):
    """`%s = cuda.stage %t order [j, d] stages 2 : tensor<j=64, d=64, bf16>`: the tile in shared memory, its elements in this
    order. Of `stages` buffers each trip fills one ahead of its use."""

    level = "loop"

    value: Value
    order: tuple[str, ...]
    stages: int = 1

    def infer(self) -> tuple[Type, ...]:
        if sorted(self.order) != sorted(self.value.names):
            raise self.error(f"the order {', '.join(self.order)} does not name each axis once", at=self.value)
        if self.stages < 1:
            raise self.error(f"needs at least one buffer, not {self.stages}")
        return (TensorType(tuple((n, self.value.tensor.extents[n]) for n in self.order), self.value.element),)

    def evaluate(self, args: Arrays, env: Env) -> Any:
        return np.transpose(args[0], [self.value.names.index(n) for n in self.order])


class Fragments(Op, name="cuda.fragments"):
    """`%f = cuda.fragments %s : tensor<i=64, d=64, bf16>`: a tile of shared memory in the registers of the threads, as the
    left operand of a product needs it."""

    level = "loop"

    value: Value

    def infer(self) -> tuple[Type, ...]:
        return (self.value.type,)

    def evaluate(self, args: Arrays, env: Env) -> Any:
        return args[0]


class Mma(Contract, name="cuda.mma"):
    """`%s = cuda.mma %q, %k over [d] acc f32 : tensor<i=64, j=64, f32>`: a product by tensor cores: the left operand from
    registers, the right one from shared memory. With `add`, what the sums start from. ahead: a trip's product is begun in the
    trip before it."""

    level = "loop"

    add: Value | None = None
    ahead: bool = False

    def infer(self) -> tuple[Type, ...]:
        if self.lhs.element is not self.rhs.element or self.lhs.element.bytes != 2 or self.acc is not ElementType.F32:
            raise self.error(f"multiplies floats of 16 bits into f32, not {self.lhs.element} and {self.rhs.element}")
        (found,) = super().infer()
        if self.add is not None and self.add.type != found:
            raise self.error(f"adds to {found}, not to {self.add.type}", at=self.add)
        return (found,)

    def evaluate(self, args: Arrays, env: Env) -> Any:
        made = super().evaluate(args[:3], env)
        if self.add is None:
            return made
        return made + np.transpose(args[3], [self.add.names.index(n) for n in self.result.names])


class Finite(Op, name="cuda.finite"):
    """`%f = cuda.finite %s : tensor<i1>`: whether a tile of shared memory holds neither infinities nor NaN."""

    level = "loop"

    value: Value

    def infer(self) -> tuple[Type, ...]:
        return (scalar(ElementType.I1),)

    def evaluate(self, args: Arrays, env: Env) -> Any:
        return np.asarray(bool(np.isfinite(args[0]).all()))


class Grid(Parallel, name="cuda.grid"):
    """A `loop.parallel` whose parts are blocks of threads. The axes `rows` of its tiles together are the rows of fragments:
    16 of them belong to each of `warps` warps. engine: what multiplies, mma or wgmma."""

    rows: tuple[str, ...]
    warps: int
    engine: str = "mma"

    def infer(self) -> tuple[Type, ...]:
        if self.engine not in ("mma", "wgmma"):
            raise self.error(f"no engine {self.engine}", help="mma or wgmma")
        if unknown := [n for n in self.rows if n not in self.axes]:
            raise self.error(f"{unknown[0]} is no axis of the grid")
        return super().infer()


def loaded(value: Value) -> Load:
    """The part of an array that a value is, padded or not."""
    load = value.op.value.op if isinstance(value.op, Pad) else value.op
    assert isinstance(load, Load)
    return load


def staged(value: Value) -> Stage:
    """What brings a tile of shared memory there."""
    assert isinstance(value.op, Stage)
    return value.op

"""Types: tensors with named axes, and the ranges that loops run over.

Names, not positions, decide what is contracted, reduced, broadcast and tiled. The order of a type's axes is how they are
printed and how the interpreter stores them; it takes no part in equality.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from attngen.ir.diagnostics import Error


class ElementType(Enum):
    """f64 f32 f16 bf16 are floats, i64 i32 i8 integers, i1 booleans, index a coordinate along an axis."""

    F64 = "f64"
    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    I64 = "i64"
    I32 = "i32"
    I8 = "i8"
    I1 = "i1"
    INDEX = "index"

    def __str__(self) -> str:
        return self.value

    @property
    def is_float(self) -> bool:
        return self.value in ("f64", "f32", "f16", "bf16")

    @property
    def is_integer(self) -> bool:
        return not self.is_float and self is not ElementType.I1

    @property
    def bytes(self) -> int:
        return {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i8": 1, "i1": 1, "index": 8}[self.value]

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The NumPy type of a value in the interpreter (bf16 is held in float32, rounded)."""
        kind = {"bf16": "f", "index": "i", "i1": "?"}.get(self.value, self.value[0])
        return np.dtype(kind if kind == "?" else f"{kind}{4 if self is ElementType.BF16 else self.bytes}")

    @property
    def accumulator(self) -> ElementType:
        """What sums and products of this type are computed in: f32 for 16 bits and f32, f64 for f64."""
        return ElementType.F32 if self in (ElementType.F16, ElementType.BF16) else self

    @property
    def largest(self) -> float:
        """The largest finite float."""
        return 3.3895313892515355e38 if self is ElementType.BF16 else float(np.finfo(self.numpy.name).max)

    @property
    def lowest(self) -> float:
        """The smallest finite float, LOWEST: it stands in for the maximum over nothing."""
        return float(np.finfo(self.accumulator.numpy.name).min)

    @property
    def tiny(self) -> float:
        """The smallest normal float, TINY: it stands in for a sum over nothing, as a divisor."""
        return float(np.finfo(self.accumulator.numpy.name).tiny)


F64, F32, F16, BF16 = ElementType.F64, ElementType.F32, ElementType.F16, ElementType.BF16
I64, I32, I8, I1, INDEX = ElementType.I64, ElementType.I32, ElementType.I8, ElementType.I1, ElementType.INDEX


def round_bf16(x: Any) -> np.ndarray:
    """float32 values rounded to the nearest bfloat16, ties to even, NaN kept."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return np.where(np.isnan(x), x, rounded).astype(np.float32)


@dataclass(frozen=True)
class UpTo:
    """A runtime extent: known when the kernel is called, at most `bound`."""

    bound: int

    def __post_init__(self) -> None:
        if self.bound < 0:
            raise Error(f"a runtime extent needs a bound of at least 0, not {self.bound}")

    def __str__(self) -> str:
        return f"?<={self.bound}"


Extent = int | UpTo
Axis = tuple[str, Extent]
AXIS_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def bound(extent: Extent) -> int:
    """The largest value an extent can take."""
    return extent if isinstance(extent, int) else extent.bound


def show_axes(axes: Iterable[Axis]) -> str:
    return ", ".join(f"{name}={extent}" for name, extent in axes)


@dataclass(frozen=True, eq=False)
class TensorType:
    """`tensor<i=64, d=32, f32>`: an element type and a set of named extents. No axes: a scalar."""

    axes: tuple[Axis, ...]
    element: ElementType

    def __post_init__(self) -> None:
        names = [name for name, _ in self.axes]
        if len(set(names)) != len(names):
            raise Error(f"axis {next(n for n in names if names.count(n) > 1)} appears twice in {self}")
        for name, extent in self.axes:
            if not AXIS_NAME.match(name):
                raise Error(f"{name!r} is no axis name; use letters, digits and _")
            if isinstance(extent, int) and extent < 0:
                raise Error(f"axis {name} has the negative extent {extent}")

    def __eq__(self, other: object) -> bool:
        return self is other or isinstance(other, TensorType) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @cached_property
    def _key(self) -> tuple[frozenset[Axis], ElementType]:
        return frozenset(self.axes), self.element

    def __str__(self) -> str:
        return f"tensor<{', '.join(filter(None, (show_axes(self.axes), str(self.element))))}>"

    @cached_property
    def extents(self) -> Mapping[str, Extent]:
        return dict(self.axes)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.axes)

    @property
    def size(self) -> int:
        """The largest number of elements."""
        return prod(bound(extent) for _, extent in self.axes)

    def without(self, over: Iterable[str]) -> tuple[Axis, ...]:
        return tuple(axis for axis in self.axes if axis[0] not in over)

    def with_element(self, element: ElementType) -> TensorType:
        return TensorType(self.axes, element)


@dataclass(frozen=True)
class RangeType:
    """`range<j=?<=8>`: the part of axis j that one trip of a loop works on; a ragged last part is shorter."""

    axis: str
    extent: Extent

    def __post_init__(self) -> None:
        TensorType(((self.axis, self.extent),), INDEX)  # checks the axis

    def __str__(self) -> str:
        return f"range<{self.axis}={self.extent}>"


Type = TensorType | RangeType


def scalar(element: ElementType) -> TensorType:
    return TensorType((), element)


def tile_extent(extent: Extent, step: int) -> Extent:
    """The extent of one trip: exact where `step` divides the axis, else a runtime extent up to `step`."""
    if isinstance(extent, int) and (extent <= step or extent % step == 0):
        return min(extent, step)
    return UpTo(min(bound(extent), step))


def union(types: Iterable[TensorType]) -> tuple[Axis, ...]:
    """The axes of several tensors together, in order of first appearance. Shared names must agree in extent."""
    merged: dict[str, Extent] = {}
    for name, extent in (axis for type in types for axis in type.axes):
        if merged.setdefault(name, extent) != extent:
            raise AxisMismatch(name, merged[name], extent)
    return tuple(merged.items())


class AxisMismatch(Error):
    """Two operands disagree on the extent of an axis they share by name."""

    def __init__(self, axis: str, first: Extent, second: Extent) -> None:
        super().__init__(f"axis {axis} has extent {first} and {second}")
        self.axis, self.first, self.second = axis, first, second

    def __reduce__(self) -> tuple[object, ...]:
        return (AxisMismatch, (self.axis, self.first, self.second))


@dataclass(frozen=True)
class Layout:
    """How a positional array maps to named axes: `b (g r) i d`. A group is one array dimension that holds several axes."""

    groups: tuple[tuple[str, ...], ...]

    @staticmethod
    def parse(text: str) -> Layout:
        tokens = re.findall(r"\(|\)|[^\s()]+", text)
        groups: list[tuple[str, ...]] = []
        inside: list[str] | None = None
        for token in tokens:
            if token == "(" and inside is None:
                inside = []
            elif token == ")" and inside:
                groups.append(tuple(inside))
                inside = None
            elif token in "()" or not AXIS_NAME.match(token):
                raise Error(f"cannot read the layout {text!r} at {token!r}; write axis names such as 'b (g r) i d'")
            elif inside is None:
                groups.append((token,))
            else:
                inside.append(token)
        if inside is not None:
            raise Error(f"cannot read the layout {text!r}: a parenthesis is not closed")
        layout = Layout(tuple(groups))
        if len(set(layout.names)) != len(layout.names):
            raise Error(f"the layout {text!r} names an axis twice")
        return layout

    def __str__(self) -> str:
        return " ".join(g[0] if len(g) == 1 else f"({' '.join(g)})" for g in self.groups)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for group in self.groups for name in group)

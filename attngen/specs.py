"""What the inputs of a program look like: shapes, element types, and the extents of axes that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from attngen.ir.diagnostics import Error
from attngen.ir.types import ElementType, Extent, Layout, TensorType, UpTo
from attngen.names import kind_of

Shape = tuple[Extent, ...]

DTYPES: Mapping[str, ElementType] = {
    "float64": ElementType.F64,
    "float32": ElementType.F32,
    "float16": ElementType.F16,
    "bfloat16": ElementType.BF16,
    "int64": ElementType.I64,
    "int32": ElementType.I32,
    "int8": ElementType.I8,
    "bool": ElementType.I1,
}


def upto(bound: int) -> UpTo:
    """A runtime extent: known when the kernel is called, at most `bound`."""
    return UpTo(whole(bound, "upto"))


@dataclass(frozen=True)
class Spec:
    """The shape and element type of an input: ``Spec((1, 8, 512, 64), "float32")``."""

    shape: Shape
    dtype: str = "float32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", read_shape(self.shape, "Spec"))
        object.__setattr__(self, "dtype", array_dtype_name(read_dtype(self.dtype, "Spec")))

    @property
    def element(self) -> ElementType:
        return DTYPES[self.dtype]


def read_dtype(dtype: Any, what: str) -> ElementType:
    """The element type of a name ("float32", "f32") or NumPy dtype in native byte order."""
    text: Any = dtype
    if dtype is None:
        raise Error(f"{what}: expected an element type, got None; known: {', '.join(DTYPES)}")
    if not isinstance(dtype, str):
        try:
            found: Any = np.dtype(dtype)
        except TypeError:
            raise Error(f"{what}: {dtype!r} is no element type; known: {', '.join(DTYPES)}") from None
        if not found.isnative:
            raise Error(
                f"{what}: {found.str} has the byte order of another machine; use its native form {found.newbyteorder('=').name}"
            )
        text = found.name
    by_ir_name = {e.value: e for e in DTYPES.values()}
    element = DTYPES.get(text) or by_ir_name.get(text)
    if element is None:
        raise Error(f"{what}: the element type {text} is not supported; known: {', '.join(DTYPES)}")
    return element


def array_dtype_name(element: ElementType) -> str:
    return next(name for name, e in DTYPES.items() if e is element)


def array_dtype(element: ElementType) -> np.dtype[Any]:
    """The dtype of an array of this element type; bfloat16 is that of the package ml_dtypes."""
    if element is not ElementType.BF16:
        return element.numpy
    try:
        import ml_dtypes
    except ImportError:
        raise Error("arrays of bfloat16 need the package ml_dtypes: pip install ml_dtypes") from None
    return np.dtype(ml_dtypes.bfloat16)


def whole(x: Any, what: str) -> int:
    if isinstance(x, bool) or not hasattr(x, "__index__") or x < 0:
        raise Error(f"{what}: an extent is a whole number of at least 0, got {x!r}")
    return int(x)


def read_shape(shape: Any, what: str) -> Shape:
    if not isinstance(shape, tuple | list):
        raise Error(f"{what}: a shape is a tuple of extents, such as (8, 64), got {shape!r}")
    entries: tuple[Any, ...] = tuple(shape)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return tuple(x if isinstance(x, UpTo) else whole(x, what) for x in entries)


def read_input(given: Any, dtype: Any, name: str) -> Spec:
    """A shape, a Spec or an array as a Spec."""
    match given:
        case Spec():
            return given
        case np.ndarray():
            return Spec(given.shape, array_dtype_name(read_dtype(given.dtype, name)))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        case tuple() | list():
            return Spec(read_shape(given, name), array_dtype_name(read_dtype(dtype, "dtype")))  # pyright: ignore[reportUnknownArgumentType]
        case _:
            raise Error(f"{name}: expected a shape, an attngen.Spec or a NumPy array, got {kind_of(given)}")


def show_shape(shape: tuple[Any, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def input_types(layouts: Mapping[str, Layout], specs: Mapping[str, Spec]) -> dict[str, TensorType]:
    """The type of each input. An axis has one extent in all of them; a group such as `(g r)` needs all but one from others."""
    extents: dict[str, tuple[Extent, str]] = {}
    waiting: list[tuple[str, tuple[str, ...], Extent]] = []

    def given(name: str) -> str:
        return f"{name} has shape {show_shape(specs[name].shape)}"

    def learn(axis: str, extent: Extent, name: str) -> None:
        known, first = extents.setdefault(axis, (extent, name))
        if known != extent:
            raise Error(
                f"axis {axis} has two extents: {given(first)}, so {axis}={known}; {given(name)}, so {axis}={extent}. "
                f"Their layouts are {str(layouts[first])!r} and {str(layouts[name])!r}"
            )

    for name, layout in layouts.items():
        shape = specs[name].shape
        if len(shape) != len(layout.groups):
            raise Error(
                f"{name}: the layout {str(layout)!r} has {len(layout.groups)} dimensions, "
                f"the shape {show_shape(shape)} has {len(shape)}"
            )
        for group, extent in zip(layout.groups, shape, strict=True):
            if len(group) == 1:
                learn(group[0], extent, name)
            else:
                waiting.append((name, group, extent))
    while waiting:
        ready = [w for w in waiting if sum(axis not in extents for axis in w[1]) <= 1]
        if not ready:
            name, group, extent = waiting[0]
            unknown = " and ".join(axis for axis in group if axis not in extents)
            raise Error(
                f"{name}: cannot tell {unknown} apart in the dimension ({' '.join(group)}) of length {extent}; "
                "an input must give one of them"
            )
        for entry in ready:
            waiting.remove(entry)
            _divide(*entry, extents, learn, given)
    return {
        name: TensorType(tuple((axis, extents[axis][0]) for axis in layout.names), specs[name].element)
        for name, layout in layouts.items()
    }


def _divide(
    name: str, group: tuple[str, ...], length: Extent, extents: Mapping[str, tuple[Extent, str]], learn: Any, given: Any
) -> None:
    parts = [extents[axis][0] for axis in group if axis in extents]
    if not isinstance(length, int) or not all(isinstance(e, int) for e in parts):
        raise Error(
            f"{name}: the dimension ({' '.join(group)}) holds several axes, so its extents must be fixed, not runtime extents"
        )
    known = prod(e for e in parts if isinstance(e, int))
    unknown = [axis for axis in group if axis not in extents]
    shown = ", ".join(f"{axis}={extents[axis][0]} ({given(extents[axis][1])})" for axis in group if axis in extents)
    if unknown and known and length % known == 0:
        learn(unknown[0], length // known, name)
    elif unknown and not known and not length:
        learn(unknown[0], 1, name)
    elif unknown or length != known:
        raise Error(f"{given(name)}, but its dimension ({' '.join(group)}) of length {length} does not fit {shown}")

"""Checks of the arrays that a kernel is called with: what is wrong, what was expected, what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Any, TypeGuard

import numpy as np

from attngen.backends import Arrays
from attngen.ir.diagnostics import Error
from attngen.ir.types import Layout, TensorType, bound
from attngen.names import kind_of
from attngen.specs import array_dtype, show_shape

Array = np.ndarray[Any, Any]

EXACT_WORK = 1_000_000
"""How far the search for a shared element goes before an overlap counts as not disproved."""


@dataclass(frozen=True)
class ArrayType:
    """What one array of a kernel must be."""

    name: str
    layout: Layout
    type: TensorType

    @cached_property
    def dtype(self) -> Any:
        return array_dtype(self.type.element)

    @cached_property
    def fixed_shape(self) -> tuple[int, ...] | None:
        """The shape, unless it has runtime extents."""
        return self.shape({}) if all(isinstance(e, int) for _, e in self.type.axes) else None

    def shape(self, extents: dict[str, int]) -> tuple[int, ...]:
        """The shape, given the runtime extents."""
        known = self.type.extents
        return tuple(prod(extents[a] if a in extents else bound(known[a]) for a in group) for group in self.layout.groups)

    @property
    def bytes(self) -> int:
        """At the largest extents."""
        return self.type.size * self.type.element.bytes

    def check(self, x: Any, extents: dict[str, int], arrays: Arrays) -> Any:
        """The array, if it is what is expected; runtime extents are read off the first array that has them."""
        found = arrays.read(self.name, x)
        self.check_type(found, extents)
        return found

    def check_type(self, x: Any, extents: dict[str, int]) -> None:
        if x.dtype is not self.dtype and x.dtype != self.dtype:
            given, help = show_dtype(x.dtype), conversion(self.name, x.dtype, self.dtype)
            raise Error(f"{self.name}: expected dtype {self.dtype.name}, got {given}; {help}")
        if x.shape != self.fixed_shape:
            self.check_shape(x.shape, extents)

    def check_shape(self, shape: tuple[int, ...], extents: dict[str, int]) -> None:
        groups = self.layout.groups
        if len(shape) != len(groups):
            raise Error(f"{self.name}: expected {len(groups)} dimensions ({self.layout}), got shape {show_shape(shape)}")
        for k, (group, length) in enumerate(zip(groups, shape, strict=True)):
            limit = prod(bound(self.type.extents[a]) for a in group)
            runtime = len(group) == 1 and not isinstance(self.type.extents[group[0]], int)
            want = extents.setdefault(group[0], length) if runtime and length <= limit else limit
            if length != want:
                axis = f"axis {group[0]}" if len(group) == 1 else f"the axes ({' '.join(group)})"
                most = "at most " if runtime and length > limit else ""
                raise Error(
                    f"{self.name}: {axis} has extent {length} in shape {show_shape(shape)} (dimension {k}), "
                    f"expected {most}{want}; compile the program for other shapes"
                )


def check_array(name: str, x: Any) -> TypeGuard[Array]:
    """A NumPy array that is no masked array; anything else is an error."""
    if type(x) is np.ndarray:
        return True
    if isinstance(x, np.ma.MaskedArray):
        raise Error(f"{name}: a masked array's mask would be ignored; pass {name}.filled(…) or {name}.data")
    if not isinstance(x, np.ndarray):
        if is_cuda_tensor(x):
            raise Error(f'{name}: a tensor on the device {x.device} cannot be read here; use {name}.cpu(), or target="cuda"')
        if hasattr(x, "__cuda_array_interface__"):
            raise Error(f'{name}: {kind_of(x)} on a GPU cannot be read here; copy it to a NumPy array, or use target="cuda"')
        raise Error(f"{name}: expected a NumPy array, got {kind_of(x)}; use np.asarray({name})")
    return True


def is_cuda_tensor(x: Any) -> bool:
    """Whether it is a tensor of torch on an NVIDIA GPU."""
    return getattr(getattr(x, "device", None), "type", "") == "cuda"


def show_dtype(dtype: Any) -> str:
    return str(dtype.name) if dtype.isnative else f"{'big' if dtype.str[0] == '>' else 'little'}-endian {dtype.name}"


def conversion(name: str, given: Any, want: Any) -> str:
    """How to get from one dtype to the other."""
    if given.newbyteorder("=") == want and not given.isnative:
        return f"use {name}.astype({name}.dtype.newbyteorder('='))"
    return f"use {name}.astype(np.{want.name})" if given.kind in "fiub" else "convert it"


def check_out(want: ArrayType, out: Any, extents: dict[str, int], others: Sequence[tuple[str, Any]], arrays: Arrays) -> Any:
    """An array to write into: right, writable, without two elements in one place, apart from inputs and other outputs."""
    if arrays is HOST and not isinstance(out, np.ndarray):
        raise Error(
            f"{want.name}: expected an array of {want.dtype.name} to write into, got {kind_of(out)}; use np.empty(shape, …)"
        )
    found = arrays.read(want.name, out)
    if found.dtype != want.dtype:
        given = show_dtype(found.dtype)
        raise Error(f"{want.name}: expected an array of {want.dtype.name} to write into, got {given}; use np.empty(shape, …)")
    want.check_type(found, extents)
    if not arrays.writeable(found):
        raise Error(f"{want.name}: the array is read-only; pass a writable one, or leave {want.name} away")
    if overlaps_itself(found):
        raise Error(f"{want.name}: elements share memory (strides {found.strides}); pass an array of its own, np.empty(shape)")
    for name, other in others:
        if arrays.overlap(found, other):
            raise Error(f"{want.name}: shares memory with {name}; pass an array of its own, or a copy of {name}")
    return found


def overlap(a: Array, b: Array) -> bool:
    """Whether two arrays have a byte in common; what cannot be decided in bounded work counts as yes."""
    if not np.may_share_memory(a, b):
        return False
    try:
        return np.shares_memory(a, b, max_work=EXACT_WORK)  # pyright: ignore[reportArgumentType]  (any bound is fine)
    except np.exceptions.TooHardError:
        return True


def overlaps_itself(x: Any) -> bool:
    """Whether two elements have a byte in common; what cannot be decided in bounded work counts as yes."""
    dims = sorted((abs(stride), length) for stride, length in zip(x.strides, x.shape, strict=True) if length > 1)
    if not x.size or isinstance(x, np.ndarray) and x.flags.c_contiguous:
        return False
    reach = x.itemsize
    for stride, length in dims:
        if stride < reach:
            break
        reach += stride * (length - 1)
    else:
        return False
    if dims[0][0] == 0 or x.size > EXACT_WORK:
        return True
    places: list[int] = [0]
    for stride, length in dims:
        places = [place + k * stride for place in places for k in range(length)]
    places.sort()
    return any(after - before < x.itemsize for before, after in pairwise(places))


class HostArrays:
    """Satisfies `attngen.backends.Arrays`: NumPy's arrays, which stand for themselves."""

    def read(self, name: str, x: Any) -> Array:
        check_array(name, x)
        return x if type(x) is np.ndarray else np.asarray(x)

    def small(self, x: Any) -> Any:
        return x

    def overlap(self, a: Array, b: Array) -> bool:
        return overlap(a, b)

    def writeable(self, x: Array) -> bool:
        return x.flags.writeable

    def empty(self, shape: tuple[int, ...], dtype: Any, like: Sequence[Array]) -> Array:
        return np.empty(shape, dtype)

    def result(self, x: Array) -> Array:
        return x

    def upload(self, values: Array, like: Sequence[Array]) -> Array:
        return values

    def download(self, x: Array) -> Array:
        return x

    def fill(self, x: Array, values: Array) -> None:
        x[...] = values

    def wait(self, arrays: Sequence[Array]) -> None:
        """A call has returned when it is done."""


HOST = HostArrays()

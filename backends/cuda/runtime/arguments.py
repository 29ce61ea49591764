"""What a kernel is launched with: numbers, read off the arrays of a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from attngen.backends.cuda.program import Address, Copyable, Entry, Length, Map, Parameter, Program, Stride, Workspace
from attngen.ir.func import Func
from attngen.ir.types import Layout, TensorType

LINE = 16
"""Bytes that one instruction can copy."""
LONGEST_STRIDE = 1 << 40
"""Of a tensor map; so is `LONGEST_AXIS` (CUDA driver API, `cuTensorMapEncodeTiled`)."""
LONGEST_AXIS = 1 << 32


@dataclass(frozen=True)
class View:
    """An array as kernels see it. element: bytes of one; extents and strides, the latter in bytes: by axis."""

    address: int
    element: int
    extents: Mapping[str, int]
    strides: Mapping[str, int]

    @property
    def bytes(self) -> int:
        """Of all elements."""
        return prod(self.extents.values()) * self.element


def runtime_lengths(func: Func, arrays: Sequence[Any]) -> dict[str, int]:
    """How long the axes with runtime extents are. arrays: begin with the inputs."""
    found: dict[str, int] = {}
    for param, value, x in zip(func.params, func.args, arrays, strict=False):
        for group, length in zip(param.layout.groups, x.shape, strict=True):
            extents = [value.tensor.extents[n] for n in group]
            known = prod(e for e in extents if isinstance(e, int))
            for axis, extent in zip(group, extents, strict=True):
                if not isinstance(extent, int):
                    found.setdefault(axis, length // known if known else 0)
    return found


def given_views(func: Func, lengths: Mapping[str, int], places: Sequence[tuple[int, Sequence[int]]]) -> list[View]:
    """Of inputs and outputs. places: the address of each, and the strides of its dimensions."""
    types = [x.tensor for x in (*func.args, *func.outputs)]
    layouts = [*(p.layout for p in func.params), *func.out_layouts]
    return [view(type, layout, lengths, *place) for type, layout, place in zip(types, layouts, places, strict=True)]


def view(type: TensorType, layout: Layout, lengths: Mapping[str, int], address: int, strides: Sequence[int]) -> View:
    """One dimension may hold several axes."""
    extents = {name: e if isinstance(e, int) else lengths[name] for name, e in type.axes}
    steps: dict[str, int] = {}
    for group, stride in zip(layout.groups, strides, strict=True):
        for position, axis in enumerate(group):
            steps[axis] = stride * prod(extents[n] for n in group[position + 1 :])
    return View(address, type.element.bytes, extents, steps)


def dense(type: TensorType, lengths: Mapping[str, int]) -> View:
    """A tensor stored in the order of its axes, at an address that is as aligned as one can be."""
    extents = {name: e if isinstance(e, int) else lengths[name] for name, e in type.axes}
    sizes = list(extents.values())
    steps = {name: type.element.bytes * prod(sizes[n + 1 :]) for n, name in enumerate(extents)}
    return View(0, type.element.bytes, extents, steps)


def copyable(x: View, axis: str) -> bool:
    """Whether rows along the axis can be copied a line at a time, see `Copyable`."""
    others = [x.strides[name] for name, extent in x.extents.items() if extent > 1 and name != axis]
    row = x.extents[axis] * x.element
    return x.strides[axis] == x.element and not any(n % LINE for n in (x.address, row, *others))


def mappable(x: View, axes: Sequence[str]) -> bool:
    """Whether a tensor map can describe the array."""
    outer = [x.strides[name] for name in axes[1:] if x.extents[name] > 1]
    fits = all(0 < n < LONGEST_STRIDE for n in outer) and all(0 < x.extents[name] <= LONGEST_AXIS for name in axes)
    return fits and copyable(x, axes[0])


def map_strides(x: View, axes: Sequence[str]) -> list[int]:
    """Bytes between neighbours along all axes of a map but the innermost; any valid number where there is one element."""
    row = x.extents[axes[0]] * x.element
    return [x.strides[name] if x.extents[name] > 1 else row for name in axes[1:]]


def has_maps(program: Program, views: Sequence[View]) -> bool:
    """Whether all maps that the program asks for can be made."""
    maps = [p for entry in program.entries for p in entry.parameters if isinstance(p, Map)]
    return all(mappable(views[p.array], p.axes) for p in maps)


Slot = int | Address | Workspace | Map
"""What an argument is, or what is to be known for it in each call: where arrays and memory are."""


def slots(entry: Entry, views: Sequence[View], lengths: Mapping[str, int]) -> list[Slot]:
    """The arguments of a kernel, as far as shapes, strides and alignment decide about them."""

    def slot(parameter: Parameter) -> Slot:
        match parameter:
            case Stride(array, axis):
                return views[array].strides[axis]
            case Length(axis):
                return lengths[axis]
            case Copyable(array, axis):
                return int(copyable(views[array], axis))
            case Workspace(bytes):
                return Workspace(bytes * entry.blocks(lengths))
            case Address() | Map():
                return parameter

    return [slot(parameter) for parameter in entry.parameters]


def filled(
    slots: Sequence[Slot],
    addresses: Sequence[int],
    memory: Callable[[int], int],
    tensor_map: Callable[[Map, int], bytes],
) -> list[int | bytes]:
    """The arguments of a call. memory: makes so many bytes, and says where they are; tensor_map: makes one of an array at an
    address."""

    def argument(slot: Slot) -> int | bytes:
        match slot:
            case int():
                return slot
            case Address(array):
                return addresses[array]
            case Workspace(bytes):
                return memory(bytes)
            case Map(array):
                return tensor_map(slot, addresses[array])

    return [argument(slot) for slot in slots]

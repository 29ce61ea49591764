"""What a kernel is launched with: numbers, read off the arrays of a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

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


def runtime_lengths(func: Func, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """How long the axes with runtime extents are in these inputs."""
    found: dict[str, int] = {}
    for param, value, shape in zip(func.params, func.args, shapes, strict=True):
        for group, length in zip(param.layout.groups, shape, strict=True):
            extents = [value.tensor.extents[n] for n in group]
            known = prod(e for e in extents if isinstance(e, int))
            for axis, extent in zip(group, extents, strict=True):
                if not isinstance(extent, int):
                    found.setdefault(axis, length // known if known else 0)
    return found


def view(type: TensorType, layout: Layout, lengths: Mapping[str, int], address: int, strides: Sequence[int]) -> View:
    """Strides are those of the array's dimensions; one dimension may hold several axes."""
    extents = {name: e if isinstance(e, int) else lengths[name] for name, e in type.axes}
    steps: dict[str, int] = {}
    for group, stride in zip(layout.groups, strides, strict=True):
        for position, axis in enumerate(group):
            steps[axis] = stride * prod(extents[n] for n in group[position + 1 :])
    return View(address, type.element.bytes, extents, steps)


def dense(type: TensorType, lengths: Mapping[str, int], address: int) -> View:
    """A tensor stored in the order of its axes."""
    extents = {name: e if isinstance(e, int) else lengths[name] for name, e in type.axes}
    sizes = list(extents.values())
    steps = {name: type.element.bytes * prod(sizes[n + 1 :]) for n, name in enumerate(extents)}
    return View(address, type.element.bytes, extents, steps)


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


def arguments(
    entry: Entry,
    views: Sequence[View],
    lengths: Mapping[str, int],
    memory: Callable[[int], int],
    tensor_map: Callable[[Map, View], bytes],
) -> list[int | bytes]:
    """What a kernel is given. memory: makes so many bytes, for a workspace, and says where they are; tensor_map: makes one."""

    def argument(parameter: Parameter) -> int | bytes:
        match parameter:
            case Address(array):
                return views[array].address
            case Stride(array, axis):
                return views[array].strides[axis]
            case Length(axis):
                return lengths[axis]
            case Workspace(bytes):
                return memory(bytes * entry.blocks(lengths))
            case Copyable(array, axis):
                return int(copyable(views[array], axis))
            case Map(array):
                return tensor_map(parameter, views[array])

    return [argument(parameter) for parameter in entry.parameters]

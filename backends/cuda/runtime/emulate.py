"""Runs the kernels of a program one after the other in the interpreter of PTX, on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from attngen.backends.cuda import ptx
from attngen.backends.cuda.program import Map
from attngen.backends.cuda.ptx.memory import Buffer, Global
from attngen.backends.cuda.ptx.tensormaps import Tiles
from attngen.backends.cuda.runtime.arguments import View, dense, filled, given_views, map_strides, runtime_lengths, slots
from attngen.backends.cuda.runtime.kernels import Kernels
from attngen.ir.func import Func

Array = np.ndarray[Any, Any]

JUNK = 0xFF
"""What memory holds that nobody wrote: NaN in every float."""


class Placed:
    """An array in global memory, with its own strides; only its elements are in bounds.

    Its address is as far from a multiple of 256 as the array is from the start of the array that it is a view of.
    """

    def __init__(self, memory: Global, name: str, array: Array) -> None:
        self.array, self.memory = array, memory
        low, high = reach(array)
        misaligned = (low - owner_start(array)) % 256
        offsets = element_offsets(array)
        self.address = memory.reserve(high - low + misaligned) + misaligned + int(array.ctypes.data - low)
        # Elements in the order of their addresses; those next to each other make a run.
        at, element = np.unique(self.address + offsets, return_inverse=True)
        begins = np.flatnonzero(np.diff(at, prepend=at[0] - array.itemsize - 1) > array.itemsize)
        first = at[begins]
        sizes = np.append(at[begins[1:] - 1], at[-1]) + array.itemsize - first
        # Runs lie close together, each at the alignment of its address.
        room = -(-(first % 256 + sizes) // 256) * 256
        within = np.cumsum(room) - room + first % 256
        run = np.searchsorted(first, at, side="right") - 1
        self.bytes = (within[run] + at - first[run])[element.reshape(-1), None] + np.arange(array.itemsize)
        content = np.full(int(room.sum()), JUNK, np.uint8)
        content[self.bytes] = np.ascontiguousarray(array).view(np.uint8).reshape(-1, array.itemsize)
        self.place = memory.put(content)
        memory.own(Buffer(name, int(first[0]), high - low), first, sizes, self.place + within)

    def read_back(self, data: Array) -> None:
        """Write the elements, as kernels left them, to the array."""
        self.array[...] = data[self.place + self.bytes].view(self.array.dtype).reshape(self.array.shape)


def owner_start(array: Array) -> int:
    """Where the memory begins that an array is a view of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return reach(array)[0]


def reach(array: Array) -> tuple[int, int]:
    """Where the first byte of an array lies, and the one after the last."""
    steps = [stride * (length - 1) for length, stride in zip(array.shape, array.strides, strict=True)]
    start = array.ctypes.data
    return start + sum(min(step, 0) for step in steps), start + sum(max(step, 0) for step in steps) + array.itemsize


def element_offsets(array: Array) -> Array:
    """Bytes from the first element to each one, in order."""
    offsets: Array = np.zeros(1, np.int64)
    for length, stride in zip(array.shape, array.strides, strict=True):
        steps: Array = np.arange(length, dtype=np.int64) * stride
        offsets = np.add.outer(offsets, steps).ravel()
    return offsets


def run(func: Func, suited: Callable[[Sequence[View]], Kernels], arrays: Sequence[Array]) -> None:
    """Run the kernels that suit the arrays: inputs, then outputs, which are written."""
    memory = Global()
    lengths = runtime_lengths(func, arrays)
    names = [*(p.name for p in func.params), *(f"output {n}" for n in range(len(func.outputs)))]
    placed = [Placed(memory, name, x) for name, x in zip(names, arrays, strict=True)]
    views = given_views(func, lengths, [(p.address, p.array.strides) for p in placed])
    kernels = suited(views)

    def junk(size: int, name: str = "a workspace") -> int:
        return memory.add(name, np.full(size, JUNK, np.uint8)).address

    def tensor_map(parameter: Map, address: int) -> bytes:
        x = views[parameter.array]
        shape = tuple(x.extents[name] for name in parameter.axes)
        strides = (x.element, *map_strides(x, parameter.axes))
        return Tiles(x.element, parameter.swizzle, address, shape, strides, parameter.box).encode()

    views += [dense(type, lengths) for type in kernels.program.temporaries]
    addresses = [p.address for p in placed]
    addresses += [junk(x.bytes, f"temporary {number}") for number, x in enumerate(views[len(placed) :])]
    for entry, text in zip(kernels.program.entries, kernels.ptx, strict=True):
        given = filled(slots(entry, views, lengths), addresses, junk, tensor_map)
        ptx.run(text, entry.name, entry.blocks(lengths), entry.threads, given, entry.shared_bytes, memory=memory)
    data = memory.freeze()
    for p in placed[len(func.params) :]:
        p.read_back(data)

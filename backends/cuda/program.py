"""What the CUDA backend makes of a function: one kernel per nest of loops, as Numba source, and how each is launched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from attngen.backends.cuda.target import Target
from attngen.ir.func import Func
from attngen.ir.types import Extent, TensorType


@dataclass(frozen=True)
class Address:
    """A parameter: where an array begins, u64. array: its number, see `Program.arrays`."""

    array: int


@dataclass(frozen=True)
class Stride:
    """A parameter: the bytes from one element to the next along an axis of an array, i64."""

    array: int
    axis: str


@dataclass(frozen=True)
class Length:
    """A parameter: a runtime extent, i32."""

    axis: str


@dataclass(frozen=True)
class Workspace:
    """A parameter: where memory for all blocks begins, u64; block number n owns the bytes from n · bytes on. Not cleared."""

    bytes: int


@dataclass(frozen=True)
class Copyable:
    """A parameter: 1 if rows of an array can be copied 16 bytes at a time, else 0; i32. That is: `axis` has stride one
    element, address and all other strides are multiples of 16 bytes (strides along axes of extent 1 do not count), and so is
    its extent's size in bytes."""

    array: int
    axis: str


@dataclass(frozen=True)
class Map:
    """A parameter: a tensor map, for the source its address, u64; `map_parameters.py` makes it the map by value. axes: those of
    the map, the innermost first; box: how many elements of each one copy takes; swizzle: 128, 64 or 32 bytes, or 0. Elements
    past the end are zeros.

    An array that no map can describe (see `Copyable`) takes the other version of the program, `Program.otherwise`."""

    array: int
    axes: tuple[str, ...]
    box: tuple[int, ...]
    swizzle: int = 128


Parameter = Address | Stride | Length | Workspace | Copyable | Map


@dataclass(frozen=True)
class Part:
    """An axis that is cut into parts for blocks."""

    axis: str
    extent: Extent
    step: int

    def count(self, lengths: Mapping[str, int]) -> int:
        """How many parts there are at these runtime extents."""
        extent = self.extent if isinstance(self.extent, int) else lengths[self.axis]
        return -(-extent // self.step)


@dataclass(frozen=True)
class Entry:
    """One kernel. name: of the function in `text`; namespace: makes what the text uses besides the builtins, by name (imports
    Numba); grid: the axes cut into blocks, the last one varies fastest with the number of a block (`blockIdx.x`, the only
    dimension used); most_blocks: launch at most so many, each of which then does every most_blocks-th part (0: no limit)."""

    name: str
    text: str
    namespace: Callable[[], Mapping[str, Any]]
    parameters: tuple[Parameter, ...]
    grid: tuple[Part, ...]
    threads: int
    shared_bytes: int
    most_blocks: int = 0
    least_blocks_per_multiprocessor: int = 0
    """0: not said."""

    def parts(self, lengths: Mapping[str, int]) -> int:
        return prod(part.count(lengths) for part in self.grid)

    def blocks(self, lengths: Mapping[str, int]) -> int:
        parts = self.parts(lengths)
        return min(parts, self.most_blocks) if self.most_blocks else parts


@dataclass(frozen=True)
class Program:
    """Kernels to be launched one after the other. Arrays are numbered: inputs, outputs, then temporaries, which are whole
    tensors that one kernel stores for a later one, dense in the order of their axes. otherwise: makes the same function
    without tensor maps, for arrays that no map can describe; None where there are no maps."""

    func: Func
    target: Target
    entries: tuple[Entry, ...]
    temporaries: tuple[TensorType, ...] = ()
    otherwise: Callable[[], Program] | None = field(default=None, compare=False)

    @property
    def arrays(self) -> tuple[TensorType, ...]:
        return (*(x.tensor for x in self.func.args), *(x.tensor for x in self.func.outputs), *self.temporaries)

    @property
    def extents(self) -> Mapping[str, int]:
        """The largest length of each runtime extent."""
        return {name: e.bound for x in self.func.args for name, e in x.tensor.axes if not isinstance(e, int)}

    @property
    def text(self) -> str:
        return "\n\n".join(entry.text for entry in self.entries)

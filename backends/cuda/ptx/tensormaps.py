"""Tensor maps: what `cuTensorMapEncodeTiled` makes on a machine with a driver, for the interpreter.

NVIDIA's 128 bytes are opaque; these have a layout of our own, which only the interpreter reads. They travel as the argument
of a parameter `.align 64 .b8 name[128]`, or lie in global memory (PTX ISA, "Tensor Memory Access": tiled mode).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attngen.backends.cuda.ptx.errors import PtxError
from attngen.backends.cuda.ptx.types import Array

MAGIC = b"npTMAP01"
LAYOUT = "<8sHHHHQ5Q5Q5I"
SIZE = 128


@dataclass(frozen=True)
class TensorMap:
    """A view of an array for bulk tensor copies.

    box: the extents of one copy, in the order of the array's axes. swizzle: 0, 32, 64 or 128 bytes. Elements outside the
    array read as zero and are not written. Axes of at most 5 dimensions; the last one is contiguous.
    """

    array: Array
    box: tuple[int, ...]
    swizzle: int = 0

    def __init__(self, array: Array, box: Sequence[int], swizzle: int = 0) -> None:
        object.__setattr__(self, "array", array)
        object.__setattr__(self, "box", tuple(box))
        object.__setattr__(self, "swizzle", swizzle)
        row = self.box[-1] * array.itemsize if self.box else 0
        if not 1 <= array.ndim <= 5 or len(self.box) != array.ndim or not array.flags.c_contiguous:
            raise PtxError("a tensor map needs a contiguous array of 1 to 5 axes and a box of as many")
        if any(not 1 <= n <= 256 for n in self.box) or row % 16:
            raise PtxError(f"the box {self.box} must have extents of 1 to 256, and rows of a multiple of 16 bytes, not {row}")
        if swizzle not in (0, 32, 64, 128) or (swizzle and row > swizzle):
            raise PtxError(f"swizzle is {swizzle} for rows of {row} bytes; expected 0, or 32, 64 or 128 and no less than a row")
        if any(s % 16 for s in array.strides[:-1]):
            raise PtxError(f"the strides {array.strides} of a tensor map must be multiples of 16 bytes")

    def encode(self, address: int) -> bytes:
        """The 128 bytes, once the array has an address."""
        x = self.array
        return Tiles(x.itemsize, self.swizzle, address, x.shape[::-1], x.strides[::-1], self.box[::-1]).encode()


@dataclass(frozen=True)
class Tiles:
    """A map as it is encoded; axes from the innermost, strides in bytes."""

    element: int
    swizzle: int
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return math.prod(self.box) * self.element

    def encode(self) -> bytes:
        """The 128 bytes."""
        rank = len(self.box)
        fill = (1,) * (5 - rank)
        head = (MAGIC, rank, self.element, self.swizzle, 0, self.address)
        return struct.pack(LAYOUT, *head, *self.shape, *fill, *self.strides, *fill, *self.box, *fill).ljust(SIZE, b"\0")

    def addresses(self, corner: Sequence[int]) -> tuple[Array, Array]:
        """Addresses of the elements of a box in global memory, and which of them are inside; the innermost axis fastest."""
        address = np.full((1,) * len(self.box), self.address, np.int64)
        inside = np.ones((1,) * len(self.box), bool)
        for axis, (start, n) in enumerate(zip(corner, self.box, strict=True)):
            along = (start + np.arange(n)).reshape([-1 if a == len(self.box) - 1 - axis else 1 for a in range(len(self.box))])
            address = address + along * self.strides[axis]
            inside = inside & (along >= 0) & (along < self.shape[axis])
        return address.reshape(-1), inside.reshape(-1)


def decode(raw: bytes) -> Tiles | None:
    """The map in 128 bytes, or None if they hold none."""
    if raw[:8] != MAGIC:
        return None
    _, rank, element, swizzle, _, address, *rest = struct.unpack_from(LAYOUT, raw)
    shape, strides, box = rest[:rank], rest[5 : 5 + rank], rest[10 : 10 + rank]
    return Tiles(element, swizzle, address, tuple(shape), tuple(strides), tuple(box))

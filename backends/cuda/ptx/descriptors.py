"""Matrices in shared memory as `wgmma` sees them (PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout").

A tile is a set of chunks of 16 bytes. Without swizzling, eight chunks that follow each other in memory make a core matrix;
with it, rows of 32, 64 or 128 bytes repeat every eight rows, and the address bits of the row are mixed into those of the chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attngen.backends.cuda.ptx.types import Array

SPANS = {0: 16, 1: 128, 2: 64, 3: 32}
"""Bytes that a swizzled row spans, by the two bits that say the mode; 16 means no swizzling."""


@dataclass(frozen=True)
class Descriptor:
    """start, leading, stride: bytes; span: bytes of a swizzled row."""

    start: int
    leading: int
    stride: int
    span: int
    base_offset: int

    @staticmethod
    def decode(raw: int) -> Descriptor:
        """The 64 bits of a matrix descriptor."""
        return Descriptor(
            (raw & 0x3FFF) << 4, (raw >> 16 & 0x3FFF) << 4, (raw >> 32 & 0x3FFF) << 4, SPANS[raw >> 62 & 3], raw >> 49 & 7
        )

    def chunks(self, rows: int, depth: int, per_chunk: int, transposed: bool) -> Array:
        """Addresses of the chunks of a tile of `rows` by `depth` elements, `per_chunk` of which fill 16 bytes.

        K-major: shape (rows, depth / per_chunk). Transposed (MN-major): shape (rows / per_chunk, depth), chunks along rows.
        """
        span = self.span
        if transposed:
            across, deep = np.arange(rows // per_chunk)[:, None], np.arange(depth)[None, :]
            if span == 16:
                at = across * self.stride + deep // 8 * self.leading + deep % 8 * 16
            else:
                per_span = span // 16
                at = across // per_span * self.leading + across % per_span * 16 + deep // 8 * self.stride + deep % 8 * span
        else:
            down, across = np.arange(rows)[:, None], np.arange(depth // per_chunk)[None, :]
            if span == 16:
                at = down // 8 * self.stride + down % 8 * 16 + across * self.leading
            else:
                at = down // 8 * self.stride + down % 8 * span + across * 16
        return swizzle(self.start + at, span)


def swizzle(address: Array, span: int) -> Array:
    """Mix address bits 7 and up into the bits of the 16-byte chunk, as many as a row of `span` bytes has chunks."""
    return address ^ ((address >> 7 & (span // 16 - 1)) << 4)


def gather(data: Array, chunks: Array, element: np.dtype[np.generic], transposed: bool) -> Array:
    """The tile (rows, depth) from the bytes of shared memory."""
    words = data.view(np.uint64)[chunks[..., None] // 8 + np.arange(2)]
    items = words.view(element)
    if transposed:
        return items.transpose(0, 2, 1).reshape(-1, chunks.shape[1])
    return items.reshape(chunks.shape[0], -1)

"""Tiles in shared memory as tensor maps bring them and wgmma reads them: panels of 64 columns, 128 bytes a row, whose 16-byte
pieces are swizzled by the row (PTX ISA, "Shared Memory Matrix Layout", 128-byte swizzle)."""

from __future__ import annotations

import math

from attngen.backends.cuda.ops import Stage
from attngen.ir.types import bound

PANEL = 64
"""Columns of 16 bits."""
ROW = 2 * PANEL
ATOM = 8 * ROW
"""Bytes of eight rows, after which the pattern repeats."""


def rows(stage: Stage) -> int:
    return math.prod(bound(stage.result.tensor.extents[n]) for n in stage.order[:-1])


def panels(stage: Stage) -> int:
    return -(-bound(stage.result.tensor.extents[stage.order[-1]]) // PANEL)


def panel_bytes(stage: Stage) -> int:
    return rows(stage) * ROW


def box_bytes(stage: Stage) -> int:
    """Of one buffer."""
    return panels(stage) * panel_bytes(stage)


def descriptor(stage: Stage, summed_last: bool) -> int:
    """The fixed bits of a matrix descriptor: 128-byte swizzle, bytes between groups of eight rows, and, where the sum runs
    along rows, bytes between panels."""
    leading = 1 if summed_last else panel_bytes(stage) >> 4
    return 1 << 62 | (ATOM >> 4) << 32 | leading << 16


def steps(stage: Stage, summed_last: bool, count: int) -> tuple[int, ...]:
    """What is added to the descriptor for each 16 elements of the sum."""
    if not summed_last:
        return tuple(16 * ROW * index >> 4 for index in range(count))
    return tuple((index // 4) * (panel_bytes(stage) >> 4) + (index % 4) * 2 for index in range(count))

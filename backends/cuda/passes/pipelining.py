"""pipeline-copies: copies into shared memory run ahead of the loop that reads them."""

from __future__ import annotations

import dataclasses
import math

from attngen.backends.cuda.ops import Grid, Stage
from attngen.backends.cuda.passes.grids import grids_of
from attngen.backends.cuda.tensor_cores.panels import box_bytes
from attngen.ir.core import Op, Value, walk
from attngen.ir.diagnostics import remark
from attngen.ir.func import Func
from attngen.ir.loop import For, trips
from attngen.ir.pipeline import register_pass
from attngen.ir.rewrite import rewrite
from attngen.ir.types import bound


@register_pass("pipeline-copies")
def pipeline_copies(func: Func, *, shared: int = 99 * 1024, stages: int = 2) -> Func:
    """Give the copies in a loop several buffers, so that a trip's are filled while earlier trips work. shared: bytes of shared
    memory that a block may have.

    before: loop.for %j { %s = cuda.stage %k order [j, d];  … }
    after:  loop.for %j { %s = cuda.stage %k order [j, d] stages 2;  … }
    """

    counts: dict[Op, int] = {}
    for grid in grids_of(func):
        counts |= buffers(grid, shared, stages)

    def rule(op: Op) -> Value | None:
        return dataclasses.replace(op, stages=counts[op]).result if isinstance(op, Stage) and op in counts else None

    return rewrite(func, rule)


def buffers(grid: Grid, shared: int, most: int) -> dict[Op, int]:
    """How many buffers the copies in loops get."""
    copies = [op for op in walk(grid.body) if isinstance(op, Stage)]
    loops = [op for op in grid.body.ops if isinstance(op, For) and trips(op.extent, op.step) > 1]
    ahead = [op for loop in loops for op in loop.body.ops if isinstance(op, Stage)]
    if not ahead:
        return {}
    size = box_bytes if grid.engine == "wgmma" else stage_bytes
    each = sum(map(size, ahead))
    once = sum(map(size, copies)) - each
    count = max(min((shared - once) // each, most), 1)
    remark(f"{count} buffers for each copy in a loop: {(once + count * each) / 1024:.0f} KB of shared memory", grid.loc)
    return dict.fromkeys(ahead, count)


def row_bytes(stage: Stage) -> int:
    """Bytes from one row of a tile in shared memory to the next: an odd number of 16-byte pieces, so that eight rows that a
    matrix load reads at once lie in different banks."""
    last = stage.result.tensor.extents[stage.order[-1]]
    pieces = -(-bound(last) * stage.result.element.bytes // 16)
    return 16 * (pieces + 1 - pieces % 2)


def stage_rows(stage: Stage) -> int:
    """Rows of one tile, those included that only fill fragments."""
    rows = math.prod(bound(stage.result.tensor.extents[n]) for n in stage.order[:-1])
    return -(-rows // 16) * 16


def stage_bytes(stage: Stage) -> int:
    """Of one buffer."""
    return stage_rows(stage) * row_bytes(stage)

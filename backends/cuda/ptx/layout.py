"""Where lanes lie. All threads of a batch of blocks are one vector; each block is padded to whole warps of 32."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attngen.backends.cuda.ptx.errors import Defect, PtxError
from attngen.backends.cuda.ptx.syntax import Instruction
from attngen.backends.cuda.ptx.types import Array

WARP = 32


def three(name: str, given: int | Sequence[int]) -> tuple[int, int, int]:
    """An extent in x, y, z; what is not given is 1."""
    numbers = (given,) if isinstance(given, int) else tuple(given)
    if not 1 <= len(numbers) <= 3 or any(n < 1 for n in numbers):
        raise PtxError(f"{name} is {given}; expected one to three positive numbers")
    x, y, z = (*numbers, 1, 1)[:3]
    return x, y, z


@dataclass(frozen=True)
class Layout:
    """grid, block: extents; blocks: linear numbers of the blocks in this batch. Every array has one element per lane."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    blocks: range

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return math.prod(self.block)

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return -(-self.threads // WARP)

    @property
    def padded(self) -> int:
        """Lanes of a block."""
        return self.warps * WARP

    @property
    def lanes(self) -> int:
        return self.padded * len(self.blocks)

    def owner(self) -> Array:
        """Which block of the batch, counted from 0."""
        return np.repeat(np.arange(len(self.blocks)), self.padded)

    def thread(self) -> Array:
        """Linear number inside the block."""
        return np.tile(np.arange(self.padded), len(self.blocks))

    def exists(self) -> Array:
        """False for lanes that only fill a warp."""
        return self.thread() < self.threads

    def specials(self) -> dict[str, Array]:
        """Predefined registers (PTX ISA, "Special Registers"), by name, as unsigned numbers. There are no clusters."""
        t = self.thread()
        b = np.repeat(np.arange(self.blocks.start, self.blocks.stop), self.padded)
        lane = t % WARP
        one = np.uint64(1)
        bit = one << lane.astype(np.uint64)
        found: dict[str, Array] = {
            "%laneid": lane,
            "%warpid": t // WARP,
            "%lanemask_eq": bit,
            "%lanemask_lt": bit - one,
            "%lanemask_le": 2 * bit - one,
            "%lanemask_gt": (one << np.uint64(32)) - 2 * bit,
            "%lanemask_ge": (one << np.uint64(32)) - bit,
        }
        for j, axis in enumerate("xyz"):
            found[f"%tid.{axis}"] = t // math.prod(self.block[:j]) % self.block[j]
            found[f"%ctaid.{axis}"] = b // math.prod(self.grid[:j]) % self.grid[j]
            found[f"%clusterid.{axis}"] = found[f"%ctaid.{axis}"]
        same: dict[str, int] = {"%nwarpid": self.warps, "%smid": 0, "%nsmid": 1, "%gridid": 0, "%is_explicit_cluster": 0}
        same |= {"%cluster_ctarank": 0, "%cluster_nctarank": 1}
        for j, axis in enumerate("xyz"):
            same |= {f"%ntid.{axis}": self.block[j], f"%nctaid.{axis}": self.grid[j], f"%nclusterid.{axis}": self.grid[j]}
            same |= {f"%cluster_ctaid.{axis}": 0, f"%cluster_nctaid.{axis}": 1}
        return found | {name: np.broadcast_to(np.asarray(n), t.shape) for name, n in same.items()}

    def describe(self, lane: int) -> str:
        """`thread (3,0,0) of block (0,1,0)`."""
        inside, number = int(self.thread()[lane]), self.blocks[lane // self.padded]
        thread = ",".join(str(inside // math.prod(self.block[:j]) % self.block[j]) for j in range(3))
        block = ",".join(str(number // math.prod(self.grid[:j]) % self.grid[j]) for j in range(3))
        return f"thread ({thread}) of block ({block})"

    def defect(self, kind: str, why: str, i: Instruction, lane: int, address: int | None = None) -> Defect:
        """A finding of a check, about one lane at one instruction."""
        return Defect(kind, why, i.loc, instruction=i.text, thread=self.describe(int(lane)), address=address)

"""What a kernel costs, from its functions: operations, bytes, loops, tiles, and a bound on the time."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attngen.backends import Launches
from attngen.ir.core import Block
from attngen.ir.diagnostics import Remark
from attngen.ir.func import Func
from attngen.ir.loop import For, Parallel
from attngen.ir.pipeline import PASSES
from attngen.ir.types import ElementType, Extent, TensorType
from attngen.tile_map import TileMap, tile_maps

WIDTH = 100

CLOCK, VECTOR_BITS, UNITS, MEMORY = 3.0e9, 256, 2, 10.0e9
"""The machine that the estimate assumes: cycles per second, bits of a vector, vector units, bytes per second."""


DECLINED = "declined, "
"""How a remark begins that says what a pass left as it was."""

NOT_MEASURED = "not measured: an interpreter runs the kernels, which says nothing about a GPU"


@dataclass(frozen=True)
class Loop:
    """A loop of the final function. depth: how many loops are around it; carried: values it hands from trip to trip; limited:
    whether it runs only the parts between limits that are computed before it."""

    kind: str
    axis: str
    extent: Extent
    step: int
    carried: int
    depth: int
    limited: bool = False

    def __str__(self) -> str:
        carried = f", carries {self.carried} values" if self.kind == "for" else ""
        limits = " within limits" if self.limited else ""
        return f"{'  ' * self.depth}{self.kind} {self.axis}: 0 to {self.extent} step {self.step}{limits}{carried}"


@dataclass(frozen=True)
class Tile:
    """How long the parts of an axis are, and why."""

    axis: str
    step: int
    reason: str


@dataclass(frozen=True)
class Roofline:
    """The least time that operations and bytes need on a machine with this peak and this memory (Williams, Waterman and
    Patterson 2009): an estimate, under assumptions that are stated, not a measurement."""

    seconds: float
    limit: str
    intensity: float
    assumptions: str


@dataclass(frozen=True)
class Masked:
    """A loop that follows a mask. tiles: which parts of it are empty, full or mixed, at the largest extents; None where that
    is known only from the arrays `needs` (or, without any, from what the program computes). flops_left_out: of the empty
    ones."""

    axis: str
    tiles: TileMap | None
    needs: tuple[str, ...] = ()
    flops_left_out: int = 0

    def __str__(self) -> str:
        if self.tiles is not None:
            return f"{self.tiles}: {self.flops_left_out:,} flops"
        given = ", ".join(f"{name}=…" for name in self.needs)
        how = f"known when it is called; report({given}) counts them" if given else "known only while it runs"
        return f"which parts of {self.axis} are left out is {how}"


@dataclass(frozen=True)
class Report:
    """flops: of the program as written, at the largest extents. bytes_moved: inputs and outputs once. scratch_bytes: working
    memory of a thread, or of a block of threads on a GPU. temporary_bytes: whole tensors between nests of loops. layouts: what
    the backend's own passes say of their choices: which axis vectors run along, what is packed, and why. masks: what is left
    out of the loops. launches: the kernels of a GPU, what each is launched with and takes; emulated: an interpreter runs them.
    roofline: None for GPUs, whose peaks are not known here. seconds: what making the kernel took, by step; origin: whether it
    was compiled or kept."""

    name: str
    target: str
    flops: int
    bytes_moved: int
    scratch_bytes: int
    temporary_bytes: int
    loops: tuple[Loop, ...]
    tiles: tuple[Tile, ...]
    layouts: tuple[str, ...]
    masks: tuple[Masked, ...]
    launches: tuple[str, ...]
    emulated: bool
    roofline: Roofline | None
    seconds: Mapping[str, float]
    origin: str

    @property
    def needed(self) -> int:
        """flops without those that masks leave out."""
        return self.flops - max((m.flops_left_out for m in self.masks), default=0)

    def __str__(self) -> str:
        intensity = self.needed / self.bytes_moved if self.bytes_moved else 0.0
        declined = [text.removeprefix(DECLINED) for text in self.layouts if text.startswith(DECLINED)]
        layouts = [text for text in self.layouts if not text.startswith(DECLINED)]
        rows = [
            f"kernel     @{self.name} for {self.target}",
            f"made       {made_in(sum(self.seconds.values()), self.seconds, self.origin)}",
            f"flops      {self.flops:,}",
            f"bytes      {self.bytes_moved:,} of inputs and outputs",
            *([] if self.launches else [f"scratch    {self.scratch_bytes:,} bytes per thread"]),
            f"temporary  {self.temporary_bytes:,} bytes between loop nests",
            *(f"{'loops' if k == 0 else '':<11}{loop}" for k, loop in enumerate(self.loops)),
            *(f"{'tiles' if k == 0 else '':<11}{t.axis}={t.step}: {t.reason}" for k, t in enumerate(self.tiles)),
            *(f"{'layout' if k == 0 else '':<11}{text}" for k, text in enumerate(layouts)),
            *(f"{'declined' if k == 0 else '':<11}{text}" for k, text in enumerate(declined)),
            *(f"{'mask' if k == 0 else '':<11}{m}" for k, m in enumerate(self.masks)),
            *(f"{'kernels' if k == 0 else '':<11}{text}" for k, text in enumerate(self.launches)),
        ]
        if r := self.roofline:
            rows += [
                f"roofline   {r.seconds * 1e6:,.1f} us, limited by {r.limit}; {r.intensity:.1f} operations per byte",
                f"           assuming {r.assumptions}",
            ]
        else:
            rows.append(f"intensity  {intensity:.1f} operations per byte")
        if self.emulated:
            rows.append(f"speed      {NOT_MEASURED}")
        return "\n".join(
            line for row in rows for line in textwrap.wrap(row, WIDTH, subsequent_indent=" " * 11, drop_whitespace=True) or [""]
        )


def make_report(
    traced: Func,
    final: Func,
    *,
    target: str,
    scratch_bytes: int,
    temporary_bytes: int,
    device: Launches | None = None,
    bytes_moved: int,
    remarks: Sequence[Remark],
    own_passes: Collection[str] = (),
    masks: Sequence[Masked] = (),
    seconds: Mapping[str, float],
    origin: str,
) -> Report:
    flops = sum(op.flops for op in traced.body.ops)
    needed = flops - max((m.flops_left_out for m in masks), default=0)
    return Report(
        name=final.name,
        target=target,
        flops=flops,
        bytes_moved=bytes_moved,
        scratch_bytes=scratch_bytes,
        temporary_bytes=temporary_bytes,
        loops=tuple(loops_of(final.body, 0)),
        tiles=tuple(tiles_of(remarks)),
        layouts=tuple(dict.fromkeys(r.message for r in remarks if r.origin in own_passes)),
        masks=tuple(masks),
        launches=tuple(device.launches()) if device else (),
        emulated=device is not None and device.emulated,
        roofline=None if device else roofline(needed, bytes_moved, widest_float(traced)),
        seconds=seconds,
        origin=origin,
    )


def made_in(total: float, seconds: Mapping[str, float], origin: str) -> str:
    """`0.612 s: passes 0.041, Numba 0.390, …; compiled and kept`."""
    steps = ", ".join(f"{name} {spent:.3f}" for name, spent in seconds.items())
    return f"{total:.3f} s: {steps}; {origin}" if seconds else origin


def loops_of(block: Block, depth: int) -> Iterator[Loop]:
    for op in block.ops:
        inner = depth
        match op:
            case Parallel():
                for axis, extent, step in zip(op.axes, op.extents, op.steps, strict=True):
                    yield Loop("parallel", axis, extent, step, 0, inner)
                    inner += 1
            case For():
                yield Loop("for", op.axis, op.extent, op.step, len(op.inits), inner, bool(op.limits))
                inner += 1
            case _:
                pass
        for region in op.regions[:1]:
            yield from loops_of(region, inner)


def masks_of(traced: Func, stages: Mapping[str, Func], sources: Sequence[str], arrays: Mapping[str, Any]) -> Iterator[Masked]:
    """The masked loops, each kind once, from the function that `specialize-mask` was given. sources: which array each of its
    parameters reads, arrays: those that are at hand."""
    names = list(stages)
    if "specialize-mask" not in names[1:]:
        return
    seen: list[Masked] = []
    func = stages[names[names.index("specialize-mask") - 1]]
    read = {p.name: arrays[source] for p, source in zip(func.params, sources, strict=True) if source in arrays}
    for axis, found in tile_maps(func, read):
        if isinstance(found, TileMap):
            left_out, axes = 0, {a.name for a in found.axes}
            for op in traced.body.ops:
                if axes <= {n for v in op.operands for n in v.names}:
                    left_out += op.flops * found.pairs_left_out // found.pairs
            new = Masked(axis, found, (), left_out)
        else:
            named = {p.name: source for p, source in zip(func.params, sources, strict=True)}
            new = Masked(axis, None, tuple(dict.fromkeys(named[name] for name in found.names)))
        if new not in seen:
            seen.append(new)
            yield new


def tiles_of(remarks: Sequence[Remark]) -> Iterator[Tile]:
    """The tile sizes, as the pass that chose them tells."""
    for remark in remarks:
        if (
            remark.origin in PASSES
            and PASSES[remark.origin].takes_axes
            and (found := re.fullmatch(r"(\w+): parts of (\d+) of \S+; (.*)", remark.message, re.DOTALL))
        ):
            yield Tile(found[1], int(found[2]), found[3])


def widest_float(func: Func) -> ElementType:
    values = (v.type for op in func.body.ops for v in op.results)
    floats = [t.element for t in values if isinstance(t, TensorType) and t.element.is_float]
    return max(floats, key=lambda e: e.bytes, default=ElementType.F32)


def roofline(flops: int, moved: int, element: ElementType) -> Roofline:
    lanes = VECTOR_BITS // (8 * max(element.bytes, 4))
    peak = CLOCK * UNITS * lanes * 2
    compute, memory = flops / peak, moved / MEMORY
    return Roofline(
        seconds=max(compute, memory),
        limit="arithmetic" if compute >= memory else "memory",
        intensity=flops / moved if moved else 0.0,
        assumptions=(
            f"one core at {CLOCK / 1e9:g} GHz with {UNITS} units for {VECTOR_BITS}-bit fused multiply-adds "
            f"({peak / 1e9:g} GFLOP/s), {MEMORY / 1e9:g} GB/s of memory, every byte moved once"
        ),
    )

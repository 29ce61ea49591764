"""What the kernels of a program are launched with and made of, in words for people."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from attngen.backends.cuda.program import Entry, Program
from attngen.backends.cuda.runtime.kernels import Kernels
from attngen.ir.diagnostics import Error
from attngen.ir.types import UpTo

TENSOR_CORES = re.compile(r"\b(?:wgmma\.mma_async|mma\.sync)[\w.]*")


def described(kernels: Kernels) -> Sequence[str]:
    """Each kernel. What only PTX shows is left out where it would have to be made again, of a kernel kept on disk."""
    program = kernels.program
    found = [[f"{entry.name}: {launched(entry, program)}"] for entry in program.entries]
    if kernels.has_ptx:
        for lines, taken in zip(found, resources(kernels), strict=False):
            lines.append(taken)
        for lines, text in zip(found, kernels.ptx, strict=True):
            lines.append(instructions(text))
    return [line for lines in found for line in lines]


def launched(entry: Entry, program: Program) -> str:
    """`at most 96 blocks (b=2 h=12 i=128) of 128 threads, 49,152 bytes of shared memory each`: at the largest extents."""
    blocks, parts = entry.blocks(program.extents), entry.parts(program.extents)
    most = "at most " if any(isinstance(part.extent, UpTo) for part in entry.grid) else ""
    grid = " ".join(f"{part.axis}={part.step}" for part in entry.grid)
    words = f"{most}{blocks:,} block{'s' * (blocks != 1)}{f' ({grid})' * bool(grid)} of {entry.threads} threads"
    words += f", {entry.shared_bytes:,} bytes of shared memory each" if entry.shared_bytes else ", no shared memory"
    return words + (f"; they share {parts:,} parts" if parts > blocks else "")


def resources(kernels: Kernels) -> list[str]:
    """Registers and spills of each kernel; nothing if there is no assembler that tells."""
    from attngen.backends.cuda.toolchain.reports import assembled

    program = kernels.program
    try:
        usage = assembled(kernels.ptx, program.target).usage
    except Error:
        return []
    found = [usage[entry.name] for entry in program.entries]
    return [f"{u.registers} registers of each thread, {u.spill_stores + u.spill_loads} bytes spilled" for u in found]


def instructions(text: str) -> str:
    """Those of the tensor cores, and how often they are written in the PTX."""
    found = Counter(TENSOR_CORES.findall(text))
    return ", ".join(f"{name} in {n} places" for name, n in found.items()) or "no instruction of the tensor cores"

"""What the kernels of a program are launched with and made of, in words for people."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from attngen.backends.cuda.kernels import Kernels
from attngen.backends.cuda.program import Entry, Program
from attngen.ir.diagnostics import Error
from attngen.ir.types import UpTo

TENSOR_CORES = re.compile(r"\b(?:wgmma\.mma_async|mma\.sync)[\w.]*")


def described(kernels: Kernels) -> Sequence[str]:
    """Each kernel. What only PTX shows is left out where it would have to be made again, of a kernel kept on disk."""
    texts = kernels.__dict__.get("ptx")
    taken = resources(kernels, texts) if texts else [""] * len(kernels.program.entries)
    lines: list[str] = []
    for k, (entry, registers) in enumerate(zip(kernels.program.entries, taken, strict=True)):
        lines.append(f"{entry.name}: {launched(entry, kernels.program)}")
        lines += [registers] * bool(registers)
        lines += [instructions(texts[k])] * bool(texts)
    return lines


def launched(entry: Entry, program: Program) -> str:
    """`at most 96 blocks (b=2 h=12 i=128) of 128 threads, 49,152 bytes of shared memory each`: at the largest extents."""
    blocks, parts = entry.blocks(program.extents), entry.parts(program.extents)
    most = "at most " if any(isinstance(part.extent, UpTo) for part in entry.grid) else ""
    grid = " ".join(f"{part.axis}={part.step}" for part in entry.grid)
    words = f"{most}{blocks:,} block{'s' * (blocks != 1)}{f' ({grid})' * bool(grid)} of {entry.threads} threads"
    words += f", {entry.shared_bytes:,} bytes of shared memory each" if entry.shared_bytes else ", no shared memory"
    return words + (f"; they share {parts:,} parts" if parts > blocks else "")


def resources(kernels: Kernels, texts: Sequence[str]) -> list[str]:
    """Registers and spills of each kernel, if there is an assembler that tells."""
    from attngen.backends.cuda.reports import assembled

    program = kernels.program
    try:
        usage = assembled(texts, program.target).usage
    except Error:
        return [""] * len(texts)
    found = [usage[entry.name] for entry in program.entries]
    return [f"{u.registers} registers of each thread, {u.spill_stores + u.spill_loads} bytes spilled" for u in found]


def instructions(text: str) -> str:
    """Those of the tensor cores, and how often they are written in the PTX."""
    found = Counter(TENSOR_CORES.findall(text))
    return ", ".join(f"{name} in {n} places" for name, n in found.items()) or "no instruction of the tensor cores"

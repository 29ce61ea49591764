"""All opcodes that the interpreter knows; importing this registers their decoders."""

from __future__ import annotations

from importlib import import_module

from attngen.backends.cuda.ptx.decode import CONTROL, DECODERS, Decoded, Decoder
from attngen.backends.cuda.ptx.machine import Machine

FAMILIES = (
    "arithmetic",
    "atomics",
    "barriers",
    "compare",
    "control",
    "convert",
    "cp",
    "integers",
    "logic",
    "matrix",
    "mbarrier_ops",
    "moves",
    "warp",
    "wgmma",
)
for family in FAMILIES:
    import_module(f"attngen.backends.cuda.ptx.{family}")
INSTRUCTIONS = tuple(sorted({name.partition(".")[0] for name in (*DECODERS, *CONTROL)} | {"call"}))


def decode(machine: Machine, index: int) -> Decoded:
    """The effect of one instruction of the machine's program, or `Unsupported`."""
    return Decoder(machine, index).decode()

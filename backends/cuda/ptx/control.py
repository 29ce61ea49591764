"""Where lanes go next (PTX ISA, "Control Flow Instructions"). Calls were inlined before."""

from __future__ import annotations

import numpy as np

from attngen.backends.cuda.ptx.decode import Decoder, Effect, Taken, control, instruction
from attngen.backends.cuda.ptx.errors import PtxError
from attngen.backends.cuda.ptx.syntax import Symbol
from attngen.backends.cuda.ptx.types import U32, Array


@control("bra")
def bra(d: Decoder) -> Taken:
    """`bra{.uni} label`."""
    d.modifiers.drop("uni")
    label = d.operand(0)
    if not isinstance(label, Symbol):
        raise d.modifiers.refused("the target")
    target, pc = d.machine.program.target(d.i, label.name), d.machine.pc

    def taken(lanes: Array) -> None:
        pc[lanes] = target

    return taken


@control("brx")
def brx(d: Decoder) -> Taken:
    """`brx.idx index, table`: a jump through a `.branchtargets` table."""
    d.modifiers.drop("idx", "uni")
    index, table = d.read(0, U32), d.operand(1)
    m = d.machine
    if not isinstance(table, Symbol) or table.name not in m.program.tables:
        raise PtxError(f"{d.i.name}: there is no such table of branch targets", d.i.loc)
    targets = np.array([m.program.target(d.i, name) for name in m.program.tables[table.name]])

    def taken(lanes: Array) -> None:
        chosen = index[lanes]
        if (chosen >= targets.size).any():
            lane = int(np.flatnonzero(lanes)[np.flatnonzero(chosen >= targets.size)[0]])
            raise m.layout.defect("bounds", f"the index is beyond the {targets.size} targets of the table", d.i, lane)
        m.pc[lanes] = targets[chosen]

    return taken


@control("ret", "exit")
def leave(d: Decoder) -> Taken:
    """The end of a thread; `ret` of an inlined function is a jump already."""
    d.modifiers.drop("uni")
    return d.machine.exit


@control("trap")
def trap(d: Decoder) -> Taken:
    """`trap`: the program gave up."""
    m = d.machine

    def taken(lanes: Array) -> None:
        raise m.layout.defect("trap", "the program ran into a trap", d.i, int(np.flatnonzero(lanes)[0]))

    return taken


@instruction("nanosleep", "pmevent", "brkpt")
def nothing(d: Decoder) -> Effect:
    """Instructions that only take time."""
    d.modifiers.drop("u32")
    return lambda: None

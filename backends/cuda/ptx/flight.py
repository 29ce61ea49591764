"""Which registers `wgmma` still uses (PTX ISA, "Async Proxy", wgmma.fence, wgmma.wait_group).

Results are computed when the instruction is issued; what is kept here is what a program must not touch before its wait, and
which registers it touched without a `wgmma.fence` after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from attngen.backends.cuda.ptx.layout import WARP
from attngen.backends.cuda.ptx.machine import Machine
from attngen.backends.cuda.ptx.syntax import Instruction, Memory, Not, Operand, Pair, Register, Vector
from attngen.backends.cuda.ptx.types import Array

NO_RESULT = {"st", "red", "bra", "brx", "bar", "barrier", "cp", "mbarrier", "stmatrix", "prefetch"}
"""Opcodes whose first operand is no result."""


@dataclass(frozen=True)
class Flight:
    """A `wgmma` of one warp: its accumulators, its a fragments, its group."""

    accumulators: frozenset[str]
    sources: frozenset[str]
    shape: str
    group: int


class Flights:
    def __init__(self, machine: Machine) -> None:
        self.m = machine
        self.under_way: dict[int, list[Flight]] = {}
        self.committed = np.zeros(machine.layout.lanes // WARP, np.int64)
        operands = [o for i in machine.program.code if i.name.startswith("wgmma.mma_async") for o in i.operands[:2]]
        self.watched = names(operands)
        # Registers touched since the last wgmma.fence, per warp; the first wgmma needs a fence whatever was touched.
        self.unfenced: dict[str, Array] = {name: np.ones(self.committed.size, bool) for name in self.watched}

    def watch(self, i: Instruction, effect: Callable[[], None]) -> Callable[[], None]:
        """An ordinary instruction that touches registers of some `wgmma`: with a check before it."""
        results = names(i.operands[:1]) & self.watched if i.opcode not in NO_RESULT else frozenset[str]()
        touched = names((*i.operands, *(() if i.guard is None else (i.guard,)))) & self.watched
        if not touched or i.opcode == "wgmma":
            return effect

        def checked() -> None:
            warps = self.m.warps()
            for warp in warps if self.under_way else ():
                for flight in self.under_way.get(int(warp), ()):
                    used = (touched & flight.accumulators) | (results & flight.sources)
                    if used:
                        self.report(i, used, int(warp))
            effect()
            for name in touched:
                self.unfenced[name][warps] = True

        return checked

    def report(self, i: Instruction, used: Iterable[str], warp: int) -> None:
        lane = warp * WARP + int(np.flatnonzero(self.m.active[warp * WARP : (warp + 1) * WARP])[0])
        why = f"wgmma still uses register {min(used).partition('#')[0]}: it has not been waited for"
        raise self.m.layout.defect("async", why, i, lane)

    def fence(self) -> None:
        warps = self.m.warps()
        for held in self.unfenced.values():
            held[warps] = False

    def issue(self, i: Instruction, warps: Array, flight: Callable[[int], Flight]) -> None:
        """A `wgmma` of these warps. Accumulators of an earlier one of the same shape may be used again without a wait."""
        for warp in map(int, warps):
            new = flight(int(self.committed[warp]))
            for name in new.accumulators | new.sources:
                if self.unfenced[name][warp]:
                    why = f"register {name.partition('#')[0]} is used by other instructions with no wgmma.fence after them"
                    raise self.m.layout.defect("async", why, i, warp * WARP)
            for old in self.under_way.get(warp, ()):
                used = new.sources & old.accumulators | new.accumulators & old.sources
                if old.accumulators != new.accumulators or old.shape != new.shape:
                    used |= new.accumulators & old.accumulators
                if used:
                    self.report(i, used, warp)
            self.under_way.setdefault(warp, []).append(new)

    def commit(self) -> None:
        self.committed[self.m.warps()] += 1

    def wait(self, kept: int) -> None:
        """All but the `kept` newest groups are done."""
        shadow = self.m.shadow
        for warp in map(int, self.m.warps()):
            flights = self.under_way.get(warp, [])
            self.under_way[warp] = [f for f in flights if f.group >= self.committed[warp] - kept]
            if shadow is not None:
                shadow.end_group(np.arange(warp * WARP, (warp + 1) * WARP), int(self.committed[warp]) - kept)


def names(operands: Iterable[Operand]) -> frozenset[str]:
    """All registers in operands."""
    found: set[str] = set()
    for o in operands:
        match o:
            case Register(name):
                found.add(name)
            case Vector(items):
                found |= names(items)
            case Pair(first, second):
                found |= names((first, second))
            case Not(operand):
                found |= names((operand,))
            case Memory(base, _, coordinates):
                found |= names((base,) if coordinates is None else (base, coordinates))
            case _:
                pass
    return frozenset(found)

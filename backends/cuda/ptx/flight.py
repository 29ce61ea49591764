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
        # For each warpgroup: numbers of groups, and how far its warps had come when they issued a product of it.
        self.issued: dict[int, list[tuple[int, Array]]] = {}
        operands = [o for i in machine.program.code if i.name.startswith("wgmma.mma_async") for o in i.operands[:2]]
        self.watched = names(operands)
        # Which instructions have touched registers since the last wgmma.fence, per warp. Number 0 stands for what came before
        # the program: the first wgmma needs a fence whatever was touched.
        self.unfenced: Array = np.ones((1, self.committed.size), bool)
        self.touching: dict[str, list[int]] = {name: [0] for name in self.watched}
        self.numbers: dict[frozenset[str], Array] = {}
        self.flying: Array = np.zeros(self.committed.size, bool)
        """Warps with an entry in `under_way`."""

    def watch(self, i: Instruction, effect: Callable[[], None]) -> Callable[[], None]:
        """An ordinary instruction that touches registers of some `wgmma`: with a check before it."""
        results = names(i.operands[:1]) & self.watched if i.opcode not in NO_RESULT else frozenset[str]()
        touched = names((*i.operands, *(() if i.guard is None else (i.guard,)))) & self.watched
        if not touched or i.opcode == "wgmma":
            return effect
        number = len(self.unfenced)
        self.unfenced = np.concatenate([self.unfenced, np.zeros((1, self.committed.size), bool)])
        for name in touched:
            self.touching[name].append(number)

        def checked() -> None:
            active = self.m.active.reshape(-1, WARP).any(axis=1)
            concerned = active & self.flying
            if concerned.any():
                for warp in map(int, np.flatnonzero(concerned)):
                    for flight in self.under_way[warp]:
                        used = (touched & flight.accumulators) | (results & flight.sources)
                        if used:
                            self.report(i, used, warp)
            effect()
            self.unfenced[number] |= active

        return checked

    def report(self, i: Instruction, used: Iterable[str], warp: int) -> None:
        lane = warp * WARP + int(np.flatnonzero(self.m.active[warp * WARP : (warp + 1) * WARP])[0])
        why = f"wgmma still uses register {min(used).partition('#')[0]}: it has not been waited for"
        raise self.m.layout.defect("async", why, i, lane)

    def fence(self) -> None:
        self.unfenced[:, self.m.warps()] = False

    def issue(self, i: Instruction, warps: Array, flight: Callable[[int], Flight]) -> None:
        """A `wgmma` of these warps. Accumulators of an earlier one of the same shape may be used again without a wait."""
        if self.m.shadow is not None:
            lanes = np.arange(int(warps[0]) * WARP, (int(warps[-1]) + 1) * WARP)
            number = int(self.committed[warps[0]])
            held = self.issued.setdefault(int(warps[0]) // 4, [])
            held[:] = [x for x in held if x[0] != number][-8:] + [(number, self.m.shadow.passed(lanes))]
        for warp in map(int, warps):
            new = flight(int(self.committed[warp]))
            registers = new.accumulators | new.sources
            if self.unfenced[self.touched_by(registers), warp].any():
                name = next(n for n in sorted(registers) if self.unfenced[self.touching[n], warp].any())
                why = f"register {name.partition('#')[0]} is used by other instructions with no wgmma.fence after them"
                raise self.m.layout.defect("async", why, i, warp * WARP)
            for old in self.under_way.get(warp, ()):
                used = new.sources & old.accumulators | new.accumulators & old.sources
                if old.accumulators != new.accumulators or old.shape != new.shape:
                    used |= new.accumulators & old.accumulators
                if used:
                    self.report(i, used, warp)
            self.under_way.setdefault(warp, []).append(new)
            self.flying[warp] = True

    def touched_by(self, registers: frozenset[str]) -> Array:
        """Numbers of the instructions that touch these registers."""
        if registers not in self.numbers:
            self.numbers[registers] = np.array(sorted(set[int]().union(*(self.touching[n] for n in registers))))
        return self.numbers[registers]

    def commit(self) -> None:
        self.committed[self.m.warps()] += 1

    def wait(self, kept: int) -> None:
        """All but the `kept` newest groups are done."""
        shadow = self.m.shadow
        for warp in map(int, self.m.warps()):
            flights = self.under_way.get(warp, [])
            left = [f for f in flights if f.group >= self.committed[warp] - kept]
            if left:
                self.under_way[warp] = left
            else:
                self.under_way.pop(warp, None)
                self.flying[warp] = False
            if shadow is not None:
                lanes, done = np.arange(warp * WARP, (warp + 1) * WARP), int(self.committed[warp]) - kept
                shadow.end_group(lanes, done)
                for number, row in self.issued.get(warp // 4, ()):
                    if number < done:
                        shadow.pass_on(lanes, row)


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

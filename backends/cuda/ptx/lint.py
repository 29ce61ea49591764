"""Checks of PTX text that need no run: what the interpreter would refuse, and what fast kernels should not hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from attngen.backends.cuda.ptx.errors import PtxError, Unsupported
from attngen.backends.cuda.ptx.instructions import decode
from attngen.backends.cuda.ptx.launch import build
from attngen.backends.cuda.ptx.layout import Layout
from attngen.backends.cuda.ptx.machine import Machine
from attngen.backends.cuda.ptx.memory import Global
from attngen.backends.cuda.ptx.parser import parse
from attngen.backends.cuda.ptx.program import Program, link
from attngen.backends.cuda.ptx.syntax import Instruction, Memory, Symbol
from attngen.ir.diagnostics import Loc


@dataclass(frozen=True)
class Finding:
    """rule: unknown, f64 or local."""

    rule: str
    message: str
    loc: Loc

    def __str__(self) -> str:
        return f"{self.loc}: {self.rule}: {self.message}"


@dataclass(frozen=True)
class Facts:
    """What an entry declares. registers: virtual ones by width in bits (1 for predicates); shared: static bytes."""

    entry: str
    instructions: int
    registers: dict[int, int]
    shared: int
    local: int
    directives: dict[str, tuple[int, ...]]


def lint(ptx: str, file: str = "<ptx>") -> tuple[list[Finding], list[Facts]]:
    """Findings in all entries in the order of their lines, and the facts of each entry."""
    module = parse(ptx, file)
    found: dict[Finding, None] = {}
    facts: list[Facts] = []
    for entry in module.entries():
        try:
            program = link(module, entry.name)
        except Unsupported as e:
            found[Finding("unknown", e.message, e.loc)] = None
            continue
        found |= dict.fromkeys(findings(program))
        counts = Counter(t.bits for t in program.registers.values())
        sizes = program.sizes
        facts.append(
            Facts(
                entry.name, len(program.code), dict(sorted(counts.items())), sizes["shared"], sizes["local"], entry.directives
            )
        )
    return sorted(found, key=lambda x: (x.loc.line, x.rule)), facts


def findings(program: Program) -> Iterator[Finding]:
    machine = bare(program)
    for j, i in enumerate(program.code):
        try:
            decode(machine, j)
        except PtxError as e:
            yield Finding("unknown", e.message.splitlines()[0], i.loc)
        if "f64" in i.modifiers:
            yield Finding("f64", f"{i.name} works in double precision", i.loc)
        if "local" in i.modifiers or any(is_local(program, i, n) for n in range(len(i.operands))):
            yield Finding("local", f"{i.name} uses local memory, which lies in device memory", i.loc)


def is_local(program: Program, i: Instruction, n: int) -> bool:
    """Whether an operand is a variable in local memory; parameters of functions do not count."""
    operand = i.operands[n]
    base = operand.base if isinstance(operand, Memory) else operand
    place = program.places.get(base.name) if isinstance(base, Symbol) else None
    return place is not None and place.variable.space == "local"


def bare(program: Program) -> Machine:
    """A machine of one warpgroup, to decode for."""
    heap, layout = Global(), Layout((1, 1, 1), (128, 1, 1), range(1))
    addresses = {name: 0 for name, place in program.places.items() if place.space == "global"}
    return build(program, layout, program.sizes["shared"], np.zeros(16, np.uint8), heap, heap.freeze(), addresses, False)

"""What became of kernels, for tests and tables: registers and spilled bytes, instructions of the machine, and what fast PTX
must not hold."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attngen.backends.cuda.target import Target
from attngen.backends.cuda.toolchain.assembler import assemble
from attngen.backends.cuda.toolchain.tools import memory_file, path, places, run
from attngen.ir.diagnostics import Error

DISASSEMBLER, PACKAGE = "nvdisasm", "nvidia-cuda-nvdisasm"


@dataclass(frozen=True)
class Usage:
    """What one kernel takes of a multiprocessor. stack, spill_stores, spill_loads: bytes of a thread that lie in device memory;
    shared: bytes of static shared memory, from Hopper on with the 1024 that belong to the system where there are any."""

    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    barriers: int
    shared: int


@dataclass(frozen=True)
class Assembled:
    """usage: by kernel; complaints: what the assembler says it could not do as was asked for, which makes kernels slow."""

    cubin: bytes
    usage: Mapping[str, Usage]
    complaints: tuple[str, ...]


def assembled(texts: Sequence[str], target: Target) -> Assembled:
    cubin, said = assemble(texts, target)
    found: dict[str, Usage] = {}
    for part in said.split("Compiling entry function ")[1:]:
        name, _, rest = part[1:].partition("'")
        found[name] = Usage(
            registers=number(rest, r"Used (\d+) registers"),
            stack=number(rest, r"(\d+) bytes stack frame"),
            spill_stores=number(rest, r"(\d+) bytes spill stores"),
            spill_loads=number(rest, r"(\d+) bytes spill loads"),
            barriers=number(rest, r"used (\d+) barriers", none=0),
            shared=number(rest, r"(\d+) bytes smem", none=0),
        )
    return Assembled(cubin, found, complaints(said))


def complaints(said: str) -> tuple[str, ...]:
    """The warnings of ptxas, and its notes on performance, which have numbers such as C7508."""
    return tuple(line for line in said.splitlines() if re.match(r"ptxas (warning|info\s*: \(C\d+\))", line))


def number(said: str, pattern: str, none: int | None = None) -> int:
    """The first one there. none: what it is if it is not said."""
    match = re.search(pattern, said)
    if match is None and none is not None:
        return none
    assert match is not None, f"ptxas says nothing like {pattern}: {said}"
    return int(match[1])


def instructions(cubin: bytes) -> Mapping[str, Counter[str]]:
    """How often each instruction is there, without its modifiers (`HMMA`, `HGMMA`, `LDSM`, `LDGSTS`, `BAR`), by kernel."""
    found: dict[str, Counter[str]] = {}
    name = ""
    for line in disassembly(cubin).splitlines():
        if section := re.match(r"\s*\.section\s+\.text\.([\w$]+)", line):
            name = section[1]
            found[name] = Counter()
        elif instruction := re.match(r"\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+ )?([A-Z][A-Z0-9_]*)", line):
            found[name][instruction[1]] += 1
    return found


def disassembly(cubin: bytes) -> str:
    """The text that NVIDIA's nvdisasm makes of a cubin."""
    program = disassembler()
    with memory_file(cubin) as file:
        done = run([program, "-c", path(file)], file)
    if done.returncode:
        raise Error(f"{program}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def disassembler() -> str:
    for program in places(DISASSEMBLER):
        return program
    raise Error(f"there is no {DISASSEMBLER}, which lists the instructions of a cubin; pip install {PACKAGE}")


FORBIDDEN: Mapping[str, str] = {
    "local": r"\.local\b",
    "f64": r"\.f64\b",
    "call": r"\bcall(\.uni)?\s",
}
"""What makes a kernel slow, and how PTX spells it: local memory (of the threads, but it lies in device memory), arithmetic in
double precision, calls of functions."""


def forbidden(text: str, allow: Sequence[str] = ()) -> list[str]:
    """The lines of PTX that hold something of `FORBIDDEN`, each with its number and the word for it. allow: words to pass."""
    found: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        code = line.partition("//")[0]
        words = [word for word, spelt in FORBIDDEN.items() if word not in allow and re.search(spelt, code)]
        found += [f"line {number}: {word}: {code.strip()}" for word in words]
    return found

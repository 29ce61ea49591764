"""What became of kernels, for tests and tables: registers and spilled bytes, instructions of the machine, and what fast PTX
must not hold."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from attngen.backends.cuda.target import Target
from attngen.backends.cuda.toolchain import assemble
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


def usage(texts: str | Sequence[str], target: Target) -> Mapping[str, Usage]:
    """By kernel, as the assembler inside nvJitLink says it; no further program is needed."""
    _, log = assemble(texts, target, "-verbose")
    found: dict[str, Usage] = {}
    # First the assembler speaks, of each kernel, and then the linker.
    for name in re.findall(r"Compiling entry function '([\w$]+)'", log):
        assembled, linked = (
            re.split(rf"Function properties for {quoted}:?\n", log)[1] for quoted in (re.escape(name), f"'{re.escape(name)}'")
        )
        found[name] = Usage(
            registers=number(linked, r"used (\d+) registers"),
            stack=number(assembled, r"(\d+) bytes stack frame"),
            spill_stores=number(assembled, r"(\d+) bytes spill stores"),
            spill_loads=number(assembled, r"(\d+) bytes spill loads"),
            barriers=number(linked, r"used (\d+) barriers"),
            shared=number(linked, r"(\d+) bytes smem"),
        )
    return found


def number(log: str, pattern: str) -> int:
    """The first one there."""
    match = re.search(pattern, log)
    assert match is not None, f"nvJitLink says nothing like {pattern}: {log}"
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
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([program, "-c", file.name], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Error(f"{program}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def disassembler() -> str:
    """Where it is: beside the libraries that pip installed, or on the path."""
    package = find_spec("nvidia.cu13") if find_spec("nvidia") else None
    folders = list(package.submodule_search_locations or ()) if package else []
    places = [str(Path(folder, "bin", DISASSEMBLER)) for folder in folders]
    found = next(filter(None, map(shutil.which, [*places, DISASSEMBLER])), None)
    if found is None:
        raise Error(f"there is no {DISASSEMBLER}, which lists the instructions of a cubin; pip install {PACKAGE}")
    return found


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

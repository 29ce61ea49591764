"""From PTX to machine code (a cubin), by NVIDIA's ptxas.

Not by nvJitLink, a library that does the same for code that other code is to be linked with: there, a kernel cannot move
registers between its warpgroups, and has too few for its products.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from attngen.backends import Unsupported
from attngen.backends.cuda.target import Target
from attngen.backends.cuda.toolchain.compiler import INSTALL, missing, module
from attngen.backends.cuda.toolchain.tools import memory_file, path, places, run

PROGRAM = "ptxas"
RELEASE = 13
"""Of CUDA, the only one that is known to read this PTX and whose code drivers from 580 on can load."""


def cubin(texts: Sequence[str], target: Target) -> bytes:
    """One cubin of one or more PTX modules, whose kernels have names of their own."""
    return assemble(texts, target)[0]


def assemble(texts: Sequence[str], target: Target) -> tuple[bytes, str]:
    """The cubin and what ptxas says of each kernel."""
    program = ptxas()
    with memory_file(module(texts).encode()) as source, memory_file() as made:
        done = run([program, "-v", f"-arch={target.name}", path(source), "-o", path(made)], source, made)
        said = done.stderr.replace(f"ptxas {path(source)}, ", "")
        if not done.returncode:
            return made.read(), said
    why = f"signal {-done.returncode} ended it" if done.returncode < 0 else f"exit code {done.returncode}"
    raise Unsupported(
        "backend cuda",
        f"{program} cannot make code for {target.name} of this PTX",
        notes=said.strip().splitlines() or [why],
        help=INSTALL if ".version" in said else "look at kernel.stages['ptx'], or compile for another target",
    )


@cache
def ptxas() -> str:
    """Where it is: the first one that is of the release of CUDA that PTX is made by."""
    others: list[str] = []
    for program in places(PROGRAM):
        release = release_of(program)
        if re.match(rf"{RELEASE}\.", release):
            return program
        others.append(f"{program} is {release}")
    if others:
        raise missing(f"there is no {PROGRAM} of CUDA {RELEASE}: {', '.join(others)}")
    raise missing(f"there is no {PROGRAM}, which makes machine code")


def release_of(program: str) -> str:
    """`13.0`, or what is wrong."""
    try:
        said = run([program, "--version"]).stdout
    except OSError as e:
        return f"not to be run: {e.strerror}"
    found = re.search(r"release (\S+?),", said)
    return found[1] if found else "of no known release"

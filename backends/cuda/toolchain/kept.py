"""Built programs on disk: their machine code (PTX where kernels run in the interpreter), and what launching them needs. Reading
them back needs neither Numba nor the compilers of CUDA."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from attngen.backends import Saved
from attngen.backends.cuda.program import Program
from attngen.backends.cuda.target import Target, find
from attngen.backends.cuda.toolchain import facts
from attngen.ir.func import Func

ASSEMBLER = "nvidia-cuda-nvcc"
PACKAGES = (
    *("numba", "llvmlite", "numba-cuda", "cuda-bindings"),
    *("nvidia-nvvm", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime", ASSEMBLER),
)
"""What makes the code."""

ELF = b"\x7fELF"


@dataclass(frozen=True)
class Restored:
    """A program whose entries have no text, and its code: a cubin, or where it is emulated the PTX of each entry."""

    program: Program
    cubin: bytes = b""
    ptx: tuple[str, ...] = ()


def save(program: Program, *, cubin: bytes = b"", ptx: Sequence[str] = ()) -> Saved:
    """Of cubin and PTX, what this target runs."""
    code = json.dumps(list(ptx)).encode() if program.target.emulated else cubin
    return Saved(code, facts.written(program))


def restore(func: Func, target: Target, saved: Saved, again: Callable[[], Program]) -> Restored:
    """func: any function of the same signature; again: makes the whole program, asked for where its version without tensor maps
    is needed. Raises LookupError, TypeError or ValueError if it is not what `save` makes."""

    def otherwise() -> Program:
        make = again().otherwise
        assert make is not None
        return make()

    program = facts.read(saved.facts, func, target, otherwise)
    if not target.emulated:
        if not saved.code.startswith(ELF):
            raise ValueError("the code is no cubin")
        return Restored(program, cubin=saved.code)
    ptx = tuple(facts.exact(str, text) for text in facts.items(json.loads(saved.code)))
    if len(ptx) != len(program.entries):
        raise ValueError(f"there are {len(program.entries)} kernels, and PTX of {len(ptx)}")
    return Restored(program, ptx=ptx)


def fingerprint(variant: str) -> Mapping[str, str]:
    """What code depends on besides the program: the target, and the versions of what compiles for it."""
    settings = {key: value for key, value in os.environ.items() if key.startswith("NUMBA_")}
    return {"target": repr(find(variant)), **versions(), **assemblers(), **dict(sorted(settings.items()))}


@cache
def assemblers() -> Mapping[str, str]:
    """Those that pip did not install, and so has no version of."""
    if versions()[ASSEMBLER] != "none":
        return {}
    from attngen.backends.cuda.toolchain.tools import places

    found = {place: os.stat(place) for place in places("ptxas")}
    return {place: f"{stat.st_size} bytes of {stat.st_mtime_ns}" for place, stat in found.items()}


@cache
def versions() -> Mapping[str, str]:
    metadata = import_module("importlib.metadata")

    def version(package: str) -> str:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return "none"

    python = f"{platform.python_implementation()} {sys.version_info[:2]}"
    return {"python": python, **{package: version(package) for package in PACKAGES}}

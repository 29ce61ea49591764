"""What the object code of a kernel depends on, and what of its program a call needs: both as JSON can hold them."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import llvmlite as untyped_llvmlite  # pyright: ignore[reportMissingTypeStubs]
import llvmlite.binding as untyped  # pyright: ignore[reportMissingTypeStubs]

from attngen.backends.cpu.source import Nest, Program, Split
from attngen.backends.cpu.target import find
from attngen.ir.types import UpTo

llvmlite: Any = untyped_llvmlite
llvm: Any = untyped


@dataclass(frozen=True)
class Facts:
    """What a call needs to know of a program; the fields are those of `Program`. entry: the name of the function in the object
    code; lookups: how many flags there are for coordinates that lie outside of a table."""

    entry: str
    scratch_bytes: int
    temporary_bytes: int
    extents: Mapping[str, int]
    nests: tuple[Nest, ...]
    lookups: int

    @staticmethod
    def of(program: Program, entry: str) -> Facts:
        memory = program.scratch_bytes, program.temporary_bytes
        return Facts(entry, *memory, program.extents, program.nests, len(program.lookups))

    def json(self) -> Mapping[str, Any]:
        nests = [
            {"flops": nest.flops, "splits": [[s.axis, written(s.extent), s.step] for s in nest.splits]} for nest in self.nests
        ]
        return {**vars(self), "extents": dict(self.extents), "nests": nests}

    @staticmethod
    def read(json: Mapping[str, Any]) -> Facts:
        """Raises LookupError, TypeError or ValueError if it is not what `json` makes."""

        def nest(flops: int, splits: list[Any]) -> Nest:
            return Nest(tuple(Split(axis, read_extent(extent), step) for axis, extent, step in splits), flops)

        given: dict[str, Any] = {**json, "nests": tuple(nest(**each) for each in json["nests"])}
        return Facts(**given)


def written(extent: int | UpTo) -> int | list[int]:
    return [extent.bound] if isinstance(extent, UpTo) else extent


def read_extent(json: int | list[int]) -> int | UpTo:
    return json if isinstance(json, int) else UpTo(*json)


def fingerprint(name: str) -> Mapping[str, str]:
    """The target and what compiles for it."""
    settings = {key: value for key, value in os.environ.items() if key.startswith("NUMBA_")}
    return {"target": repr(find(name)), **host(), **dict(sorted(settings.items()))}


@cache
def host() -> Mapping[str, str]:
    """The processor as LLVM finds it, and the versions of what makes code for it."""
    return {
        "triple": llvm.get_process_triple(),
        "processor": llvm.get_host_cpu_name(),
        "features": llvm.get_host_cpu_features().flatten(),
        "python": f"{platform.python_implementation()} {sys.version_info[:2]}",
        "llvmlite": llvmlite.__version__,
        "LLVM": ".".join(map(str, llvm.llvm_version_info)),
        "numba": numba_version(),
    }


def numba_version() -> str:
    """A digest of the file that holds Numba's version: importing Numba takes a second, its metadata some 20 ms."""
    found = find_spec("numba")
    if found is None or not found.origin:
        return "none"
    try:
        return hashlib.sha256(Path(found.origin).with_name("_version.py").read_bytes()).hexdigest()
    except OSError:
        metadata = import_module("importlib.metadata")
        try:
            return metadata.version("numba")
        except metadata.PackageNotFoundError:
            return f"unknown, in {found.origin}"

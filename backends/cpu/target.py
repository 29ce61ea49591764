"""What a kernel is made for: width and number of the vector registers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.binding as untyped  # pyright: ignore[reportMissingTypeStubs]

from attngen.backends import Unsupported


@dataclass(frozen=True)
class Target:
    """A processor, as far as choosing tiles in registers depends on it."""

    name: str
    vector_bits: int
    vector_registers: int
    scales: bool = False
    """Whether it has AVX-512's instructions for exponents of floats."""

    @property
    def lanes(self) -> int:
        """Lanes of a vector of 4-byte elements: the most lanes any vector here has."""
        return self.vector_bits // 32

    @property
    def row_bytes(self) -> int:
        """What rows in scratch memory are padded to and aligned at."""
        return self.vector_bits // 8

    def width(self, element_bytes: int) -> int:
        """Lanes of a vector of such elements; those of less than 4 bytes are widened on the way in."""
        return self.vector_bits // 8 // max(element_bytes, 4)

    @property
    def row_counts(self) -> list[int]:
        """Rows of register tiles two vectors wide, the best first: its accumulators take half of the registers."""
        most = self.vector_registers // 4
        return [most, *(n for n in (4, 2, 1) if n < most)]


@cache
def host() -> Target:
    """The machine this runs on."""
    llvm: Any = untyped
    features: Mapping[str, bool] = llvm.get_host_cpu_features()
    name: str = llvm.get_host_cpu_name()
    if features.get("avx512f") and features.get("avx512vl"):
        return Target(name, 512, 32, scales=bool(features.get("avx512dq")))
    if features.get("avx2") and features.get("fma"):
        return Target(name, 256, 16)
    return Target(name, 128, 32 if features.get("neon") else 16)


TARGETS: Mapping[str, str] = {"": "the processor of this machine"}


def find(name: str) -> Target:
    if name not in TARGETS:
        raise Unsupported("cpu", f"there is no target cpu:{name}", help="kernels are built for this machine: write cpu")
    return host()

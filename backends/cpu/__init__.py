"""The CPU backend: loop-level IR to vector code through Numba and LLVM.

Its passes open loops that run once (`inline-single-trips`), let masked products do without their mask where that changes
nothing (`test-finite`), gather scalar ops (`form-chains`), order tiles in memory (`choose-layouts`), and let chains and
reductions run where their operands are made (`fuse-nests`). Then each op is one call in generated Python source
(`source.py`) and one LLVM function (`*_kernel.py`); `machine_code.py` makes one object of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attngen.backends import Emitted
from attngen.backends.built import ByBuilt
from attngen.backends.cpu import chains, fuse, layouts, masked_products, single_trips
from attngen.backends.cpu.source import Writer
from attngen.backends.cpu.target import TARGETS, find
from attngen.ir.func import Func

__all__ = ["CpuBackend", "backend", "chains", "fuse", "layouts", "masked_products", "single_trips"]


class CpuBackend(ByBuilt):
    """Satisfies `attngen.backends.Backend`."""

    name = "cpu"

    def targets(self) -> Mapping[str, str]:
        return TARGETS

    def passes(self, target: str) -> str:
        lanes = find(target).lanes
        return f"inline-single-trips,test-finite,form-chains,choose-layouts{{lanes={lanes}}},fuse-nests"

    def emit(self, func: Func, target: str) -> Emitted:
        program = Writer(func, find(target)).program()
        return Emitted(func, target, {"python": program.text}, payload=program)

    def built(self) -> Any:
        # Numba takes a second to import, and emitting needs none of it.
        from attngen.backends.cpu.build import Built

        return Built

    def fingerprint(self, target: str) -> Mapping[str, str]:
        from attngen.backends.cpu.kept import fingerprint

        return fingerprint(target)


backend = CpuBackend()

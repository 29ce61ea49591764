"""The CUDA backend: loop-level IR to kernels for NVIDIA GPUs, through Numba, NVVM and ptxas.

Each nest of loops becomes one kernel, as short Numba source (`program.py`). `toolchain/` makes PTX and machine code of it
without a GPU; `runtime/launch.py` runs it on one, `runtime/emulate.py` in the interpreter of PTX in `ptx/`, which needs none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attngen.backends import Arrays, Emitted
from attngen.backends.built import ByBuilt
from attngen.backends.cuda.passes import (
    blocks,
    branches,
    distribute,
    fragments,
    overlap,
    padding,
    pipelining,
    row_scales,
    scale_late,
    scans,
)
from attngen.backends.cuda.passes.distribute import WARP_ROWS
from attngen.backends.cuda.target import TARGETS, find
from attngen.ir.func import Func

__all__ = [
    "CudaBackend",
    "backend",
    "blocks",
    "branches",
    "distribute",
    "fragments",
    "overlap",
    "padding",
    "pipelining",
    "row_scales",
    "scale_late",
    "scans",
]


class CudaBackend(ByBuilt):
    """Satisfies `attngen.backends.Backend`."""

    name = "cuda"

    def targets(self) -> Mapping[str, str]:
        return TARGETS

    def tiling(self, target: str) -> str:
        """The pass in place of `tile`."""
        made = find(target)
        return (
            "tile-warpgroups" if made.warpgroups else "tile-blocks" if made.shared_bytes > 128 * 1024 else "tile-small-blocks"
        )

    def passes(self, target: str) -> str:
        made = find(target)
        engine, ahead = ("{engine=wgmma}", ",overlap-products") if made.warpgroups else ("", "")
        return (
            f"scale-late,distribute{engine},drop-scans,scale-rows,pad-tiles,share-branches,choose-fragments,"
            f"pipeline-copies{{shared={made.shared_bytes}}}{ahead}"
        )

    def emit(self, func: Func, target: str) -> Emitted:
        from attngen.backends.cuda.emit import program

        made = program(func, find(target))
        return Emitted(func, target, {"python": made.text}, payload=made)

    def built(self) -> Any:
        # Numba takes a second to import, and emitting needs none of it.
        from attngen.backends.cuda.build import Built

        return Built

    def arrays(self, target: str) -> Arrays | None:
        """Those of GPUs, also where there is none: an array of this machine is then the first thing that is wrong."""
        if target.endswith(",emulated"):
            return None
        from attngen.backends.cuda.runtime.device_arrays import DeviceArrays

        return DeviceArrays(target) if target else DeviceArrays()

    def parallelism(self, target: str, rows: int) -> tuple[int, int]:
        """A block for each multiprocessor of this machine's GPU, or of an H200 if there is none. Of blocks of one warp, each of
        the four parts of a multiprocessor takes one."""
        from attngen.backends.cuda.runtime.device import multiprocessors

        return (rows, 4 * multiprocessors()) if rows <= WARP_ROWS else (128, multiprocessors())

    def fingerprint(self, target: str) -> Mapping[str, str]:
        from attngen.backends.cuda.toolchain.kept import fingerprint

        return fingerprint(target)


backend = CudaBackend()

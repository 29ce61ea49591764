"""The kernels of a program: as PTX, and as machine code where they are for a device."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from attngen.backends import Saved
from attngen.backends.cuda.program import Program
from attngen.backends.cuda.target import Target
from attngen.backends.cuda.toolchain import kept
from attngen.ir.func import Func


class Kernels:
    """cubin: empty for kernels that are interpreted. text: makes the program with its text, of which PTX is made if it is asked
    for and not there. seconds: what making the code took, by tool."""

    def __init__(self, program: Program, text: Callable[[], Program], ptx: tuple[str, ...], cubin: bytes) -> None:
        self.program, self.text, self.cubin = program, text, cubin
        self.seconds: Mapping[str, float] = {}
        self.loaded: Any = None
        """What `launch.py` knows of it once it has run."""
        if ptx:
            self.ptx = ptx

    @property
    def has_ptx(self) -> bool:
        """Whether it is there already."""
        return "ptx" in self.__dict__

    @cached_property
    def ptx(self) -> tuple[str, ...]:
        """Of each entry; its kernel there has the entry's name."""
        # What was kept on disk needs no compiler.
        from attngen.backends.cuda.toolchain import compiler as toolchain

        program = self.text()
        return tuple(toolchain.ptx(entry, program.target) for entry in program.entries)

    @staticmethod
    def compiled(program: Program) -> Kernels:
        start = time.perf_counter()
        made = Kernels(program, lambda: program, (), b"")
        texts = made.ptx
        made.seconds = {"Numba and NVVM": time.perf_counter() - start}
        if not program.target.emulated:
            from attngen.backends.cuda.toolchain.assembler import cubin

            start = time.perf_counter()
            made.cubin = cubin(texts, program.target)
            made.seconds |= {"ptxas": time.perf_counter() - start}
        return made

    def saved(self) -> Saved:
        return kept.save(self.program, cubin=self.cubin, ptx=self.ptx if self.program.target.emulated else ())

    @staticmethod
    def restored(func: Func, target: Target, saved: Saved, text: Callable[[], Program]) -> Kernels:
        found = kept.restore(func, target, saved, text)
        return Kernels(found.program, text, found.ptx, found.cubin)

    @cached_property
    def without_maps(self) -> Kernels:
        """The same function for arrays that no tensor map can describe."""
        otherwise = self.program.otherwise
        assert otherwise is not None
        return Kernels.compiled(otherwise())

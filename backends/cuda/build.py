"""A built function: picks the kernels that suit the arrays of a call, and runs them on a device or in the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from attngen.backends import Emitted, Saved, one
from attngen.backends.cuda.program import Entry, Program, Workspace
from attngen.backends.cuda.runtime.arguments import View, has_maps
from attngen.backends.cuda.runtime.kernels import Kernels
from attngen.backends.cuda.target import find
from attngen.ir.func import Func
from attngen.ir.types import TensorType, bound


class Built:
    """Satisfies `attngen.backends.Executable`. Several threads may call at once."""

    def __init__(self, kernels: Kernels) -> None:
        self.kernels, self.seconds = kernels, kernels.seconds
        program = kernels.program
        self.func, self.target, self.emulated = program.func, program.target, program.target.emulated
        self.plans: dict[Any, Any] = {}
        """Of launches on devices."""
        self.scratch_bytes = max((entry.shared_bytes for entry in program.entries), default=0)
        """Of one block."""
        temporaries = sum(largest(type) for type in program.temporaries)
        self.temporary_bytes = temporaries + sum(workspace_bytes(entry, program) for entry in program.entries)

    @staticmethod
    def compiled(emitted: Emitted) -> Built:
        return Built(Kernels.compiled(emitted.payload))

    def saved(self) -> Saved:
        return self.kernels.saved()

    @staticmethod
    def restored(func: Func, target: str, saved: Saved, emit: Callable[[], Emitted]) -> Built:
        return Built(Kernels.restored(func, find(target), saved, lambda: emit().payload))

    def suited(self, views: Sequence[View]) -> Kernels:
        """The kernels for such inputs and outputs."""
        return self.kernels if has_maps(self.kernels.program, views) else self.kernels.without_maps

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], threads: Callable[[], int] = one) -> None:
        if self.emulated:
            from attngen.backends.cuda.runtime import emulate

            return emulate.run(self.func, self.suited, (*inputs, *outputs))
        from attngen.backends.cuda.runtime import launch

        launch.run(self.func, self.suited, (*inputs, *outputs), self.plans)

    def direct(self, places: Sequence[int], dtypes: Sequence[Any]) -> Callable[..., Any] | None:
        return None

    def launches(self) -> Sequence[str]:
        from attngen.backends.cuda.toolchain.description import described

        return described(self.kernels)

    def stages(self) -> Mapping[str, str]:
        from attngen.backends.cuda.toolchain.compiler import module

        return {"ptx": module(self.kernels.ptx), **machine_code(self.kernels.cubin)}


def machine_code(cubin: bytes) -> Mapping[str, str]:
    """The instructions, or what it takes to list them."""
    from attngen.backends.cuda.toolchain.reports import disassembler, disassembly
    from attngen.ir.diagnostics import Error

    if not cubin:
        return {}
    try:
        disassembler()
    except Error as e:
        return {"sass": f"// {e}"}
    return {"sass": disassembly(cubin)}


def largest(type: TensorType) -> int:
    return type.element.bytes * prod(bound(extent) for _, extent in type.axes)


def workspace_bytes(entry: Entry, program: Program) -> int:
    """At the largest extents."""
    return sum(p.bytes for p in entry.parameters if isinstance(p, Workspace)) * entry.blocks(program.extents)

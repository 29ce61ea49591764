"""Object code to something that can be called. Needs LLVM's library, but none of Numba."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding as untyped  # pyright: ignore[reportMissingTypeStubs]

from attngen.backends.cpu.target import host

llvm: Any = untyped

entry_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
"""`void entry(const int64_t *arguments)`; other Python threads run meanwhile."""


class Loaded:
    """Object code in memory that may be executed, for as long as this lives."""

    def __init__(self, code: bytes, entry: str) -> None:
        machine = host().machine()
        self.engine: Any = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        self.engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self.engine.finalize_object()
        self.address: int = self.engine.get_function_address(entry)
        self.call: Callable[[int], None] = entry_type(self.address)

    def __call__(self, numbers: Sequence[int]) -> None:
        arguments = array("q", numbers)
        self.call(arguments.buffer_info()[0])

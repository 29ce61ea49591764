"""From generated source to machine code: Numba compiles the loops, and in the same module one function per kernel."""

from __future__ import annotations

import ctypes
import hashlib
import inspect
import linecache
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from attngen.backends import Emitted, one
from attngen.backends.cpu.kernels import Kernel
from attngen.backends.cpu.pool import POOL
from attngen.backends.cpu.source import Nest, Program
from attngen.backends.cpu.storage import ALIGNMENT
from attngen.backends.cpu.target import Target
from attngen.ir.func import Func
from attngen.ir.types import Layout, TensorType, UpTo, bound


def callable_kernel(name: str, kernel: Kernel, target: Target) -> Any:
    """A function that Numba code can call with integers. Its LLVM function is built where it is first called."""
    count = len(kernel.arguments())

    def typed(typingctx: Any, *args: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            result = builder.call(kernel.build(builder.module, name, target), values)
            return result if kernel.returns else context.get_dummy_value()

        return (types.int64 if kernel.returns else types.void)(*[types.int64] * count), generate

    # An intrinsic takes the number of its arguments from its signature.
    names = ["typingctx", *(f"a{index}" for index in range(count))]
    parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names]
    typed.__name__ = typed.__qualname__ = name
    typed.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    return intrinsic(typed)


def compile_program(program: Program) -> Any:
    """The Numba function, compiled for integers only."""
    digest = hashlib.sha256(program.text.encode()).hexdigest()[:12]
    file = f"<attngen {program.name} {digest}>"
    # With the text in linecache, tracebacks and profilers show its lines.
    linecache.cache[file] = (len(program.text), None, program.text.splitlines(keepends=True), file)
    scope: dict[str, Any] = {name: callable_kernel(name, kernel, program.target) for name, kernel in program.kernels.items()}
    exec(compile(program.text, file, "exec"), scope)
    signature = types.void(*[types.int64] * len(program.arguments))
    return njit(signature, nogil=True, error_model="numpy", cache=False)(scope[program.name])


WORTH = 1_000_000
"""Floating-point operations that are worth the time another thread takes to begin: some 20 µs, at 50 to 100 in a nanosecond."""


def field_address(array: np.ndarray) -> int:
    """The address of an array's data, read from the array object: NumPy's binary interface has it right after the object's
    head (`PyArrayObject_fields`). A seventh of the time of the documented ways, which counts for small calls."""
    return pointer_at(id(array) + object.__basicsize__).value or 0


def interface_address(array: np.ndarray) -> int:
    """The same by NumPy's array interface."""
    return array.__array_interface__["data"][0]


pointer_at = ctypes.c_void_p.from_address
_probe = np.zeros(3, np.float32)
data_address = field_address if field_address(_probe) == interface_address(_probe) else interface_address

Read = Callable[[np.ndarray], list[int]]


def reader(layout: Layout, type: TensorType) -> Read:
    """Reads address and strides in bytes off an array, the strides in the order of the type's axes."""
    plan: list[tuple[int, tuple[int, ...]]] = []
    for name in type.names:
        index = next(index for index, group in enumerate(layout.groups) if name in group)
        group = layout.groups[index]
        plan.append((index, tuple(group.index(n) for n in group[group.index(name) + 1 :])))
    groups = layout.groups

    def inner(array: np.ndarray, index: int, after: tuple[int, ...]) -> int:
        """Elements that lie between two neighbours along an axis that shares its dimension with later ones."""
        found = 1
        for position in after:
            extent = type.extents[groups[index][position]]
            if isinstance(extent, UpTo):
                found *= runtime_extent(array, layout, type, groups[index][position])
            else:
                found *= extent
        return found

    simple = [index for index, _ in plan] == list(range(len(groups))) and not any(after for _, after in plan)

    def read_simple(array: np.ndarray) -> list[int]:
        return [data_address(array), *array.strides]

    def read(array: np.ndarray) -> list[int]:
        strides = array.strides
        steps = [strides[index] * inner(array, index, after) if after else strides[index] for index, after in plan]
        return [data_address(array), *steps]

    return read_simple if simple else read


def runtime_extent(array: np.ndarray, layout: Layout, type: TensorType, name: str) -> int:
    """How long an axis is in this array."""
    index = next(index for index, group in enumerate(layout.groups) if name in group)
    known = 1
    for n in layout.groups[index]:
        extent = type.extents[n]
        if n != name:
            known *= extent if isinstance(extent, int) else 1
    return array.shape[index] // known if known else 0


@dataclass(frozen=True)
class Plan:
    """How a nest may be shared: into so many parts, at least `least` of them at a time, by at most so many threads."""

    parts: int
    least: int
    threads: int


def plan(nest: Nest, sizes: Mapping[str, int], longest: Mapping[str, int]) -> Plan:
    """The plan at these runtime extents; operations count as proportional to them."""
    parts = nest.parts(sizes)
    flops = nest.flops
    for name, size in sizes.items():
        flops = flops * size // longest[name]
    return Plan(parts, max(parts * WORTH // max(flops, 1), 1), min(parts, flops // WORTH))


class Built:
    """Satisfies `attngen.backends.Executable`. Several threads may call at once."""

    def __init__(self, emitted: Emitted) -> None:
        program: Program = emitted.payload
        func: Func = emitted.func
        self.program = program
        self.function = compile_program(program)
        self.scratch_bytes, self.temporary_bytes = program.scratch_bytes, program.temporary_bytes
        self.readers = [reader(p.layout, value.tensor) for p, value in zip(func.params, func.args, strict=True)]
        self.readers += [reader(layout, value.tensor) for layout, value in zip(func.out_layouts, func.outputs, strict=True)]
        self.sized = [
            (index, p.layout, value.tensor, name)
            for name in program.extents
            for index, (p, value) in enumerate(zip(func.params, func.args, strict=True))
            if name in value.names
        ]
        self.plans = [plan(nest, program.extents, program.extents) for nest in program.nests]
        """At the largest extents."""
        self.local = threading.local()

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], threads: Callable[[], int] = one) -> None:
        numbers: list[int] = []
        for read, array in zip(self.readers, (*inputs, *outputs), strict=True):
            numbers += read(array)
        plans = self.plans
        if self.sized:
            sizes = {name: runtime_extent(inputs[index], layout, type, name) for index, layout, type, name in self.sized}
            numbers += (sizes[name] for name in self.program.extents)
            plans = [plan(nest, sizes, self.program.extents) for nest in self.program.nests]
        temporary = np.empty(self.temporary_bytes + ALIGNMENT, np.uint8) if self.temporary_bytes else None
        address = 0 if temporary is None else aligned(temporary)
        lookups = self.program.lookups
        outside = np.zeros(len(lookups), np.int64) if lookups else None
        flags = () if outside is None else (int(outside.ctypes.data),)
        several = len(plans) > 1
        most = 0
        for number, each in enumerate(plans):
            which = (*flags, number) if several else flags
            if each.threads < 2:
                self.function(*numbers, self.scratch(), address, *which, 0, each.parts)
                continue
            most = most or threads()

            def run(first: int, last: int, which: tuple[int, ...] = which) -> None:
                self.function(*numbers, self.scratch(), address, *which, first, last)

            POOL.run(run, each.parts, each.least, min(most, each.threads))
        if outside is not None and outside.any():
            op, index = lookups[int(np.argmax(outside))]
            length = op.table.tensor.extents[op.over[index]]
            raise op.error(f"a coordinate along {op.over[index]} lies outside 0 to {bound(length) - 1}")

    def scratch(self) -> int:
        """The address of this thread's working memory."""
        found = getattr(self.local, "scratch", None)
        if found is None:
            # Zeros, so that what lies behind the end of a row costs no more than other numbers do.
            memory = np.zeros(self.scratch_bytes + ALIGNMENT, np.uint8)
            found = self.local.scratch = (aligned(memory), memory)
        return found[0]

    def stages(self) -> Mapping[str, str]:
        (signature,) = self.function.signatures
        return {"llvm": self.function.inspect_llvm(signature), "asm": self.function.inspect_asm(signature)}


def aligned(array: np.ndarray) -> int:
    return -(-data_address(array) // ALIGNMENT) * ALIGNMENT

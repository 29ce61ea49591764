"""A built function: reads addresses and strides off arrays, and shares the parts of its nests among threads."""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attngen.backends import Emitted, Saved, Unsupported, one
from attngen.backends.cpu.direct import Expected, direct
from attngen.backends.cpu.kept import Facts
from attngen.backends.cpu.loading import Loaded
from attngen.backends.cpu.pool import POOL
from attngen.backends.cpu.source import Nest, Program
from attngen.backends.cpu.storage import ALIGNMENT
from attngen.backends.cpu.target import Target, find
from attngen.ir.func import Func
from attngen.ir.types import Layout, TensorType, UpTo, bound

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


def places(layout: Layout) -> list[tuple[int, tuple[int, ...]]]:
    """For each axis, in the layout's order, its dimension, and the positions there of the axes within it."""
    return [
        (index, tuple(range(position + 1, len(group))))
        for index, group in enumerate(layout.groups)
        for position in range(len(group))
    ]


def expected(layout: Layout, type: TensorType, argument: int, dtype: Any) -> Expected:
    """What an array without runtime extents is."""
    lengths = [[bound(type.extents[n]) for n in group] for group in layout.groups]
    axes = ((index, math.prod(lengths[index][n] for n in after)) for index, after in places(layout))
    return Expected(argument, dtype, tuple(map(math.prod, lengths)), tuple(axes))


def reader(layout: Layout, type: TensorType) -> Read:
    """Reads address and strides in bytes off an array, the strides in the order of the layout's axes."""
    plan, groups = places(layout), layout.groups

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
    """Satisfies `attngen.backends.Executable`. Several threads may call at once.

    func: any function of the signature of what was compiled. program: what was compiled, asked for only to be shown.
    """

    def __init__(
        self,
        func: Func,
        target: Target,
        facts: Facts,
        code: bytes,
        program: Callable[[], Program],
        seconds: Mapping[str, float],
    ) -> None:
        self.name, self.facts, self.code, self.program = func.name, facts, code, program
        start = time.perf_counter()
        self.elsewhere = target.why_not_here()
        self.function = None if self.elsewhere else Loaded(code, facts.entry)
        self.seconds: Mapping[str, float] = {**seconds, "loading": time.perf_counter() - start}
        self.scratch_bytes, self.temporary_bytes = facts.scratch_bytes, facts.temporary_bytes
        self.arrays = [(p.layout, value.tensor) for p, value in zip(func.params, func.args, strict=True)]
        self.arrays += [(layout, value.tensor) for layout, value in zip(func.out_layouts, func.outputs, strict=True)]
        self.readers = [reader(*array) for array in self.arrays]
        self.sized = [
            (index, p.layout, value.tensor, name)
            for name in facts.extents
            for index, (p, value) in enumerate(zip(func.params, func.args, strict=True))
            if name in value.names
        ]
        self.plans = [plan(nest, facts.extents, facts.extents) for nest in facts.nests]
        """At the largest extents."""
        self.local = threading.local()

    @staticmethod
    def compiled(emitted: Emitted) -> Built:
        # A kernel that was kept on disk needs none of it.
        from attngen.backends.cpu.machine_code import compile_program

        program: Program = emitted.payload
        made = compile_program(program)
        facts = Facts.of(program, made.entry)
        return Built(emitted.func, program.target, facts, made.object, lambda: program, made.seconds)

    def saved(self) -> Saved:
        return Saved(self.code, self.facts.json())

    @staticmethod
    def restored(func: Func, target: str, saved: Saved, emit: Callable[[], Emitted]) -> Built:
        return Built(func, find(target), Facts.read(saved.facts), saved.code, lambda: emit().payload, {})

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], threads: Callable[[], int] = one) -> None:
        function = self.function
        if function is None:
            message = f"@{self.name} cannot run here: {self.elsewhere}"
            raise Unsupported("cpu", message, help="compile for the target cpu, which is this machine")
        numbers: list[int] = []
        for read, array in zip(self.readers, (*inputs, *outputs), strict=True):
            numbers += read(array)
        plans = self.plans
        if self.sized:
            sizes = {name: runtime_extent(inputs[index], layout, type, name) for index, layout, type, name in self.sized}
            numbers += (sizes[name] for name in self.facts.extents)
            plans = [plan(nest, sizes, self.facts.extents) for nest in self.facts.nests]
        temporary = np.empty(self.temporary_bytes + ALIGNMENT, np.uint8) if self.temporary_bytes else None
        address = 0 if temporary is None else aligned(temporary)
        lookups = self.facts.lookups
        outside = np.zeros(lookups, np.int64) if lookups else None
        flags = () if outside is None else (int(outside.ctypes.data),)
        several = len(plans) > 1
        most = 0
        for number, each in enumerate(plans):
            which = (*flags, number) if several else flags
            if each.threads < 2:
                function((*numbers, self.scratch(), address, *which, 0, each.parts))
                continue
            most = most or threads()

            def run(first: int, last: int, which: tuple[int, ...] = which) -> None:
                function((*numbers, self.scratch(), address, *which, first, last))

            POOL.run(run, each.parts, each.least, min(most, each.threads))
        if outside is not None and outside.any():
            op, index = self.program().lookups[int(np.argmax(outside))]
            length = op.table.tensor.extents[op.over[index]]
            raise op.error(f"a coordinate along {op.over[index]} lies outside 0 to {bound(length) - 1}")

    def direct(self, places: Sequence[int], dtypes: Sequence[Any]) -> Callable[..., Any] | None:
        """For kernels that one thread runs without memory of other sizes than their own."""
        facts, function = self.facts, self.function
        if function is None or facts.extents or facts.lookups or facts.temporary_bytes or len(self.plans) != 1:
            return None
        if self.plans[0].threads >= 2:
            return None
        each = zip(self.arrays, places, dtypes, strict=True)
        wanted = [expected(*array, place, dtype) for array, place, dtype in each]
        return direct(function, wanted, max(places) + 1, 1, self.scratch_bytes, self.plans[0].parts)

    def scratch(self) -> int:
        """The address of this thread's working memory."""
        found = getattr(self.local, "scratch", None)
        if found is None:
            # Zeros, so that what lies behind the end of a row costs no more than other numbers do.
            memory = np.zeros(self.scratch_bytes + ALIGNMENT, np.uint8)
            found = self.local.scratch = (aligned(memory), memory)
        return found[0]

    def stages(self) -> Mapping[str, str]:
        from attngen.backends.cpu.machine_code import texts

        return texts(self.program())


def aligned(array: np.ndarray) -> int:
    return -(-data_address(array) // ALIGNMENT) * ALIGNMENT

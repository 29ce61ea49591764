"""A trace: what is known while a program's function runs once, on values that stand for its arrays."""

from __future__ import annotations

import sys
from collections.abc import Generator, Hashable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from attngen.ir.core import Value, argument
from attngen.ir.diagnostics import UNKNOWN, IRError, Loc
from attngen.ir.func import Param
from attngen.ir.types import F32, ElementType, Extent, Layout, TensorType

RenameKey = tuple[Value, frozenset[tuple[str, str]]]


@dataclass(frozen=True)
class Read:
    """An array that the function reads: under the name of the program's parameter `source`, and as which value. An array
    read under other axis names (`rename`) is read a second time."""

    source: str
    param: Param
    value: Value


@dataclass(frozen=True, eq=False)
class Captured:
    """An array that the function reads although it is no input, and how it is read."""

    array: Any
    layout: Layout
    type: TensorType


@dataclass(eq=False)
class Trace:
    """One run of a program's function.

    extents: of every axis met so far, parameters first. default_float: what an integer becomes where a float is needed.
    coordinates: computed values that are the whole coordinate along several axes in one dimension. captured: arrays read that
    are no inputs, by the name of the parameter that they are bound to; tables: the reads of them. counted: where a coordinate
    with all its axes means something; elsewhere nothing is looked up by it. lengths: of axes with runtime extents, in the call
    that is traced for.
    """

    name: str
    reads: list[Read] = field(default_factory=list[Read])
    extents: dict[str, Extent] = field(default_factory=dict[str, Extent])
    default_float: ElementType = F32
    renamed: dict[RenameKey, Value] = field(default_factory=dict[RenameKey, Value])
    coordinates: dict[Value, tuple[str, ...]] = field(default_factory=dict[Value, tuple[str, ...]])
    captured: dict[str, Captured] = field(default_factory=dict[str, Captured])
    tables: dict[Hashable, Value] = field(default_factory=dict[Hashable, Value])
    counted: Value | None = None
    lengths: Mapping[str, int] = field(default_factory=dict[str, int])

    @staticmethod
    def of(
        name: str, layouts: Mapping[str, Layout], types: Mapping[str, TensorType], lengths: Mapping[str, int] | None = None
    ) -> Trace:
        trace = Trace(name, lengths=lengths or {})
        for source, layout in layouts.items():
            trace.read(source, source, layout, types[source])
        floats = [t.element for t in types.values() if t.element.is_float]
        if floats:
            trace.default_float = floats[0].accumulator
        return trace

    def read(self, source: str, name: str, layout: Layout, type: TensorType) -> Value:
        """A new parameter of the function."""
        value = argument(type, name)
        self.reads.append(Read(source, Param(name, layout), value))
        self.extents.update(type.extents)
        return value

    def reread(self, value: Value, names: Mapping[str, str]) -> Value:
        """The array behind a parameter, read under other axis names."""
        (old,) = [r for r in self.reads if r.value is value]
        groups = tuple(tuple(names.get(axis, axis) for axis in group) for group in old.param.layout.groups)
        axes = tuple((names.get(axis, axis), extent) for axis, extent in value.tensor.axes)
        return self.read(old.source, self.unused(f"{old.source}_2"), Layout(groups), TensorType(axes, value.element))

    def unused(self, name: str) -> str:
        """A name for a parameter that nothing has yet: the wish, or with another number behind it."""
        taken = {r.param.name for r in self.reads}
        stem, count = (name[:-2], 2) if name.endswith("_2") else (name, 1)
        while name in taken:
            count += 1
            name = f"{stem}_{count}"
        return name

    def fresh(self, axis: str) -> str:
        """An axis name that nothing has yet."""
        count = 1
        while f"{axis}_{count}" in self.extents:
            count += 1
        return f"{axis}_{count}"


_active: ContextVar[Trace | None] = ContextVar("attngen_trace", default=None)


@contextmanager
def tracing(trace: Trace) -> Generator[None, None, None]:
    """Inside the block, functions on traced values belong to this trace."""
    token = _active.set(trace)
    try:
        yield
    finally:
        _active.reset(token)


def current() -> Trace:
    """The trace that is running."""
    trace = _active.get()
    if trace is None:
        raise user_error("there is no program here", help="call this inside a function decorated with @attngen.program(...)")
    return trace


def is_tracing() -> bool:
    return _active.get() is not None


OWN = frozenset(
    f"attngen.{m}"
    for m in (
        *("arithmetic", "captures", "closures", "functions", "masks", "mods", "numpy_protocol", "programs", "renaming"),
        *("kvcache", "sdpa", "sdpa_program", "tensor", "torch_arrays", "torch_protocol", "tracing"),
    )
)
"""Modules that stand between the user's line and the op it builds."""


def user_loc() -> Loc:
    """The line of the program that is being traced: the innermost frame outside of these modules, of NumPy and of torch."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  (inspect.currentframe is this, and slower)
    while frame is not None:
        module: str = frame.f_globals.get("__name__", "")
        if module not in OWN and module.partition(".")[0] not in ("numpy", "torch"):
            return Loc(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return UNKNOWN


def user_error(message: str, *, help: str = "", loc: Loc | None = None) -> IRError:
    """An error at the user's line."""
    return IRError("program", message, loc=user_loc() if loc is None else loc, help=help)

"""What an exported kernel is, seen from C: its arrays by name, the versions of its code, and results to test it by."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from attngen.backends.cpu.source import Program
from attngen.ir.types import Layout, TensorType, UpTo, bound

KEYWORDS = """alignas alignof and and_eq asm auto bitand bitor bool break case catch char class co_await co_return
co_yield compl concept const const_cast consteval constexpr constinit continue decltype default
delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline
int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected
public register reinterpret_cast requires restrict return short signed sizeof static static_assert
static_cast struct switch template this thread_local throw true try typedef typeid typename typeof
union unsigned using virtual void volatile wchar_t while xor xor_eq""".split()
"""Of C and C++: no names there."""

MACROS = ("linux", "unix", "errno", "assert", "stdin", "stdout", "stderr", "NULL", "INFINITY", "NAN", "bool")
"""Names that mean something else to a C compiler than a field."""


@dataclass(frozen=True)
class View:
    """An array as a function reads it. array: which one of the interface; type: its axes in the function's order."""

    array: int
    layout: Layout
    type: TensorType


@dataclass(frozen=True)
class Array:
    name: str
    layout: Layout
    type: TensorType
    output: bool


@dataclass(frozen=True)
class Version:
    """Code for one target, by name."""

    target: str
    program: Program


@dataclass(frozen=True)
class Sample:
    """One element of an output, counted with the last dimension fastest, and how far it may be off."""

    array: int
    index: int
    value: float
    allowed: float


@dataclass(frozen=True)
class Vector:
    """A test: random inputs of a seed. gap: unused elements behind each row of an array."""

    seed: int
    sizes: Mapping[str, int]
    gap: int
    threads: int
    samples: tuple[Sample, ...]


@dataclass(frozen=True)
class Interface:
    """arrays: inputs, then outputs; views: of the parameters and results of the function, in order. integers: how many values
    integers take in tests, from 0 on; info: what the library says of itself, as JSON."""

    name: str
    arrays: tuple[Array, ...]
    views: tuple[View, ...]
    versions: tuple[Version, ...]
    vectors: tuple[Vector, ...]
    integers: int
    info: str

    @cached_property
    def all_views(self) -> tuple[View, ...]:
        """Those of the function, then one of each array under its own names, so that what is not read is checked too."""
        own = tuple(View(n, x.layout, x.type) for n, x in enumerate(self.arrays))
        return (*self.views, *(each for each in own if each not in self.views))

    @cached_property
    def axes(self) -> dict[str, int | UpTo]:
        """Every axis and its extent."""
        return {name: extent for view in self.all_views for name, extent in view.type.axes}

    @property
    def entries(self) -> tuple[str, ...]:
        """The names of the functions in object code, of each version."""
        if len(self.versions) == 1:
            return (f"{self.name}_kernel",)
        return tuple(f"{self.name}_kernel_{re.sub(r'[^a-zA-Z0-9]', '_', each.target)}" for each in self.versions)

    def extents(self, array: Array) -> list[str]:
        """The extents of an array's dimensions for people; those that calls choose as `<=n`."""
        found: list[str] = []
        for group in array.layout.groups:
            varies = any(isinstance(array.type.extents[n], UpTo) for n in group)
            product = 1
            for n in group:
                product *= bound(array.type.extents[n])
            found.append(f"<={product}" if varies else str(product))
        return found


def c_name(name: str, taken: Sequence[str] = (), beside: Sequence[str] = ()) -> str:
    """A name that C, C++ and Python accept, and that is not taken, with any of the endings that stand beside it."""
    name = "".join(c if re.fullmatch(r"[A-Za-z0-9_]", c) else f"u{ord(c):x}" for c in name)
    # Names that begin with underscores belong to the compiler.
    name = name.lstrip("_") or "x"
    if name[0].isdigit():
        name = f"x{name}"
    if len(name) > 2 and name.isupper():  # as macros are
        name += "_"
    while any(f"{name}{ending}" in taken for ending in ("", *beside)) or name in (*KEYWORDS, *MACROS, *keyword.kwlist):
        name += "_"
    return name

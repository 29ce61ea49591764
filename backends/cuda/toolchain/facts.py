"""A program as JSON can hold it, less its text: all that launching its kernels needs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from attngen.backends.cuda.program import Address, Copyable, Entry, Length, Map, Parameter, Part, Program, Stride, Workspace
from attngen.backends.cuda.target import Target
from attngen.ir.func import Func
from attngen.ir.types import ElementType, Extent, TensorType, UpTo

T = TypeVar("T")

PARAMETERS: Mapping[str, type[Parameter]] = {
    "address": Address,
    "stride": Stride,
    "length": Length,
    "workspace": Workspace,
    "copyable": Copyable,
    "map": Map,
}

NUMBERS = ("threads", "shared_bytes", "most_blocks", "least_blocks_per_multiprocessor")
"""Fields of an entry."""


def written(program: Program) -> dict[str, Any]:
    return {
        "entries": [written_entry(entry) for entry in program.entries],
        "temporaries": [written_tensor(tensor) for tensor in program.temporaries],
        "otherwise": program.otherwise is not None,
    }


def read(given: Mapping[str, Any], func: Func, target: Target, otherwise: Callable[[], Program]) -> Program:
    """The program, of which entries have no text. func: any function of the same signature; otherwise: makes the version
    without tensor maps. Raises LookupError, TypeError or ValueError if it is not what `written` makes."""
    entries = tuple(map(read_entry, items(given["entries"])))
    temporaries = tuple(map(read_tensor, items(given["temporaries"])))
    made = Program(func, target, entries, temporaries, otherwise if exact(bool, given["otherwise"]) else None)
    if plain(written(made)) != plain(dict(given)):
        raise ValueError("the facts are not those of a program")
    check(made)
    return made


def check(program: Program) -> None:
    """That kernels ask only for arrays, axes and runtime extents that there are."""
    arrays, extents = program.arrays, program.extents
    for entry in program.entries:
        runtime = [part.axis for part in entry.grid if isinstance(part.extent, UpTo)]
        for p in entry.parameters:
            match p:
                case Length():
                    runtime.append(p.axis)
                case Workspace():
                    pass
                case Address() | Stride() | Copyable() | Map():
                    axes = p.axes if isinstance(p, Map) else () if isinstance(p, Address) else (p.axis,)
                    if p.array < 0 or not set(axes) <= set(arrays[p.array].names):
                        raise ValueError(f"{entry.name}: {p} is of no axis of array {p.array}")
        if missing := set(runtime) - set(extents):
            raise ValueError(f"{entry.name}: {', '.join(sorted(missing))} is no runtime extent")


def written_entry(entry: Entry) -> dict[str, Any]:
    kinds = {cls: name for name, cls in PARAMETERS.items()}
    return {
        "name": entry.name,
        "parameters": [{"kind": kinds[type(p)], **vars(p)} for p in entry.parameters],
        "grid": [{"axis": part.axis, "extent": written_extent(part.extent), "step": part.step} for part in entry.grid],
        **{name: getattr(entry, name) for name in NUMBERS},
    }


def read_entry(given: Mapping[str, Any]) -> Entry:
    name, numbers = exact(str, given["name"]), {number: exact(int, given[number]) for number in NUMBERS}
    parameters = tuple(read_fields(PARAMETERS[each["kind"]], each) for each in items(given["parameters"]))
    grid = tuple(read_fields(Part, each) for each in items(given["grid"]))
    return Entry(name, "", dict, parameters, grid, **numbers)


def read_fields(cls: type[T], given: Mapping[str, Any]) -> T:
    """A dataclass by its fields, each of the type that it declares."""
    read: dict[str, Any] = {field.name: READERS[str(field.type)](given[field.name]) for field in fields(cls)}  # pyright: ignore[reportArgumentType]
    return cls(**read)


def written_tensor(tensor: TensorType) -> dict[str, Any]:
    return {"axes": [[name, written_extent(extent)] for name, extent in tensor.axes], "element": tensor.element.value}


def read_tensor(given: Mapping[str, Any]) -> TensorType:
    axes = tuple((exact(str, name), read_extent(extent)) for name, extent in map(items, items(given["axes"])))
    return TensorType(axes, ElementType(given["element"]))


def written_extent(extent: Extent) -> int | list[int]:
    """A runtime extent is a list of its bound."""
    return [extent.bound] if isinstance(extent, UpTo) else extent


def read_extent(given: Any) -> Extent:
    return exact(int, given) if isinstance(given, int) else UpTo(*(exact(int, each) for each in items(given)))


def exact(cls: type[T], given: Any) -> T:
    """What JSON gave, which has to be of just this type (True is a whole number too)."""
    if type(given) is not cls:
        raise TypeError(f"expected {cls.__name__}, got {given!r}")
    return given


def items(given: Any) -> list[Any]:
    """A list of JSON. (What never was text may be a tuple.)"""
    if not isinstance(given, list | tuple):
        raise TypeError(f"expected a list, got {given!r}")
    return list(given)  # pyright: ignore[reportUnknownArgumentType]


def plain(given: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(given))


READERS: Mapping[str, Callable[[Any], Any]] = {
    "int": lambda given: exact(int, given),
    "str": lambda given: exact(str, given),
    "Extent": read_extent,
    "tuple[str, ...]": lambda given: tuple(exact(str, each) for each in items(given)),
    "tuple[int, ...]": lambda given: tuple(exact(int, each) for each in items(given)),
}

"""What a class from outside of attngen is, as text: its code, and the values that the code has captured.

The name of its file and lines do not count, so that it need not have a source file. Two classes with equal text but different
captured values differ.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from enum import Enum
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, cast

import numpy as np

from attngen.cache_sources import NotKept

PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented))
NAMED = (BuiltinFunctionType, GetSetDescriptorType, MemberDescriptorType, WrapperDescriptorType, np.ufunc)
"""Things that are known by their names alone."""

UNIMPORTANT = {
    *("__dataclass_fields__", "__dataclass_params__", "__dict__", "__doc__", "__firstlineno__", "__module__"),
    *("__static_attributes__", "__weakref__", "loc"),
}
"""What of a class does not change what it does, or is there a second time."""


def identity(thing: object) -> str:
    """Text that differs where what a thing does differs. Raises NotKept for a thing that holds something unknown."""
    return "\n".join(pieces(thing, {}))


def pieces(thing: Any, seen: dict[int, int]) -> Iterator[str]:
    """The text of a thing and of all that it refers to; what was met before is a number."""
    kind = f"{type(thing).__module__}.{type(thing).__qualname__}"
    if isinstance(thing, PLAIN) and type(thing) in PLAIN:
        yield f"{kind} {thing!r}"
        return
    if id(thing) in seen:
        yield f"again {seen[id(thing)]}"
        return
    seen[id(thing)] = len(seen)
    match thing:
        case ModuleType():
            yield f"module {thing.__name__} {getattr(thing, '__version__', '')}"
        case type() | FunctionType() if known(thing):
            yield f"known {thing.__module__}.{thing.__qualname__}"
        case CodeType():
            yield f"code {thing.co_code.hex()} {thing.co_names} {thing.co_varnames} {thing.co_argcount} {thing.co_flags}"
            yield from parts(thing.co_consts, seen)
        case FunctionType():
            yield f"function {thing.__qualname__}"
            captured = [cell.cell_contents for cell in thing.__closure__ or ()]
            used = {name: thing.__globals__[name] for name in names(thing.__code__) if name in thing.__globals__}
            yield from parts((thing.__code__, thing.__defaults__, thing.__kwdefaults__, captured, used), seen)
        case type():
            yield f"class {thing.__qualname__}"
            own = {name: x for name, x in vars(thing).items() if name not in UNIMPORTANT}
            yield from parts((thing.__bases__, own), seen)
        case classmethod() | staticmethod() | MethodType():
            yield kind
            yield from pieces(cast(Any, thing).__func__, seen)
        case property():
            yield from parts((thing.fget, thing.fset, thing.fdel), seen)
        case tuple() | list():
            yield from parts(cast(Any, thing), seen, kind)
        case set() | frozenset():
            yield from parts(sorted("\n".join(pieces(x, seen)) for x in cast(Any, thing)), seen, kind)
        case dict():
            yield from parts([x for item in cast(Any, thing).items() for x in item], seen, kind)
        case Enum():
            yield f"{kind}.{thing.name}"
        case np.ndarray() | np.generic():
            array = np.asarray(cast(Any, thing))
            if array.dtype.hasobject:
                raise NotKept(f"an array of objects, {array!r}, cannot be told from another")
            yield f"array {array.dtype} {array.shape} {array.tobytes().hex()}"
        case _ if isinstance(thing, NAMED):
            yield f"{kind} {getattr(thing, '__module__', '')} {getattr(thing, '__qualname__', thing.__name__)}"
        case _ if dataclasses.is_dataclass(thing) or hasattr(thing, "__dict__") and not callable(thing):
            yield kind
            yield from parts((type(thing), dict(vars(thing))), seen)
        case _:
            raise NotKept(f"it uses {thing!r}, which cannot be told from another")


def parts(things: Any, seen: dict[int, int], kind: str = "several") -> Iterator[str]:
    yield f"{kind} {len(things)}"
    for thing in things:
        yield from pieces(thing, seen)


def names(code: CodeType) -> list[str]:
    """The global names that code reads, functions inside of it included."""
    inner = [name for x in code.co_consts if isinstance(x, CodeType) for name in names(x)]
    return [*code.co_names, *inner]


def known(thing: Any) -> bool:
    """Whether a class or function belongs to attngen, NumPy or Python, and is known by its name."""
    top = str(thing.__module__ or "").partition(".")[0]
    return top in ("attngen", "numpy") or top in sys.stdlib_module_names

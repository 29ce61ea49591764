"""What a Python function captures, so that its NumPy arrays can be indexed by traced values.

NumPy gives an index no say in what `array[index]` means. So a function is traced as a copy whose captured arrays (closure,
globals, defaults, attributes of a callable object) are views of the same memory that know traced values. Nothing that the
user has is changed. Torch asks the index, and needs none of this.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, cast

import numpy as np

from attngen.arithmetic import Operand
from attngen.captures import read_table
from attngen.ir.core import Value
from attngen.tensor import Tensor, apply


class Table(np.ndarray[Any, Any]):
    """An array that traced values can index; in all else the array it is a view of."""

    _name = "captured"

    def __getitem__(self, key: Any) -> Any:
        given: object = key
        keys: tuple[Any, ...] = cast(tuple[Any, ...], given) if isinstance(given, tuple) else (key,)
        if any(isinstance(k, Tensor) for k in keys):
            array: np.ndarray[Any, Any] = np.asarray(self)

            def read(*at: Operand) -> Value:
                return read_table(array, at, self._name)

            return apply(read, *keys)
        found = super().__getitem__(key)
        if isinstance(found, Table):
            found._name = self._name
        return found


def table(array: np.ndarray[Any, Any], name: str) -> Table:
    made = array.view(Table)
    made._name = name  # pyright: ignore[reportPrivateUsage]
    return made


def with_tables(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function on tables in place of the arrays that it captures; itself if it captures none."""
    return Copier().value(function, getattr(function, "__name__", ""))


DEPTH = 8
"""How far captured functions that capture functions are followed."""


class Copier:
    """One run; each object is copied once."""

    def __init__(self) -> None:
        self.memo: dict[int, tuple[object, Any]] = {}
        self.depth = 0

    def value(self, x: Any, name: str) -> Any:
        """x with tables in it, or x itself."""
        if id(x) in self.memo:
            return self.memo[id(x)][1]
        self.memo[id(x)] = (x, x)  # a cycle ends here
        self.depth += 1
        new = self.copied(x, name) if self.depth <= DEPTH else x
        self.depth -= 1
        self.memo[id(x)] = (x, new)
        return new

    def copied(self, x: Any, name: str) -> Any:
        match x:
            case np.ndarray():
                array = cast(np.ndarray[Any, Any], x)
                return table(array, name) if type(array) is np.ndarray and array.ndim else array
            case types.FunctionType():
                return self.function(x)
            case types.MethodType():
                owner = self.value(x.__self__, name)
                return x if owner is x.__self__ else types.MethodType(x.__func__, owner)
            case partial():
                return self.partial(cast(partial[Any], x), name)
            case tuple() | list() if type(cast(object, x)) in (tuple, list):
                items = cast(list[Any], x)
                changed = self.values(items, name)
                return type(items)(changed.get(k, v) for k, v in enumerate(items)) if changed else items
            case dict() if type(cast(object, x)) is dict:
                entries = cast(dict[Any, Any], x)
                changed = self.mapping(entries)
                return {**entries, **changed} if changed else entries
            case types.ModuleType() | type() | Tensor():
                return x
            case _:
                return self.instance(x)

    def values(self, items: Iterable[Any], name: str) -> dict[int, Any]:
        """What changes, by position."""
        return {k: new for k, v in enumerate(items) if (new := self.value(v, name)) is not v}

    def mapping(self, entries: Mapping[Any, Any]) -> dict[Any, Any]:
        """What changes, by key."""
        return {k: new for k, v in entries.items() if (new := self.value(v, str(k))) is not v}

    def partial(self, given: partial[Any], name: str) -> partial[Any]:
        function, args, keywords = self.value(given.func, name), self.values(given.args, name), self.mapping(given.keywords)
        if function is given.func and not args and not keywords:
            return given
        return partial(function, *(args.get(k, v) for k, v in enumerate(given.args)), **{**given.keywords, **keywords})

    def instance(self, x: Any) -> Any:
        """An object with arrays among its attributes: a copy of it, if it is of a class that Python code has defined."""
        attributes = getattr(x, "__dict__", None)
        if not isinstance(attributes, dict) or type(x).__module__.partition(".")[0] in ("numpy", "torch", "jax"):
            return x
        changed = self.mapping(cast(dict[str, Any], attributes))
        if not changed:
            return x
        new = copy.copy(x)
        new.__dict__.update(changed)
        return new

    def function(self, f: types.FunctionType) -> types.FunctionType:
        names = names_used(f.__code__)
        read = {n: f.__globals__[n] for n in names if n in f.__globals__}
        if f.__module__ and f.__module__.partition(".")[0] in ("numpy", "torch", "jax"):
            return f
        globals_changed = self.mapping(read)
        cells = {k: new for k, cell in enumerate(f.__closure__ or ()) if (new := self.cell(cell, f.__code__.co_freevars[k]))}
        defaults = self.values(f.__defaults__ or (), "captured")
        keywords = self.mapping(f.__kwdefaults__ or {})
        if not (globals_changed or cells or defaults or keywords):
            return f
        new = types.FunctionType(
            f.__code__,
            {**f.__globals__, **globals_changed} if globals_changed else f.__globals__,
            f.__name__,
            tuple(defaults.get(k, v) for k, v in enumerate(f.__defaults__ or ())) or None,
            tuple(cells.get(k, cell) for k, cell in enumerate(f.__closure__ or ())),
        )
        new.__kwdefaults__ = {**f.__kwdefaults__, **keywords} if f.__kwdefaults__ else None
        return new

    def cell(self, cell: types.CellType, name: str) -> types.CellType | None:
        try:
            old = cell.cell_contents
        except ValueError:  # not assigned yet
            return None
        new = self.value(old, name)
        return None if new is old else types.CellType(new)


def names_used(code: types.CodeType) -> set[str]:
    """Global names that a function may read, in itself or in functions defined inside."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= names_used(constant)
    return found

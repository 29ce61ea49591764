"""A kernel as a function that Numba's nopython code calls: it checks shapes, makes the outputs, and runs on one thread."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from attngen.backends import Unsupported
from attngen.backends.cpu.export.interface import Array, Interface
from attngen.backends.cpu.loading import Loaded
from attngen.backends.cpu.storage import ALIGNMENT
from attngen.ir.types import ElementType, UpTo

entry_type = ctypes.CFUNCTYPE(None, ctypes.c_size_t)


def nopython(x: Interface, loaded: Loaded) -> Any:
    """Compiled by Numba at once, for arrays of any strides. Raises ValueError when called with other shapes."""
    numba: Any = importlib.import_module("numba")
    for array in x.arrays:
        if array.type.element is ElementType.BF16:
            raise Unsupported("cpu", f"njit: Numba has no arrays of bfloat16, but {array.name} is one", help="use float16")
    inputs = [a for a in x.arrays if not a.output]
    kinds = [
        numba.types.Array(numba.from_dtype(a.type.element.numpy), len(a.layout.groups), "A", readonly=True) for a in inputs
    ]
    # The scope also keeps the code in memory for as long as the function lives.
    scope: dict[str, Any] = {"_np": np, "_entry": entry_type(loaded.address), "_loaded": loaded}
    exec(source(x), scope)
    return numba.njit([tuple(kinds)], nogil=True, error_model="numpy")(scope[x.name])


def source(x: Interface) -> str:
    """The function as Python's text."""
    program = x.versions[0].program
    known: dict[str, int | str] = {name: e for name, e in x.axes.items() if isinstance(e, int)}
    lines = [f"def {x.name}({', '.join(a.name for a in x.arrays if not a.output)}):"]
    for array in x.arrays:
        lines += made(array, known) if array.output else checked(array, known)
    lines.append(f"    _numbers = _np.empty({len(program.arguments)}, _np.int64)")
    values: list[str] = []
    for view in x.views:
        array = x.arrays[view.array]
        values.append(f"{array.name}.ctypes.data")
        for name in view.layout.names:
            place = next(d for d, group in enumerate(view.layout.groups) if name in group)
            group = view.layout.groups[place]
            values.append(product([f"{array.name}.strides[{place}]", *(known[n] for n in group[group.index(name) + 1 :])]))
    values += [str(known[name]) for name in program.extents]
    scratch = -(-program.scratch_bytes // ALIGNMENT) * ALIGNMENT
    lines += [
        f"    _memory = _np.zeros({scratch + program.temporary_bytes + ALIGNMENT}, _np.uint8)",
        f"    _address = (_memory.ctypes.data + {ALIGNMENT - 1}) // {ALIGNMENT} * {ALIGNMENT}",
    ]
    values += ["_address", f"_address + {scratch}"]
    if program.lookups:
        lines.append(f"    _outside = _np.zeros({len(program.lookups)}, _np.int64)")
        values.append("_outside.ctypes.data")
    lines += [f"    _numbers[{n}] = {value}" for n, value in enumerate(values)]
    for number, nest in enumerate(program.nests):
        parts = product(
            [f"(({known[s.axis] if isinstance(s.extent, UpTo) else s.extent} + {s.step - 1}) // {s.step})" for s in nest.splits]
        )
        if len(program.nests) > 1:
            lines.append(f"    _numbers[{len(values)}] = {number}")
        lines += [f"    _numbers[-2] = 0\n    _numbers[-1] = {parts}", "    _entry(_numbers.ctypes.data)"]
    # Numba frees an array after its last use in the text, which must come after the calls.
    lines += ["    _memory[0] = 0", "    _numbers[0] = 0"]
    if program.lookups:
        lines.append(
            '    if _outside.any():\n        raise IndexError("a coordinate lies outside of the table that it looks up")'
        )
    outputs = [a.name for a in x.arrays if a.output]
    return "\n".join([*lines, f"    return {', '.join(outputs)}"]) + "\n"


def checked(array: Array, known: dict[str, int | str]) -> list[str]:
    """What holds of an input's shape. An extent that calls choose becomes known by the first array that has it."""
    lines: list[str] = []
    for place, group in enumerate(array.layout.groups):
        length, (first, *more) = f"{array.name}.shape[{place}]", group
        extent = array.type.extents[first]
        if isinstance(extent, UpTo) and not more and first not in known:
            known[first] = f"_size{len(known)}"
            lines.append(f"    {known[first]} = {length}")
            wrong, wanted = f"not 0 < {known[first]} <= {extent.bound}", f"from 1 to {extent.bound}"
        else:
            want = product([known[n] for n in group])
            wrong, wanted = f"{length} != {want}", want if want.isdigit() else f"the same as another array's {' '.join(group)}"
        lines.append(f"    if {wrong}:")
        message = f"{array.name}: the extent of dimension {place} (axis {' '.join(group)}) must be {wanted}"
        lines.append(f"        raise ValueError({message!r})")
    return lines


def made(array: Array, known: Mapping[str, int | str]) -> list[str]:
    shape = "".join(f"{product([known[n] for n in group])}, " for group in array.layout.groups)
    return [f"    {array.name} = _np.empty(({shape}), _np.{np.dtype(array.type.element.numpy).name.replace('bool', 'bool_')})"]


def product(factors: list[int | str] | list[str]) -> str:
    number, names = 1, [f for f in factors if isinstance(f, str)]
    for f in factors:
        number *= f if isinstance(f, int) else 1
    return " * ".join([*([str(number)] if number != 1 or not names else []), *names])

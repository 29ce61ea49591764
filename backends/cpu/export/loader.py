"""A Python module that calls an exported library: NumPy and ctypes, nothing of attngen."""

from __future__ import annotations

from math import prod

from attngen.backends.cpu.export.interface import Array, Interface
from attngen.ir.types import UpTo, bound

DTYPE = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "uint16", "i64": "int64", "i32": "int32", "i8": "int8"}
DTYPE["i1"] = "bool"


def loader(x: Interface, library: str) -> str:
    """The text of the module, which looks for the library in its own folder."""
    inputs = [a for a in x.arrays if not a.output]
    outputs = [a for a in x.arrays if a.output]
    parameters = ", ".join([*(a.name for a in inputs), *(f"{a.name}=None" for a in outputs)])
    rows = "\n".join(f"    {row(a)}," for a in x.arrays)
    named = ", ".join(a.name for a in x.arrays)
    return TEMPLATE.format(name=x.name, parameters=parameters, rows=rows, named=named, library=library, info=repr(x.info))


def row(a: Array) -> str:
    """Name, dtype, whether it is written, and of each dimension the axes whose lengths a call chooses, and all the others."""
    dims: list[tuple[tuple[str, ...], int]] = []
    for group in a.layout.groups:
        varying = tuple(n for n in group if isinstance(a.type.extents[n], UpTo))
        dims.append((varying, prod(bound(a.type.extents[n]) for n in group if n not in varying)))
    return repr((a.name, DTYPE[a.type.element.value], a.output, tuple(dims)))


TEMPLATE = '''"""{name}, a kernel compiled by attngen: needs NumPy, and {library} beside this file.

Arrays have the dtypes and extents below and any strides; bfloat16 is passed as its bits, uint16. Outputs that are not given
are made. selftest() raises RuntimeError if this machine gets the examples of the library wrong. INFO is JSON.
"""

import ctypes
import os

import numpy as np

# name, dtype, whether it is written, and for each dimension: axes whose lengths a call chooses, and the product of the others
ARRAYS = (
{rows}
)
INFO = {info}

lib = ctypes.CDLL(os.path.join(os.path.dirname(os.path.abspath(__file__)), {library!r}))
lib.{name}_message.restype = ctypes.c_char_p


class Arguments(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("threads", ctypes.c_int64)]
    _fields_ += [("workspace", ctypes.c_void_p), ("workspace_bytes", ctypes.c_size_t)]
    for _name, _, _, _dims in ARRAYS:
        _fields_.append((_name, ctypes.c_void_p))
        if _dims:
            _fields_ += [(_name + "_extents", ctypes.c_int64 * len(_dims)), (_name + "_strides", ctypes.c_int64 * len(_dims))]


def checked(code):
    if code:
        raise RuntimeError(lib.{name}_message(code).decode())


def selftest():
    checked(lib.{name}_selftest())


def call(given, threads):
    arguments = Arguments(ctypes.sizeof(Arguments), threads)
    lengths, arrays = {{}}, []
    for (name, dtype, written, dims), x in zip(ARRAYS, given):
        if x is None:
            x = np.empty([int(np.prod([lengths[n] for n in axes] + [known])) for axes, known in dims], dtype)
        if not isinstance(x, np.ndarray) or x.dtype != dtype or x.ndim != len(dims) or written and not x.flags.writeable:
            kind = "a writable" if written else "an"
            got = f"{{x.dtype}} with {{x.ndim}}" if isinstance(x, np.ndarray) else type(x).__name__
            raise TypeError(f"{{name}}: expected {{kind}} array of {{dtype}} with {{len(dims)}} dimensions, got {{got}}")
        if written and any(np.may_share_memory(x, other) for other in arrays):
            raise ValueError(f"{{name}}: shares memory with another array; pass one of its own")
        if any(s % x.itemsize for s in x.strides):
            raise ValueError(f"{{name}}: strides must be whole elements; use a copy")
        for (axes, known), length in zip(dims, x.shape):
            if len(axes) == 1:
                lengths.setdefault(axes[0], length // known)
        setattr(arguments, name, x.ctypes.data)
        if dims:
            getattr(arguments, name + "_extents")[:] = x.shape
            getattr(arguments, name + "_strides")[:] = [s // x.itemsize for s in x.strides]
        arrays.append(x)
    checked(lib.{name}(ctypes.byref(arguments)))
    outputs = [x for x, row in zip(arrays, ARRAYS) if row[2]]
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def {name}({parameters}, *, threads=1):
    return call(({named},), threads)
'''

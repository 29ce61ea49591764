"""Copies between arrays, wherever they are: NumPy's by NumPy, those on a GPU by kernels that are derived from a line each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attngen.ir.core import Value
from attngen.ir.nd import Gather
from attngen.ir.types import Extent, UpTo
from attngen.lowering import arrays_of, build_kernel
from attngen.programs import Program, make_program
from attngen.specs import Spec, array_dtype_name, input_types, read_dtype
from attngen.table import KERNELS
from attngen.tensor import Tensor, apply


def copy(into: Any, source: Any, target: str) -> None:
    """Write the elements of an array of 4 dimensions to another one."""
    if isinstance(into, np.ndarray):
        into[...] = source
    else:
        run(COPIED, {"x": source}, "abc", into, target)


def pages(x: Any, rows: np.ndarray, layout: str, target: str) -> Any:
    """x[rows] of an array on a GPU, with the places on the pages of an entry one after the other. x (page, heads, size, d), or
    heads after sizes with layout="BSHD"; rows (batch, pages): indices."""
    own = arrays_of(target)
    shape, axis = list(x.shape), 2 if layout == "BHSD" else 1
    batch, count = rows.shape
    shape[axis : axis + 1] = [count, shape[axis]]
    made = own.empty((batch, *shape[1:]), x.dtype, [x])
    run(PAGES[layout], {"x": x, "rows": own.upload(rows, [x])}, "bn", made, target)
    shape[axis : axis + 2] = [count * shape[axis + 1]]
    return made.reshape((batch, *shape[1:]))


def copied(x: Tensor) -> Tensor:
    return x


def gathered(x: Tensor, rows: Tensor) -> Tensor:
    def look_up(x: Value, rows: Value) -> Value:
        return Gather(table=x, at=(rows,), over=("p",)).result

    return apply(look_up, x, rows)


COPIED = make_program(copied, {"x": "a b c d"}, "a b c d")
PAGES = {
    "BHSD": make_program(gathered, {"x": "p g s d", "rows": "b n"}, "b g n s d"),
    "BSHD": make_program(gathered, {"x": "p s g d", "rows": "b n"}, "b n s g d"),
}


def run(program: Program, arrays: Mapping[str, Any], runtime: str, out: Any, target: str) -> None:
    """runtime: the axes whose extents differ between calls: one kernel serves all up to a power of two."""

    def extent(axis: str, n: int) -> Extent:
        return UpTo(1 << (n - 1).bit_length()) if axis in runtime and n else n

    def spec(name: str) -> Spec:
        x = arrays[name]
        shape = (extent(axis, n) for (axis,), n in zip(program.layouts[name].groups, x.shape, strict=True))
        return Spec(tuple(shape), array_dtype_name(read_dtype(x.dtype, name)))

    specs = {name: spec(name) for name in arrays}
    key = ("copies", program.name, program.outs, tuple(specs.items()), target)
    made = KERNELS.get(key, lambda: build_kernel(program, program.bind(input_types(program.layouts, specs)), target=target))
    made(*arrays.values(), out=out)

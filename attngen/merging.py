"""Attention over two parts of the keys as attention over both."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from attngen import arithmetic, functions
from attngen.arrays import HOST, Array
from attngen.ir.diagnostics import Error
from attngen.ir.types import ElementType
from attngen.lowering import arrays_of, build_kernel
from attngen.programs import make_program
from attngen.sdpa_options import check_layout, check_lse_base, check_names
from attngen.sdpa_shapes import FLOATS
from attngen.specs import Spec, array_dtype, array_dtype_name, input_types, read_dtype, show_shape
from attngen.table import KERNELS
from attngen.tensor import Tensor, apply
from attngen.torch_arrays import accepts_tensors


@accepts_tensors
def merge(
    o1: Any, lse1: Any, o2: Any, lse2: Any, *, layout: str = "BHSD", lse_base: str = "e", target: str = "cpu"
) -> tuple[Any, Any]:
    """(out, lse) over the keys of both parts, from the outputs and log-sum-exps over each.

    o1, o2 (…, heads, q_len, d_v), or heads after lengths with layout="BSHD"; lse1, lse2 (…, heads, q_len) in either. A part
    without keys, output 0 and log-sum-exp -inf, changes nothing, and two such parts make another. Sinks must be counted in one
    part only. Arrays of this machine are merged by NumPy, those on a GPU, with target="cuda", by a kernel. Raises Error if
    shapes or dtypes do not fit.
    """
    check_layout(layout)
    check_lse_base(lse_base)
    check_names(target=target)
    own = arrays_of(target)
    named = {name: own.read(name, x) for name, x in (("o1", o1), ("lse1", lse1), ("o2", o2), ("lse2", lse2))}
    o1, lse1, o2, lse2 = named.values()
    for name, x in named.items():
        if x.dtype.name not in FLOATS:
            raise Error(f"{name}: expected a float dtype ({', '.join(FLOATS)}), got {x.dtype.name}")
    turned = layout == "BSHD" and o1.ndim > 2
    rows = o1.shape[:-1] if not turned else (*o1.shape[:-3], o1.shape[-2], o1.shape[-3])
    for name, x, shape in (("o2", o2, o1.shape), ("lse1", lse1, rows), ("lse2", lse2, rows)):
        if x.shape != shape:
            raise Error(
                f"{name}: expected shape {show_shape(shape)}, as o1 has {show_shape(o1.shape)}, got {show_shape(x.shape)}"
            )
    if o1.dtype != o2.dtype:
        raise Error(f"o2: has dtype {o2.dtype.name}, but o1 has {o1.dtype.name}; use o2.astype(o1.dtype)")
    element = read_dtype(o1.dtype, "o1").accumulator
    if own is not HOST or target.partition(":")[0] != "cpu":
        return by_kernel([o1, lse1, o2, lse2], turned, lse_base, element, target)
    wide = array_dtype(element)
    exp, log = (np.exp, np.log) if lse_base == "e" else (np.exp2, np.log2)
    with np.errstate(all="ignore"):
        a, b = (x.astype(wide) for x in (lse1, lse2))
        top: Array = np.maximum(a, b)
        # Without any key the weights are 0, not exp(-inf + inf).
        shift = np.where(np.isneginf(top), 0, top).astype(wide)
        first, second = exp(a - shift), exp(b - shift)
        total = first + second
        lse = shift + log(total)
        divisor = np.where(total == 0, 1, total).astype(wide)
        w1, w2 = (w[..., None] if not turned else w.swapaxes(-1, -2)[..., None] for w in (first / divisor, second / divisor))
        # A part that weighs nothing is left out, whatever its output holds.
        out = np.where(w1 == 0, 0, o1.astype(wide) * w1) + np.where(w2 == 0, 0, o2.astype(wide) * w2)
    return out.astype(o1.dtype), lse


def by_kernel(arrays: Sequence[Any], turned: bool, lse_base: str, wide: ElementType, target: str) -> tuple[Any, Any]:
    """The same by a kernel for arrays of these shapes."""
    axes = [f"a{k}" for k in range(arrays[1].ndim)]
    rows, one = " ".join(axes), " ".join((*axes[:-2], *(axes[-2:] if not turned else axes[:-3:-1]), "e"))
    layouts = {"o1": one, "lse1": rows, "o2": one, "lse2": rows}
    program = make_program(partial(merged, wide, lse_base), layouts, (one, rows), (None, wide))
    given = zip(layouts, arrays, strict=True)
    specs = {name: Spec(x.shape, array_dtype_name(read_dtype(x.dtype, name))) for name, x in given}
    key = ("merge", tuple(specs.items()), turned, lse_base, target)
    made = KERNELS.get(key, lambda: build_kernel(program, program.bind(input_types(program.layouts, specs)), target=target))
    return made(*arrays)


def merged(wide: ElementType, lse_base: str, o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> tuple[Tensor, Tensor]:
    exp, log = (functions.exp, functions.log) if lse_base == "e" else (functions.exp2, functions.log2)
    o1, lse1, o2, lse2 = (apply(partial(arithmetic.lift, element=wide), x) for x in (o1, lse1, o2, lse2))
    top = functions.maximum(lse1, lse2)
    shift = functions.where(top == -np.inf, 0.0, top)
    first, second = exp(lse1 - shift), exp(lse2 - shift)
    total = first + second
    divisor = functions.where(total == 0.0, 1.0, total)
    w1, w2 = first / divisor, second / divisor
    out = functions.where(w1 == 0.0, 0.0, o1 * w1) + functions.where(w2 == 0.0, 0.0, o2 * w2)
    return out, shift + log(total)

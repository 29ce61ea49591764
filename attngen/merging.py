"""Attention over two parts of the keys as attention over both."""

from __future__ import annotations

from typing import Any

import numpy as np

from attngen.arrays import Array, check_array
from attngen.ir.diagnostics import Error
from attngen.sdpa_options import check_layout, check_lse_base
from attngen.sdpa_shapes import FLOATS
from attngen.specs import read_dtype, show_shape
from attngen.torch_arrays import accepts_tensors


@accepts_tensors
def merge(o1: Any, lse1: Any, o2: Any, lse2: Any, *, layout: str = "BHSD", lse_base: str = "e") -> tuple[Array, Array]:
    """(out, lse) over the keys of both parts, from the outputs and log-sum-exps over each.

    o1, o2 (…, heads, q_len, d_v), or heads after lengths with layout="BSHD"; lse1, lse2 (…, heads, q_len) in either. A part
    without keys, output 0 and log-sum-exp -inf, changes nothing, and two such parts make another. Sinks must be counted in one
    part only. Raises Error if shapes or dtypes do not fit.
    """
    check_layout(layout)
    check_lse_base(lse_base)
    for name, x in (("o1", o1), ("lse1", lse1), ("o2", o2), ("lse2", lse2)):
        check_array(name, x)
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
    wide = np.result_type(read_dtype(o1.dtype, "o1").accumulator.numpy, np.float32)
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

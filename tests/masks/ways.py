"""The ways to execute attention: the interpreter on the traced function, and kernels for two targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import attngen
from attngen.ir.interpreter import run
from attngen.sdpa import trace
from attngen.sdpa_inputs import read_extras
from attngen.sdpa_options import read_options
from attngen.sdpa_shapes import Shape
from attngen.specs import read_dtype
from tests.masks.oracle import attention

Attend = Callable[..., tuple[Any, Any]]

WAYS = ("interpreter", "numpy", "cpu")

ARRAYS = ("attn_mask", "bias", "alibi_slopes", "sinks", "seqused_k")
MODS = ("score_mod", "mask_mod")


def attend(way: str, query: Any, key: Any, value: Any, **kwargs: Any) -> tuple[Any, Any]:
    """(out, lse)."""
    if way == "interpreter":
        return interpret(query, key, value, **kwargs)
    return attngen.scaled_dot_product_attention(query, key, value, return_lse=True, target=way, **kwargs)


def interpret(query: Any, key: Any, value: Any, **kwargs: Any) -> tuple[Any, Any]:
    """The program as it is traced, before any pass."""
    taken = {name: kwargs.pop(name) for name in (*ARRAYS, *MODS) if name in kwargs}
    options = read_options(return_lse=True, **kwargs)
    shape = Shape.of(query, key, options.layout)
    accumulator = read_dtype(query.dtype, "query").accumulator
    extras = read_extras(shape, accumulator, **{n: x for n, x in taken.items() if n in ARRAYS})
    named = (("query", query), ("key", key), ("value", value))
    _, traced = trace(named, options, extras, {n: x for n, x in taken.items() if n in MODS})
    arrays = {**dict(named), **{x.name: x.array for x in extras}, **{n: b.array for n, b in traced.captured.items()}}
    out, lse = run(traced.func, *(arrays[source] for source in traced.sources))
    return out, lse


def check(way: str, query: Any, key: Any, value: Any, **kwargs: Any) -> None:
    """Compare output and log-sum-exp with the oracle: within the rounding of 32 bits, infinities and NaN at the same places."""
    wanted = attention(query, key, value, **kwargs)
    for got, want in zip(attend(way, query, key, value, **kwargs), wanted, strict=True):
        size = max(1.0, float(np.max(np.abs(want[np.isfinite(want)]), initial=0)))
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=4e-6 * size)

"""The ways to execute attention: the interpreter on the traced function, and kernels for two targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np

import attngen
from attngen import sdpa
from attngen.ir.interpreter import run
from tests.masks.oracle import attention

Attend = Callable[..., tuple[Any, Any]]

WAYS = ("interpreter", "numpy", "cpu")


def attend(way: str, query: Any, key: Any, value: Any, *, return_lse: bool = True, **kwargs: Any) -> Any:
    """(out, lse), or out. The oracle is a way too, where its own answers are judged."""
    if way == "oracle":
        return attention(query, key, value, **kwargs)
    if way != "interpreter":
        return attngen.scaled_dot_product_attention(query, key, value, return_lse=return_lse, target=way, **kwargs)
    with mock.patch("attngen.sdpa.find_kernel", interpreted):
        return attngen.scaled_dot_product_attention(query, key, value, return_lse=return_lse, **kwargs)


def interpreted(arrays: Any, options: Any, extras: Any, mods: Any, target: str) -> Callable[..., Any]:
    """In place of a kernel: the program as it is traced, before any pass."""
    _, traced = sdpa.trace(arrays, options, extras, mods)
    named = {**dict(arrays), **{x.name: x.array for x in extras}, **{n: b.array for n, b in traced.captured.items()}}

    def call(out: Any, num_threads: int | None) -> Any:
        found = list(run(traced.func, *(named[source] for source in traced.sources)))
        given = out[0] if options.return_lse else out
        if given is not None:
            given[...] = found[0]
            found[0] = given
        return tuple(found) if options.return_lse else found[0]

    return call


def check(way: str, query: Any, key: Any, value: Any, **kwargs: Any) -> None:
    """Compare output and log-sum-exp with the oracle: within the rounding of 32 bits, infinities and NaN at the same places."""
    wanted = attention(query, key, value, **kwargs)
    for got, want in zip(attend(way, query, key, value, **kwargs), wanted, strict=True):
        size = max(1.0, float(np.max(np.abs(want[np.isfinite(want)]), initial=0)))
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=4e-6 * size)

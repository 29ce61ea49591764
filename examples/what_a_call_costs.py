"""What a call costs besides its arithmetic: 16 queries and keys, d = 32, beside an empty call through ctypes.

python examples/what_a_call_costs.py

Processor time of one thread, least of rounds in turn. A kernel that is called often gets a shorter way in; it is called often
enough here before anything is timed.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

import numpy as np

import attngen


def least(calls: dict[str, Callable[[], object]], rounds: int = 100, times: int = 200) -> dict[str, float]:
    """Microseconds of one call of each."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.thread_time()
            for _ in range(times):
                call()
            best[name] = min(best[name], (time.thread_time() - start) / times * 1e6)
    return best


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 1, 1, 16, 32), dtype=np.float32)
    kernel = attngen.compile(attngen.attention, q=q, k=k, v=v)
    out = np.empty_like(q)
    for _ in range(32):
        kernel(q, k, v)
    address = ctypes.cast(ctypes.pythonapi.Py_GetVersion, ctypes.c_void_p).value or 0
    empty = ctypes.CFUNCTYPE(ctypes.c_void_p)(address)
    costs = least(
        {
            "an empty call through ctypes": empty,
            "kernel(q, k, v, out=out)": lambda: kernel(q, k, v, out=out),
            "kernel(q, k, v)": lambda: kernel(q, k, v),
            "scaled_dot_product_attention(q, k, v)": lambda: attngen.scaled_dot_product_attention(q, k, v),
        }
    )
    for name, cost in costs.items():
        print(f"{name:<40}{cost:6.2f} us")

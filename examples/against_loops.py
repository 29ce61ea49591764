"""The same four steps as plain Numba loops, timed in turn with the kernel that attngen derives: 512 queries and keys, d = 64.

python examples/against_loops.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numba
import numpy as np

import attngen


@numba.njit(fastmath=True)
def loops(q, k, v, out):
    """Score, scale, softmax, weigh, one row at a time, as one would write them down."""
    n, m, d, e = q.shape[0], k.shape[0], q.shape[1], v.shape[1]
    scores = np.empty(m, np.float32)
    for i in range(n):
        top = np.float32(-np.inf)
        for j in range(m):
            s = np.float32(0)
            for x in range(d):
                s += q[i, x] * k[j, x]
            scores[j] = s / np.sqrt(np.float32(d))
            top = max(top, scores[j])
        total = np.float32(0)
        for j in range(m):
            scores[j] = np.exp(scores[j] - top)
            total += scores[j]
        for x in range(e):
            o = np.float32(0)
            for j in range(m):
                o += scores[j] * v[j, x]
            out[i, x] = o / total


def compare(n: int = 512, d: int = 64, rounds: int = 20) -> tuple[float, float, float]:
    """(seconds of the loops, seconds of the kernel, largest difference), best of interleaved rounds."""
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, n, d)).astype(np.float32)
    by_loops, by_kernel = np.empty_like(q), np.empty_like(q)
    kernel = attngen.compile(attngen.attention, q=(1, 1, n, d), k=(1, 1, n, d), v=(1, 1, n, d))
    views = [x[None, None] for x in (q, k, v, by_kernel)]

    def run_kernel() -> None:
        kernel(*views[:3], out=views[3])

    def run_loops() -> None:
        loops(q, k, v, by_loops)

    def once(call: Callable[[], None]) -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    once(run_loops)
    once(run_kernel)
    pairs = [(once(run_loops), once(run_kernel)) for _ in range(rounds)]
    return min(a for a, _ in pairs), min(b for _, b in pairs), float(np.max(np.abs(by_loops - by_kernel)))


def main() -> None:
    slow, fast, difference = compare()
    print(f"plain loops {slow * 1e3:8.2f} ms")
    print(f"attngen     {fast * 1e3:8.2f} ms   {slow / fast:.1f} times as fast, largest difference {difference:.0e}")


if __name__ == "__main__":
    main()

"""The fused loop beside the same steps as kernels of their own, which store the scores: 128 to 8192 queries and keys, d = 64.

python examples/fused_against_unfused.py [longest]

Processor time of one thread, least of rounds in turn; both sides are compiled by attngen, so that only fusion differs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

import attngen
from attngen import Tensor


@attngen.program(q="h i d", k="h j d", out="h i j")
def scores(q: Tensor, k: Tensor) -> Tensor:
    return attngen.scale(attngen.score(q, k, over="d"), 0.125)


@attngen.program(s="h i j", out="h i j")
def weights(s: Tensor) -> Tensor:
    return attngen.softmax(s, over="j")


@attngen.program(p="h i j", v="h j e", out="h i e")
def weighted(p: Tensor, v: Tensor) -> Tensor:
    return attngen.weigh(p, v, over="j")


@attngen.program(q="h i d", k="h j d", v="h j e", out="h i e")
def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = attngen.scale(attngen.score(q, k, over="d"), 0.125)
    return attngen.weigh(attngen.softmax(s, over="j"), v, over="j")


def compare(n: int, heads: int = 2, d: int = 64) -> tuple[float, float, float]:
    """(seconds fused, seconds unfused, largest difference)."""
    rng = np.random.default_rng(n)
    q, k, v = rng.standard_normal((3, heads, n, d), dtype=np.float32)
    matrix, by_steps, by_loop = np.empty((heads, n, n), np.float32), np.empty_like(q), np.empty_like(q)
    parts = attngen.compile(scores, q=q, k=k), attngen.compile(weights, s=matrix), attngen.compile(weighted, p=matrix, v=v)
    whole = attngen.compile(fused, q=q, k=k, v=v)
    probabilities = np.empty_like(matrix)

    def steps() -> None:
        parts[0](q, k, out=matrix)
        parts[1](matrix, out=probabilities)
        parts[2](probabilities, v, out=by_steps)

    def loop() -> None:
        whole(q, k, v, out=by_loop)

    def once(call: Callable[[], None]) -> float:
        start = time.thread_time()
        call()
        return time.thread_time() - start

    rounds = [(once(loop), once(steps)) for _ in range(max(3, min(40, (1 << 24) // n**2)))]
    return min(a for a, _ in rounds), min(b for _, b in rounds), float(abs(by_loop - by_steps).max())


if __name__ == "__main__":
    longest = int(sys.argv[1]) if len(sys.argv) > 1 else 8192
    attngen.set_num_threads(1)
    print(f"{'queries':>8} {'fused':>10} {'unfused':>10} {'ratio':>6}  largest difference")
    n = 128
    while n <= longest:
        a, b, difference = compare(n)
        print(f"{n:8} {a * 1e3:8.3f}ms {b * 1e3:8.3f}ms {b / a:6.2f}  {difference:.1e}")
        n *= 2

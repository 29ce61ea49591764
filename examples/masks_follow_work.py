"""Work follows the mask: kernels with masks against the kernel without, in processor time of one thread, and what it takes to
find out which tiles are empty.

python examples/masks_follow_work.py            about 40 seconds
python examples/masks_follow_work.py --build    tile maps of 100,000 x 100,000 masks: time and memory
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import attngen
from attngen import masks

HEADS, WIDTH = 8, 64
Call = Callable[[], object]


def documents(length: int, count: int, seed: int | None = None) -> np.ndarray:
    """The document of each place: of equal lengths, or cut at random."""
    if seed is None:
        return np.arange(length) * count // length
    cuts = np.random.default_rng(seed).choice(np.arange(1, length), count - 1, replace=False)
    return np.searchsorted(np.sort(cuts), np.arange(length), side="right")


def cases() -> list[tuple[str, int, dict[str, Any], np.ndarray]]:
    """Name, length, arguments, and how many keys each query keeps."""
    i, j = np.arange(4096), np.arange(8192)
    equal, random = documents(8192, 16), documents(8192, 16, seed=0)
    return [
        ("causal", 4096, {"is_causal": True}, i + 1),
        ("prefix-LM, 1024", 4096, {"mask_mod": masks.prefix_lm(1024)}, np.maximum(i + 1, 1024)),
        ("window (255, 0)", 8192, {"window": (255, 0)}, np.minimum(j, 255) + 1),
        ("16 equal documents", 8192, {"mask_mod": masks.document(equal)}, np.bincount(equal)[equal]),
        ("16 random documents", 8192, {"mask_mod": masks.document(random)}, np.bincount(random)[random]),
    ]


def attention(length: int, arguments: dict[str, Any]) -> Call:
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, HEADS, length, WIDTH), np.float32)
    out = np.empty_like(q)
    call = partial(attngen.scaled_dot_product_attention, q, k, v, out=out, num_threads=1, **arguments)
    call()  # compiles
    return call


def processor_time(call: Call) -> float:
    start = time.thread_time()
    call()
    return time.thread_time() - start


def compare(rounds: int = 4) -> bool:
    """Print a line per mask; whether all are within 1.1 f + 0.03 of the time without a mask, f the share of kept pairs."""
    print(f"shape (1, {HEADS}, n, n, {WIDTH}), float32, one thread; best of {rounds} rounds in turn")
    print(f"{'mask':22}{'n':>6}{'f':>9}{'time':>11}{'no mask':>11}{'ratio':>9}{'allowed':>9}")
    good = True
    for length in (4096, 8192):
        some = [case for case in cases() if case[1] == length]
        calls = [attention(length, {}), *(attention(length, arguments) for _, _, arguments, _ in some)]
        times = np.array([[processor_time(call) for call in calls] for _ in range(rounds)]).min(0)
        for (name, n, _, keys), seconds in zip(some, times[1:], strict=True):
            f, ratio = float(keys.sum()) / n**2, seconds / times[0]
            allowed = 1.1 * f + 0.03
            good &= ratio <= allowed
            shown = f"{seconds * 1e3:>8.1f} ms{times[0] * 1e3:>8.1f} ms{ratio:>9.4f}{allowed:>9.4f}"
            print(f"{name:22}{n:>6}{f:>9.4f}{shown}{'' if ratio <= allowed else '  too slow'}")
    return good


def build(n: int = 100_000) -> bool:
    """Print what making each mask and counting its tiles takes; whether all stay below 50 ms and 10 MB."""
    ids = documents(n, 100, seed=0)
    made: dict[str, Callable[[], masks.TileMap]] = {
        "causal": lambda: masks.tile_map(masks.causal(), n, n),
        "window (255, 0)": lambda: masks.tile_map(masks.window(255, 0), n, n),
        "prefix-LM": lambda: masks.tile_map(masks.prefix_lm(n // 5), n, n),
        "block-causal": lambda: masks.tile_map(masks.block_causal(1000), n, n),
        "sorted documents": lambda: masks.tile_map(masks.document(ids), n, n),
    }
    good = True
    for name, call in made.items():
        call()
        seconds = min(processor_time(call) for _ in range(5))
        tracemalloc.start()
        tiles = call()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        print(f"{name:18}{seconds * 1e3:6.1f} ms {peak / 1e6:5.1f} MB   {tiles}")
        good &= seconds < 0.05 and peak < 10e6
    return good


if __name__ == "__main__":
    if not (build() if "--build" in sys.argv[1:] else compare()):
        raise SystemExit("some figure is above what is allowed")

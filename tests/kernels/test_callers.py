"""In somebody else's process: many callers, many kernels, their pools, processes started anew."""

from __future__ import annotations

import importlib.util
import multiprocessing
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest

import attngen
from tests.kernels.reference import attention

SHAPES = [(1, 1, 16, 32), (2, 3, 7, 8), (1, 2, 33, 16), (4, 1, 5, 40), (1, 1, 1, 64), (3, 2, 12, 24)]
CALLERS, CALLS = 16, 2000


def given(shape: tuple[int, ...], seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal(shape, dtype=np.float32) for _ in range(3))
    return q, k, v


def test_sixteen_callers_of_six_kernels() -> None:
    kernels = [attngen.compile(attngen.attention, q=shape, k=shape, v=shape) for shape in SHAPES]
    wrong: list[str] = []
    barrier = threading.Barrier(CALLERS)

    def caller(n: int) -> None:
        cases = [(kernel, given(shape, n)) for kernel, shape in zip(kernels, SHAPES, strict=True)]
        wanted = [attention(*arrays)[0] for _, arrays in cases]
        barrier.wait(30)
        for call in range(CALLS):
            (kernel, arrays), want = cases[(call + n) % 6], wanted[(call + n) % 6]
            if abs(kernel(*arrays) - want).max() > 3e-6:
                wrong.append(f"caller {n}, call {call}")

    threads = [threading.Thread(target=caller, args=(n,)) for n in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not wrong and not any(thread.is_alive() for thread in threads)


def largest_error(seed: int) -> float:
    q, k, v = given((1, 4, 200, 16), seed)
    return float(abs(attngen.scaled_dot_product_attention(q, k, v, num_threads=3) - attention(q, k, v)[0]).max())


def test_a_pool_of_the_caller_s_own() -> None:
    with ThreadPoolExecutor(6) as pool:
        assert max(pool.map(largest_error, range(60))) < 3e-6


def test_processes_started_anew() -> None:
    assert largest_error(0) < 3e-6
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        assert max(pool.map(largest_error, range(4), timeout=60)) < 3e-6


BESIDE = {
    "alone": "",
    "torch before": "import torch; torch.ones(300, 300) @ torch.ones(300, 300)",
    "torch after": "call(); import torch; torch.ones(300, 300) @ torch.ones(300, 300)",
    "workers of a loader": "import torch.utils.data as d; call(); [*d.DataLoader([1] * 8, 2, num_workers=2, collate_fn=call)]",
    "workers of joblib": "from joblib import Parallel, delayed; call(); Parallel(2)(delayed(call)() for _ in range(4))",
}
NEEDS = {"alone": "attngen", "workers of joblib": "joblib"}
HERE = [name for name in BESIDE if importlib.util.find_spec(NEEDS.get(name, "torch"))]
"""Those whose libraries are installed."""


@pytest.mark.parametrize("beside", HERE)
def test_beside_other_runtimes(beside: str) -> None:
    """Their threads and ours in one process, and processes that they start: right, and at an end before long."""
    code = f"""
import numpy as np
def call(_=None):
    import attngen
    x = np.random.default_rng(0).standard_normal((1, 4, 300, 16), dtype=np.float32)
    got = [attngen.scaled_dot_product_attention(x, x, x, num_threads=n) for n in (1, 3)]
    assert np.array_equal(*got) and np.isfinite(got[0]).all()
    return 0
{BESIDE[beside]}
call()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)

"""Many processes and one cache. By hand, with more of them:

ATTNGEN_TEST_PROCESSES=32 python -m pytest tests/cache/test_processes.py
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.cache.product import Product

PROCESSES = int(os.environ.get("ATTNGEN_TEST_PROCESSES") or 8)

RACE = """
import os, sys, time
import numpy as np, attngen

@attngen.program(x="i j", out="i")
def length(x):
    return attngen.sqrt(attngen.reduce_sum(x * x, over="j"))

def work(number):
    for k in range(8):
        x = np.random.default_rng(number).standard_normal((2, 3 + k)).astype(np.float32)
        kernel = attngen.compile(length, x=x.shape)
        assert np.allclose(kernel(x), np.linalg.norm(x, axis=1), rtol=1e-6)
        assert kernel.origin in sys.argv[2:], kernel.origin

children, (ready, go) = [], os.pipe()
for number in range(int(sys.argv[1])):
    child = os.fork()
    if not child:
        os.close(go)
        os.read(ready, 1)  # returns once the parent closes the other end: all begin together
        try:
            work(number)
        except BaseException as e:
            print(repr(e), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    children.append(child)
os.close(ready)
os.close(go)
assert [os.waitpid(child, 0)[1] for child in children] == [0] * len(children)
"""


def test_processes_that_compile_the_same_kernels_at_once(product: Product, tmp_path: Path) -> None:
    """All right, a file for each kernel, all of them whole, and nothing else is left."""
    folder = tmp_path / "kernels"
    numba = "import numba.core.compiler, attngen.backends.cpu.machine_code"
    product.python(numba + RACE, folder, str(PROCESSES), "compiled and kept", "read from the cache")
    assert [path.suffix for path in folder.iterdir()] == [".kernel"] * 8
    assert "8 files" in product.python("from attngen.cli import main; main(['cache', 'verify'])", folder)
    product.python(RACE, folder, "1", "read from the cache")


THREADS = """
import numpy as np, attngen
from concurrent.futures import ThreadPoolExecutor
from attngen.table import KERNELS

def ask(n):
    x = np.random.default_rng(n).standard_normal((2, 1, 4 + n % 4, 8)).astype(np.float32)
    weights = np.exp(x @ x.swapaxes(-1, -2) / np.sqrt(8.0))
    return np.abs(attngen.scaled_dot_product_attention(x, x, x) - weights / weights.sum(-1, keepdims=True) @ x).max()

with ThreadPoolExecutor(8) as pool:
    assert max(pool.map(ask, range(16))) < 1e-5
origins = {entry.made[0].origin for entry in KERNELS.entries.values()}
assert origins == {"compiled and kept"} and len(KERNELS) <= 4, (origins, len(KERNELS))
"""


def test_threads_that_ask_for_new_kernels_at_once(product: Product, tmp_path: Path) -> None:
    """Each is compiled once, whoever asks first; calls that differ in length alone may share one."""
    product.python(THREADS, tmp_path / "kernels")

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

"""Nothing of size q_len × kv_len: not in the report, not in the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import attngen
from tests.kernels.reference import attention


def kernel(n: int) -> attngen.Kernel:
    shape = (1, 1, n, 64)
    return attngen.compile(attngen.attention, q=shape, k=shape, v=shape)


def test_scratch_does_not_grow_with_the_length() -> None:
    small, large = (kernel(n).report() for n in (1024, 65536))
    assert small.scratch_bytes == large.scratch_bytes < 1 << 20
    assert small.temporary_bytes == large.temporary_bytes == 0


GROWTH = """
import resource, sys
import numpy as np
import attngen
n = 8192
rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((1, 1, n, 64)).astype("f4") for _ in "qkv")
out = np.zeros_like(q)
kernel = attngen.compile(attngen.attention, q=q.shape, k=k.shape, v=v.shape)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
kernel(q, k, v, out=out)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_call_takes_little_memory() -> None:
    """The scores alone would be 256 MB; ru_maxrss counts kilobytes."""
    done = subprocess.run([sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 16 * 1024


def test_sampled_rows_of_a_long_sequence() -> None:
    """All of 65,536 queries and keys are computed, 64 rows are checked."""
    shape = (1, 1, 65536, 32)
    rng = np.random.default_rng(1)
    query, key, value = (rng.standard_normal(shape).astype(np.float32) for _ in range(3))
    out = attngen.compile(attngen.attention, q=shape, k=shape, v=shape)(query, key, value)
    rows = rng.choice(shape[2], 64, replace=False)
    np.testing.assert_allclose(out[:, :, rows], attention(query[:, :, rows], key, value)[0], atol=1e-6)
    assert np.isfinite(out).all()


DROPPED = """
import gc
import numpy as np
import attngen

def growth(shapes):
    for n in shapes:
        x = np.ones((1, 1, n, 16), np.float32)
        attngen.compile(attngen.attention, q=x, k=x, v=x)(x, x, x)
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * 4096

before = [growth(range(1, 16)) for _ in range(2)][-1]
print(growth(range(1, 16)) - before)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="hardware: the size of a process is read from /proc")
def test_kernels_that_are_dropped_are_gone() -> None:
    """Each would cost 0.3 MB if what compilers use were kept."""
    done = subprocess.run([sys.executable, "-c", DROPPED], capture_output=True, text=True, check=True, timeout=120)
    assert int(done.stdout) < 15 * 100_000

"""Kernels compiled by Numba: libdevice's functions, divisions, loops whose length differs by thread, shared memory, atomics."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from attngen.backends.cuda import ptx
from tests.cuda.ptx.kernels import DATA


def passed(array: np.ndarray) -> list[Any]:
    """An array as numba-cuda passes it: two pointers of its owner, size, item size, data, shape, strides."""
    return [0, 0, array.size, array.itemsize, array, *array.shape, *array.strides]


@pytest.mark.parametrize(("name", "dtype", "digits"), [("elementary", np.float32, 4e-6), ("elementary64", np.float64, 4e-15)])
def test_elementary_functions(name: str, dtype: type[np.floating[Any]], digits: float) -> None:
    generate = np.random.default_rng(0)
    n = 200
    x, y = generate.normal(0, 3, n).astype(dtype), generate.uniform(0.1, 5, n).astype(dtype)
    out = np.zeros((n, 8), dtype)
    args = [*passed(x), *passed(y), *passed(out), n]
    ptx.run((DATA / f"numba_{name}.ptx").read_text(), name, 2, 128, args)
    a, b = x.astype(np.float64), y.astype(np.float64)
    erf = np.vectorize(math.erf)(a)
    expected = [np.exp(a), np.log(np.abs(a) + b), np.sin(a), b**a, a / b, np.sqrt(b), erf, np.tanh(a)]
    np.testing.assert_allclose(out, np.stack(expected, axis=1), rtol=digits, atol=digits)


def collatz(x: int) -> int:
    steps = 0
    while x > 1:
        x = x // 2 if x % 2 == 0 else 3 * x + 1
        steps += 1
    return steps


def test_integers_and_divergent_loops() -> None:
    generate = np.random.default_rng(1)
    n = 100
    a, b = generate.integers(-50, 200, n), generate.integers(1, 20, n) * generate.choice([-1, 1], n)
    out = np.zeros((n, 5), np.int64)
    ptx.run((DATA / "numba_integers.ptx").read_text(), None, 1, 128, [*passed(a), *passed(b), *passed(out), n])
    expected = [a // b, a % b, a * b, (a << 3) ^ (b >> 2), [collatz(int(x)) for x in a]]
    np.testing.assert_array_equal(out, np.stack(expected, axis=1))


def test_block_reduction() -> None:
    x = np.random.default_rng(2).integers(-8, 8, 1000).astype(np.float32)
    total = np.zeros(1, np.float32)
    text = (DATA / "numba_block_sum.ptx").read_text()
    ptx.run(text, "block_sum", 8, 128, [*passed(x), *passed(total), x.size])
    assert total[0] == x.sum()
    without = text.replace("bar.sync \t0;", "", 1)
    assert without != text
    with pytest.raises(ptx.Defect, match="race: shared memory is read that another warp wrote"):
        ptx.run(without, "block_sum", 8, 128, [*passed(x), *passed(total), x.size])

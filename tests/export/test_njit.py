"""Kernels called from Numba's nopython code."""

from __future__ import annotations

import gc
from typing import Any

import numba
import numpy as np
import pytest

import attngen as ag
from tests.export.kernels import EXAMPLES, Example, compiled


@pytest.mark.parametrize("name", EXAMPLES)
def test_from_nopython_code(name: str) -> None:
    """The same bits as the kernel gives, from arrays of any strides, and after everything but the compiled caller is gone."""
    example = EXAMPLES[name]
    given = list(example.arrays().values())
    frozen = [x[..., ::-1].copy()[..., ::-1] for x in given]
    for x in frozen:
        x.flags.writeable = False
    caller, want = made(example, given)
    gc.collect()
    np.testing.assert_array_equal(caller(tuple(given)), want)
    np.testing.assert_array_equal(caller(tuple(frozen)), want)


def made(example: Example, given: list[np.ndarray]) -> tuple[Any, np.ndarray]:
    """A compiled caller of a kernel that nothing else holds, and the first output."""
    kernel = compiled.__wrapped__(example, "cpu")
    function, several = kernel.njit, len(example.outputs) > 1

    @numba.njit
    def caller(arrays: Any) -> Any:
        found = function(*arrays)
        return found[0] if several else found

    caller(tuple(given))
    found = kernel(*given, num_threads=1)
    return caller, found[0] if several else found


def test_shapes_are_checked() -> None:
    function = ag.compile(ag.attention, q=(1, 2, ag.upto(9), 8), k=(1, 2, ag.upto(20), 8), v=(1, 2, ag.upto(20), 8)).njit

    def zeros(i: int, j: int, last: int, d: int = 8) -> list[np.ndarray]:
        return [np.zeros((1, 2, n, d), np.float32) for n in (i, j, last)]

    assert function(*zeros(4, 20, 20)).shape == (1, 2, 4, 8)
    for wrong, message in (
        (zeros(10, 3, 3), r"q: the extent of dimension 2 \(axis i\) must be from 1 to 9"),
        (zeros(0, 3, 3), r"q: the extent of dimension 2"),
        (zeros(3, 3, 4), r"v: the extent of dimension 2 \(axis j\) must be the same as another array's j"),
        (zeros(3, 3, 3, 7), r"q: the extent of dimension 3 \(axis d\) must be 8"),
    ):
        with pytest.raises(ValueError, match=message):
            function(*wrong)
    with pytest.raises(TypeError, match="No matching definition"):
        function(*(x.astype(np.float64) for x in zeros(3, 3, 3)))


def test_what_cannot_be_called() -> None:
    with pytest.raises(ag.Error, match="njit: a kernel for cpu:neoverse-n1 cannot run here"):
        _ = EXAMPLES["attention"].kernel("cpu:neoverse-n1").njit
    with pytest.raises(ag.Error, match="numpy has no machine code"):
        _ = EXAMPLES["attention"].kernel("numpy").njit

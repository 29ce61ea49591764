"""Look-ups at computed coordinates on the CPU, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import attngen
from attngen.ir.passes import PIPELINE

RNG = np.random.default_rng(0)
WIDE = RNG.standard_normal((8, 40)).astype(np.float32)
TABLES: dict[str, Any] = {
    "dense": WIDE[0].copy(),
    "every second": WIDE[1, ::2],
    "backwards": WIDE[2, ::-1],
    "doubles": RNG.standard_normal(40),
    "whole numbers": RNG.integers(-5, 5, 40).astype(np.int32),
    "bytes": RNG.integers(-5, 5, 40).astype(np.int8),
    "long numbers": RNG.integers(-5, 5, 40),
}


def attention(score: Callable[..., Any], shape: tuple[int, int, int], steps: str = "") -> tuple[Any, Any]:
    """Attention whose scores `score(s, h, i, j)` has changed, by a kernel and by NumPy."""
    h, i, j = shape
    q, k, v = (RNG.standard_normal((h, n, 8)).astype(np.float32) for n in (i, j, j))

    @attngen.program(q="h i d", k="h j d", v="h j e", out="h i e")
    def changed(q: attngen.Tensor, k: attngen.Tensor, v: attngen.Tensor) -> attngen.Tensor:
        s = attngen.contract(q, k, over="d")
        s = score(s, attngen.index("h"), attngen.index("i"), attngen.index("j"))
        return attngen.contract(attngen.softmax(s, over="j"), v, over="j")

    pipeline = PIPELINE.replace("tile,", f"tile{{{steps}}},") if steps else PIPELINE
    got = attngen.compile(changed, q=q, k=k, v=v, pipeline=pipeline)(q, k, v)
    s = np.einsum("hid,hjd->hij", q.astype(np.float64), k)
    s = score(s, np.arange(h)[:, None, None], np.arange(i)[:, None], np.arange(j))
    p = np.exp(s - s.max(-1, keepdims=True))
    return got, (p / p.sum(-1, keepdims=True)) @ v


@pytest.mark.parametrize("steps", ["", "h=1 i=16 j=16", "h=2 i=64 j=64"])
@pytest.mark.parametrize("name", TABLES)
def test_one_coordinate(name: str, steps: str) -> None:
    table = TABLES[name]
    got, want = attention(lambda s, h, i, j: s + table[(3 * i + 5 * j) % 20], (3, 37, 45), steps)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("table", [WIDE, WIDE[:, ::-1], np.asfortranarray(WIDE)], ids=["rows", "backwards", "columns"])
@pytest.mark.parametrize("shape", [(8, 16, 16), (8, 1, 33), (3, 19, 7)], ids=str)
def test_two_coordinates_and_an_axis_that_stays(table: Any, shape: tuple[int, int, int]) -> None:
    got, want = attention(lambda s, h, i, j: s + table[(h + i) % 8, (i * j) % 40] * table[h, (i + j) % 40], shape)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_a_look_up_in_what_was_looked_up() -> None:
    pages, table = RNG.permutation(10), WIDE[3]
    got, want = attention(lambda s, h, i, j: s + table[pages[j // 4] * 4 + i % 4], (2, 21, 40))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_a_truth_value_that_is_looked_up() -> None:
    keep = RNG.random((5, 5)) < 0.6
    keep[0] = True

    def masked(s: Any, h: Any, i: Any, j: Any) -> Any:
        choose: Any = np.where if isinstance(s, np.ndarray) else attngen.where
        return choose(keep[i * 0 + j // 9, i // 9], s, -50.0)

    got, want = attention(masked, (2, 40, 45))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shift", [-1, 1, 1 << 40, -(1 << 40)])
def test_a_coordinate_outside_is_an_error_and_reads_nothing(shift: int) -> None:
    table = np.zeros(32, np.float32)

    @attngen.program(x="i", shift="", out="i")
    def moved(x: attngen.Tensor, shift: attngen.Tensor) -> attngen.Tensor:
        return x + table[attngen.index("i") + shift]

    x = np.arange(32, dtype=np.float32)
    kernel = attngen.compile(moved, x=x, shift=np.asarray(0))
    np.testing.assert_array_equal(kernel(x, np.asarray(0)), x)
    with pytest.raises(attngen.Error, match=r"nd\.gather[\s\S]*a coordinate along table_1 lies outside 0 to 31"):
        kernel(x, np.asarray(shift))
    np.testing.assert_array_equal(kernel(x, np.asarray(0)), x)

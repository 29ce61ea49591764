"""Few rows of queries: vectors along the summed axis of the scores, whatever the extents and strides are."""

from __future__ import annotations

import numpy as np
import pytest

import attngen
from attngen.backends.cpu.ops import Product, dot_axis
from attngen.ir.core import walk
from attngen.ir.nd import Contract
from attngen.kernel import Kernel
from tests.kernels.reference import attention

SCALE = 0.2


@attngen.program(q="b (g r) i d", k="b g j d", v="b g j e", out="b (g r) i e")
def grouped(q: attngen.Tensor, k: attngen.Tensor, v: attngen.Tensor) -> attngen.Tensor:
    s = attngen.scale(attngen.score(q, k, over="d"), SCALE)
    return attngen.weigh(attngen.softmax(s, over="j"), v, over="j")


def along_the_sum(kernel: Kernel) -> list[str]:
    """The summed axes that vectors run along, of all products."""
    products = [op for op in walk(kernel.func.body) if isinstance(op, Contract | Product)]
    return [dot_axis(op.contraction if isinstance(op, Product) else op) for op in products]


def arrays(q: tuple[int, ...], k: tuple[int, ...], d_v: int, dtype: str) -> list[np.ndarray]:
    rng = np.random.default_rng(sum((*q, *k, d_v)))
    return [rng.standard_normal(shape).astype(dtype) for shape in (q, k, (*k[:-1], d_v))]


def check(kernel: Kernel, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
    want, _ = attention(q, k, v, SCALE)
    np.testing.assert_allclose(kernel(q, k, v), want, atol=3e-6 if q.dtype == np.float32 else 1e-13, rtol=0)


@pytest.mark.parametrize("bits", [128, 256, 512])
@pytest.mark.parametrize(
    ("heads", "i", "j", "d", "d_v", "dtype"),
    [
        (4, 1, 300, 128, 128, "float32"),
        (7, 1, 77, 70, 33, "float32"),
        (2, 3, 129, 65, 20, "float32"),
        (1, 1, 40, 37, 3, "float64"),
        (3, 2, 200, 64, 64, "float64"),
    ],
)
def test_vectors_run_along_the_sum(heads: int, i: int, j: int, d: int, d_v: int, dtype: str, bits: int) -> None:
    given = arrays((2, 2 * heads, i, d), (2, 2, j, d), d_v, dtype)
    q, k, v = given
    kernel = attngen.compile(grouped, dtype=dtype, q=q.shape, k=k.shape, v=v.shape, target=f"cpu:,vector_bits={bits}")
    # With short vectors the rows may fill one after all, or be too many.
    assert "d" in along_the_sum(kernel) or bits < 512
    check(kernel, *given)


def test_any_strides_and_lengths() -> None:
    """Keys that do not lie side by side along d are packed; what is behind the end of a row or of the keys is not read."""
    kernel = attngen.compile(grouped, q=(1, 3, 1, 45), k=(1, 1, attngen.upto(200), 45), v=(1, 1, attngen.upto(200), 24))
    assert "d" in along_the_sum(kernel)
    for j in (1, 15, 16, 17, 127, 128, 129, 200):
        q, k, v = arrays((1, 3, 1, 45), (1, 1, j, 45), 24, "float32")
        check(kernel, q, k, v)
        check(kernel, q[..., ::-1], k[..., ::-1], v[:, :, ::-1])
        check(kernel, q, np.asfortranarray(k), np.asfortranarray(v))
        room = np.full((1, 1, j + 1, 60), np.nan, np.float32)
        room[:, :, :j, :45] = k
        check(kernel, q, room[:, :, :j, :45], v)


def test_many_rows_run_along_the_queries() -> None:
    kernel = attngen.compile(grouped, q=(1, 2, 64, 64), k=(1, 2, 128, 64), v=(1, 2, 128, 64))
    assert not any(along_the_sum(kernel))

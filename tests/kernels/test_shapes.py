"""Kernels against float64 NumPy: ragged extents, grouped heads, widths, strides, element types."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import attngen
from tests.kernels.reference import attention

TOLERANCE = {"float32": 3e-6, "float64": 1e-13}


def arrays(q: tuple[int, ...], k: tuple[int, ...], d_v: int, dtype: str = "float32", seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(dtype) for shape in (q, k, (*k[:-1], d_v))]


def check(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> None:
    out, lse = attngen.scaled_dot_product_attention(query, key, value, return_lse=True)
    want, want_lse = attention(query, key, value)
    assert out.dtype == query.dtype and out.shape == want.shape
    np.testing.assert_allclose(out, want, atol=TOLERANCE[str(query.dtype)], rtol=0)
    np.testing.assert_allclose(lse, want_lse, atol=5 * TOLERANCE[str(query.dtype)], rtol=0)


@pytest.mark.parametrize(
    "q_len, kv_len", [(1, 1), (1, 333), (7, 63), (63, 7), (65, 65), (333, 517), (517, 1), (64, 128), (2, 129)]
)
def test_ragged_lengths(q_len: int, kv_len: int) -> None:
    check(*arrays((2, 3, q_len, 24), (2, 3, kv_len, 24), 24))


@pytest.mark.parametrize("d, d_v", [(1, 1), (7, 65), (63, 3), (64, 80), (96, 1), (128, 128), (192, 16), (256, 256)])
def test_widths(d: int, d_v: int) -> None:
    check(*arrays((1, 2, 70, d), (1, 2, 133, d), d_v))


@pytest.mark.parametrize("heads, kv_heads", [(4, 1), (4, 2), (6, 2), (9, 3)])
def test_grouped_heads(heads: int, kv_heads: int) -> None:
    check(*arrays((2, heads, 37, 16), (2, kv_heads, 53, 16), 24))


def test_each_query_head_reads_its_own_group() -> None:
    """Heads are repeated, not tiled: query head h reads key head h // (heads // kv_heads)."""
    query, key, value = arrays((1, 4, 5, 8), (1, 2, 6, 8), 3)
    value[:] = np.arange(2)[None, :, None, None]
    out = attngen.scaled_dot_product_attention(query, key, value)
    np.testing.assert_allclose(out[0, :, 0, 0], [0, 0, 1, 1], atol=1e-6)


@pytest.mark.parametrize("leading", [(), (3,), (2, 3), (2, 1, 3), (2, 2, 2, 2)])
def test_leading_axes(leading: tuple[int, ...]) -> None:
    check(*arrays((*leading, 19, 8), (*leading, 23, 8), 8))


def test_double_precision_is_computed_in_double_precision() -> None:
    check(*arrays((1, 2, 333, 64), (1, 2, 517, 64), 40, "float64"))


def test_large_scores() -> None:
    """Scores of 1e11 and beyond, which no exponential survives."""
    x = np.full((1, 1, 1, 64), 133120, np.float32)
    np.testing.assert_array_equal(attngen.scaled_dot_product_attention(x, x, x), x)


def test_nan_in_a_query_makes_its_row_nan_and_no_other() -> None:
    query, key, value = arrays((1, 1, 70, 16), (1, 1, 133, 16), 16)
    query[0, 0, 3, 5] = np.nan
    out = attngen.scaled_dot_product_attention(query, key, value)
    assert np.isnan(out[0, 0, 3]).all() and np.isfinite(np.delete(out, 3, axis=2)).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_value_stays_in_its_column(bad: float) -> None:
    query, key, value = arrays((1, 1, 70, 16), (1, 1, 133, 16), 16)
    value[0, 0, 100, 7] = bad
    out = attngen.scaled_dot_product_attention(query, key, value)
    np.testing.assert_array_equal(out[..., 7], np.full_like(out[..., 7], bad))
    assert np.isfinite(np.delete(out, 7, axis=3)).all()


VIEWS = {
    "as it is": lambda x: x,
    "transposed": lambda x: np.ascontiguousarray(np.swapaxes(x, -1, -2)).swapaxes(-1, -2),
    "every second column": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "backwards": lambda x: np.ascontiguousarray(x[:, :, ::-1])[:, :, ::-1],
    "heads inside": lambda x: np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3),
    "every row the same": lambda x: np.broadcast_to(x[:, :, :1], x.shape),
    "columns backwards": lambda x: np.ascontiguousarray(x[..., ::-1])[..., ::-1],
}
SHAPE_KERNEL = ((2, 3, 41, 20), (2, 3, 75, 20), 12)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.tuples(*[st.sampled_from(sorted(VIEWS))] * 4), st.integers(0, 99))
def test_any_strides(views: tuple[str, str, str, str], seed: int) -> None:
    """One compiled kernel, whatever the strides of its inputs and of its output."""
    query, key, value = (VIEWS[name](x) for name, x in zip(views, arrays(*SHAPE_KERNEL, seed=seed), strict=False))
    want = attention(query, key, value)[0]
    out = (
        VIEWS[views[3]](np.full(want.shape, np.nan, np.float32))
        if views[3] != "every row the same"
        else np.empty(want.shape, np.float32)
    )
    result = attngen.scaled_dot_product_attention(query, key, value, out=out)
    assert result is out
    np.testing.assert_allclose(out, want, atol=3e-6)


def test_every_element_is_written() -> None:
    query, key, value = arrays((2, 3, 65, 9), (2, 3, 33, 9), 17)
    out = np.full((2, 3, 65, 17), np.nan, np.float32)
    attngen.scaled_dot_product_attention(query, key, value, out=out)
    assert np.isfinite(out).all()

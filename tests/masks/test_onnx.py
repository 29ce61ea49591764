"""The Attention operator of ONNX: what it has beyond `scaled_dot_product_attention`."""

from __future__ import annotations

from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest

import attngen as ag
from attngen.onnx import attention
from tests.masks import oracle


def test_heads_in_the_features(normal: Any) -> None:
    q, k, v = normal(2, 5, 4 * 8), normal(2, 7, 2 * 8), normal(2, 7, 2 * 6)
    y, key, value, matrix = attention(q, k, v, q_num_heads=4, kv_num_heads=2)
    split = [x.reshape(2, x.shape[1], h, -1).swapaxes(1, 2) for x, h in ((q, 4), (k, 2), (v, 2))]
    np.testing.assert_allclose(y, oracle.attention(*split)[0].swapaxes(1, 2).reshape(2, 5, 24), rtol=1e-5, atol=2e-6)
    np.testing.assert_array_equal(key, split[1])
    np.testing.assert_array_equal(value, split[2])
    assert matrix is None


@pytest.mark.parametrize("kv_len", [5, 3])
def test_past_keys_come_first(normal: Any, kv_len: int) -> None:
    """Query i sees the past and the keys up to i, also where there are fewer keys than queries."""
    q, k, v = normal(2, 4, 5, 8), normal(2, 2, kv_len, 8), normal(2, 2, kv_len, 8)
    past_k, past_v = normal(2, 2, 4, 8), normal(2, 2, 4, 8)
    y, key, value, _ = attention(q, k, v, past_key=past_k, past_value=past_v, is_causal=True, left_window_size=3)
    i, j = np.indices((5, 4 + kv_len))
    keep = (j <= i + 4) & (j >= i + 1)
    np.testing.assert_allclose(y, oracle.attention(q, key, value, attn_mask=keep)[0], rtol=1e-5, atol=2e-6)
    np.testing.assert_array_equal(key, np.concatenate([past_k, k], 2))


def test_padding_and_short_masks(normal: Any) -> None:
    q, k, v = normal(2, 4, 3, 8), normal(2, 2, 9, 8), normal(2, 2, 9, 8)
    for mask in (normal(3, 7), normal(2, 1, 3, 7) > 0):
        y, *_ = attention(q, k, v, attn_mask=mask, nonpad_kv_seqlen=np.array([9, 6]), is_causal=True)
        fill = -np.inf if mask.dtype != bool else False
        whole = np.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, 2)], constant_values=fill)
        given: dict[str, Any] = {"is_causal": True, "causal_alignment": "bottom_right", "seqused_k": [9, 6], "attn_mask": whole}
        np.testing.assert_allclose(y, oracle.attention(q, k, v, **given)[0], rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_matrices_on_the_way(normal: Any, mode: int) -> None:
    q, k, v, mask = normal(1, 2, 3, 4), normal(1, 2, 5, 4), normal(1, 2, 5, 4), normal(3, 5) > 0
    mask[1] = False
    y, *_, matrix = attention(q, k, v, attn_mask=mask, softcap=2.0, qk_matmul_output_mode=mode)
    scaled = q @ k.swapaxes(2, 3) / 2
    capped = 2 * np.tanh(scaled / 2)
    final = np.where(mask, capped, -np.inf)
    weights = np.exp(final) / np.maximum(np.exp(final).sum(-1, keepdims=True), 1e-30)
    np.testing.assert_allclose(matrix, (scaled, capped, final, weights)[mode], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(y, weights @ v, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("heads", [2, 6])
def test_functions_of_arrays(heads: int, normal: Any) -> None:
    """score_mod and prob_mod get arrays, so that the steps run one by one; a masked value still counts nowhere."""
    q, k, v, mask = normal(1, heads, 3, 4), normal(1, 2, 5, 4), normal(1, 2, 5, 4), normal(3, 5) > -1
    mask[:, 2] = False
    v[:, :, 2] = np.nan
    seen: list[Any] = []

    def prob_mod(p: Any) -> Any:
        seen.append(p)
        return p * 0.5

    y, *_, matrix = attention(q, k, v, attn_mask=mask, score_mod=lambda s: s * s, prob_mod=prob_mod, qk_matmul_output_mode=3)
    k, v = (np.repeat(x, heads // 2, axis=1) for x in (k, v))
    final = np.where(mask, (q @ k.swapaxes(2, 3) / 2) ** 2, -np.inf)
    weights = np.exp(final) / np.exp(final).sum(-1, keepdims=True)
    np.testing.assert_allclose(seen[0], weights, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(matrix, weights / 2, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(y, weights / 2 @ np.nan_to_num(v), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_element_types(normal: Any, dtype: Any) -> None:
    q, k, v, bias = (normal(*s).astype(dtype) for s in ((1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 4), (3, 5)))
    sinks = normal(2)
    y, *_ = attention(q, k, v, attn_mask=bias, sinks=sinks)
    assert y.dtype == dtype
    wide = [x.astype(np.float64) for x in (q, k, v, bias)]
    want, _ = oracle.attention(*wide[:3], bias=wide[3], sinks=sinks)
    np.testing.assert_allclose(y.astype(np.float64), want, atol={2: 1e-2, 8: 1e-12}[np.dtype(dtype).itemsize])


def test_values_of_another_element_type(normal: Any) -> None:
    q, k, v = normal(1, 2, 3, 4).astype(np.float16), normal(1, 2, 5, 4).astype(np.float16), normal(1, 2, 5, 4)
    y, *_ = attention(q, k, v)
    assert y.dtype == np.float16
    np.testing.assert_allclose(y, oracle.attention(q.astype(float), k.astype(float), v)[0], atol=1e-3)


def test_softmax_in_higher_precision(normal: Any) -> None:
    q, k, v = normal(1, 1, 3, 4), normal(1, 1, 50, 4), normal(1, 1, 50, 4)
    *_, weights = attention(q, k, v, softmax_precision=np.float64, qk_matmul_output_mode=3)
    s = (q @ k.swapaxes(2, 3) * np.float32(0.5)).astype(np.float64)
    np.testing.assert_allclose(weights, np.exp(s) / np.exp(s).sum(-1, keepdims=True), rtol=1e-6)


X: Any = np.zeros((1, 2, 3, 4), np.float32)
FLAT: Any = np.zeros((1, 3, 8), np.float32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: attention(FLAT, FLAT, FLAT),
            "q_num_heads: expected a number of heads that divides the 8 features of q, got None",
        ),
        (
            lambda: attention(FLAT, FLAT, FLAT, q_num_heads=2, kv_num_heads=3),
            "kv_num_heads: expected a number of heads that divides the 8 features of k, got 3",
        ),
        (
            lambda: attention(X, X, X, q_num_heads=2),
            "q_num_heads and kv_num_heads are for arrays of rank 3, got q of shape (1, 2, 3, 4)",
        ),
        (lambda: attention(X, X, X, past_key=X), "past_key and past_value: give both or none"),
        (
            lambda: attention(X, X, X, past_key=X[:, :1], past_value=X),
            "past_key: expected shape (1, 2, 3, 4) of float32, got (1, 1, 3, 4) of float32",
        ),
        (lambda: attention(X, X, X, qk_matmul_output_mode=4), "qk_matmul_output_mode: expected 0, 1, 2 or 3, got 4"),
        (
            lambda: attention(X, X, X, score_mod=lambda s: s[..., :1]),
            "score_mod: expected scores of shape (1, 2, 3, 3), got (1, 2, 3, 1)",
        ),
        (lambda: attention(X, X, X, prob_mod=cast("Any", 1)), "prob_mod: expected a function of an array, got int"),
        (
            lambda: attention(X, X, X, nonpad_kv_seqlen=[1, 2]),
            "nonpad_kv_seqlen: expected shape (1,), one length per batch entry, got (2,)",
        ),
        (
            lambda: attention(X, X, X, right_window_size=-2),
            "right_window_size: expected a whole number of at least 0, or -1 for open, got -2",
        ),
        (lambda: attention([1], X, X), "q: expected a NumPy array, got list; use np.asarray(q)"),
    ],
)
def test_errors(call: Any, message: str) -> None:
    with pytest.raises(ag.Error) as e:
        call()
    assert str(e.value) == message

"""Keys read in several parts side by side: the same result, whatever else is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attngen

RNG = np.random.default_rng(3)
Q = RNG.standard_normal((2, 4, 3, 24), dtype=np.float32)
K, V = (RNG.standard_normal((2, 2, 700, 24), dtype=np.float32) for _ in range(2))

WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True, "causal_alignment": "bottom_right"},
    "window": {"window": (200, 0), "causal_alignment": "bottom_right"},
    "lengths": {"seqused_k": np.array([0, 650])},
    "sinks": {"sinks": np.linspace(-1, 1, 4, dtype=np.float32)},
    "mask": {"attn_mask": RNG.random((2, 1, 3, 700)) < 0.1},
    "score_mod": {"score_mod": lambda s, b, h, i, j: s - 0.01 * (i - j) * h},
    "softcap": {"softcap": 3.0},
}


@pytest.mark.parametrize(("way", "target"), [*((way, "cpu") for way in WAYS), ("lengths", "numpy"), ("sinks", "numpy")])
def test_parts_make_the_whole(way: str, target: str) -> None:
    def call(parts: int) -> tuple[np.ndarray, np.ndarray]:
        return attngen.scaled_dot_product_attention(Q, K, V, return_lse=True, num_splits=parts, target=target, **WAYS[way])

    out, lse = call(1)
    got, got_lse = call(3)
    np.testing.assert_allclose(got, out, atol=2e-6, rtol=0)
    np.testing.assert_allclose(got_lse, lse, atol=2e-6, rtol=0)


def test_masked_nan_stays_out_of_every_part() -> None:
    value = V.copy()
    value[0, :, 300:] = np.nan
    value[1, :, :300] = np.nan
    keep = np.zeros((2, 1, 1, 700), bool)
    keep[0, ..., :300] = keep[1, ..., 300:] = True
    out = attngen.scaled_dot_product_attention(Q, K, value, keep, num_splits=3)
    np.testing.assert_allclose(out, attngen.scaled_dot_product_attention(Q, K, V, keep), atol=2e-6, rtol=0)


def test_a_paged_cache() -> None:
    pages = np.ascontiguousarray(np.moveaxis(K.reshape(2, 2, 14, 50, 24), 2, 1)).reshape(28, 2, 50, 24)
    values = np.ascontiguousarray(np.moveaxis(V.reshape(2, 2, 14, 50, 24), 2, 1)).reshape(28, 2, 50, 24)
    table = np.arange(28).reshape(2, 14)

    def call(parts: int | None) -> np.ndarray:
        lengths = np.array([333, 700])
        return attngen.attention_with_kvcache(
            Q, pages, values, cache_seqlens=lengths, block_table=table, num_splits=parts, is_causal=True
        )

    np.testing.assert_allclose(call(5), call(1), atol=2e-6, rtol=0)
    np.testing.assert_allclose(call(None), call(1), atol=2e-6, rtol=0)


def test_few_long_rows_give_every_thread_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """One head, one query: by default the keys are cut for the threads there are, unless results must not depend on them."""
    q, (k, v) = Q[:1, :1, :1], (x[:1, :1].repeat(9, axis=2) for x in (K, V))
    with attngen.threads(4):
        out = attngen.scaled_dot_product_attention(q, k, v)
        again = attngen.scaled_dot_product_attention(q, k, v, num_threads=1)
        whole = attngen.scaled_dot_product_attention(q, k, v, deterministic=True)
    assert np.array_equal(out, again)
    np.testing.assert_allclose(out, whole, atol=2e-6, rtol=0)

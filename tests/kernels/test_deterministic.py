"""The same rows give the same bits, whatever else is in the batch and however many threads work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attngen

RNG = np.random.default_rng(8)
CASES: dict[str, tuple[tuple[int, int], tuple[int, int], dict[str, Any]]] = {
    "encoder": ((4, 200), (4, 300), {}),
    "causal": ((4, 257), (4, 257), {"is_causal": True}),
    "one query": ((8, 1), (2, 3000), {}),
    "lengths": ((2, 33), (1, 500), {"seqused_k": True}),
}


@pytest.mark.parametrize("name", CASES)
def test_same_bits(name: str) -> None:
    (heads, q_len), (kv_heads, kv_len), options = CASES[name]
    query = RNG.standard_normal((8, heads, q_len, 40), dtype=np.float32)
    key, value = (RNG.standard_normal((8, kv_heads, kv_len, 40), dtype=np.float32) for _ in range(2))
    lengths = RNG.integers(1, kv_len, 8)

    def call(batch: slice, threads: int) -> np.ndarray:
        given: dict[str, Any] = {k: lengths[batch] if k == "seqused_k" else v for k, v in options.items()}
        return attngen.scaled_dot_product_attention(
            query[batch], key[batch], value[batch], deterministic=True, num_threads=threads, return_lse=True, **given
        )[0]

    want = call(slice(0, 8), 1)
    for threads in (1, 2, 5):
        assert np.array_equal(call(slice(0, 8), threads), want)
        assert np.array_equal(call(slice(2, 5), threads), want[2:5])
        assert np.array_equal(call(slice(3, 4), threads), want[3:4])

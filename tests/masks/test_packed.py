"""Sequences one after the other, against a call for each of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attngen as ag
from attngen.sdpa import make_kernel
from tests.masks.oracle import attention, packed

Q_LENS, K_LENS = [3, 0, 5, 1, 4], [4, 2, 5, 0, 9]
CU_Q, CU_K = np.cumsum([0, *Q_LENS]), np.cumsum([0, *K_LENS])
TABLE, BY_KEY = np.linspace(0, 1, 5).astype(np.float32), np.sin(np.arange(9)).astype(np.float32)

GIVEN: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "causal, bottom right": {"is_causal": True, "causal_alignment": "bottom_right"},
    "window": {"window": (2, 1), "causal_alignment": "bottom_right", "sinks": [0.1, 0.2, 0.3, 0.4]},
    "slopes": {"alibi_slopes": [0.5, 0.25, 0.125, 0.1], "softcap": 2.0},
    "used": {"seqused_k": np.array([2, 2, 0, 0, 7]), "is_causal": True, "causal_alignment": "bottom_right"},
    "tables": {
        # They reach as far as a sequence does, not as far as the array.
        "score_mod": lambda s, b, h, i, j: s + TABLE[i] * BY_KEY[j] + BY_KEY[np.abs(i - j)],
        "mask_mod": lambda b, h, i, j: BY_KEY[j] > -1,
    },
    "mods": {
        "score_mod": lambda s, b, h, i, j: s + 0.1 * h * (i - j) + 0.3 * b,
        "mask_mod": lambda b, h, i, j: (i + j + b) % 3 != 0,
    },
}


@pytest.mark.parametrize("target", ["numpy", "cpu"])
@pytest.mark.parametrize(("name", "spare"), [*((name, 0) for name in GIVEN), ("causal", 2)])
def test_packed_sequences(normal: Any, target: str, name: str, spare: int) -> None:
    """U27: flash-attention#1537: some sequences are empty. Rows behind the last one are 0."""
    q, k, v = (normal(n + spare, h, 8) for n, h in ((CU_Q[-1], 4), (CU_K[-1], 2), (CU_K[-1], 2)))
    k[CU_K[-1] :] = v[CU_K[-1] :] = np.nan
    given = GIVEN[name]
    out, lse = ag.scaled_dot_product_attention(
        q, k, v, cu_seqlens_q=CU_Q, cu_seqlens_k=CU_K, return_lse=True, target=target, **given
    )
    want, want_lse = packed(q, k, v, CU_Q, CU_K, **given)
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(lse, want_lse, rtol=1e-5, atol=2e-6)


def test_other_lengths_need_no_other_kernel(normal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The boundaries are values, not part of the kernel."""
    q, k = normal(10, 2, 4), normal(10, 2, 4)
    made: list[int] = []

    def counted(*args: Any) -> Any:
        made.append(1)
        return make_kernel(*args)

    monkeypatch.setattr("attngen.sdpa.make_kernel", counted)
    for cu in ([0, 10], [0, 3, 10], [0, 0, 1, 10], [0, 5]):
        out = ag.scaled_dot_product_attention(q, k, k, cu_seqlens_q=cu, cu_seqlens_k=cu, target="numpy")
        last = slice(cu[-2], cu[-1])
        want, _ = attention(*(x[last].swapaxes(0, 1)[None] for x in (q, k, k)))
        np.testing.assert_allclose(out[last], want[0].swapaxes(0, 1), rtol=1e-5, atol=2e-6)
    assert len(made) == 1


Q: Any = np.zeros((9, 4, 8), np.float32)
K: Any = np.zeros((11, 2, 8), np.float32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cu_seqlens_q": [1, 9]}, "cu_seqlens_q[0] is 1; expected 0, where the first sequence starts"),
        (
            {"cu_seqlens_k": [0, 7, 5]},
            "cu_seqlens_k[2] is 5, less than cu_seqlens_k[1], which is 7; sequences follow each other",
        ),
        ({"cu_seqlens_k": [0, 3, 12]}, "cu_seqlens_k[2] is 12; there are only 11 rows of key"),
        ({"cu_seqlens_q": [0, 10]}, "cu_seqlens_q[1] is 10; there are only 9 rows of query"),
        (
            {"cu_seqlens_q": [0, 9]},
            "cu_seqlens_k: expected 1 sequences as cu_seqlens_q has, got 2: shapes (2,) and (3,)",
        ),
        ({"cu_seqlens_k": None}, "cu_seqlens_k: is missing; packed arrays need cu_seqlens_q and cu_seqlens_k"),
        (
            {"cu_seqlens_q": [0.0, 9.0]},
            "cu_seqlens_q: expected a vector of whole numbers, one more than sequences, got float64 of shape (2,)",
        ),
        ({"seqused_k": [4, 8]}, "seqused_k[1] is 8; expected a length from 0 to 7, that of the sequence"),
        (
            {"cu_seqlens_q": [0, -4, 9]},
            "cu_seqlens_q[1] is -4, less than cu_seqlens_q[0], which is 0; sequences follow each other",
        ),
        (
            {"attn_mask": np.ones((9, 12), bool)},
            "attn_mask: shape (9, 12) does not broadcast to the scores' (4, 9, 11): "
            "dimension 1 is 12, expected 1 or 11 (kv_len)",
        ),
        (
            {"alibi_slopes": np.ones((2, 4))},
            "alibi_slopes: expected shape (4,), one slope per head (and batch entry), got (2, 4)",
        ),
        (
            {"semantics": "jax"},
            "semantics: 'jax' is the mean of all values in a row without keys, which packed arrays do not have",
        ),
        ({"seqused_k": [4]}, "seqused_k: expected 2 whole numbers, one per sequence, got shape (1,)"),
        (
            {"query": Q[None], "key": K[None], "value": K[None]},
            "cu_seqlens_q: expected packed arrays (total, heads, features), of 3 dimensions",
        ),
    ],
)
def test_errors(changes: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {
        "query": Q,
        "key": K,
        "value": K,
        "cu_seqlens_q": [0, 4, 9],
        "cu_seqlens_k": [0, 4, 11],
        "layout": "BSHD",
    }
    out = np.full_like(changes.get("query", Q), 7)
    with pytest.raises(ag.Error) as e:
        ag.scaled_dot_product_attention(**{**given, "out": out, **changes})
    assert str(e.value) == message
    assert np.all(out == 7)

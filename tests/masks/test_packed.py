"""Sequences one after the other, against a call for each of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attngen as ag
from attngen.sdpa import make_kernel
from tests.masks.oracle import attention

Q_LENS, K_LENS = [3, 0, 5, 1, 4], [4, 2, 5, 0, 9]
CU_Q, CU_K = np.cumsum([0, *Q_LENS]), np.cumsum([0, *K_LENS])
TABLE = np.linspace(0, 1, 5).astype(np.float32)

GIVEN: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "causal, bottom right": {"is_causal": True, "causal_alignment": "bottom_right"},
    "window": {"window": (2, 1), "causal_alignment": "bottom_right", "sinks": [0.1, 0.2, 0.3, 0.4]},
    "slopes": {"alibi_slopes": [0.5, 0.25, 0.125, 0.1], "softcap": 2.0},
    "used": {"seqused_k": np.array([2, 2, 0, 0, 7]), "is_causal": True, "causal_alignment": "bottom_right"},
    "mods": {
        "score_mod": lambda s, b, h, i, j: s + 0.1 * h * (i - j) + 0.3 * b,
        "mask_mod": lambda b, h, i, j: (i + j + b) % 3 != 0,
    },
}


def by_sequence(q: Any, k: Any, v: Any, given: dict[str, Any]) -> tuple[Any, Any]:
    """Of packed arrays: the oracle on each sequence, its number as the batch index."""
    out, lse = np.zeros((*q.shape[:2], v.shape[2])), np.full((q.shape[1], q.shape[0]), -np.inf)
    for n in range(len(Q_LENS)):
        rows, keys = slice(CU_Q[n], CU_Q[n + 1]), slice(CU_K[n], CU_K[n + 1])
        arrays = [x[part].swapaxes(0, 1)[None] for x, part in ((q, rows), (k, keys), (v, keys))]
        own: dict[str, Any] = dict(given)
        if "seqused_k" in own:
            own["seqused_k"] = own["seqused_k"][n : n + 1]
        if "score_mod" in own:
            own["score_mod"] = lambda s, b, h, i, j, n=n: given["score_mod"](s, n, h, i, j)
            own["mask_mod"] = lambda b, h, i, j, n=n: given["mask_mod"](n, h, i, j)
        found, found_lse = attention(*arrays, **own)
        out[rows], lse[:, rows] = found[0].swapaxes(0, 1), found_lse[0]
    return out, lse


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
    want, want_lse = by_sequence(q, k, v, given)
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
    with pytest.raises(ag.Error) as e:
        ag.scaled_dot_product_attention(**{**given, **changes})
    assert str(e.value) == message

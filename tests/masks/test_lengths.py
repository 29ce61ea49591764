"""Masks over several tiles, where empty and full parts are told apart at run time: every form, against the NumPy target."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import attngen
from attngen import masks

FORMS = [
    "mask",
    "mask and causal",
    "mask and window",
    "padding mask",
    "padding mask and causal",
    "lengths",
    "alibi",
    "bias and causal",
    "documents",
    "padding",
]


def arguments(form: str, n: int, rng: np.random.Generator) -> dict[str, Any]:
    keep, padded = rng.random((n, n)) < 0.7, rng.random((2, 1, 1, n)) < 0.8
    lengths, documents = np.array([n // 2, n], np.int32), np.sort(rng.integers(0, 4, n))
    return {
        "mask": {"attn_mask": keep},
        "mask and causal": {"attn_mask": keep, "is_causal": True},
        "mask and window": {"attn_mask": keep, "window": (9, 3)},
        "padding mask": {"attn_mask": padded},
        "padding mask and causal": {"attn_mask": padded, "is_causal": True},
        "lengths": {"seqused_k": lengths},
        "alibi": {"is_causal": True, "alibi_slopes": np.full(4, 0.1, np.float32)},
        "bias and causal": {"bias": rng.standard_normal((n, n)).astype(np.float32), "is_causal": True},
        "documents": {"mask_mod": masks.and_masks(masks.causal(), masks.document(documents))},
        "padding": {"mask_mod": masks.padding(lengths)},
    }[form]


@pytest.mark.parametrize("n", [50, 64, 300])
@pytest.mark.parametrize("form", FORMS)
def test_forms_over_several_tiles(form: str, n: int) -> None:
    rng = np.random.default_rng(n)
    q, k, v = (rng.standard_normal((2, 4, n, 16)).astype(np.float32) for _ in range(3))
    given = arguments(form, n, rng)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got, want = (attngen.scaled_dot_product_attention(q, k, v, target=target, **given) for target in ("cpu", "numpy"))
    np.testing.assert_allclose(got, want, atol=1e-5)

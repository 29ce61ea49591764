"""Random combinations of everything that modifies attention, by every way to execute it, against float64.

Few kernels are compiled: the choice of what is combined comes from a short list of shapes and a seed; values, strides and masks
vary freely under each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.masks.oracle import attention
from tests.masks.ways import WAYS, attend

BATCH, HEADS, KV_HEADS, Q_LEN, KV_LEN, D, DV = 2, 4, 2, 7, 11, 4, 3
TABLE = np.linspace(-1, 1, KV_LEN).astype(np.float32)

PLANS: list[dict[str, Any]] = [
    {"attn_mask": ("bool", (BATCH, 1, Q_LEN, KV_LEN)), "bias": (HEADS, 1, KV_LEN), "softcap": 1.5},
    {"attn_mask": ("float", (Q_LEN, KV_LEN)), "bias": (BATCH, 1, 1, KV_LEN), "sinks": True},
    {"attn_mask": ("bool", (1, KV_LEN)), "is_causal": True, "causal_alignment": "bottom_right", "window": (3, None)},
    {
        "is_causal": True,
        "causal_alignment": "top_left",
        "window": (2, 4),
        "alibi_slopes": (BATCH, HEADS),
        "seqused_k": True,
        "sinks": True,
    },
    {"attn_mask": ("float", (Q_LEN, 1)), "seqused_k": True, "is_causal": True, "causal_alignment": "bottom_right"},
    {
        "score_mod": lambda s, b, h, i, j: s * (1 + h) + TABLE[j],
        "mask_mod": lambda b, h, i, j: (i + j) % 2 == b % 2,
        "attn_mask": ("bool", (Q_LEN, KV_LEN)),
        "alibi_slopes": (HEADS,),
        "scale": -0.5,
    },
]


def strided(rng: np.random.Generator, shape: Sequence[int], kind: int) -> Any:
    """Random numbers in memory as it comes: dense, transposed, reversed, spaced."""
    if kind == 1 and len(shape) > 1:
        return rng.standard_normal((*shape[:-2], shape[-1], shape[-2])).swapaxes(-1, -2).astype(np.float32, order="K")
    x = rng.standard_normal((*shape[:-1], 2 * shape[-1])).astype(np.float32)
    return x[..., ::2] if kind == 2 else x[..., ::-2] if kind == 3 else np.ascontiguousarray(x[..., ::2])


def arguments(plan: dict[str, Any], rng: np.random.Generator, kind: int, density: float) -> dict[str, Any]:
    made = dict(plan)
    if "attn_mask" in plan:
        element, shape = plan["attn_mask"]
        keep = rng.random(shape) < density
        made["attn_mask"] = keep if element == "bool" else np.where(keep, strided(rng, shape, kind), -np.inf).astype(np.float32)
    if "bias" in plan:
        x = strided(rng, plan["bias"], kind)
        made["bias"] = np.where(rng.random(x.shape) < 0.1, np.float32(-np.inf), x)
    if "alibi_slopes" in plan:
        made["alibi_slopes"] = rng.random(plan["alibi_slopes"])
    if "sinks" in plan:
        made["sinks"] = rng.standard_normal(HEADS)
    if "seqused_k" in plan:
        made["seqused_k"] = rng.integers(0, KV_LEN + 1, BATCH)
    return made


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", range(len(PLANS)))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
@given(
    seed=st.integers(0, 2**32 - 1),
    kinds=st.tuples(*[st.integers(0, 3)] * 4),
    density=st.sampled_from([0.0, 0.3, 0.9, 1.0]),
    size=st.sampled_from([0.1, 1.0, 30.0]),
    poison=st.booleans(),
)
def test_combinations(
    way: str, number: int, seed: int, kinds: tuple[int, ...], density: float, size: float, poison: bool
) -> None:
    """Never NaN where the table of semantics says 0 or a number; NaN and infinity in masked keys and values count nowhere."""
    rng = np.random.default_rng(seed)
    q = strided(rng, (BATCH, HEADS, Q_LEN, D), kinds[0]) * np.float32(size)
    k, v = strided(rng, (BATCH, KV_HEADS, KV_LEN, D), kinds[1]), strided(rng, (BATCH, KV_HEADS, KV_LEN, DV), kinds[2])
    given_ = arguments(PLANS[number], rng, kinds[3], density)
    want, want_lse = attention(q, k, v, **given_)
    if poison and "seqused_k" in given_:
        for b, used in enumerate(given_["seqused_k"]):
            k[b, :, used:], v[b, :, used:] = math.nan, math.inf
    out, lse = attend(way, q, k, v, **given_)
    assert np.array_equal(np.isneginf(lse), np.isneginf(want_lse)) and np.isfinite(out).all()
    empty = np.isneginf(want_lse)
    assert not out[empty].any()
    # A rounding error of a score is a relative error of its weight.
    scores = 1 + float(np.max(np.abs(q))) * float(np.max(np.abs(np.nan_to_num(k, posinf=0, neginf=0)))) * D * HEADS
    tolerance = 2e-6 * scores
    np.testing.assert_allclose(out, want, atol=tolerance, rtol=1e-5)
    np.testing.assert_allclose(lse[~empty], want_lse[~empty], atol=tolerance, rtol=1e-5)

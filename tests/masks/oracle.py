"""Attention with everything that modifies it, in float64 NumPy, one row at a time: the judge of this folder's tests.

It follows the table of semantics and shares no code with the product.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    is_causal: bool = False,
    scale: float | None = None,
    *,
    score_mod: Callable[..., Any] | None = None,
    mask_mod: Callable[..., Any] | None = None,
    bias: Any = None,
    window: Any = None,
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    sinks: Any = None,
    causal_alignment: str = "top_left",
    seqused_k: Any = None,
) -> tuple[np.ndarray, np.ndarray]:
    """(out, natural log-sum-exp) of arrays (batch, heads, length, dim)."""
    q, k, v = (np.asarray(x, np.float64) for x in (query, key, value))
    batch, heads, q_len, d = q.shape
    kv_len, group = k.shape[2], heads // k.shape[1]
    scores = (batch, heads, q_len, kv_len)
    added = np.zeros(scores)
    allowed = np.ones(scores, bool)
    for x in (attn_mask, bias):
        if x is not None and np.asarray(x).dtype == bool:
            allowed &= np.broadcast_to(x, scores)
        elif x is not None:
            with np.errstate(over="ignore"):
                # In the precision of the arrays: two finfo.min are -inf together.
                added = (added.astype(query.dtype) + np.broadcast_to(np.asarray(x, query.dtype), scores)).astype(np.float64)
    allowed &= added != -np.inf
    left, right = window or (None, None)
    out, lse = np.zeros((batch, heads, q_len, v.shape[3])), np.zeros((batch, heads, q_len))
    for b, h, i in np.ndindex(batch, heads, q_len):
        used = kv_len if seqused_k is None else int(seqused_k[b])
        place = i + (0 if causal_alignment in ("top_left", "upper_left") else used - q_len)
        logits: list[float] = [] if sinks is None else [float(sinks[h])]
        kept: list[int] = []
        for j in range(kv_len):
            keep = bool(allowed[b, h, i, j]) and j < used
            keep &= not is_causal or j <= place
            keep &= left in (None, -1) or j >= place - left
            keep &= right in (None, -1) or j <= place + right
            keep &= mask_mod is None or bool(mask_mod(b, h, i, j))
            if not keep:
                continue
            with np.errstate(all="ignore"):
                s = np.dot(q[b, h, i], k[b, h // group, j]) * (1 / math.sqrt(d) if scale is None else scale)
                s = softcap * np.tanh(s / softcap) if softcap else s
                s = score_mod(s, b, h, i, j) if score_mod is not None else s
                if alibi_slopes is not None:
                    slopes = np.asarray(alibi_slopes, np.float64)
                    s = s - (slopes[h] if slopes.ndim == 1 else slopes[b, h]) * abs(place - j)
                s = s + added[b, h, i, j]
            if s != -np.inf:
                logits.append(float(s))
                kept.append(j)
        if not logits:
            lse[b, h, i] = -np.inf
            continue
        with np.errstate(all="ignore"):
            top = np.max(logits)
            weights = np.exp(np.array(logits) - top)
            lse[b, h, i] = top + np.log(weights.sum())
            out[b, h, i] = (weights[len(logits) - len(kept) :, None] * v[b, h // group, kept]).sum(0) / weights.sum()
    return out, lse

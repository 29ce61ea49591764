"""Attention in float64 NumPy, written down from its definition: the independent judge of every kernel.

It imports nothing from attngen. It takes one block of queries at a time, so that its memory stays small.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

BLOCK = 1 << 22
"""How many scores are held at a time."""


def attention(
    query: Any,
    key: Any,
    value: Any,
    scale: float | None = None,
    rows: Any = None,
    keep: np.ndarray | None = None,
    causal: bool = False,
) -> np.ndarray:
    """softmax(query·keyᵀ·scale)·value in float64.

    query (…, heads, q_len, d), key (…, kv_heads, kv_len, d), value (…, kv_heads, kv_len, d_v), or all without heads.
    scale: 1/√d if None. rows: compute only these rows of the queries. keep (batch, kv_len): which keys count, for arrays of
    four dimensions. causal: query i sees the keys up to i. A row without keys is 0.
    """
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    if query.ndim > 2:
        per_key = query.shape[-3] // max(key.shape[-3], 1)
        key, value = np.repeat(key, per_key, axis=-3), np.repeat(value, per_key, axis=-3)
    if rows is not None:
        query = query[..., rows, :]
    places: np.ndarray[Any, Any] = np.asarray([*range(query.shape[-2])] if rows is None else rows)
    out = np.zeros((*query.shape[:-1], value.shape[-1]))
    for head in np.ndindex(query.shape[:-2]):
        kept = slice(None) if keep is None else keep[head[0]]
        some_key, some_value = key[head][kept], value[head][kept]
        step = max(1, BLOCK // max(key.shape[-2], 1))
        for start in range(0, query.shape[-2], step):
            part = slice(start, start + step)
            scores = query[head][part] @ some_key.T * scale
            if causal:
                # Only with all keys: what `keep` leaves out has no place among them.
                scores[np.arange(scores.shape[1]) > places[part, None]] = -np.inf
            out[head][part] = one_head(scores, some_value)
    return out


def one_head(scores: np.ndarray, value: np.ndarray) -> np.ndarray:
    """A weighted mean of the values for each row of scores (rows, kv_len)."""
    if not value.shape[0]:
        return np.zeros((scores.shape[0], value.shape[1]))
    with np.errstate(invalid="ignore", over="ignore"):
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return (weights @ value) / weights.sum(axis=1, keepdims=True)


def error_bound(query: Any, key: Any, value: Any, scale: float | None, accumulator: Any, element_bits: int) -> float:
    """The largest error that rounding explains, for a kernel that accumulates in `accumulator`.

    The rounding error of a score grows with the products that make it up, and an exponential turns it into a relative error
    of the weight. element_bits: the bits of the fraction of the output's type, for its last rounding.
    NaN and infinity in the arrays leave nothing to round and count as 0.
    """
    scale = 1 / math.sqrt(np.shape(query)[-1]) if scale is None else scale
    query, key, value = (np.nan_to_num(np.asarray(x, np.float64), nan=0.0, posinf=0.0, neginf=0.0) for x in (query, key, value))
    lengths = [float(np.max(np.linalg.norm(x, axis=-1), initial=0.0)) for x in (query, key)]
    largest = float(np.max(np.abs(value), initial=0.0))
    unit = float(np.finfo(accumulator).eps)
    return largest * (unit * (16 + 2 * abs(scale) * lengths[0] * lengths[1]) + 2.0 ** -(element_bits + 1))

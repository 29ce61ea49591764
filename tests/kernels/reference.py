"""Attention in float64 NumPy, for tests of kernels. Imports nothing of attngen."""

from __future__ import annotations

import numpy as np


def attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, scale: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(output, log-sum-exp) of (…, heads, length, width) arrays; query head h reads key head h // (heads // kv_heads)."""
    q, k, v = (x.astype(np.float64) for x in (query, key, value))
    if q.ndim > 2:
        repeat = q.shape[-3] // k.shape[-3]
        k, v = (np.repeat(x, repeat, axis=-3) for x in (k, v))
    s = q @ np.swapaxes(k, -1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    top = s.max(-1, keepdims=True, initial=-np.inf)
    with np.errstate(all="ignore"):
        e = np.where(top == -np.inf, 0, np.exp(s - top))
        total = e.sum(-1, keepdims=True)
        return np.where(total == 0, 0, e / total) @ v, (np.log(total) + top)[..., 0]

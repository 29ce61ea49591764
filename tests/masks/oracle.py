"""Attention with everything that modifies it, in float64 NumPy, one row at a time: the judge of this folder's tests.

It follows the table of semantics and shares no code with the product. It is judged itself by the numbers worked out by hand in
test_numerics.py, where it is one of the ways to execute attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def attention(query: Any, key: Any, value: Any, attn_mask: Any = None, **given: Any) -> tuple[Array, Array]:
    """(out, log-sum-exp) of arrays (batch, heads, length, dim), by the arguments of `Judge`."""
    return Judge(query, key, value, attn_mask, **given).results()


@dataclass
class Judge:
    """One call. empty_row: "zero", or "mean" of all values, where masks are huge finite numbers instead of -inf. offset: how
    many keys come before query 0, a number or (batch,); None: by the alignment."""

    query: Array
    key: Array
    value: Array
    attn_mask: Any = None
    is_causal: bool = False
    scale: float | None = None
    score_mod: Callable[..., Any] | None = None
    mask_mod: Callable[..., Any] | None = None
    bias: Any = None
    window: Any = None
    softcap: float = 0.0
    alibi_slopes: Any = None
    sinks: Any = None
    causal_alignment: str = "top_left"
    seqused_k: Any = None
    lse_base: str = "e"
    empty_row: str = "zero"
    offset: Any = None

    def __post_init__(self) -> None:
        self.batch, self.heads, self.q_len, _ = self.query.shape
        self.kv_len, self.group = self.key.shape[2], self.heads // self.key.shape[1]
        self.shape = self.batch, self.heads, self.q_len, self.kv_len
        used = np.full(self.batch, self.kv_len) if self.seqused_k is None else np.asarray(self.seqused_k)
        self.used = used.reshape(-1, 1, 1, 1)
        first = self.causal_alignment in ("top_left", "upper_left")
        offset = np.zeros_like(self.used) if first else self.used - self.q_len
        offset = offset if self.offset is None else np.broadcast_to(self.offset, self.batch).reshape(-1, 1, 1, 1)
        self.distance = np.arange(self.q_len)[:, None] + offset - np.arange(self.kv_len)
        """(batch, 1, q_len, kv_len): how far a key lies before the place of a query."""
        self.added = self.sum_of_biases()
        self.keep = self.kept()

    def sum_of_biases(self) -> Array:
        """In the precision of scores: two finfo.min are -inf together."""
        size = np.float64 if self.query.dtype == np.float64 else np.float32
        total = np.zeros(self.shape, size)
        for x in (self.attn_mask, self.bias):
            if x is not None and np.asarray(x).dtype != bool:
                with np.errstate(over="ignore"):
                    total = total + np.broadcast_to(np.asarray(x).astype(size), self.shape)
        return total.astype(np.float64)

    def kept(self) -> Array:
        keep = np.ones(self.shape, bool) & (self.added != -np.inf) & (np.arange(self.kv_len) < self.used)
        for x in (self.attn_mask, self.bias):
            if x is not None and np.asarray(x).dtype == bool:
                keep &= x
        left, right = self.window or (None, None)
        if self.is_causal:
            keep &= self.distance >= 0
        if left not in (None, -1):
            keep &= self.distance <= left
        if right not in (None, -1):
            keep &= self.distance >= -right
        if self.mask_mod is not None:
            for at in np.ndindex(self.shape):
                keep[at] &= bool(self.mask_mod(*at))
        return keep

    def results(self) -> tuple[Array, Array]:
        out, lse = np.zeros((*self.shape[:3], self.value.shape[3])), np.zeros(self.shape[:3])
        for at in np.ndindex(self.shape[:3]):
            with np.errstate(all="ignore"):
                out[at], lse[at] = self.row(*at)
        return out, lse / (math.log(2) if self.lse_base == "2" else 1)

    def row(self, b: int, h: int, i: int) -> tuple[Array | float, float]:
        (keys,) = np.nonzero(self.keep[b, h, i])
        scores = self.scores(b, h, i, keys)
        # What a modification has made -inf is masked as well.
        keys, scores = keys[scores != -np.inf], scores[scores != -np.inf]
        values = self.value[b, h // self.group].astype(np.float64)
        sink = np.zeros(0) if self.sinks is None else np.asarray(self.sinks, np.float64)[h : h + 1]
        logits = np.concatenate([scores, sink[sink != -np.inf]])
        if not logits.size:
            return (0, -np.inf) if self.empty_row == "zero" else (values.mean(0), float(np.finfo(np.float32).min))
        top = logits.max()
        weights = np.exp(logits - top)
        return weights[: len(keys)] @ values[keys] / weights.sum(), top + np.log(weights.sum())

    def scores(self, b: int, h: int, i: int, keys: Array) -> Array:
        s = self.key[b, h // self.group, keys].astype(np.float64) @ self.query[b, h, i].astype(np.float64)
        s = s * (1 / math.sqrt(self.query.shape[3]) if self.scale is None else self.scale)
        if self.softcap:
            s = self.softcap * np.tanh(s / self.softcap)
        if self.score_mod is not None:
            s = np.array([float(self.score_mod(x, b, h, i, j)) for x, j in zip(s, keys.tolist(), strict=True)])
        if self.alibi_slopes is not None:
            slopes = np.broadcast_to(np.asarray(self.alibi_slopes, np.float64), (self.batch, self.heads))
            s = s - slopes[b, h] * np.abs(self.distance[b, 0, i, keys])
        return s + self.added[b, h, i, keys]


def packed(query: Array, key: Array, value: Array, starts_q: Any, starts_k: Any, **given: Any) -> tuple[Array, Array]:
    """Of arrays (total, heads, dim): each sequence by itself, its number as the batch index of modifications."""
    scores = query.shape[1], len(query), len(key)
    out, lse = np.zeros((*query.shape[:2], value.shape[2])), np.full(scores[:2], -np.inf)
    for n in range(len(starts_q) - 1):
        rows, keys = slice(*starts_q[n : n + 2]), slice(*starts_k[n : n + 2])
        own = {name: of_sequence(name, x, n, (..., rows, keys), scores) for name, x in given.items()}
        arrays = [x[part].swapaxes(0, 1)[None] for x, part in ((query, rows), (key, keys), (value, keys))]
        found, found_lse = attention(*arrays, **own)
        out[rows], lse[:, rows] = found[0].swapaxes(0, 1), found_lse[0]
    return out, lse


def of_sequence(name: str, x: Any, n: int, part: Any, scores: tuple[int, ...]) -> Any:
    match name:
        case "attn_mask" | "bias":
            return np.broadcast_to(x, scores)[part]
        case "seqused_k":
            return x[n : n + 1]
        case "score_mod":
            return lambda s, b, h, i, j: x(s, n, h, i, j)
        case "mask_mod":
            return lambda b, h, i, j: x(n, h, i, j)
        case _:
            return x

"""Random calls of `attention_with_kvcache`: appending, selected entries, pages, lengths and everything else at once.

What is kept is a plain list of keys per entry here; the full count: ATTNGEN_EXAMPLES=500 python -m pytest on this file.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import attngen as ag
from tests.masks.oracle import Judge
from tests.masks.plans import BY_PLACE, strided

CALLS = int(os.environ.get("ATTNGEN_EXAMPLES", "60"))
COMPILED = max(CALLS // 10, 1)
HEADS, KV_HEADS, D, E = 4, 2, 4, 3


@dataclass
class Case:
    """given: what the product is called with; judge: what the oracle is."""

    seed: int
    arrays: list[Any] = field(default_factory=list[Any])
    given: dict[str, Any] = field(default_factory=dict[str, Any])
    judge: dict[str, Any] = field(default_factory=dict[str, Any])
    caches: list[Any] = field(default_factory=list[Any])
    """As they must be afterwards, heads before lengths."""


def draw(seed: int) -> Case:
    rng = np.random.default_rng([seed, 5])

    def one(*choices: Any) -> Any:
        return choices[rng.integers(len(choices))]

    case = Case(seed)
    batch, q_len = one(1, 2, 3), one(1, 1, 3)
    rows, size, count = places(rng, case, batch, one)
    capacity = rows.shape[1] * size
    new_len = one(0, 1, q_len, 5)
    past = rng.integers(0, capacity - new_len + 1, batch)
    past = np.full(batch, past[0]) if one(True, False) else past
    if not new_len and one(True, False):
        past = np.full(batch, capacity)
    else:
        uniform = (past == past[0]).all()
        case.given["cache_seqlens"] = int(past[0]) if uniform and one(True, False) else past.astype(one("i4", "i8"))
    total = past + new_len

    dtype = one("float32", "float32", "float64")
    query, new = (strided(rng, (batch, h, n, D), one(0, 1, 2, 3, 5), dtype) for h, n in ((HEADS, q_len), (KV_HEADS, new_len)))
    new_value = strided(rng, (batch, KV_HEADS, new_len, E), 0, dtype)
    before = [np.full((count, KV_HEADS, size, width), np.nan, dtype) for width in (D, E)]
    seen = [np.full((batch, KV_HEADS, int(total.max()), width), np.nan, dtype) for width in (D, E)]
    case.caches = [x.copy() for x in before]
    for kept, after, view, more in zip(before, case.caches, seen, (new, new_value), strict=True):
        for b, n in np.ndindex(batch, int(past.max())):
            if n < past[b]:
                place = rows[b, n // size], slice(None), n % size
                if np.isnan(kept[place]).any():
                    kept[place] = after[place] = rng.standard_normal(kept[place].shape)
        for b in range(batch):
            for n in range(past[b], total[b]):
                after[rows[b, n // size], :, n % size] = more[b, :, n - past[b]]
            for n in range(total[b]):
                view[b, :, n] = after[rows[b, n // size], :, n % size]
    modify(rng, case, one, batch, q_len, capacity, total)
    alignment = case.given.get("causal_alignment")
    case.judge["offset"] = 0 if alignment == "top_left" else past if alignment is None and new_len else total - q_len
    case.judge |= {"query": query, "key": seen[0], "value": seen[1], "seqused_k": total}

    turn: Callable[[Any], Any] = (lambda x: x.swapaxes(1, 2)) if case.given.get("layout") == "BSHD" else lambda x: x
    owned = [np.asfortranarray(turn(x)) if one(True, False) else np.ascontiguousarray(turn(x)) for x in before]
    case.arrays = [turn(query), *owned, *([turn(new), turn(new_value)] if new_len else [])]
    case.caches = [turn(x) for x in case.caches]
    if one(True, False):
        case.given["out"] = turn(np.full((batch, HEADS, q_len, E), np.nan, dtype))
    return case


def places(rng: np.random.Generator, case: Case, batch: int, one: Callable[..., Any]) -> tuple[Any, int, int]:
    """(rows of each batch entry, keys in a row, rows of the cache)."""
    where = one("own", "selected", "pages", "pages")
    if where == "pages":
        pages, size = one(1, 3), one(5, 8)
        rows = rng.permutation(batch * pages + 2)[: batch * pages].reshape(batch, pages)
        case.given["block_table"] = rows.astype(np.int32)
        return rows, size, batch * pages + 2
    size, count = one(7, 20), batch + 2
    if where == "own":
        return np.arange(batch)[:, None], size, batch
    rows = one(rng.permutation(count)[:batch], np.arange(batch) + 1, np.arange(batch)[::-1].copy())
    case.given["cache_batch_idx"] = rows
    return rows[:, None], size, count


def modify(rng: np.random.Generator, case: Case, one: Any, batch: int, q_len: int, capacity: int, total: Any) -> None:
    length = int(total.max())
    choices: dict[str, Callable[[], Any]] = {
        "is_causal": lambda: True,
        "causal_alignment": lambda: one("top_left", "bottom_right"),
        "window": lambda: one((3, None), (0, 2), (None, 4)),
        "softcap": lambda: 2.0,
        "scale": lambda: -0.5,
        "alibi_slopes": lambda: rng.random(one((HEADS,), (batch, HEADS))),
        "sinks": lambda: rng.standard_normal(HEADS),
        "score_mod": lambda: lambda s, b, h, i, j: s * (b + 1) - BY_PLACE[j] * h,
        "mask_mod": lambda: lambda b, h, i, j: (i + j + b) % 3 != 1,
    }
    case.judge |= {name: make() for name, make in choices.items() if rng.random() < 0.3}
    case.given |= case.judge
    for name, boolean in (("attn_mask", True), ("bias", False)):
        if rng.random() < 0.3:
            x = rng.standard_normal((one(1, HEADS), one(1, q_len), capacity)).astype(np.float32)
            x = x > -0.5 if boolean else x
            case.judge[name] = x[..., :length]
            case.given[name] = x if one(True, False) else x[..., :length]
    for name, make in {"layout": lambda: "BSHD", "num_splits": lambda: one(1, 2), "num_threads": lambda: 2}.items():
        if rng.random() < 0.3:
            case.given[name] = make()


@pytest.mark.parametrize(
    ("target", "seed"), [*(("numpy", n) for n in range(CALLS)), *(("cpu", n) for n in range(0, CALLS, CALLS // COMPILED))]
)
def test_any_cache(target: str, seed: int) -> None:
    """Results and caches. Whatever is behind the end of an entry is NaN."""
    case = draw(seed)
    got = ag.attention_with_kvcache(*case.arrays, **case.given, return_lse=True, target=target)
    assert "out" not in case.given or got[0] is case.given["out"]
    want, want_lse = Judge(**case.judge).results()
    out = got[0].swapaxes(1, 2) if case.given.get("layout") == "BSHD" else got[0]
    np.testing.assert_allclose(out, want, rtol=2e-5, atol=1e-5, err_msg=str(case.given))
    np.testing.assert_allclose(got[1], want_lse, rtol=2e-5, atol=1e-5, err_msg=str(case.given))
    for x, expected in zip(case.arrays[1:3], case.caches, strict=True):
        np.testing.assert_array_equal(x, expected)

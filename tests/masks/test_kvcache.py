"""Attention over a cache: appending, lengths per entry, selected entries and pages, judged by float64 entry by entry."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attngen as ag
from attngen.kernel import Kernel
from tests.masks.oracle import attention

TARGETS = ("numpy", "cpu")
BATCH, HEADS, KV_HEADS, D, E = 3, 4, 2, 8, 5

GIVEN: dict[str, dict[str, Any]] = {
    "bare": {},
    "causal": {"is_causal": True},
    "window": {"window": (3, 0), "softcap": 3.0},
    "slopes": {"alibi_slopes": [0.5, 0.25, 0.125, 1.0], "is_causal": True},
    "sinks": {"sinks": [0.5, 0.25, -0.125, 1.0], "is_causal": True},
    "modified": {
        "score_mod": lambda s, b, h, i, j: s * (b + 1) - 0.1 * h * j,
        "mask_mod": lambda b, h, i, j: (i + j + b) % 3 != 1,
    },
}


def turned(x: Any, layout: str) -> Any:
    """Between (…, heads, length, …) and the layout."""
    return x if layout == "BHSD" or x is None else x.swapaxes(1, 2)


def entries(rows: list[list[int]], cache: Any) -> list[Any]:
    """The cache of each batch entry, (kv_heads, length, features), its pages one after the other."""
    return [np.concatenate([cache[row] for row in pages], axis=1) for pages in rows]


def reference(query: Any, rows: list[list[int]], caches: Any, total: list[int], place: list[int], given: dict[str, Any]) -> Any:
    """(out, lse), one entry at a time. Where queries stand among the keys is expressed by empty queries before them."""
    outs: list[Any] = []
    keys, values = (entries(rows, x) for x in caches)
    for b, n in enumerate(total):
        here = dict(given)
        for name in ("score_mod", "mask_mod"):
            if name in given:
                # The judge sees one entry, so the number of the entry, and of the query, is put back.
                here[name] = shifted(given[name], name == "score_mod", b, place[b])
        before = np.zeros((1, HEADS, place[b], D), np.float32)
        q = np.concatenate([before, query[b : b + 1]], axis=2)
        out, lse = attention(q, keys[b][None, :, :n], values[b][None, :, :n], **here)
        outs.append((out[0, :, place[b] :], lse[0, :, place[b] :]))
    return tuple(np.stack(x) for x in zip(*outs, strict=True))


def shifted(mod: Any, scores: bool, entry: int, place: int) -> Any:
    if scores:
        return lambda s, b, h, i, j: mod(s, entry, h, i - place, j)
    return lambda b, h, i, j: mod(entry, h, i - place, j)


WHERE: dict[str, tuple[int, int, list[list[int]], dict[str, Any]]] = {
    # entries of the cache, keys in each, rows of each batch entry, and how that is said
    "own": (3, 20, [[0], [1], [2]], {}),
    "a run": (5, 20, [[1], [2], [3]], {"cache_batch_idx": [1, 2, 3]}),
    "backwards": (5, 20, [[4], [2], [0]], {"cache_batch_idx": np.array([4, 2, 0], np.int32)}),
    "selected": (5, 20, [[3], [0], [4]], {"cache_batch_idx": [3, 0, 4]}),
    "pages": (9, 8, [[7, 1, 8], [0, 3, 2], [5, 4, 6]], {"block_table": [[7, 1, 8], [0, 3, 2], [5, 4, 6]]}),
}
LENGTHS: dict[str, Any] = {"ragged": [11, 0, 16], "equal": 7, "one batch": [3, 3, 3]}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("layout", ["BHSD", "BSHD"])
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("lengths", LENGTHS)
def test_new_keys_are_written_and_seen(target: str, layout: Any, where: str, lengths: str, normal: Any) -> None:
    count, size, rows, said = WHERE[where]
    caches = normal(count, KV_HEADS, size, D), normal(count, KV_HEADS, size, E)
    past = np.broadcast_to(LENGTHS[lengths], BATCH).tolist()
    query, new = normal(BATCH, HEADS, 2, D), (normal(BATCH, KV_HEADS, 2, D), normal(BATCH, KV_HEADS, 2, E))
    wanted = tuple(x.copy() for x in caches)
    for b, start in enumerate(past):
        for x, more in zip(wanted, new, strict=True):
            for n in range(2):
                x[rows[b][(start + n) // size], :, (start + n) % size] = more[b, :, n]
    want = reference(query, rows, wanted, [n + 2 for n in past], past, {"is_causal": True})
    given = [np.ascontiguousarray(turned(x, layout)) for x in caches]
    lens = LENGTHS[lengths] if lengths != "ragged" else np.array(past, np.int32)
    got = ag.attention_with_kvcache(
        turned(query, layout),
        *given,
        *(turned(x, layout) for x in new),
        cache_seqlens=lens,
        **said,
        is_causal=True,
        layout=layout,
        return_lse=True,
        target=target,
    )
    np.testing.assert_allclose(turned(got[0], layout), want[0], rtol=2e-5, atol=4e-6)
    np.testing.assert_allclose(got[1], want[1], rtol=2e-5, atol=4e-6)
    for x, want_x in zip(given, wanted, strict=True):
        np.testing.assert_array_equal(turned(x, layout), want_x)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", GIVEN)
@pytest.mark.parametrize("where", ["own", "pages"])
def test_modifications(target: str, name: str, where: str, normal: Any) -> None:
    count, size, rows, said = WHERE[where]
    caches = normal(count, KV_HEADS, size, D), normal(count, KV_HEADS, size, E)
    query, past = normal(BATCH, HEADS, 3, D), [11, 4, 16]
    # Without new keys, queries are the last of what is cached.
    want = reference(query, rows, caches, past, [n - 3 for n in past], GIVEN[name])
    got = ag.attention_with_kvcache(query, *caches, cache_seqlens=past, **said, **GIVEN[name], return_lse=True, target=target)
    for x, want_x in zip(got, want, strict=True):
        np.testing.assert_allclose(x, want_x, rtol=2e-5, atol=4e-6)


def test_masks_of_the_whole_cache_or_of_what_is_used(normal: Any) -> None:
    k, v, q, bias = normal(3, 2, 20, 8), normal(3, 2, 20, 5), normal(3, 4, 2, 8), normal(4, 2, 20)
    want, _ = attention(q, k[:, :, :16], v[:, :, :16], bias=bias[..., :16], seqused_k=[5, 16, 9])
    for given in (bias, bias[..., :16]):
        got = ag.attention_with_kvcache(q, k, v, cache_seqlens=[5, 16, 9], bias=given, target="numpy")
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=4e-6)
    with pytest.raises(ag.Error, match="bias: shape"):
        ag.attention_with_kvcache(q, k, v, cache_seqlens=[5, 16, 9], bias=bias[..., :15], target="numpy")


def test_alignment_can_be_said(normal: Any) -> None:
    k, v, q = normal(3, 2, 20, 8), normal(3, 2, 20, 5), normal(3, 4, 2, 8)
    for alignment in ("top_left", "bottom_right"):
        given: dict[str, Any] = {"is_causal": True, "causal_alignment": alignment}
        got = ag.attention_with_kvcache(q, k, v, cache_seqlens=9, target="numpy", **given)
        want, _ = attention(q, k[:, :, :9], v[:, :, :9], **given)
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=4e-6)


def test_offset_before_the_first_key(normal: Any) -> None:
    """More queries than keys: the first rows see nothing."""
    k, v, q = normal(1, 2, 20, 8), normal(1, 2, 20, 5), normal(1, 4, 5, 8)
    out, lse = ag.attention_with_kvcache(q, k, v, cache_seqlens=2, is_causal=True, return_lse=True, target="numpy")
    assert not out[:, :, :3].any()
    assert np.isneginf(lse[:, :, :3]).all()
    assert np.isfinite(lse[:, :, 3:]).all()


@pytest.mark.parametrize("target", TARGETS)
def test_without_lengths_the_whole_cache_counts_and_nothing_is_an_empty_row(target: str, normal: Any) -> None:
    k, v, q = normal(3, 2, 6, 8), normal(3, 2, 6, 5), normal(3, 4, 1, 8)
    want, _ = attention(q, k, v)
    np.testing.assert_allclose(ag.attention_with_kvcache(q, k, v, target=target), want, rtol=2e-5, atol=4e-6)
    k[:] = v[:] = np.nan
    for lengths in (0, [0, 0, 0]):
        out, lse = ag.attention_with_kvcache(q, k, v, cache_seqlens=lengths, return_lse=True, target=target)
        assert not out.any()
        assert np.isneginf(lse).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("paged", [False, True])
def test_what_lies_behind_the_end_is_not_seen(target: str, paged: bool, normal: Any) -> None:
    k, v, q = normal(3, 2, 8, 8), normal(3, 2, 8, 5), normal(3, 4, 1, 8)
    lengths = [3, 8, 0]
    for b, n in enumerate(lengths):
        k[b, :, n:] = v[b, :, n:] = np.nan
    # Pages that no key is on may have any number.
    said: dict[str, Any] = {"block_table": [[0, -1], [1, 99], [7, 7]]} if paged else {}
    got = ag.attention_with_kvcache(q, k, v, cache_seqlens=lengths, target=target, **said)
    for b, n in enumerate(lengths):
        want, _ = attention(q[b : b + 1], k[b : b + 1, :, :n], v[b : b + 1, :, :n])
        np.testing.assert_allclose(got[b : b + 1], want, rtol=2e-5, atol=4e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_entries_of_a_long_cache(target: str, normal: Any) -> None:
    """U29: flash-attention#772. Entries far from each other in memory get their own new keys, and no other entry changes."""
    caches = np.zeros((5, 4096, 2, 8), np.float32), np.zeros((5, 4096, 2, 8), np.float32)
    new = normal(4, 1, 2, 8), normal(4, 1, 2, 8)
    past = [4095, 17, 0, 2048]
    given: dict[str, Any] = {"cache_batch_idx": [1, 2, 3, 4], "cache_seqlens": past, "layout": "BSHD", "target": target}
    ag.attention_with_kvcache(normal(4, 1, 2, 8), *caches, *new, **given)
    for x, more in zip(caches, new, strict=True):
        for b, at in enumerate(past):
            np.testing.assert_array_equal(x[b + 1, at], more[b, 0])
            x[b + 1, at] = 0
        assert not x.any()


def test_pages_may_be_shared_for_reading(normal: Any) -> None:
    k, v, q = normal(3, 2, 4, 8), normal(3, 2, 4, 5), normal(2, 4, 1, 8)
    table, lengths = [[0, 1], [0, 2]], [4, 5]
    new = normal(2, 2, 1, 8), normal(2, 2, 1, 5)
    got = ag.attention_with_kvcache(q, k, v, *new, cache_seqlens=lengths, block_table=table, target="numpy")
    want, _ = reference(q, table, (k, v), [5, 6], lengths, {})
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=4e-6)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("where", ["own", "pages"])
def test_200_steps_compile_few_kernels(target: str, where: str, normal: Any, compiled: list[Kernel]) -> None:
    table = np.random.default_rng(1).permutation(60).reshape(2, 30)
    said: dict[str, Any] = {"block_table": table} if where == "pages" else {}
    shape = (60, 2, 8) if where == "pages" else (2, 2, 240)
    rows = table.tolist() if where == "pages" else [[0], [1]]
    caches = np.zeros((*shape, 8), np.float32), np.zeros((*shape, 5), np.float32)
    lengths = np.array([30, 7])
    for step in range(200):
        q, new = normal(2, 4, 1, 8), (normal(2, 2, 1, 8), normal(2, 2, 1, 5))
        got = ag.attention_with_kvcache(q, *caches, *new, cache_seqlens=lengths, **said, is_causal=True, target=target)
        lengths += 1
        if step % 40 == 0:
            want, _ = reference(q, rows, caches, lengths.tolist(), [0, 0], {})
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=4e-6)
    assert len(compiled) <= 3


Q: Any = np.zeros((2, 4, 1, 8), np.float32)
K: Any = np.zeros((2, 2, 1, 8), np.float32)
CACHE: Any = np.zeros((2, 2, 6, 8), np.float32)
READ_ONLY: Any = np.broadcast_to(np.float32(0), CACHE.shape)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cache_seqlens": [2, 6]}, "cache_seqlens[1] is 6 with 1 new keys; the cache has room for lengths from 0 to 6"),
        ({"cache_seqlens": [2, -1]}, "cache_seqlens[1] is -1 with 1 new keys; the cache has room for lengths from 0 to 6"),
        ({"cache_seqlens": 9}, "cache_seqlens is 9 with 1 new keys"),
        ({"cache_seqlens": [1, 2, 3]}, "cache_seqlens: expected a number or shape (2,), got shape (3,)"),
        ({"cache_seqlens": [1.5, 2]}, "cache_seqlens: expected whole numbers, got float64"),
        ({"cache_seqlens": None}, "cache_seqlens: is missing"),
        ({"cache_batch_idx": [0, 2]}, "cache_batch_idx[1] is 2; expected an index from 0 to 1 into the cache"),
        ({"cache_batch_idx": [-1, 0]}, "cache_batch_idx[0] is -1; expected an index from 0 to 1"),
        ({"cache_batch_idx": [0]}, "cache_batch_idx: expected shape (2,), one index per batch entry, got (1,)"),
        ({"cache_batch_idx": [1, 1]}, "cache_batch_idx: new keys of entry 0 would be written where keys of entry 1 are"),
        ({"block_table": [[0], [2]]}, "block_table[1, 0] is 2; expected an index from 0 to 1 into the cache"),
        ({"block_table": [[0], [-1]]}, "block_table[1, 0] is -1; expected an index from 0 to 1"),
        ({"block_table": [[1], [1]]}, "block_table: new keys of entry 0 would be written where keys of entry 1 are"),
        ({"block_table": [[0], [2**40]]}, f"block_table[1, 0] is {2**40}; expected an index from 0 to 1"),
        ({"block_table": [[0.0], [1.0]]}, "block_table: expected whole numbers, got float64"),
        ({"cache_batch_idx": [True, False]}, "cache_batch_idx: expected whole numbers, got bool"),
        ({"cache_seqlens": 2**40}, f"cache_seqlens is {2**40} with 1 new keys"),
        ({"alibi_slopes": np.ones(2)}, "alibi_slopes: expected shape (4,) or (2, 4)"),
        ({"sinks": np.full(4, np.nan)}, "sinks[0] is nan in float32; expected a finite number"),
        ({"dropout_p": 0.5}, "dropout_p: expected 0, got 0.5"),
        ({"block_table": [0, 1]}, "block_table: expected shape (2, pages), one row per batch entry, got (2,)"),
        ({"block_table": [[0], [1]], "cache_batch_idx": [0, 1]}, "cache_batch_idx: leave it away"),
        ({"block_table": [[0], [1]], "cache_seqlens": [2, 7]}, "cache_seqlens[1] is 7 with 1 new keys"),
        (
            {"key": np.ones((2, 4, 1, 8), np.float32)},
            "key: expected shape (2, 2, new_len, 8) of float32, as query and key_cache",
        ),
        (
            {"value": np.ones((2, 2, 2, 8), np.float32)},
            "value: expected shape (2, 2, 1, 8) of float32, as query and value_cache",
        ),
        ({"value": np.ones((2, 2, 1, 8))}, "got (2, 2, 1, 8) of float64"),
        ({"value": None}, "value: is missing; give new keys and values together"),
        ({"key_cache": READ_ONLY}, "key_cache: the array is read-only"),
        ({"value_cache": np.zeros((3, 2, 6, 8), np.float32)}, "value_cache: expected as many entries as key_cache has"),
        ({"value_cache": np.zeros((2, 2, 7, 8), np.float32)}, "value_cache: has kv_len 7"),
        ({"key_cache": np.zeros((2, 2, 6, 9), np.float32)}, "key_cache: has d 9"),
        ({"key_cache": np.zeros((2, 3, 6, 8), np.float32)}, "value_cache: has kv_heads 2"),
        ({"query": Q[0]}, "query: expected 4 dimensions"),
        ({"query": Q.astype("float64")}, "key_cache: has dtype float32, but query has float64"),
        ({"query": np.zeros((3, 4, 1, 8), np.float32)}, "key: expected shape (3, 2, new_len, 8)"),
        (
            {"query": Q[:1], "key": K[:1], "value": K[:1], "cache_seqlens": 1},
            "key_cache: has 2 entries in shape (2, 2, 6, 8), but",
        ),
        ({"semantics": "jax"}, "semantics: 'jax'"),
        ({"num_threads": -1}, "num_threads: expected a whole number"),
        ({"bias": np.zeros(5, np.float32)}, "bias: shape (5,) does not broadcast"),
        ({"mask_mod": lambda b, h, i, j: 1.0}, "mask_mod returned numbers, expected a condition"),
        ({"out": np.zeros((2, 4, 1, 7), np.float32)}, "out: axis e has extent 7"),
        ({"target": "gpu"}, "target: there is no backend 'gpu'"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(changes: dict[str, Any], message: str) -> None:
    caches = {"key_cache": CACHE.copy(), "value_cache": CACHE.copy()}
    given: dict[str, Any] = {"query": Q, **caches, "key": K + 1, "value": K + 1, "cache_seqlens": [2, 3], "target": "numpy"}
    given["out"] = out = np.full_like(Q, 7)
    with pytest.raises(ag.Error) as e:
        ag.attention_with_kvcache(**(given | changes))
    assert message in str(e.value)
    assert np.all(out == 7) and not any(x.any() for x in caches.values())


def test_memory_that_is_shared_is_refused(normal: Any) -> None:
    k, v = normal(2, 2, 6, 8), normal(2, 2, 6, 8)
    new = normal(2, 2, 1, 8)
    with pytest.raises(ag.Error, match="value_cache: shares memory with key_cache"):
        ag.attention_with_kvcache(Q, k, k, new, new, cache_seqlens=2, target="numpy")
    with pytest.raises(ag.Error, match="key_cache: shares memory with key"):
        ag.attention_with_kvcache(Q, k, v, k[:, :, :1], new, cache_seqlens=2, target="numpy")
    with pytest.raises(ag.Error, match="out: shares memory with value_cache"):
        k, v = normal(2, 4, 6, 8), normal(2, 4, 6, 8)
        ag.attention_with_kvcache(Q, k, v, cache_seqlens=2, cache_batch_idx=[0, 0], out=v[:, :, 5:], target="numpy")

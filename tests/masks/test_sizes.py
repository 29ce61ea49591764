"""Lengths, widths, distances in memory and tiles of every size: numbers must not depend on what fits a block."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attngen as ag
from attngen.ir.passes import PIPELINE
from attngen.lowering import build_kernel
from attngen.sdpa import make_kernel, trace
from attngen.sdpa_inputs import Extra
from attngen.sdpa_runtime import FAMILIES
from attngen.table import KERNELS
from tests.masks import oracle
from tests.masks.ways import WAYS, attend, check


@pytest.mark.parametrize("width", [1, 7, 63, 64, 80, 128, 192, 256])
@pytest.mark.parametrize("way", ["interpreter", "numpy"])
def test_widths_of_heads(way: str, width: int, normal: Any) -> None:
    """U23: triton#621, tiny-flash-attention#12. The kernels of tests/kernels/test_shapes.py have these on the CPU."""
    check(way, normal(1, 2, 3, width), normal(1, 1, 70, width), normal(1, 1, 70, width), window=(None, 66))


@pytest.mark.parametrize("way", WAYS)
def test_one_query(way: str, normal: Any) -> None:
    """U25: triton-lang/kernels#6."""
    check(way, normal(1, 2, 1, 128), normal(1, 2, 20, 128), normal(1, 2, 20, 80))


@pytest.mark.parametrize("way", WAYS)
def test_lengths_around_the_size_of_a_block(way: str, normal: Any) -> None:
    """U24: jax#27224, pytorch#159247. One kernel for all of them."""
    KERNELS.reset()
    FAMILIES.reset()
    for n in (2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 192, 257):
        for q_len, kv_len in ((n, 64), (33, n)):
            arrays = normal(1, 1, q_len, 4), normal(1, 1, kv_len, 4), normal(1, 1, kv_len, 3)
            check(way, *arrays, is_causal=True, causal_alignment="bottom_right")
    assert len(KERNELS) <= 4


@pytest.mark.parametrize("target", ["numpy", "cpu"])
def test_any_tiles_on_packed_sequences(target: str, normal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """U30: flash-attention PR#2337. Whatever the tiles, ragged sequences have the same numbers."""
    rng = np.random.default_rng(3)
    q, k, v = normal(41, 2, 4), normal(53, 1, 4), normal(53, 1, 3)
    for i, j in ((1, 5), (16, 16), (7, 64), (64, 3))[: 4 if target == "numpy" else 2]:

        def tiled(arrays: Any, options: Any, extras: tuple[Extra, ...], target: str, form: Any, i: int = i, j: int = j) -> Any:
            made, traced = trace(arrays, options, extras, {}, form)
            return build_kernel(made, traced, target=target, pipeline=PIPELINE.replace("tile", f"tile{{i={i} j={j}}}", 1))

        monkeypatch.setattr("attngen.sdpa.make_kernel", tiled)
        KERNELS.reset()
        for _ in range(6):
            starts = [np.array([0, *np.sort(rng.integers(0, n + 1, 5))]) for n in (41, 53)]
            given: dict[str, Any] = {"is_causal": True, "causal_alignment": "bottom_right"}
            packed: dict[str, Any] = {"cu_seqlens_q": starts[0], "cu_seqlens_k": starts[1], **given}
            got = ag.scaled_dot_product_attention(q, k, v, return_lse=True, target=target, **packed)
            want = oracle.packed(q, k, v, *starts, **given)
            for x, y in zip(got, want, strict=True):
                np.testing.assert_allclose(x, y, rtol=1e-5, atol=4e-6)
        assert len(KERNELS) == 1
    monkeypatch.setattr("attngen.sdpa.make_kernel", make_kernel)
    KERNELS.reset()


# ---------------------------------------------------------------- distances beyond 32 bits

FAR = 1_100_000_000
"""Elements between rows: the third one lies beyond what 31 bits count, in elements of 4 bytes and in bytes of booleans."""


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Any]:
    """far(x): the elements of x, its rows far from each other in a file that is nearly all holes; far(x, True): backwards."""
    maps: list[Any] = []

    def make(x: Any, backwards: bool = False) -> Any:
        rows = x.reshape(-1, x.shape[-1])
        path = tmp_path / str(len(maps))
        whole = np.memmap(path, x.dtype, "w+", shape=((len(rows) - 1) * FAR + x.shape[-1],))
        path.unlink()
        maps.append(whole)
        strides = (FAR * x.itemsize, x.itemsize)
        view = np.lib.stride_tricks.as_strided(np.asarray(whole), rows.shape, strides)
        view = view[::-1] if backwards else view
        view[...] = rows
        return view.reshape(x.shape) if x.ndim < 3 else view[None, None]

    yield make
    maps.clear()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("backwards", [False, True])
def test_rows_far_from_each_other(way: str, backwards: bool, normal: Any, far: Any) -> None:
    """U28: flash-attention PR#2260, #1500, pytorch#190857, tilelang#330, xformers#788. Every array, also one that is looked up
    at computed places."""
    q, k, v = normal(1, 1, 3, 8), normal(1, 1, 3, 8), normal(1, 1, 3, 8)
    table, keep = normal(3, 1), np.array([[True, False, True], [True, True, False], [False, True, True]])
    bias = normal(3, 3)
    places = far(table, backwards)[:, 0]
    assert abs(2 * places.strides[0]) > 4 * 2**31
    out = far(np.zeros_like(q), backwards)

    def score_mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s + places[(i + j) % 3]

    moved = [far(x, backwards) for x in (q, k, v)]
    given: dict[str, Any] = {
        "attn_mask": far(keep, backwards),
        "bias": far(bias, backwards),
        "score_mod": score_mod,
        "out": out,
    }
    got, _ = attend(way, *moved, **given)
    want, _ = oracle.attention(q, k, v, keep, bias=bias, score_mod=score_mod)
    assert got is out
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("target", ["numpy", "cpu"])
def test_entries_of_a_cache_far_from_each_other(target: str, normal: Any, far: Any) -> None:
    """U29: flash-attention#772."""
    rows = far(np.zeros((3, 6 * 8), np.float32)), far(np.zeros((3, 6 * 8), np.float32))
    caches = [x.reshape(3, 1, 6, 8) for x in rows]
    assert all(np.shares_memory(x, y) for x, y in zip(caches, rows, strict=True))
    new, q = (normal(2, 1, 1, 8), normal(2, 1, 1, 8)), normal(2, 1, 1, 8)
    got = ag.attention_with_kvcache(
        q, caches[0], caches[1], new[0], new[1], cache_seqlens=[0, 0], cache_batch_idx=[2, 0], target=target
    )
    np.testing.assert_allclose(got, new[1], rtol=1e-6)
    for x, more in zip(caches, new, strict=True):
        np.testing.assert_array_equal(x[[2, 0], :, :1], more)
        assert not x[1].any() and not x[:, :, 1:].any()

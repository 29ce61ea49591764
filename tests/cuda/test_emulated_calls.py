"""What calls attention for its users works for kernels in the interpreter too, and agrees with the CPU backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attngen as ag
from attngen import onnx
from attngen.specs import DTYPES, array_dtype
from tests.masks.ways import attend

TARGETS = [("cuda:sm_80,emulated", "float16"), ("cuda:sm_90a,emulated", "bfloat16"), ("cuda:sm_80,emulated", "float32")]
LIMITS = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5}


def normal(dtype: str, *shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(array_dtype(DTYPES[dtype])) for shape in shapes]


def same(dtype: str, got: Any, want: Any) -> None:
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), rtol=0, atol=LIMITS[dtype])


@pytest.mark.parametrize(("target", "dtype"), TARGETS)
@pytest.mark.parametrize("alignment", ["top_left", "bottom_right"])
def test_causal_alignment(target: str, dtype: str, alignment: str) -> None:
    """U8, U9: the interpreter of the IR, the CPU backend and kernels for GPUs agree on masks over two lengths."""
    arrays = normal(dtype, (1, 2, 21, 64), (1, 2, 70, 64), (1, 2, 70, 64))
    given: dict[str, Any] = {"is_causal": True, "causal_alignment": alignment}
    out, lse = attend(target, *arrays, **given)
    for way in ("interpreter", "cpu"):
        want, want_lse = attend(way, *arrays, **given)
        same(dtype, out, want.astype(out.dtype))
        np.testing.assert_allclose(lse, want_lse, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("target", "dtype"), TARGETS)
@pytest.mark.parametrize("paged", [False, True])
def test_a_cache(target: str, dtype: str, paged: bool) -> None:
    """U9, U29: a step of decoding; new keys behind those of each entry, which are read where they are or from pages."""
    shape = (6, 2, 40, 64) if paged else (2, 2, 120, 64)
    said: dict[str, Any] = {"block_table": [[3, 0, 5], [4, 1, -1]]} if paged else {}
    q, k, v, *new = normal(dtype, (2, 8, 1, 64), shape, shape, (2, 2, 1, 64), (2, 2, 1, 64))
    found: dict[str, Any] = {}
    for where in (target, "cpu"):
        caches = k.copy(), v.copy()
        out, lse = ag.attention_with_kvcache(
            q, *caches, *new, cache_seqlens=[97, 63], **said, is_causal=True, return_lse=True, target=where
        )
        found[where] = out, lse, *caches
    for got, want in zip(found[target], found["cpu"], strict=True):
        same(dtype, got, want)


@pytest.mark.parametrize(("target", "dtype"), TARGETS)
def test_an_operator_of_onnx(target: str, dtype: str) -> None:
    """Rank 3, past keys, a window, a soft cap, a mask that is too short, and the scores as a second output."""
    q, k, v, past_key, past_value = normal(dtype, (1, 20, 128), (1, 20, 64), (1, 20, 64), (1, 1, 44, 64), (1, 1, 44, 64))
    given: dict[str, Any] = {"past_key": past_key, "past_value": past_value, "q_num_heads": 2, "kv_num_heads": 1}
    given |= {"left_window_size": 30, "is_causal": True, "softcap": 4.0, "qk_matmul_output_mode": 2}
    keep = np.random.default_rng(1).random((20, 60)) < 0.8
    found = {t: onnx.attention(q, k, v, attn_mask=keep, **given, target=t) for t in (target, "cpu")}
    for got, want in zip(found[target], found["cpu"], strict=True):
        same(dtype, got, want)


@pytest.mark.parametrize(("target", "dtype"), TARGETS)
def test_parts_are_merged(target: str, dtype: str) -> None:
    q, k, v = normal(dtype, (1, 2, 20, 64), (1, 2, 96, 64), (1, 2, 96, 64))
    parts = [
        x
        for keys in (slice(0, 33), slice(33, 96))
        for x in ag.scaled_dot_product_attention(q, k[:, :, keys], v[:, :, keys], return_lse=True, target=target)
    ]
    got, lse = ag.merge(*parts, target=target)
    want, want_lse = ag.scaled_dot_product_attention(q, k, v, return_lse=True)
    same(dtype, got, want)
    same("float32", lse, want_lse)

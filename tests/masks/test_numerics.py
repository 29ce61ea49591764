"""What masks must not do to numbers: each test is a kind of fault that users of other kernels have reported."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest

import attngen as ag
from tests.masks.oracle import attention
from tests.masks.ways import WAYS, Attend, attend, check

F32 = np.finfo(np.float32)


@pytest.fixture(params=[*WAYS, "oracle"])
def sdpa(request: pytest.FixtureRequest) -> Attend:
    """By every way, and by the oracle: here it is judged itself, by numbers worked out by hand."""
    return partial(attend, request.param)


def zeros(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def numbered(keys: int) -> Any:
    """Values whose row j equals j."""
    return np.arange(keys, dtype=np.float32).reshape(1, 1, keys, 1)


def test_a_row_without_keys_is_zero(sdpa: Attend, normal: Any) -> None:
    """U1: pytorch#103963, pytorch#103749, mlx PR#2608, iree#24175."""
    q, k, v = normal(1, 1, 8, 8), normal(1, 1, 8, 8), normal(1, 1, 8, 8)
    keep = np.zeros((8, 8), bool)
    keep[:4, :4] = True
    out, lse = sdpa(q, k, v, attn_mask=keep)
    assert not out[:, :, 4:].any() and np.all(lse[:, :, 4:] == -np.inf)
    assert np.isfinite(out).all() and np.isfinite(lse[:, :, :4]).all()


def test_first_tiles_that_are_masked_whole(sdpa: Attend) -> None:
    """U2: pytorch#127055, pytorch PR#130014."""
    n = 640
    x = ones(1, 1, n, 4)
    bias = np.triu(np.full((n, n), -np.inf, np.float32), 1)
    bias[np.tril_indices(n, -10)] = -np.inf
    out, _ = sdpa(x, x, x, attn_mask=bias)
    np.testing.assert_allclose(out, 1, rtol=1e-6)


MASKS: dict[str, dict[str, Any]] = {
    "boolean": {"attn_mask": np.array([True, True, True, False])},
    "additive": {"attn_mask": np.array([0, 0, 0, -np.inf], np.float32)},
    "bias": {"bias": np.array([0, 0, 0, -np.inf], np.float32)},
    "length": {"seqused_k": np.array([3])},
    "window": {"window": (None, 2)},
    "mask_mod": {"mask_mod": lambda b, h, i, j: j < 3},
    "score_mod": {"score_mod": lambda s, b, h, i, j: np.where(j < 3, s, -math.inf)},
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_masked_keys_and_values_never_reach_the_output(sdpa: Attend, mask: str, bad: float) -> None:
    """U3: pytorch#101967, flashinfer#358, flashinfer PR#1029: 0·NaN is NaN."""
    q, k, v = ones(1, 1, 1, 4), ones(1, 1, 4, 4), ones(1, 1, 4, 3)
    v[:, :, 3] = bad
    k[:, :, 3] = bad
    out, lse = sdpa(q, k, v, **MASKS[mask])
    np.testing.assert_allclose(out, 1, rtol=1e-6)
    np.testing.assert_allclose(lse, 2 + math.log(3), rtol=1e-6)


def test_a_kept_value_that_is_not_a_number_is_seen(sdpa: Attend) -> None:
    """The rule for masked values must not hide a NaN that counts; its column alone has it."""
    q, k, v = ones(1, 1, 2, 4), ones(1, 1, 4, 4), ones(1, 1, 4, 3)
    v[:, :, 3, 1] = math.nan
    keep = np.array([[True, True, True, False], [True, True, True, True]])
    out, _ = sdpa(q, k, v, attn_mask=keep)
    assert np.isnan(out[0, 0]).tolist() == [[False, False, False], [False, True, False]]


def test_a_query_that_is_not_a_number(sdpa: Attend, normal: Any) -> None:
    """U4: pytorch#141128. Its row is NaN if it keeps a key, and no other row is."""
    q, k, v = normal(1, 1, 4, 8), normal(1, 1, 6, 8), normal(1, 1, 6, 8)
    q[0, 0, :2] = math.nan
    keep = np.ones((4, 6), bool)
    keep[1] = False
    out, lse = sdpa(q, k, v, attn_mask=keep)
    assert np.isnan(out[0, 0, 0]).all() and np.isnan(lse[0, 0, 0])
    assert not out[0, 0, 1].any() and np.isfinite(out[0, 0, 2:]).all()


def test_large_scores(sdpa: Attend) -> None:
    """U5: pytorch#121558."""
    x = np.full((1, 1, 1, 64), 133120, np.float32)
    np.testing.assert_array_equal(sdpa(x, x, x, attn_mask=np.array(True).reshape(1, 1))[0], x)


@pytest.mark.parametrize("softcap", [0.0, 3.0])
def test_a_row_of_the_lowest_float_is_a_uniform_average(sdpa: Attend, softcap: float) -> None:
    """U6: pytorch#109517, pytorch#110213. The change of base to 2 must not make it -inf."""
    out, lse = sdpa(zeros(1, 1, 1, 4), zeros(1, 1, 4, 4), numbered(4), bias=np.full((1, 4), F32.min), softcap=softcap)
    np.testing.assert_allclose(out, 1.5, rtol=1e-6)
    assert np.isfinite(lse).all()


def test_two_masks_of_the_lowest_float_mask(sdpa: Attend) -> None:
    """U7: transformers PR#27114. Their sum is -inf."""
    low = np.full((1, 4), F32.min)
    low_for_two = low * np.array([1, 1, 0, 0], np.float32)
    q, k, v = zeros(1, 1, 1, 4), zeros(1, 1, 4, 4), numbered(4)
    assert sdpa(q, k, v, attn_mask=low, bias=low)[0].item() == 0
    np.testing.assert_allclose(sdpa(q, k, v, attn_mask=low_for_two, bias=low_for_two)[0], 2.5)


@pytest.mark.parametrize(
    ("alignment", "q_len", "kv_len", "rows"),
    [
        ("top_left", 1, 4, [0]),
        ("bottom_right", 1, 4, [1.5]),
        ("upper_left", 5, 2, [0, 0.5, 0.5, 0.5, 0.5]),
        ("lower_right", 5, 2, [0, 0, 0, 0, 0.5]),
    ],
)
def test_causal_alignment(sdpa: Attend, alignment: str, q_len: int, kv_len: int, rows: list[float]) -> None:
    """U8, U9: mlx#2835, executorch#22426, pytorch#103082, flash-attention#1778, onnxruntime#29020: the same everywhere."""
    q, k = zeros(1, 1, q_len, 4), zeros(1, 1, kv_len, 4)
    out, _ = sdpa(q, k, numbered(kv_len), is_causal=True, causal_alignment=alignment)
    np.testing.assert_allclose(out.ravel(), rows, rtol=1e-6)


def test_the_soft_cap_comes_before_the_mask(sdpa: Attend) -> None:
    """U10: onnxruntime PR#28379."""
    v = np.array([1, 1, 1000], np.float32).reshape(1, 1, 3, 1)
    bias = np.array([[0, 0, -np.inf]], np.float32)
    out, _ = sdpa(zeros(1, 1, 1, 4), zeros(1, 1, 3, 4), v, bias=bias, softcap=0.5)
    np.testing.assert_allclose(out, 1, rtol=1e-6)


def test_a_window_counts_keys_besides_the_own_one(sdpa: Attend) -> None:
    """U11: transformers#39408, transformers#29623, xformers#923, vllm#3385."""
    x = zeros(1, 1, 8, 4)
    _, lse = sdpa(x, x, x, is_causal=True, window=(2, 0))
    np.testing.assert_allclose(np.exp(lse).ravel(), [1, 2, 3, 3, 3, 3, 3, 3], rtol=1e-6)


@pytest.mark.parametrize("window", [(-1, 0), (8, 0), (7, 0), (None, 0), (9, 4), (2**70, 2**64)])
def test_open_windows_are_causal_masks(sdpa: Attend, normal: Any, window: Any) -> None:
    """U12: flash-attention#1133."""
    q, k, v = normal(1, 2, 8, 4), normal(1, 2, 8, 4), normal(1, 2, 8, 4)
    causal, _ = sdpa(q, k, v, is_causal=True)
    np.testing.assert_array_equal(sdpa(q, k, v, is_causal=True, window=window)[0], causal)


def test_the_log_sum_exp_is_natural(sdpa: Attend) -> None:
    """U13: tokenspeed PR#571, flashinfer#4485."""
    q, k = zeros(1, 1, 1, 4), zeros(1, 1, 2, 4)
    assert sdpa(q, k, k)[1].item() == pytest.approx(math.log(2))
    assert sdpa(q, k, k, lse_base="2")[1].item() == pytest.approx(1)


@pytest.mark.parametrize("sink, out, lse", [(0.0, 0.75, math.log(4)), (20.0, 6.18346e-9, 20.0), (-math.inf, 1.0, math.log(3))])
def test_a_sink_takes_part_in_the_denominator(sdpa: Attend, sink: float, out: float, lse: float) -> None:
    """U15: TransformerEngine PR#3551."""
    found = sdpa(zeros(1, 1, 1, 4), zeros(1, 1, 3, 4), ones(1, 1, 3, 2), sinks=[sink])
    np.testing.assert_allclose(found[0], out, rtol=1e-5)
    np.testing.assert_allclose(found[1], lse, rtol=1e-6)


def test_a_row_without_keys_but_with_a_sink(sdpa: Attend) -> None:
    keep = np.zeros((1, 3), bool)
    out, lse = sdpa(zeros(1, 1, 1, 4), zeros(1, 1, 3, 4), ones(1, 1, 3, 2), sinks=[5.0], attn_mask=keep)
    assert not out.any() and lse.item() == pytest.approx(5)


def test_grouped_heads_are_repeated(sdpa: Attend) -> None:
    """U16: jax-js PR#180. A mask and a sink belong to query heads."""
    v = np.arange(2, dtype=np.float32).reshape(1, 2, 1, 1) * ones(1, 2, 3, 1)
    keep = np.array([1, 1, 0, 1], bool).reshape(4, 1, 1)
    out, _ = sdpa(zeros(1, 4, 1, 4), zeros(1, 2, 3, 4), v, attn_mask=keep)
    np.testing.assert_allclose(out.ravel(), [0, 0, 0, 1])


def test_float64_stays_float64(sdpa: Attend, normal: Any) -> None:
    """U17: jax PR#34114."""
    q, k, v = (normal(1, 1, 64, 64, dtype="float64") for _ in range(3))
    bias = np.where(normal(64, 64, dtype="float64") > 0, normal(64, 64, dtype="float64"), -np.inf)
    s = np.where(np.isinf(bias), -np.inf, q[0, 0] @ k[0, 0].T / 8 + bias)
    p = np.exp(s - s.max(1, keepdims=True))
    out, _ = sdpa(q, k, v, bias=bias)
    assert np.max(np.abs(out[0, 0] - p / p.sum(1, keepdims=True) @ v[0, 0])) < 1e-12


def test_dropout_is_never_applied() -> None:
    """U18: pytorch#124464."""
    x = zeros(1, 1, 2, 4)
    with pytest.raises(ag.Error, match=r"dropout_p: expected 0, got 0\.5"):
        ag.scaled_dot_product_attention(x, x, x, dropout_p=0.5)


@pytest.mark.parametrize("way", WAYS)
def test_half_precision_masks(way: str, normal: Any) -> None:
    """Scores of 16-bit arrays are in 32 bits, and so are their masks."""
    q, k, v = (normal(1, 2, 5, 4).astype(np.float16) for _ in range(3))
    masks: dict[str, Any] = {
        "attn_mask": np.where(normal(5, 5) > 0, 0, -np.inf).astype(np.float16),
        "bias": normal(5).astype(np.float16),
    }
    got, want = attend(way, q, k, v, **masks), attention(q, k, v, **masks)
    np.testing.assert_allclose(got[0].astype(float), want[0], atol=4e-3)
    np.testing.assert_allclose(got[1], want[1], atol=4e-3)


@pytest.mark.parametrize("way", ["numpy", "cpu"])
def test_the_jax_convention_for_rows_without_keys(way: str) -> None:
    """A finite number stands for -inf there, so that such a row is the mean of all values."""
    q, k = zeros(1, 1, 2, 4), zeros(1, 1, 4, 4)
    keep = np.array([[False] * 4, [True, False, False, False]])
    out = ag.scaled_dot_product_attention(q, k, numbered(4), attn_mask=keep, semantics="jax", target=way)
    np.testing.assert_allclose(out.ravel(), [1.5, 0])


@pytest.mark.parametrize("way", ["numpy", "cpu"])
def test_the_flash_attention_convention(way: str) -> None:
    q, k = zeros(1, 1, 5, 4), zeros(1, 1, 2, 4)
    out, lse = ag.scaled_dot_product_attention(
        q, k, numbered(2), is_causal=True, semantics="flash_attn", return_lse=True, target=way
    )
    np.testing.assert_allclose(out.ravel(), [0, 0, 0, 0, 0.5])
    np.testing.assert_allclose(lse.ravel(), [np.inf] * 3 + [0, math.log(2)])


@pytest.mark.parametrize("way", ["interpreter", "numpy", "cpu"])
def test_everything_at_once(way: str, normal: Any) -> None:
    keep = normal(2, 1, 9, 13) > -0.5
    keep[0, 0, 3] = False
    check(
        way,
        normal(2, 4, 9, 8),
        normal(2, 2, 13, 8),
        normal(2, 2, 13, 6),
        attn_mask=keep,
        bias=normal(4, 1, 13),
        is_causal=True,
        causal_alignment="bottom_right",
        window=(7, 2),
        softcap=1.5,
        alibi_slopes=[0.1, 0.2, 0.3, 0.4],
        sinks=normal(4),
        seqused_k=np.array([12, 13]),
        score_mod=lambda s, b, h, i, j: s + 0.1 * h,
        mask_mod=lambda b, h, i, j: (i + j) % 3 != 1,
    )

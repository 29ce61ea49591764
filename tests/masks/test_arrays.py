"""Masks and biases of every shape and layout, read as they are."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import attngen as ag
from attngen.table import KERNELS
from tests.masks.oracle import attention
from tests.masks.ways import WAYS, Attend, attend, check

SHAPES = [
    (2, 4, 9, 13),
    (2, 1, 9, 13),
    (1, 4, 1, 13),
    (2, 1, 9, 1),
    (1, 1, 1, 13),
    (9, 13),
    (4, 1, 1),
    (1, 13),
    (13,),
    (1,),
    (),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("boolean", [True, False])
def test_shapes_that_broadcast(sdpa: Attend, normal: Any, shape: Any, boolean: bool) -> None:
    """U19, U31, U32: pytorch PR#128816, xformers#813, diffusers#9637, jax#28974."""
    q, k, v = normal(2, 4, 9, 8), normal(2, 2, 13, 8), normal(2, 2, 13, 6)
    mask = normal(*shape) if shape else np.asarray(normal(1)[0])
    mask = np.asarray(mask > -0.5 if boolean else mask)
    out, lse = sdpa(q, k, v, attn_mask=mask)
    want, want_lse = attention(q, k, v, attn_mask=mask)
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(lse, want_lse, rtol=1e-5, atol=2e-6)


def test_lengths_that_no_tile_divides(sdpa: Attend, normal: Any) -> None:
    """U24, U31: jax#27224, pytorch#159247, xformers#808."""
    q, k, v = normal(1, 8, 43, 8), normal(1, 8, 43, 8), normal(1, 8, 43, 8)
    bias = normal(1, 8, 43, 43)
    np.testing.assert_allclose(sdpa(q, k, v, bias=bias)[0], attention(q, k, v, bias=bias)[0], rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("way", ["numpy", "cpu"])
def test_strides(way: str, normal: Any) -> None:
    """U20, U21: pytorch PR#187506, FlagGems#5896, ROCm/pytorch#3230, pytorch#112577. Transposed, reversed, spaced and repeated
    arrays, one kernel for all."""
    q, k, v = normal(2, 9, 4, 8).swapaxes(1, 2), normal(2, 4, 8, 13).swapaxes(2, 3), normal(2, 4, 26, 8)[:, :, ::2]
    bias, keep = normal(4, 13, 9).swapaxes(1, 2)[:, ::-1], np.broadcast_to(normal(13) > -0.5, (9, 13))
    KERNELS.reset()
    for turn in (lambda x: x, np.ascontiguousarray, lambda x: x[..., ::-1][..., ::-1]):
        given = {"bias": turn(bias), "attn_mask": turn(keep)}
        check(way, turn(q), turn(k), turn(v), **given)
    assert len(KERNELS) == 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layout", ["BHSD", "BSHD"])
def test_layouts(way: str, normal: Any, layout: str) -> None:
    """A mask is (batch, heads, q_len, kv_len) in either layout."""
    q, k, v = normal(2, 4, 9, 8), normal(2, 2, 13, 8), normal(2, 2, 13, 6)
    given: dict[str, Any] = {"bias": normal(4, 9, 13), "alibi_slopes": [1, 2, 3, 4], "sinks": normal(4)}
    turned = (x.swapaxes(1, 2) if layout == "BSHD" else x for x in (q, k, v))
    out, lse = attend(way, *turned, layout=layout, **given)
    want, want_lse = attention(q, k, v, **given)
    np.testing.assert_allclose(out.swapaxes(1, 2) if layout == "BSHD" else out, want, rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(lse, want_lse, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("way", WAYS)
def test_other_ranks(way: str, normal: Any) -> None:
    """One head without a batch; two batch axes, which mods see as one."""
    q, k, v, keep = normal(9, 8), normal(13, 8), normal(13, 6), normal(9, 13) > -0.5
    given: dict[str, Any] = {"attn_mask": keep, "sinks": [0.5], "alibi_slopes": np.array([0.25]), "seqused_k": np.array(11)}
    want = attention(*(x[None, None] for x in (q, k, v)), **{**given, "seqused_k": [11]})
    np.testing.assert_allclose(attend(way, q, k, v, **given)[0], want[0][0, 0], rtol=1e-5, atol=2e-6)

    table = normal(6)
    given = {"score_mod": lambda s, b, h, i, j: s + table[b] * (i - j), "bias": normal(2, 3, 1, 1, 13)}
    q, k, v = normal(2, 3, 4, 9, 8), normal(2, 3, 2, 13, 8), normal(2, 3, 2, 13, 6)
    want = attention(*(x.reshape(6, *x.shape[2:]) for x in (q, k, v)), **{**given, "bias": given["bias"].reshape(6, 1, 1, 13)})
    np.testing.assert_allclose(attend(way, q, k, v, **given)[0], want[0].reshape(q.shape[:-1] + (6,)), rtol=1e-5, atol=3e-6)


@pytest.mark.parametrize("way", ["numpy", "cpu"])
def test_empty_arrays(way: str, normal: Any) -> None:
    """U26: flash-attention PR#2470, pytorch#141218, pytorch#174939."""
    sdpa = ag.scaled_dot_product_attention
    q, k = normal(1, 2, 3, 4), normal(1, 2, 0, 4)
    out, lse = sdpa(q, k, k, attn_mask=np.ones((3, 0), bool), bias=normal(3, 0), return_lse=True, target=way)
    assert not out.any() and np.all(lse == -np.inf)
    assert sdpa(q[:, :, :0], q, q, bias=normal(0, 3), target=way).shape == (1, 2, 0, 4)
    assert sdpa(q[:0], q[:0], q[:0], seqused_k=np.zeros(0, int), is_causal=True, target=way).shape == (0, 2, 3, 4)
    assert sdpa(q, k, k, sinks=[1, 2], return_lse=True, target=way)[1].tolist() == [[[1] * 3, [2] * 3]]


Q: Any = np.zeros((2, 4, 5, 8), np.float32)
K: Any = np.zeros((2, 2, 7, 8), np.float32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attn_mask": [[True]]}, "attn_mask: expected a NumPy array, got list; use np.asarray(attn_mask)"),
        (
            {"attn_mask": np.ones((5, 8), bool)},
            "attn_mask: shape (5, 8) does not broadcast to the scores' (2, 4, 5, 7): "
            "dimension 1 is 8, expected 1 or 7 (kv_len)",
        ),
        (
            {"attn_mask": np.ones((2, 5, 7), bool)},
            "attn_mask: shape (2, 5, 7) does not broadcast to the scores' (2, 4, 5, 7): "
            "dimension 0 is 2, expected 1 or 4 (heads)",
        ),
        (
            {"bias": np.ones((3, 1, 5, 7), np.float32)},
            "bias: shape (3, 1, 5, 7) does not broadcast to the scores' (2, 4, 5, 7): "
            "dimension 0 is 3, expected 1 or 2 (batch)",
        ),
        (
            {"bias": np.ones((1, 1, 1, 1, 1), np.float32)},
            "bias: 5 dimensions in shape (1, 1, 1, 1, 1) are more than scores have: (2, 4, 5, 7)",
        ),
        (
            {"attn_mask": np.ones((5, 7), int)},
            "attn_mask: expected bool (True keeps a key) or floats (added to the scores), got int64; "
            "use attn_mask.astype(bool)",
        ),
        ({"bias": np.ones((5, 7), bool)}, "bias: expected floats, got bool; a boolean mask is attn_mask=bias"),
        (
            {"bias": np.ones((5, 7))},
            "bias: has dtype float64, but scores are computed in float32; use bias.astype(np.float32)",
        ),
        (
            {"bias": np.ones((5, 7), ">f4")},
            "bias: big-endian float32 is not supported; use bias.astype(bias.dtype.newbyteorder('='))",
        ),
        (
            {"alibi_slopes": np.ones(3)},
            "alibi_slopes: expected shape (4,) or (2, 4), one slope per head (and batch entry), got (3,)",
        ),
        ({"sinks": np.ones((2, 4))}, "sinks: expected shape (4,), one per head, got (2, 4)"),
        ({"sinks": ["a"] * 4}, "sinks: expected an array of floats, got str32"),
        ({"sinks": np.array([1, np.nan, 2, 3])}, "sinks[1] is nan in float32; expected a finite number"),
        ({"alibi_slopes": np.full((2, 4), 1e39)}, "alibi_slopes[0][0] is inf in float32; expected a finite number"),
        ({"seqused_k": np.array([3])}, "seqused_k: expected shape (2,), one length per batch entry, got (1,)"),
        ({"seqused_k": np.array([3, 8])}, "seqused_k[1] is 8; expected a length from 0 to kv_len = 7"),
        ({"seqused_k": np.array([-1, 3])}, "seqused_k[0] is -1; expected a length from 0 to kv_len = 7"),
        ({"seqused_k": np.array([1.0, 3.0])}, "seqused_k: expected whole numbers, got float64"),
        (
            {"causal_alignment": "left"},
            "causal_alignment: expected 'top_left' or 'upper_left' or 'bottom_right' or 'lower_right', or None, got 'left'",
        ),
        ({"semantics": "flash"}, "semantics: there are no conventions named 'flash'; did you mean flash_attn?"),
        ({"semantics": 3}, "semantics: there are no conventions named 3; known: torch, onnx, flash_attn, jax"),
        ({"window": 4, "semantics": "torch"}, "window: expected (left, right), got 4"),
        ({"softcap": 1e-300}, "softcap: 1e-300 is 0 in f32, in which scores are computed; give 0 for none"),
        ({"softcap": 1e300}, "softcap: 1e+300 is not finite in f32, in which scores are computed; use float64 arrays"),
    ],
)
def test_errors(changes: dict[str, Any], message: str) -> None:
    """U33, U35: pytorch#136232, attention-gym#34, pytorch#169224: one line that names the argument."""
    out = np.full_like(Q, 7)
    with pytest.raises(ag.Error) as e:
        ag.scaled_dot_product_attention(Q, K, K, out=out, **changes)
    assert str(e.value) == message
    assert np.all(out == 7), "nothing is written before everything is checked"


def test_a_causal_mask_over_different_lengths_asks_for_its_alignment() -> None:
    """The warning points to the caller; a preset or an alignment silences it."""
    with pytest.warns(UserWarning, match="q_len=5 and kv_len=7: query 0 is aligned with key 0") as warned:
        ag.scaled_dot_product_attention(Q, K, K, is_causal=True, target="numpy")
    assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ag.scaled_dot_product_attention(Q, K, K, is_causal=True, causal_alignment="top_left", target="numpy")
        ag.scaled_dot_product_attention(Q, K, K, is_causal=True, semantics="torch", target="numpy")
        ag.scaled_dot_product_attention(Q, Q[:, :2], Q[:, :2], is_causal=True, target="numpy")

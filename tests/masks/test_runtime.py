"""Lengths that change from call to call: exact kernels first, then one with runtime extents, judged by float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attngen as ag
from attngen.ir.types import UpTo
from attngen.kernel import Kernel
from attngen.sdpa_runtime import Family, Form, roomy
from tests.masks.oracle import attention
from tests.masks.ways import check

TARGETS = ("numpy", "cpu")
BY_PLACE, IDS = np.sin(np.arange(300)).astype(np.float32), np.arange(300) // 7


pytestmark = pytest.mark.usefixtures("compiled")


def test_the_bound_is_a_power_of_two_with_room() -> None:
    assert [roomy(n).bound for n in (1, 256, 257, 512, 1000, 1024, 1025)] == [1024, 1024, 2048, 2048, 4096, 4096, 8192]


def test_which_lengths_a_kernel_is_made_for() -> None:
    family = Family()
    assert family.choose(8, 8) == Form(8, 8)
    assert family.choose(8, 0) == Form(8, 0)
    assert family.choose(8, 9) == Form(8, UpTo(1024), True)
    assert family.choose(8, 1024) == Form(8, UpTo(1024), True)
    assert family.choose(8, 1025) == Form(8, UpTo(8192), True)
    assert family.choose(9, 2000) == Form(UpTo(1024), UpTo(8192), True)
    assert family.choose(77, 1) == Form(UpTo(1024), UpTo(8192), True)
    assert family.choose(77, 0) == Form(UpTo(1024), UpTo(8192), True)
    assert family.choose(8, 7) == Form(8, UpTo(1024), True)
    assert family.choose(8, 8) == Form(8, 8)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("start", [1, 950])
def test_200_steps_of_decoding_compile_few_kernels(target: str, start: int, normal: Any, compiled: list[Kernel]) -> None:
    """A prompt, then one query at a time."""
    k, v = normal(1, 2, start + 200, 8), normal(1, 2, start + 200, 8)
    for n in (start, *range(start + 1, start + 201)):
        q = normal(1, 4, start if n == start else 1, 8)
        given: dict[str, Any] = {"is_causal": True, "causal_alignment": "bottom_right", "window": (64, 0)}
        out = ag.scaled_dot_product_attention(q, k[:, :, :n], v[:, :, :n], target=target, **given)
        if n % 20 == 1:
            want, _ = attention(q, k[:, :, :n], v[:, :, :n], **given)
            np.testing.assert_allclose(out, want, rtol=2e-5, atol=4e-6)
    assert len(compiled) <= 3


@pytest.mark.parametrize("target", TARGETS)
def test_200_steps_of_decoding_with_a_captured_bias_compile_few_kernels(
    target: str, normal: Any, compiled: list[Kernel]
) -> None:
    """An array along the keys that grows with them, and one that is long enough from the start."""
    k, v, all_of_it, heads = normal(1, 2, 260, 8), normal(1, 2, 260, 8), normal(260), normal(4, 300)
    for n in range(60, 260):
        q, bias = normal(1, 4, 1, 8), all_of_it[:n]

        def score_mod(s: Any, b: Any, h: Any, i: Any, j: Any, bias: Any = bias) -> Any:
            return s + bias[j] * heads[h, j]

        out = ag.scaled_dot_product_attention(q, k[:, :, :n], v[:, :, :n], score_mod=score_mod, target=target)
        if n % 40 == 1:
            want, _ = attention(q, k[:, :, :n], v[:, :, :n], score_mod=score_mod)
            np.testing.assert_allclose(out, want, rtol=2e-5, atol=4e-6)
    assert len(compiled) <= 3


CASES: dict[str, dict[str, Any]] = {
    "bare": {},
    "causal": {"is_causal": True, "causal_alignment": "top_left"},
    "causal at the bottom": {"is_causal": True, "causal_alignment": "bottom_right"},
    "window at the bottom": {"window": (3, 1), "causal_alignment": "bottom_right", "softcap": 2.0},
    "slopes at the bottom": {"alibi_slopes": [0.5, 0.25, 0.125, 1.0], "causal_alignment": "bottom_right"},
    "sinks": {"sinks": [0.5, 0.25, -0.125, 1.0]},
    "lengths": {"seqused_k": (0.5, 1.0), "causal_alignment": "bottom_right", "is_causal": True},
    "bias": {"bias": (4, "q", "k")},
    "padding": {"attn_mask": (2, 1, 1, "k")},
    "modified": {
        "score_mod": lambda s, b, h, i, j: s - 0.1 * h * (i - j),
        "mask_mod": lambda b, h, i, j: (i + j) % 3 != 1,
    },
    "captured": {
        "score_mod": lambda s, b, h, i, j: s + BY_PLACE[j] - BY_PLACE[i] * BY_PLACE[b],
        "mask_mod": lambda b, h, i, j: (IDS[i] == IDS[j]) | (IDS[j] < 2),
    },
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_other_lengths_share_a_kernel(target: str, name: str, normal: Any, compiled: list[Kernel]) -> None:
    for q_len, kv_len in ((9, 9), (5, 17), (130, 2), (2, 200), (7, 0), (0, 7), (33, 33)):
        given = dict(CASES[name])
        for key in ("bias", "attn_mask"):
            if key in given:
                x = normal(*({"q": q_len, "k": kv_len}.get(n, n) for n in given[key]))
                given[key] = x if key == "bias" else x > -0.5
        if "seqused_k" in given:
            given["seqused_k"] = np.array([int(part * kv_len) for part in given["seqused_k"]])
        q, k, v = normal(2, 4, q_len, 8), normal(2, 2, kv_len, 8), normal(2, 2, kv_len, 5)
        check(target, q, k, v, **given)
    assert sum(kernel.pipeline != "" for kernel in compiled) == 2


@pytest.mark.parametrize("target", TARGETS)
def test_a_length_that_stays_is_exact(target: str, normal: Any, compiled: list[Kernel]) -> None:
    for q_len, kv_len in ((4, 8), (4, 9), (4, 10)):
        check(target, normal(1, 2, q_len, 4), normal(1, 2, kv_len, 4), normal(1, 2, kv_len, 4))
    assert [str(kernel.func.args[0].tensor.extents["i"]) for kernel in compiled] == ["4", "4"]
    assert str(compiled[1].func.args[1].tensor.extents["j"]) == "?<=1024"


@pytest.mark.parametrize("target", TARGETS)
def test_layout_with_heads_after_lengths(target: str, normal: Any, compiled: list[Kernel]) -> None:
    for n in (3, 11, 40):
        q, k, v = normal(2, n, 4, 8), normal(2, n + 1, 2, 8), normal(2, n + 1, 2, 5)
        got = ag.scaled_dot_product_attention(q, k, v, layout="BSHD", target=target)
        want, _ = attention(*(x.swapaxes(1, 2) for x in (q, k, v)))
        np.testing.assert_allclose(got, want.swapaxes(1, 2), rtol=2e-5, atol=4e-6)
    assert len(compiled) == 2


@pytest.mark.parametrize("target", TARGETS)
def test_packed_rows(target: str, normal: Any, compiled: list[Kernel]) -> None:
    """U27, U30: flash-attention#1537, PR#2337. Sequences of other lengths in arrays of another total."""
    for cu_q, cu_k in (([0, 4, 9], [0, 4, 9]), ([0, 0, 1, 1, 2], [0, 0, 3, 3, 8]), ([0, 70], [0, 33])):
        q, k, v = normal(cu_q[-1], 4, 8), normal(cu_k[-1], 2, 8), normal(cu_k[-1], 2, 5)
        given: dict[str, Any] = {"is_causal": True, "causal_alignment": "bottom_right"}
        got = ag.scaled_dot_product_attention(q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, target=target, **given)
        for n in range(len(cu_q) - 1):
            rows, keys = slice(*cu_q[n : n + 2]), slice(*cu_k[n : n + 2])
            want, _ = attention(*(x.swapaxes(0, 1)[None] for x in (q[rows], k[keys], v[keys])), **given)
            np.testing.assert_allclose(got[rows], want[0].swapaxes(0, 1), rtol=2e-5, atol=4e-6)
    assert len(compiled) == 2


@pytest.mark.parametrize("target", TARGETS)
def test_captured_arrays(target: str, normal: Any, compiled: list[Kernel]) -> None:
    """Whatever they are read along, one kernel serves all lengths."""
    slopes = normal(4)
    for n in (5, 9, 17):
        check(
            target,
            normal(1, 4, 3, 8),
            normal(1, 4, n, 8),
            normal(1, 4, n, 8),
            score_mod=lambda s, b, h, i, j: s + slopes[h] * j,
        )
    assert len(compiled) == 2
    for n in (5, 9, 17):
        table = normal(n)
        check(
            target,
            normal(1, 4, 3, 8),
            normal(1, 4, n, 8),
            normal(1, 4, n, 8),
            score_mod=lambda s, b, h, i, j, table=table: s + table[j],
        )
    assert len(compiled) == 4
    short = normal(4)
    with pytest.raises(ag.Error, match="too short"):
        q, k = normal(1, 4, 3, 8), normal(1, 4, 6, 8)
        ag.scaled_dot_product_attention(q, k, k, score_mod=lambda s, b, h, i, j: s + short[j], target=target)


def test_onnx_with_a_growing_past(normal: Any, compiled: list[Kernel]) -> None:
    """The past length is an input of the kernel."""
    from attngen import onnx

    past = normal(1, 2, 3, 8), normal(1, 2, 3, 8)
    for _ in range(6):
        q, k, v = normal(1, 2, 2, 8), normal(1, 2, 2, 8), normal(1, 2, 2, 8)
        given: dict[str, Any] = {"past_key": past[0], "past_value": past[1], "is_causal": True, "target": "numpy"}
        y, *past, _ = onnx.attention(q, k, v, **given)
        want, _ = attention(q, *past, is_causal=True, causal_alignment="bottom_right")
        np.testing.assert_allclose(y, want, rtol=2e-5, atol=4e-6)
    assert len(compiled) == 2


def test_errors_name_what_does_not_fit_whichever_kernel_serves(normal: Any) -> None:
    for n in (3, 5):
        ag.scaled_dot_product_attention(normal(1, 2, n, 8), normal(1, 2, n, 8), normal(1, 2, n, 8), target="numpy")
    with pytest.raises(ag.Error, match="value: has kv_len 6"):
        ag.scaled_dot_product_attention(normal(1, 2, 4, 8), normal(1, 2, 7, 8), normal(1, 2, 6, 8), target="numpy")
    with pytest.raises(ag.Error, match="attn_mask: shape"):
        mask = np.ones((4, 8), bool)
        ag.scaled_dot_product_attention(normal(1, 2, 4, 8), normal(1, 2, 7, 8), normal(1, 2, 7, 8), mask, target="numpy")
    with pytest.raises(ag.Error, match="out: axis i"):
        out = np.empty((1, 2, 5, 8), np.float32)
        ag.scaled_dot_product_attention(normal(1, 2, 4, 8), normal(1, 2, 7, 8), normal(1, 2, 7, 8), out=out, target="numpy")

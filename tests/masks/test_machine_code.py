"""What the CPU backend's code must not lose for masks: guards against NaN and infinity, vectors, 16-bit arrays."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
import pytest

import attngen as ag
from tests.masks.oracle import attention
from tests.masks.ways import WAYS, attend

X86 = "cpu:x86-64-v3"
TARGETS = [X86, "cpu:skylake-avx512", "cpu:neoverse-n1"]


@cache
def masked(target: str, dtype: str) -> ag.Kernel:
    """Attention with a mask, a bias and a log-sum-exp, for shapes that leave remainders."""

    @ag.program(q="h i d", k="h j d", v="h j e", keep="i j", bias="j", out=("h i e", "h i"))
    def attention(q: Any, k: Any, v: Any, keep: Any, bias: Any) -> Any:
        s = ag.where(keep, ag.contract(q, k, over="d") + bias, -np.inf)
        return ag.contract(ag.softmax(s, over="j"), v, over="j", where=keep), ag.logsumexp(s, over="j")

    specs: dict[str, Any] = {
        name: ag.Spec(shape, dtype) for name, shape in (("q", (2, 45, 20)), ("k", (2, 77, 20)), ("v", (2, 77, 12)))
    }
    specs |= {"keep": ag.Spec((45, 77), "bool"), "bias": ag.Spec((77,), dtype)}
    return ag.compile(attention, target=target, **specs)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("target", TARGETS)
def test_no_flag_promises_finite_numbers(target: str, dtype: str) -> None:
    """N9: numba#8708. With `nnan` or `ninf` a compiler may leave out the guards that the tests of numbers see at work, so none
    is shipped, and nothing is left to a function of a library that has its own opinion."""
    text = masked(target, dtype).stages["llvm"]
    flags = (
        r"= (tail )?(f(add|sub|mul|div|neg|cmp|ptrunc|pext)|call|select|phi)\s[^%@]*\b(fast|nnan|ninf|nsz|arcp|afn|reassoc)\b"
    )
    assert re.search(flags, "%c = fadd nnan <8 x float> %a, %b") and re.search(flags, "%c = call fast float @llvm.fma.f32(")
    assert re.search(r"= fmul ", text)
    assert not re.search(flags, text) and not re.search(r"no-(nans|infs)-fp-math\"=\"true", text)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("target", TARGETS)
def test_exponentials_are_vectors(target: str, dtype: str) -> None:
    """N10: numba#10060, numba#5562, pytensor PR#2246. No call of exp, exp2 or log, for one number or for several."""
    asm = masked(target, dtype).stages["asm"]
    assert not re.search(r"^\s+(call|callq|bl|jmp|b)\s+\S*(exp|log|svml|tanh)", asm, re.M)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("target", TARGETS)
def test_the_maximum_of_a_row_is_a_vector_operation(target: str, dtype: str) -> None:
    """N11: numba#5067."""
    asm = masked(target, dtype).stages["asm"]
    size = "ps" if dtype == "float32" else "pd"
    lanes = {"cpu:neoverse-n1": r"(fmax(nm)?|fcmg[te]|fmaxp)\s+v\d+\.(4s|2d)", X86: rf"v(max|cmp\w*){size}\s.*%ymm"}
    assert re.search(lanes.get(target, rf"v(max|cmp\w*){size}\s.*%[yz]mm"), asm)
    single = rf"v(max|min)s{size[1]}\s" if target != "cpu:neoverse-n1" else r"fmax(nm)?\s+[sd]\d"
    assert len(re.findall(single, asm)) <= 4, "only what is left of a row may go one by one"


@pytest.mark.parametrize("way", WAYS)
def test_16_bit_floats_are_computed_in_32(way: str, normal: Any) -> None:
    """N12: numba#4402, numba#8138, numba-cuda#198. Scores pass what a half holds, and its lowest number is no mask."""
    q, k, v = (x.astype(np.float16) for x in (normal(1, 2, 5, 8) * 60, normal(1, 2, 70, 8) * 60, normal(1, 2, 70, 8)))
    q[:, 1] *= 0
    bias = np.zeros((2, 1, 70), np.float16)
    bias[1] = np.finfo(np.float16).min
    out, lse = attend(way, q, k, v, bias=bias, scale=8.0)
    want, want_lse = attention(q, k, v, bias=bias, scale=8.0)
    assert out.dtype == np.float16 and lse.dtype == np.float32 and np.abs(want_lse[:, 0]).max() > 65504
    np.testing.assert_allclose(out.astype(np.float64), want, rtol=2**-10, atol=1e-6)
    np.testing.assert_allclose(lse, want_lse, rtol=1e-6)

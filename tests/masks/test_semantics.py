"""Conventions by name, and the command that says where two disagree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attngen as ag
from attngen.cli import main
from attngen.semantics import PRESETS, differences


def test_where_two_disagree() -> None:
    """The causal rows that differ are those that kernels compute differently."""
    x, v = np.zeros((1, 1, 5, 4), np.float32), np.arange(2, dtype=np.float32).reshape(1, 1, 2, 1)
    outs = [
        ag.scaled_dot_product_attention(x, x[:, :, :2], v, is_causal=True, semantics=name, target="numpy", return_lse=True)[1]
        for name in ("torch", "flash_attn")
    ]
    said = {int(question.split()[2]) for question, *_ in differences("torch", "flash_attn", 5, 2) if "query" in question}
    assert said == set(np.flatnonzero(np.abs(outs[0]) != np.abs(outs[1])[0]))
    assert not list(differences("torch", "onnx", 5, 2))
    assert not [d for d in differences("torch", "flash_attn", 4, 4) if "query" in d[0]]


def test_windows_by_one_number() -> None:
    x = np.zeros((1, 1, 6, 4), np.float32)
    lse = ag.scaled_dot_product_attention(x, x, x, window=1, semantics="jax", return_lse=True, target="numpy")[1]
    np.testing.assert_allclose(np.exp(lse).ravel(), [2, 3, 3, 3, 3, 2], rtol=1e-6)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["semantics"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in PRESETS)
    assert main(["semantics", "--diff", "torch", "flash_attn", "--shape", "1,8,50,2,64"]) == 0
    out = capsys.readouterr().out
    assert "causal: query 0 of 50 sees of 2 keys" in out and "more queries" in out
    assert main(["semantics", "--diff", "torch", "onnx"]) == 0
    assert "torch and onnx agree on 1,1,5,2,64" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--diff", "torch", "flash"], "semantics: there are no conventions named 'flash'; did you mean flash_attn?"),
        (["--diff", "torch", "jax", "--shape", "5,2"], "--shape: expected b,h,q,kv,d or b,h,q,kv,d,dv, got 5,2"),
    ],
)
def test_errors(capsys: pytest.CaptureFixture[str], args: Any, message: str) -> None:
    assert main(["semantics", *args]) == 1
    assert message in capsys.readouterr().err

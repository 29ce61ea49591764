"""Attention over parts of the keys, merged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attngen as ag

sdpa = ag.scaled_dot_product_attention


def state(value: float, lse: float) -> tuple[Any, Any]:
    return np.full((1, 1, 1, 1), value, np.float32), np.full((1, 1, 1), lse, np.float32)


@pytest.mark.parametrize(
    ("one", "other", "out", "lse"),
    [
        ((0, -np.inf), (0, -np.inf), 0, -np.inf),
        ((3, 1), (0, -np.inf), 3, 1),
        ((0, -np.inf), (3, 1), 3, 1),
        ((np.nan, -np.inf), (3, 1), 3, 1),
        ((2, 5), (4, 5), 3, 5 + np.log(2)),
        ((1, 800), (2, 0), 1, 800),
    ],
)
@pytest.mark.parametrize("target", ["cpu", "numpy"])
def test_states(target: str, one: Any, other: Any, out: float, lse: float) -> None:
    """U14: flashinfer#4051, vllm PR#39148."""
    found = ag.merge(*state(*one), *state(*other), target=target)
    np.testing.assert_allclose([found[0].item(), found[1].item()], [out, lse], rtol=1e-6)


@pytest.mark.parametrize("layout", ["BHSD", "BSHD"])
@pytest.mark.parametrize("lse_base", ["e", "2"])
@pytest.mark.parametrize("target", ["cpu", "numpy"])
def test_two_parts_are_the_whole(normal: Any, layout: Any, lse_base: Any, target: str) -> None:
    q, k, v, keep = normal(2, 4, 7, 8), normal(2, 2, 12, 8), normal(2, 2, 12, 5), normal(7, 12) > 0
    keep[2, :5] = False
    keep[3] = False

    def part(keys: slice) -> Any:
        arrays = (x.swapaxes(1, 2) if layout == "BSHD" else x for x in (q, k[:, :, keys], v[:, :, keys]))
        given: dict[str, Any] = {"layout": layout, "lse_base": lse_base, "target": "numpy"}
        return sdpa(*arrays, attn_mask=keep[:, keys], return_lse=True, **given)

    halves = (*part(slice(0, 5)), *part(slice(5, 12)))
    out, lse = ag.merge(*halves, layout=layout, lse_base=lse_base, target=target)
    want, want_lse = part(slice(0, 12))
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(lse, want_lse, rtol=1e-5, atol=1e-6)
    assert out.dtype == lse.dtype == np.float32


def test_errors() -> None:
    o, lse = np.zeros((1, 2, 3, 4), np.float32), np.zeros((1, 2, 3), np.float32)
    wrong: list[tuple[Any, str]] = [
        ((o, lse, o[:, :1], lse), "o2: expected shape (1, 2, 3, 4), as o1 has (1, 2, 3, 4), got (1, 1, 3, 4)"),
        ((o, lse[:, :, :2], o, lse), "lse1: expected shape (1, 2, 3), as o1 has (1, 2, 3, 4), got (1, 2, 2)"),
        ((o, lse, o.astype("f8"), lse), "o2: has dtype float64, but o1 has float32; use o2.astype(o1.dtype)"),
        ((o, lse.astype(int), o, lse), "lse1: expected a float dtype (float16, bfloat16, float32, float64), got int64"),
        ((o, 1.0, o, lse), "lse1: expected a NumPy array, got float; use np.asarray(lse1)"),
    ]
    for args, message in wrong:
        with pytest.raises(ag.Error) as e:
            ag.merge(*args)
        assert str(e.value) == message
    with pytest.raises(ag.Error, match='layout: expected "BHSD" or "BSHD"'):
        ag.merge(o, lse, o, lse, layout="SHBD")

"""`scaled_dot_product_attention`: results by its table of semantics, and an error for everything else."""

from __future__ import annotations

import math
import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attngen as ag
from attngen.table import KERNELS, Table

sdpa = ag.scaled_dot_product_attention


def reference(q: Any, k: Any, v: Any, scale: float | None = None) -> tuple[Any, Any]:
    """Output and natural log-sum-exp in float64, heads before lengths."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    if q.ndim > 2 and q.shape[-3] != k.shape[-3]:
        k, v = (np.repeat(x, q.shape[-3] // k.shape[-3], -3) for x in (k, v))
    s = q @ k.swapaxes(-1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    top = s.max(-1, keepdims=True)
    p = np.exp(s - top)
    total = p.sum(-1, keepdims=True)
    return p / total @ v, (top + np.log(total))[..., 0]


SHAPES = [
    ((7, 4), (9, 4), (9, 5)),
    ((6, 7, 4), (6, 9, 4), (6, 9, 3)),
    ((6, 7, 4), (2, 9, 4), (2, 9, 3)),
    ((2, 3, 7, 4), (2, 3, 9, 4), (2, 3, 9, 4)),
    ((2, 4, 1, 4), (2, 1, 9, 4), (2, 1, 9, 4)),
    ((2, 2, 4, 7, 4), (2, 2, 2, 1, 4), (2, 2, 2, 1, 6)),
]


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("layout", ["BHSD", "BSHD"])
def test_shapes_and_layouts(normal: Any, shapes: Any, layout: Any) -> None:
    q, k, v = (normal(*s) for s in shapes)
    want, want_lse = reference(q, k, v)

    def turned(x: Any) -> Any:
        return x.swapaxes(-2, -3) if layout == "BSHD" and x.ndim > 2 else x

    out, lse = sdpa(turned(q), turned(k), turned(v), layout=layout, return_lse=True, target="numpy")
    assert out.dtype == lse.dtype == np.float32
    np.testing.assert_allclose(turned(out), want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(lse, want_lse, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(sdpa(turned(q), turned(k), turned(v), layout=layout, target="numpy"), out)


@pytest.mark.parametrize("scale", [None, 0.5, 2, -0.7, 0, 0.0, np.float32(3), 1e4, -1e30])
def test_scale(normal: Any, scale: Any, target: str) -> None:
    q, k, v = normal(2, 5, 4, dtype="float64"), normal(2, 9, 4, dtype="float64"), normal(2, 9, 3, dtype="float64")
    out, lse = sdpa(q, k, v, scale=scale, return_lse=True, target=target)
    want, want_lse = reference(q, k, v, scale)
    np.testing.assert_allclose(out, want, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(lse, want_lse, rtol=1e-10)


def test_base_of_the_logarithm(normal: Any) -> None:
    q, k, v = normal(5, 4), normal(9, 4), normal(9, 3)
    _, natural = sdpa(q, k, v, return_lse=True, target="numpy")
    _, two = sdpa(q, k, v, return_lse=True, lse_base="2", target="numpy")
    np.testing.assert_allclose(two, natural / math.log(2), rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision(normal: Any, dtype: Any, target: str) -> None:
    q, k, v = (normal(2, 5, 4).astype(dtype) for _ in range(3))
    out, lse = sdpa(q, k, v, return_lse=True, target=target)
    want, want_lse = reference(q, k, v)
    assert out.dtype == dtype and lse.dtype == np.float32
    np.testing.assert_allclose(out.astype(np.float64), want, rtol=1e-2, atol=2e-2)
    np.testing.assert_allclose(lse, want_lse, rtol=1e-5)


def test_no_keys(normal: Any, target: str) -> None:
    out, lse = sdpa(normal(2, 3, 5, 4), normal(2, 3, 0, 4), normal(2, 3, 0, 6), return_lse=True, target=target)
    assert out.shape == (2, 3, 5, 6) and not out.any()
    assert lse.shape == (2, 3, 5) and np.all(lse == -np.inf)


@pytest.mark.parametrize(
    ("q", "k", "v"),
    [
        ((0, 3, 5, 4), (0, 3, 7, 4), (0, 3, 7, 6)),
        ((2, 0, 5, 4), (2, 0, 7, 4), (2, 0, 7, 6)),
        ((2, 3, 0, 4), (2, 3, 7, 4), (2, 3, 7, 6)),
        ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 0)),
        ((2, 3, 5, 4), (2, 3, 0, 4), (2, 3, 0, 0)),
    ],
)
def test_empty_outputs(normal: Any, q: Any, k: Any, v: Any, target: str) -> None:
    q, k, v = normal(*q), normal(*k), normal(*v)
    out, lse = sdpa(q, k, v, return_lse=True, target=target)
    assert out.shape == (*q.shape[:-1], v.shape[-1]) and lse.shape == q.shape[:-1]
    assert sdpa(q, k, v, target=target).shape == out.shape
    if lse.size and k.size:
        np.testing.assert_allclose(lse, reference(q, k, normal(2, 3, 7, 1))[1], rtol=1e-5)


def test_out(normal: Any, target: str) -> None:
    q, k, v = normal(2, 3, 5, 4), normal(2, 3, 7, 4), normal(2, 3, 7, 4)
    want = reference(q, k, v)[0]
    out = np.empty((2, 3, 5, 4), np.float32)
    assert sdpa(q, k, v, out=out, target=target) is out
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-6)
    assert sdpa(q, k, v, out=out, return_lse=True, target=target)[0] is out
    for flag in (False, True):
        with pytest.raises(ag.Error, match="out: shares memory with query; pass an array of its own, or a copy of query"):
            sdpa(q, k, v, out=q, return_lse=flag, target=target)
        with pytest.raises(ag.Error, match="out: axis h has extent 2 in shape"):
            sdpa(q, k, v, out=out[:, :2], return_lse=flag, target=target)


def test_harmless_arguments(normal: Any) -> None:
    q, k, v = normal(4, 5, 4), normal(2, 7, 4), normal(2, 7, 4)
    want = sdpa(q, k, v, target="numpy")
    given: list[dict[str, Any]] = [
        {"enable_gqa": True},
        {"deterministic": True},
        {"num_threads": 1},
        {"num_threads": np.int64(2)},
        {"num_splits": np.int64(1)},
        {"window": (-1, None)},
        {"dropout_p": 0, "softcap": 0, "is_causal": np.False_},
    ]
    for kwargs in given:
        np.testing.assert_array_equal(sdpa(q, k, v, target="numpy", **kwargs), want)


Q: Any = np.zeros((2, 4, 5, 8), np.float32)
K: Any = np.zeros((2, 2, 7, 8), np.float32)
V: Any = np.zeros((2, 2, 7, 6), np.float32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query": [[1.0]]}, "query: expected a NumPy array, got list; use np.asarray(query)"),
        ({"key": None}, "key: expected a NumPy array, got NoneType; use np.asarray(key)"),
        ({"key": K.astype("f8")}, "key: has dtype float64, but query has float32; use key.astype(query.dtype)"),
        ({"value": V.astype("f2")}, "value: has dtype float16, but query has float32; use value.astype(query.dtype)"),
        (
            {"query": Q.astype(int)},
            "query: expected a float dtype (float16, bfloat16, float32, float64), got int64; use query.astype(np.float32)",
        ),
        (
            {"key": K.astype(object)},
            "key: expected a float dtype (float16, bfloat16, float32, float64), got object; use key.astype(np.float32)",
        ),
        (
            {"key": K.astype(complex)},
            "key: expected a float dtype (float16, bfloat16, float32, float64), got complex128; use key.astype(np.float32)",
        ),
        (
            {"value": V.astype(">f4")},
            "value: big-endian float32 is not supported; use value.astype(value.dtype.newbyteorder('='))",
        ),
        ({"query": Q[0, 0, 0]}, "query: expected at least 2 dimensions (length, features), got shape (8,)"),
        ({"query": np.float32(1) * np.ones(())}, "query: expected a NumPy array, got numpy.float64; use np.asarray(query)"),
        ({"key": K[0]}, "key: has 3 dimensions (2, 7, 8), but query has 4 (2, 4, 5, 8)"),
        (
            {"query": Q[..., :0], "key": K[..., :0]},
            "query: d is 0 in shape (2, 4, 5, 0); expected at least one feature to compare by",
        ),
        ({"key": K[..., :4]}, "key: has d 4 in shape (2, 2, 7, 4), but query has 8 in shape (2, 4, 5, 8)"),
        ({"value": V[:, :, :6]}, "value: has kv_len 6 in shape (2, 2, 6, 6), but key has 7 in shape (2, 2, 7, 8)"),
        ({"value": V[:, :1]}, "value: has kv_heads 1 in shape (2, 1, 7, 6), but key has 2 in shape (2, 2, 7, 8)"),
        ({"key": K[:1]}, "key: has batch (1,) in shape (1, 2, 7, 8), but query has (2,) in shape (2, 4, 5, 8)"),
        (
            {"query": Q[:, :3]},
            "query: 3 heads in shape (2, 3, 5, 8) are no multiple of the 2 heads of key (2, 2, 7, 8); "
            "expected heads = kv_heads · n",
        ),
        (
            {"key": K[:, :0], "value": V[:, :0]},
            "query: 4 heads in shape (2, 4, 5, 8) are no multiple of the 0 heads of key (2, 0, 7, 8); "
            "expected heads = kv_heads · n",
        ),
        ({"scale": math.nan}, "scale: expected a finite number or None (1/sqrt(d)), got nan"),
        ({"scale": -math.inf}, "scale: expected a finite number or None (1/sqrt(d)), got -inf"),
        ({"scale": 10**400}, f"scale: expected a finite number or None (1/sqrt(d)), got {10**400}"),
        ({"scale": 1e39}, "scale: 1e+39 is not finite in f32, in which scores are computed; use float64 arrays"),
        ({"scale": "1"}, "scale: expected a number or None (1/sqrt(d)), got str"),
        ({"scale": True}, "scale: expected a number or None (1/sqrt(d)), got bool"),
        ({"scale": np.ones(3)}, "scale: expected a number or None (1/sqrt(d)), got numpy.ndarray"),
        ({"layout": "BHDS"}, 'layout: expected "BHSD" or "BSHD", got \'BHDS\''),
        ({"layout": None}, "layout: expected a name, got None"),
        ({"lse_base": "10"}, 'lse_base: expected "e" or "2", got \'10\''),
        ({"lse_base": 2}, "lse_base: expected a name, got 2"),
        ({"target": "gpu"}, "target: there is no backend 'gpu'; did you mean cuda?"),
        ({"return_lse": "yes"}, "return_lse: expected True or False, got 'yes'"),
        ({"enable_gqa": 1}, "enable_gqa: expected True or False, got 1"),
        ({"is_causal": None}, "is_causal: expected True or False, got None"),
        ({"dropout_p": 0.1}, "dropout_p: expected 0, got 0.1; it is refused, not ignored: for training only; pass 0.0"),
        ({"dropout_p": None}, "dropout_p: expected 0, got None; it is refused, not ignored: for training only; pass 0.0"),
        ({"softcap": -1.0}, "softcap: expected a finite number of at least 0 (0 is off), got -1.0"),
        ({"softcap": math.nan}, "softcap: expected a finite number of at least 0 (0 is off), got nan"),
        ({"window": 3}, "window: expected (left, right), got 3"),
        ({"window": (-2, 0)}, "window: each side is a whole number of at least 0, or None or -1 for open, got (-2, 0)"),
        ({"num_threads": 0}, "num_threads: expected a whole number of at least 1 or None, got 0"),
        ({"num_splits": 1.5}, "num_splits: expected a whole number of at least 1 or None, got 1.5"),
    ],
)
def test_errors(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ag.Error) as e:
        sdpa(**{"query": Q, "key": K, "value": V, **changes})
    assert str(e.value) == message


def test_the_second_call_compiles_nothing(normal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    q = normal(3, 11, 4)
    first = sdpa(q, q, q, target="numpy")

    def refuse(*args: Any) -> Any:
        raise AssertionError("compiled again")

    monkeypatch.setattr("attngen.sdpa.make_kernel", refuse)
    np.testing.assert_array_equal(sdpa(q, q, q, target="numpy"), first)
    with pytest.raises(AssertionError, match="compiled again"):
        sdpa(q, q, q, scale=0.25, target="numpy")
    assert len(KERNELS) <= KERNELS.limit


def test_a_table_makes_a_key_once_and_is_bounded() -> None:
    table: Table[int] = Table(2)
    made: list[int] = []
    ready = threading.Barrier(8)

    def make() -> int:
        made.append(1)
        return 7

    def ask() -> None:
        ready.wait()
        assert table.get("key", make) == 7

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(made) == 1
    for key in range(5):
        table.get(key, lambda: 0)
    assert len(table) == 2 and table.find("key") is None and table.find(4) == 0
    with pytest.raises(ZeroDivisionError):
        table.get("bad", lambda: 1 // 0)
    assert table.find("bad") is None and table.get("bad", lambda: 5) == 5

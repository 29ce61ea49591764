"""A kernel that is called often gets a shorter way in: the same results, the same errors, nothing leaked."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import attngen
from attngen.kernel import OFTEN, Kernel
from tests.kernels.reference import attention

RNG = np.random.default_rng(5)
SHAPE = (2, 3, 9, 20)


def arrays() -> list[np.ndarray]:
    return [RNG.standard_normal(SHAPE, dtype=np.float32) for _ in range(3)]


@attngen.program(q="b (g r) i d", k="b g j d", v="b g j e", out="b (g r) i e")
def grouped(q: attngen.Tensor, k: attngen.Tensor, v: attngen.Tensor) -> attngen.Tensor:
    s = attngen.scale(attngen.score(q, k, over="d"), SHAPE[-1] ** -0.5)
    return attngen.weigh(attngen.softmax(s, over="j"), v, over="j")


def often(kernel: Kernel, *given: np.ndarray) -> Kernel:
    for _ in range(OFTEN):
        kernel(*given)
    assert kernel._direct is not None  # pyright: ignore[reportPrivateUsage]
    return kernel


@pytest.fixture(scope="module")
def short() -> Kernel:
    q, k, v = arrays()
    return often(attngen.compile(attngen.attention, q=q, k=k, v=v), q, k, v)


@pytest.fixture(scope="module")
def long() -> Kernel:
    q, k, v = arrays()
    return attngen.compile(attngen.attention, q=q, k=k, v=v)


def spread(x: np.ndarray) -> np.ndarray:
    wide = np.zeros((*x.shape[:-1], 3 * x.shape[-1]), x.dtype)
    wide[..., ::3] = x
    return wide[..., ::3]


WAYS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "as it is": lambda x: x,
    "another order": lambda x: np.ascontiguousarray(x.transpose(3, 1, 0, 2)).transpose(2, 1, 3, 0),
    "reversed": lambda x: np.ascontiguousarray(x[:, ::-1, ::-1])[:, ::-1, ::-1],
    "spread": spread,
    "a subclass": lambda x: x.view(np.recarray),
    "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
    "not aligned": lambda x: np.frombuffer(b"x" + x.tobytes(), x.dtype, offset=1).reshape(x.shape),
}


@pytest.mark.parametrize("way", WAYS)
def test_any_memory(way: str, short: Kernel) -> None:
    q, k, v = arrays()
    want, _ = attention(q, k, v)
    np.testing.assert_allclose(short(*map(WAYS[way], (q, k, v))), want, atol=3e-6, rtol=0)
    if way in ("another order", "reversed", "spread"):
        out = WAYS[way](np.full(SHAPE, np.nan, np.float32))
        assert short(q, k, v, out=out) is out
        np.testing.assert_allclose(out, want, atol=3e-6, rtol=0)


def test_grouped_heads() -> None:
    q, k, v = (RNG.standard_normal(s, dtype=np.float32) for s in ((2, 6, 5, 20), (2, 3, 9, 20), (2, 3, 9, 4)))
    kernel = often(attngen.compile(grouped, q=q.shape, k=k.shape, v=v.shape), q, k, v)
    np.testing.assert_allclose(kernel(q, k, v), attention(q, k, v)[0], atol=3e-6, rtol=0)
    np.testing.assert_allclose(kernel(q[:, ::-1], k, v), attention(q[:, ::-1], k, v)[0], atol=3e-6, rtol=0)


def bad_calls() -> dict[str, Callable[[Kernel], Any]]:
    q, k, v = arrays()
    frozen = np.zeros(SHAPE, np.float32)
    frozen.flags.writeable = False
    room = np.zeros((3, *SHAPE), np.float32)
    return {
        "shape": lambda f: f(q[:, :, :5], k, v),
        "dimensions": lambda f: f(q[0], k, v),
        "dtype": lambda f: f(q, k.astype(np.float64), v),
        "byte order": lambda f: f(q, k.astype(">f4"), v),
        "no array": lambda f: f(q, k, [1.0]),
        "too few": lambda f: f(q, k),
        "too many": lambda f: f(q, k, v, v),
        "out is an input": lambda f: f(q, k, v, out=v),
        "out overlaps an input": lambda f: f(room[0], k, v, out=room.reshape(-1)[8 : 8 + q.size].reshape(SHAPE)),
        "out is read-only": lambda f: f(q, k, v, out=frozen),
        "out overlaps itself": lambda f: f(q, k, v, out=np.broadcast_to(np.zeros(20, np.float32), SHAPE)),
        "out of another type": lambda f: f(q, k, v, out=np.zeros(SHAPE)),
        "out is no array": lambda f: f(q, k, v, out=(1, 2)),
        "threads": lambda f: f(q, k, v, num_threads=0),
    }


@pytest.mark.parametrize("name", bad_calls())
def test_errors_are_the_same(name: str, short: Kernel, long: Kernel) -> None:
    call = bad_calls()[name]
    with pytest.raises(attngen.Error) as want:
        call(long)
    with pytest.raises(attngen.Error) as got:
        call(short)
    assert str(got.value) == str(want.value)


def test_nothing_is_leaked(short: Kernel) -> None:
    q, k, v = arrays()
    out = np.empty(SHAPE, np.float32)

    def counts() -> list[int]:
        return [sys.getrefcount(x) for x in (q, k, v, out)]

    before = counts()
    for _ in range(1000):
        short(q, k, v, out=out)
        short(q, k, v)
        short(q[::-1], k, v, out=out)
    assert counts() == before


def test_copies(short: Kernel) -> None:
    """A kernel is copied as a function is; it cannot leave its process."""
    q, k, v = arrays()
    for other in (copy.copy(short), copy.deepcopy([short])[0]):
        assert np.array_equal(other(q, k, v), short(q, k, v))
    with pytest.raises(attngen.Error, match="machine code cannot be pickled; compile the program where"):
        pickle.dumps(short)


def test_many_threads(short: Kernel) -> None:
    cases = [((q, k, v), attention(q, k, v)[0]) for q, k, v in (arrays() for _ in range(8))]

    def work(n: int) -> float:
        given, want = cases[n]
        out = np.empty(SHAPE, np.float32)
        worst = 0.0
        for _ in range(500):
            short(*given, out=out)
            worst = max(worst, float(abs(out - want).max()))
        return worst

    with ThreadPoolExecutor(8) as pool:
        assert max(pool.map(work, range(8))) < 3e-6

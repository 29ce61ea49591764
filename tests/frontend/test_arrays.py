"""What a kernel accepts as an array, and what it says of the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attngen as ag
from attngen.arrays import overlap, overlaps_itself
from attngen.kernel import Kernel

X = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    program = ag.program(lambda x, scale: x * scale, x="i j", scale="j", out="i j")
    return ag.compile(program, x=(3, 4), scale=(4,), target="numpy")


class Foreign:
    shape, dtype = (3, 4), "float32"


def readonly(x: Any) -> Any:
    x = x.copy()
    x.flags.writeable = False
    return x


ONES = np.ones(4, np.float32)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([[1.0]], "x: expected a NumPy array, got list; use np.asarray(x)"),
        (None, "x: expected a NumPy array, got NoneType; use np.asarray(x)"),
        (Foreign(), f"x: expected a NumPy array, got {__name__}.Foreign; use np.asarray(x)"),
        (np.ma.masked_array(X), "x: a masked array's mask would be ignored; pass x.filled(…) or x.data"),
        (X.astype("f8"), "x: expected dtype float32, got float64; use x.astype(np.float32)"),
        (X.astype("i4"), "x: expected dtype float32, got int32; use x.astype(np.float32)"),
        (X.astype(">f4"), "x: expected dtype float32, got big-endian float32; use x.astype(x.dtype.newbyteorder('='))"),
        (X.astype(object), "x: expected dtype float32, got object; convert it"),
        (X[:2], "x: axis i has extent 2 in shape (2, 4) (dimension 0), expected 3; compile the program for other shapes"),
        (X.T, "x: axis i has extent 4 in shape (4, 3) (dimension 0), expected 3; compile the program for other shapes"),
        (X[0], "x: expected 2 dimensions (i j), got shape (4,)"),
    ],
)
def test_inputs(kernel: Kernel, x: Any, message: str) -> None:
    with pytest.raises(ag.Error) as e:
        kernel(x, ONES)
    assert str(e.value) == message


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ([1.0], "out: expected an array of float32 to write into, got list; use np.empty(shape, …)"),
        (X.astype("f8"), "out: expected an array of float32 to write into, got float64; use np.empty(shape, …)"),
        (X.astype(">f4"), "out: expected an array of float32 to write into, got big-endian float32; use np.empty(shape, …)"),
        (
            X[:2].copy(),
            "out: axis i has extent 2 in shape (2, 4) (dimension 0), expected 3; compile the program for other shapes",
        ),
        (readonly(X), "out: the array is read-only; pass a writable one, or leave out away"),
        (X, "out: shares memory with x; pass an array of its own, or a copy of x"),
        (X[::-1, ::-1], "out: shares memory with x; pass an array of its own, or a copy of x"),
        (
            np.lib.stride_tricks.as_strided(np.zeros(4, np.float32), (3, 4), (0, 4), writeable=True),
            "out: elements share memory (strides (0, 4)); pass an array of its own, np.empty(shape)",
        ),
        (
            np.lib.stride_tricks.as_strided(np.zeros(9, np.float32), (3, 4), (4, 4), writeable=True),
            "out: elements share memory (strides (4, 4)); pass an array of its own, np.empty(shape)",
        ),
    ],
)
def test_out(kernel: Kernel, out: Any, message: str) -> None:
    with pytest.raises(ag.Error) as e:
        kernel(X, ONES, out=out)
    assert str(e.value) == message


def test_out_is_returned_itself(kernel: Kernel) -> None:
    class Labelled(np.ndarray[Any, Any]):
        pass

    out = np.empty_like(X).view(Labelled)
    assert kernel(X, ONES, out=out) is out
    assert np.array_equal(out, kernel(X, ONES))


def test_how_inputs_are_given(kernel: Kernel) -> None:
    for call, message in (
        (lambda: kernel(X), "@_lambda_: scale is missing; its inputs are x, scale"),
        (lambda: kernel(), "@_lambda_: x and scale are missing; its inputs are x, scale"),
        (lambda: kernel(X, ONES, X), "@_lambda_ takes 2 arrays (x, scale), got 3"),
        (lambda: kernel(X, x=X, scale=ONES), "@_lambda_: x is given twice, by position and by name"),
        (lambda: kernel(X, scael=ONES), "@_lambda_ has no input 'scael'; did you mean scale?"),
    ):
        with pytest.raises(ag.Error) as e:
            call()
        assert str(e.value).replace("@lambda", "@_lambda_") == message


def test_accepted(kernel: Kernel, tmp_path: Any) -> None:
    want = X * ONES
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=(3, 4))
    mapped[:] = X
    matrix = np.zeros((3, 5), np.float32)[:, :4]
    matrix[:] = X
    for x in (X, mapped, readonly(X), matrix, X[::-1][::-1], np.asfortranarray(X), X.view(np.recarray)):
        np.testing.assert_array_equal(kernel(x, ONES), want)
    ones = np.broadcast_to(np.float32(1), 4)
    np.testing.assert_array_equal(kernel(X, ones), want)


def test_interleaved_arrays_do_not_overlap(kernel: Kernel) -> None:
    both = np.zeros((3, 8), np.float32)
    both[:, ::2] = X
    assert kernel(both[:, ::2], ONES, out=both[:, 1::2]) is not None
    np.testing.assert_array_equal(both[:, 1::2], X)
    np.testing.assert_array_equal(both[:, ::2], X)


def places(x: Any) -> list[int]:
    start = x.__array_interface__["data"][0]
    return [start + sum(k * s for k, s in zip(at, x.strides, strict=True)) for at in np.ndindex(x.shape)]


@st.composite
def views(draw: st.DrawFn) -> tuple[Any, Any]:
    buffer = np.zeros(400, np.int8)

    def view() -> Any:
        rank = draw(st.integers(0, 3))
        shape = [draw(st.integers(0, 4)) for _ in range(rank)]
        strides = [draw(st.integers(-20, 20)) for _ in range(rank)]
        return np.lib.stride_tricks.as_strided(buffer[200 + draw(st.integers(-8, 8)) :].view(np.int8), shape, strides)

    return view(), view()


@given(views())
def test_overlap_is_exact(pair: tuple[Any, Any]) -> None:
    a, b = pair
    assert overlap(a, b) == bool(set(places(a)) & set(places(b)))
    assert overlaps_itself(a) == (len(set(places(a))) < a.size)

"""`rename`: the same computation under other axis names, traced back to the arrays it reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import attngen as ag

NUMBER: Any = 2.0
X = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)


def kernel(function: Callable[..., Any], **layouts: str) -> Any:
    shapes: dict[str, Any] = {"x": X.shape, "w": W.shape}
    return ag.compile(ag.program(function, **layouts), target="numpy", verify_each="run", **{n: shapes[n] for n in layouts})


def test_one_array_gives_queries_and_keys() -> None:
    def gram(x: Any, w: Any) -> Any:
        return ag.contract(ag.contract(x, w, over="m"), ag.contract(ag.rename(x, i="j"), w, over="m"), over="d")

    k = kernel(gram, x="i m", w="m d")
    np.testing.assert_allclose(k(X, W), (X @ W) @ (X @ W).T, rtol=1e-5)
    assert [p.name for p in k.func.params] == ["x", "w", "x_2"]
    assert k.func.params[2].layout.names == ("j", "m")


def test_a_computed_value_is_computed_again() -> None:
    def gram(x: Any, w: Any) -> Any:
        q = ag.exp(ag.contract(x, w, over="m") + ag.index("i"))
        return ag.contract(q, ag.rename(q, i="j"), over="d")

    q = np.exp(X @ W + np.arange(6)[:, None])
    np.testing.assert_allclose(kernel(gram, x="i m", w="m d")(X, W), q @ q.T, rtol=1e-4)


def test_a_summed_axis_is_not_captured() -> None:
    def rows(x: Any) -> Any:
        square = ag.contract(x, ag.rename(x, i="j"), over="m")
        total = ag.reduce_sum(square, over="j")
        return ag.contract(square, ag.rename(total, i="j"), over="j")

    np.testing.assert_allclose(kernel(rows, x="i m")(X), X @ X.T @ (X @ X.T).sum(1), rtol=1e-4)


def test_axes_can_be_exchanged() -> None:
    def product(x: Any) -> Any:
        square = ag.contract(x, ag.rename(x, i="j"), over="m") * (ag.index("i") + 1)
        return square - ag.rename(square, i="j", j="i")

    square = X @ X.T * (np.arange(6)[:, None] + 1)
    np.testing.assert_allclose(kernel(product, x="i m")(X), square - square.T, atol=1e-4)


def test_equal_renamings_are_one_value() -> None:
    def twice(x: Any) -> Any:
        return ag.contract(x, ag.rename(x, i="j"), over="m") + ag.contract(x, ag.rename(x, i="j"), over="m")

    assert len(kernel(twice, x="i m").func.params) == 2


def test_the_new_name_is_an_axis_of_the_program() -> None:
    def upper(x: Any) -> Any:
        s = ag.contract(x, ag.rename(x, i="j"), over="m")
        return ag.where(ag.index("j") <= ag.index("i"), s, 0.0)

    np.testing.assert_allclose(kernel(upper, x="i m")(X), np.tril(X @ X.T), atol=1e-5)


def test_groups_keep_their_shape() -> None:
    program = ag.program(lambda x, y: ag.contract(x, ag.rename(x, i="j"), over="m") * y, x="(g i) m", y="g")
    k = ag.compile(program, x=(6, 4), y=(2,), target="numpy")
    grouped = X.reshape(2, 3, 4)
    np.testing.assert_allclose(
        k(X, np.ones(2, np.float32)).reshape(6, 3), (grouped @ grouped.swapaxes(1, 2)).reshape(6, 3), rtol=1e-5
    )


def test_by_call_and_in_place() -> None:
    program = ag.program(lambda x: ag.contract(x, ag.rename(x, i="j"), over="m"), x="i m")
    out = np.empty((6, 6), np.float32)
    k = ag.compile(program, x=X, target="numpy")
    assert k(x=X, out=out) is out
    np.testing.assert_allclose(out, X @ X.T, rtol=1e-5)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: ag.rename(x, k="j"), "rename: there is no axis k to rename"),
        (lambda x: ag.rename(x, i="m"), "rename: i cannot become m, an axis that the value has already"),
        (lambda x: ag.rename(x, i="j j"), "rename: 'j j' is no axis name"),
        (lambda x: ag.rename(x, i="j", m="j"), "rename: two axes would get one name"),
        (lambda x: ag.rename(ag.reduce_sum(x, over="m"), i="m"), "rename: i has extent 6, but m has 4 in this program"),
        (lambda x: ag.rename(NUMBER, i="m"), "rename: expected a traced value, got the number 2.0"),
    ],
)
def test_errors(function: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(ag.Error) as e:
        kernel(lambda x: function(x), x="i m")
    assert str(e.value).splitlines()[0] == f"error[program]: {message}"

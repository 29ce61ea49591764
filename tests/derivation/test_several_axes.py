"""Random programs that reduce over several axes, in any order and nesting, against float64 NumPy after every pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attngen as ag
from attngen.ir.interpreter import run
from attngen.ir.loop import loops
from attngen.ir.passes import PIPELINE
from attngen.ir.pipeline import run_pipeline
from attngen.ir.types import F32, TensorType

Array = np.ndarray[Any, Any]
AXES = {"i": 7, "j": 11, "k": 5}
LAYOUTS = {"a": "i j", "b": "j k", "c": "k i", "d": "i k j"}


def spread(x: Array, layout: str) -> Array:
    """An array with every axis in the order of AXES; those that it lacks have extent 1."""
    names = layout.split()
    x = x.transpose([names.index(n) for n in AXES if n in names])
    return x.reshape([AXES[n] if n in names else 1 for n in AXES])


def softmax(x: Array, over: tuple[int, ...]) -> Array:
    e = np.exp(x - x.max(axis=over, keepdims=True))
    return e / e.sum(axis=over, keepdims=True)


def logsumexp(x: Array, over: tuple[int, ...]) -> Array:
    top = x.max(axis=over, keepdims=True)
    return top + np.log(np.exp(x - top).sum(axis=over, keepdims=True))


REDUCTIONS: list[tuple[Any, Any]] = [
    (ag.reduce_sum, lambda x, over: x.sum(axis=over, keepdims=True)),
    (ag.reduce_max, lambda x, over: x.max(axis=over, keepdims=True)),
    (ag.softmax, softmax),
    (ag.logsumexp, logsumexp),
]
COMBINATIONS: list[tuple[Any, Any]] = [
    (lambda x, y: x + y, lambda x, y: x + y),
    (lambda x, y: ag.tanh(x) * y, lambda x, y: np.tanh(x) * y),
    (ag.maximum, np.maximum),
    (lambda x, y: x / (1.5 + abs(y)), lambda x, y: x / (1.5 + abs(y))),
    (lambda x, y: ag.where(ag.index("j") % 3 == 1, x, y), lambda x, y: np.where(np.arange(11)[:, None] % 3 == 1, x, y)),
]


def grow(rng: np.random.Generator, values: list[tuple[Any, Array]]) -> None:
    """Append one more value, traced and right."""
    (x, right), (y, other) = (values[max(0, len(values) - 1 - int(rng.integers(0, n)))] for n in (2, len(values)))
    shared = [n for n in AXES if n in x.axes and n in y.axes]
    if shared and rng.random() < 0.3:
        over = str(rng.choice(shared))
        axis = list(AXES).index(over)
        values.append((ag.contract(x, y, over=over) * 0.1, (right * other).sum(axis=axis, keepdims=True) * 0.1))
    elif x.axes and rng.random() < 0.6:
        names = [str(n) for n in rng.permutation(list(x.axes))[: 1 + (rng.random() < 0.3)]]
        traced, direct = REDUCTIONS[rng.integers(len(REDUCTIONS))]
        values.append((traced(x, over=names), direct(right, tuple(list(AXES).index(n) for n in names))))
    else:
        traced, direct = COMBINATIONS[rng.integers(len(COMBINATIONS))]
        values.append((traced(x, y), direct(right, other)))


@pytest.mark.parametrize("tiles", ["{i=3 j=4 k=2}", "{j=11 k=5}", "{i=7}"])
@pytest.mark.parametrize("seed", range(20))
def test_any_program_is_right_after_every_pass(seed: int, tiles: str) -> None:
    rng = np.random.default_rng(seed)
    arrays: dict[str, Any] = {name: rng.standard_normal([AXES[n] for n in text.split()]) for name, text in LAYOUTS.items()}
    expected: list[Array] = []

    def body(a: Any, b: Any, c: Any, d: Any) -> Any:
        given = zip((a, b, c, d), arrays.items(), strict=True)
        values = [(traced, spread(arrays[name], LAYOUTS[name])) for traced, (name, _) in given]
        for _ in range(rng.integers(3, 9)):
            grow(rng, values)
        chosen = values[-1 - int(rng.integers(0, 2)) :]
        for traced, right in chosen:
            shape = [AXES[n] if n in traced.axes else 1 for n in AXES]
            expected.append(np.broadcast_to(right, shape).reshape([AXES[n] for n in AXES if n in traced.axes]))
        return tuple(traced for traced, _ in chosen)

    kernel = ag.compile(
        ag.program(body, **LAYOUTS),
        target="numpy",
        pipeline=PIPELINE.replace("tile", f"tile{tiles}"),
        verify_each="run",
        **arrays,
    )
    for got, right in zip(kernel(**arrays), expected, strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-9, atol=1e-9)


def test_a_reduction_that_two_users_need_is_carried_once() -> None:
    """A softmax that one output reads, and another one sums, has one maximum and one sum in a loop."""

    @ag.program(b="j k", c="i k", out=("i j", "j"))
    def shared(b: Any, c: Any) -> Any:
        z = ag.contract(c, ag.softmax(b, over="k"), over="k")
        return z, ag.reduce_sum(z, over="i")

    types = {"b": TensorType((("j", 70), ("k", 300)), F32), "c": TensorType((("i", 40), ("k", 300)), F32)}
    result = run_pipeline(shared.trace(types), PIPELINE, verify_each="run")
    assert all(len(loop.inits) <= 3 for loop in loops(result.func.body)), result.func


def test_steps_of_attention_are_not_cut_along_what_they_need_whole() -> None:
    @ag.program(x="i j", out="i j")
    def weights(x: Any) -> Any:
        return ag.softmax(x, over="j")

    func = weights.trace({"x": TensorType((("i", 7), ("j", 65)), F32)})
    with pytest.raises(ag.Error, match=r"attn\.softmax\]: cannot be cut along j(.|\n)*run decompose-attn before tile"):
        run_pipeline(func, "tile{i=3 j=7}")


def test_a_chain_of_a_thousand_steps() -> None:
    @ag.program(x="i j", out="i j")
    def chain(x: Any) -> Any:
        for _ in range(1000):
            x = x * 0.999 + 0.001
        return x

    x = np.random.default_rng(0).standard_normal((7, 65))
    func = chain.trace({"x": TensorType((("i", 7), ("j", 65)), F32)})
    want = x
    for _ in range(1000):
        want = want * 0.999 + 0.001
    (got,) = run(run_pipeline(func, PIPELINE).func, x, wide=True)
    np.testing.assert_allclose(got, want, atol=1e-9)


def test_a_softmax_of_a_chain_of_a_thousand_steps() -> None:
    """No pass is limited by how deep Python recurses."""

    @ag.program(x="i j", out="i")
    def deep(x: Any) -> Any:
        z = x
        for _ in range(1000):
            z = z * 0.999 + 0.001
        return ag.reduce_sum(ag.softmax(z, over="j") * x, over="j")

    x = np.random.default_rng(0).standard_normal((7, 65))
    func = deep.trace({"x": TensorType((("i", 7), ("j", 65)), F32)})
    z = x
    for _ in range(1000):
        z = z * 0.999 + 0.001
    (got,) = run(run_pipeline(func, PIPELINE).func, x, wide=True)
    np.testing.assert_allclose(got, (softmax(z, (1,)) * x).sum(1), atol=1e-7)

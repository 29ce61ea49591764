"""What is exported in tests: programs, arrays, and the right results in float64 NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

import attngen as ag
from tests.kernels.reference import attention as exact


@ag.program(q="b h i d", k="b h j d", v="b h j e", slopes="h", out="b h i e")
def causal_alibi(q: ag.Tensor, k: ag.Tensor, v: ag.Tensor, slopes: ag.Tensor) -> ag.Tensor:
    i, j = ag.index("i"), ag.index("j")
    s = ag.contract(q, k, over="d") / math.sqrt(q.extent("d"))
    s = ag.where(j <= i, s - slopes * (i - j), -math.inf)
    return ag.contract(ag.softmax(s, over="j"), v, over="j")


@ag.program(q="b (g r) i d", k="b g j d", v="b g j e", out=("b (g r) i e", "b (g r) i"))
def grouped_softcap(q: ag.Tensor, k: ag.Tensor, v: ag.Tensor) -> tuple[ag.Tensor, ag.Tensor]:
    s = 5 * ag.tanh(ag.contract(q, k, over="d") / math.sqrt(q.extent("d")) / 5)
    return ag.contract(ag.softmax(s, over="j"), v, over="j"), ag.logsumexp(s, over="j")


def weights(s: np.ndarray) -> np.ndarray:
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def scores(x: Mapping[str, np.ndarray]) -> np.ndarray:
    q, k = x["q"].astype(np.float64), x["k"].astype(np.float64)
    k = np.repeat(k, q.shape[1] // k.shape[1], 1)
    return q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])


def right_alibi(x: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    s = scores(x)
    far = np.arange(s.shape[-2])[:, None] - np.arange(s.shape[-1])
    s = np.where(far >= 0, s - x["slopes"].astype(np.float64)[:, None, None] * far, -np.inf)
    return (weights(s) @ x["v"],)


def right_softcap(x: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    s = 5 * np.tanh(scores(x) / 5)
    v = np.repeat(x["v"].astype(np.float64), s.shape[1] // x["v"].shape[1], 1)
    return weights(s) @ v, np.log(np.exp(s).sum(-1))


@dataclass(frozen=True, eq=False)
class Example:
    program: Any
    shapes: Mapping[str, tuple[int, ...]]
    dtype: str
    outputs: Mapping[str, tuple[int, ...]]
    right: Callable[[Mapping[str, np.ndarray]], tuple[np.ndarray, ...]]

    def kernel(self, target: str = "cpu") -> ag.Kernel:
        return compiled(self, target)

    def arrays(self) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(11)
        return {name: rng.standard_normal(shape).astype(self.dtype) for name, shape in self.shapes.items()}

    def check(self, found: tuple[np.ndarray, ...], given: Mapping[str, np.ndarray]) -> None:
        tolerance = {"float32": 3e-5, "float64": 1e-12}[self.dtype]
        for got, want in zip(found, self.right(given), strict=True):
            np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@cache
def compiled(example: Example, target: str) -> ag.Kernel:
    given: dict[str, Any] = dict(example.shapes)
    return ag.compile(example.program, dtype=example.dtype, target=target, **given)


EXAMPLES = {
    "attention": Example(
        ag.attention,
        {"q": (1, 2, 45, 20), "k": (1, 2, 77, 20), "v": (1, 2, 77, 36)},
        "float32",
        {"out": (1, 2, 45, 36)},
        lambda x: (exact(x["q"], x["k"], x["v"])[0],),
    ),
    "causal_alibi": Example(
        causal_alibi,
        {"q": (2, 3, 130, 16), "k": (2, 3, 130, 16), "v": (2, 3, 130, 16), "slopes": (3,)},
        "float64",
        {"out": (2, 3, 130, 16)},
        right_alibi,
    ),
    "grouped_softcap": Example(
        grouped_softcap,
        {"q": (2, 4, 33, 64), "k": (2, 2, 250, 64), "v": (2, 2, 250, 64)},
        "float32",
        {"out0": (2, 4, 33, 64), "out1": (2, 4, 33)},
        right_softcap,
    ),
}

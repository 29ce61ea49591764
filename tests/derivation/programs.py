"""Attention and its relatives as plain array programs, each beside an independent float64 NumPy oracle.

Extents are ragged against every tile size. `loops` is the number of sequential loops that must remain.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import attngen as ag
from attngen.ir.types import F32, ElementType, TensorType

H, I, J, D, E = 2, 37, 53, 8, 5
TILES = "tile{h=1 i=16 j=8}"
SHAPES = {
    "q": (H, I, D),
    "k": (H, J, D),
    "v": (H, J, E),
    "q2": (H, I, D),
    "k2": (H, J, D),
    "temperature": (H,),
    "sink": (H,),
    "bias": (I, J),
    "w": (H, I, J),
    "k3": (H, 11, D),
    "v3": (H, 11, E),
    "mix": (H, 3),
}
LAYOUTS = {
    "q": "h i d",
    "k": "h j d",
    "v": "h j e",
    "q2": "h i d",
    "k2": "h j d",
    "temperature": "h",
    "sink": "h",
    "bias": "i j",
    "w": "h i j",
    "k3": "h n d",
    "v3": "h n e",
    "mix": "h g",
}
O = "h i e"
Arrays = dict[str, np.ndarray]


@dataclass
class Case:
    program: Any
    oracle: Callable[[Arrays], tuple[np.ndarray, ...]]
    inputs: tuple[str, ...]
    loops: int

    def types(self, element: ElementType = F32) -> dict[str, TensorType]:
        named = {n: zip(LAYOUTS[n].split(), SHAPES[n], strict=True) for n in self.inputs}
        return {n: TensorType(tuple(axes), element) for n, axes in named.items()}


CASES: dict[str, Case] = {}


def case(
    inputs: str, out: str | tuple[str, ...] = O, loops: int = 1, *, oracle: Callable[[Arrays], Any]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a program beside the same in NumPy."""
    names = tuple(inputs.split())

    def declare(fn: Callable[..., Any]) -> Callable[..., Any]:
        def outputs(x: Arrays) -> tuple[np.ndarray, ...]:
            found = oracle({n: a.astype(np.float64) for n, a in x.items()})
            return found if isinstance(found, tuple) else (found,)

        CASES[fn.__name__] = Case(ag.program(**{n: LAYOUTS[n] for n in names}, out=out)(fn), outputs, names, loops)
        return fn

    return declare


def scores(q: Any, k: Any) -> Any:
    return ag.contract(q, k, over="d") / math.sqrt(D)


# ---------------------------------------------------------------- in NumPy


def dots(x: Arrays, q: str = "q", k: str = "k") -> np.ndarray:
    return x[q] @ x[k].transpose(0, 2, 1) / math.sqrt(D)


def soft(s: np.ndarray) -> np.ndarray:
    top = np.maximum(s.max(-1, keepdims=True), -1e300)
    e = np.exp(s - top)
    total = e.sum(-1, keepdims=True)
    return np.where(total > 0, e / np.where(total > 0, total, 1), 0)


def lse(s: np.ndarray) -> np.ndarray:
    top = np.maximum(s.max(-1), -1e300)
    with np.errstate(divide="ignore"):
        return top + np.log(np.exp(s - top[..., None]).sum(-1))


def window(s: np.ndarray) -> np.ndarray:
    i, j = np.arange(I)[:, None], np.arange(J)
    return np.where((j <= i - 4) & (i - j <= 20), s, -np.inf)


# ---------------------------------------------------------------- the programs


@case("q k v", oracle=lambda x: soft(dots(x)) @ x["v"])
def standard(q: Any, k: Any, v: Any) -> Any:
    return ag.contract(ag.softmax(scores(q, k), over="j"), v, over="j")


@case("q k v", (O, "h i"), oracle=lambda x: (soft(dots(x)) @ x["v"], lse(dots(x))))
def with_lse(q: Any, k: Any, v: Any) -> Any:
    s = scores(q, k)
    return ag.contract(ag.softmax(s, over="j"), v, over="j"), ag.logsumexp(s, over="j")


@case("q k v", oracle=lambda x: (1 / (1 + np.exp(-dots(x)))) @ x["v"])
def sigmoid(q: Any, k: Any, v: Any) -> Any:
    return ag.contract(ag.sigmoid(scores(q, k)), v, over="j")


@case("q k v", oracle=lambda x: np.exp(dots(x)) / (1 + np.exp(dots(x)).sum(-1, keepdims=True)) @ x["v"])
def plus_one(q: Any, k: Any, v: Any) -> Any:
    s = scores(q, k)
    m = ag.maximum(ag.reduce_max(s, over="j"), 0)
    e = np.exp(s - m)
    return ag.contract(e / (np.exp(-m) + ag.reduce_sum(e, over="j")), v, over="j")


@case("q k v q2 k2", oracle=lambda x: soft(dots(x) + dots(x, "q2", "k2")) @ x["v"])
def two_scores(q: Any, k: Any, v: Any, q2: Any, k2: Any) -> Any:
    return ag.contract(ag.softmax(scores(q, k) + scores(q2, k2), over="j"), v, over="j")


@case("q k v temperature", oracle=lambda x: soft(dots(x) * x["temperature"][:, None, None]) @ x["v"])
def per_head_temperature(q: Any, k: Any, v: Any, temperature: Any) -> Any:
    return ag.contract(ag.softmax(scores(q, k) * temperature, over="j"), v, over="j")


@case("q k v q2 k2", oracle=lambda x: (soft(dots(x)) - 0.8 * soft(dots(x, "q2", "k2"))) @ x["v"])
def differential(q: Any, k: Any, v: Any, q2: Any, k2: Any) -> Any:
    a = ag.softmax(scores(q, k), over="j") - 0.8 * ag.softmax(scores(q2, k2), over="j")
    return ag.contract(a, v, over="j")


@case("q k v", (O, O), oracle=lambda x: (soft(dots(x)) @ x["v"], soft(dots(x)) @ x["v"] ** 2))
def two_moments(q: Any, k: Any, v: Any) -> Any:
    p = ag.softmax(scores(q, k), over="j")
    return ag.contract(p, v, over="j"), ag.contract(p, v * v, over="j")


@case("q k v", (O, "h i"), oracle=lambda x: (soft(dots(x)) @ x["v"], -(soft(dots(x)) * np.log(soft(dots(x)))).sum(-1)))
def entropy(q: Any, k: Any, v: Any) -> Any:
    p = ag.softmax(scores(q, k), over="j")
    return ag.contract(p, v, over="j"), -ag.reduce_sum(p * ag.log(p), over="j")


@case("q k v", oracle=lambda x: np.maximum(dots(x), 0) ** 2 @ x["v"])
def squared_relu(q: Any, k: Any, v: Any) -> Any:
    return ag.contract(ag.maximum(scores(q, k), 0) ** 2, v, over="j")


@case("q k", "h i", oracle=lambda x: dots(x).max(-1))
def row_maximum(q: Any, k: Any) -> Any:
    return ag.reduce_max(scores(q, k), over="j")


@case("q k v", oracle=lambda x: soft(dots(x)) @ x["v"])
def softmax_by_hand(q: Any, k: Any, v: Any) -> Any:
    s = scores(q, k)
    e = np.exp(s - ag.reduce_max(s, over="j"))
    return ag.contract(e / ag.reduce_sum(e, over="j"), v, over="j")


@case("q k v", (O, "h i"), oracle=lambda x: (soft(window(dots(x))) @ x["v"], lse(window(dots(x)))))
def windowed(q: Any, k: Any, v: Any) -> Any:
    i, j = ag.index("i"), ag.index("j")
    s = ag.where((j <= i - 4) & (i - j <= 20), scores(q, k), -math.inf)
    return ag.contract(ag.softmax(s, over="j"), v, over="j"), ag.logsumexp(s, over="j")


@case("q k v", oracle=lambda x: soft(20 * np.tanh(dots(x) / 20)) @ x["v"])
def softcap(q: Any, k: Any, v: Any) -> Any:
    return ag.contract(ag.softmax(20 * np.tanh(scores(q, k) / 20), over="j"), v, over="j")


@case("q k v bias", oracle=lambda x: soft(dots(x) + x["bias"]) @ x["v"])
def biased(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return ag.contract(ag.softmax(scores(q, k) + bias, over="j"), v, over="j")


def _sink(x: Arrays) -> np.ndarray:
    e = np.exp(dots(x))
    return e / (np.exp(x["sink"])[:, None, None] + e.sum(-1, keepdims=True)) @ x["v"]


@case("q k v sink", oracle=_sink)
def with_sink(q: Any, k: Any, v: Any, sink: Any) -> Any:
    s = scores(q, k)
    m = ag.maximum(ag.reduce_max(s, over="j"), sink)
    e = np.exp(s - m)
    return ag.contract(e / (np.exp(sink - m) + ag.reduce_sum(e, over="j")), v, over="j")


@case("q k v", oracle=lambda x: soft(dots(x) + 0.1 * dots(x) ** 2) @ x["v"])
def extra_step(q: Any, k: Any, v: Any) -> Any:
    s = scores(q, k)
    return ag.contract(ag.softmax(s + 0.1 * s * s, over="j"), v, over="j")


@case("q k v", oracle=lambda x: 127 * np.exp(dots(x) - dots(x).max(-1, keepdims=True)) @ x["v"])
def scaled_by_maximum(q: Any, k: Any, v: Any) -> Any:
    s = scores(q, k)
    e = np.exp(s - ag.reduce_max(s, over="j"))
    top = ag.maximum(ag.reduce_max(e, over="j"), 1e-30)
    return ag.contract(e / top * 127, v, over="j") * top


# ---------------------------------------------------------------- those that need more loops


@case("q k v", loops=2, oracle=lambda x: soft(soft(dots(x))) @ x["v"])
def softmax_twice(q: Any, k: Any, v: Any) -> Any:
    return ag.contract(ag.softmax(ag.softmax(scores(q, k), over="j"), over="j"), v, over="j")


def _quantised(x: Arrays) -> np.ndarray:
    e = np.exp(dots(x) - dots(x).max(-1, keepdims=True))
    top = e.max(-1, keepdims=True)
    return np.round(e / top * 127) @ x["v"] * top


@case("q k v", loops=2, oracle=_quantised)
def quantised(q: Any, k: Any, v: Any) -> Any:
    s = scores(q, k)
    e = np.exp(s - ag.reduce_max(s, over="j"))
    top = ag.maximum(ag.reduce_max(e, over="j"), 1e-30)
    return ag.contract(ag.round(e / top * 127), v, over="j") * top


def _two_sources(x: Arrays) -> np.ndarray:
    p = soft(np.concatenate([dots(x), dots(x, "q", "k3")], axis=-1))
    return p @ np.concatenate([x["v"], x["v3"]], axis=1)


@case("q k v k3 v3", oracle=_two_sources)
def two_sources(q: Any, k: Any, v: Any, k3: Any, v3: Any) -> Any:
    s, s3 = scores(q, k), scores(q, k3)
    m = ag.maximum(ag.reduce_max(s, over="j"), ag.reduce_max(s3, over="n"))
    e, e3 = np.exp(s - m), np.exp(s3 - m)
    total = ag.reduce_sum(e, over="j") + ag.reduce_sum(e3, over="n")
    return (ag.contract(e, v, over="j") + ag.contract(e3, v3, over="n")) / total


def _talking(x: Arrays) -> np.ndarray:
    return np.einsum("hij,hg,hje->gie", soft(dots(x)), x["mix"], x["v"])


@case("q k v mix", "g i e", loops=2, oracle=_talking)
def talking_heads(q: Any, k: Any, v: Any, mix: Any) -> Any:
    p = ag.softmax(scores(q, k), over="j")
    return ag.contract(p * mix, v, over="h j")


@case("q k v", loops=2, oracle=lambda x: np.log(soft(dots(x))) @ x["v"])
def log_weighted(q: Any, k: Any, v: Any) -> Any:
    return ag.contract(ag.log(ag.softmax(scores(q, k), over="j")), v, over="j")


@case("w", "h i j", oracle=lambda x: soft(x["w"]))
def probabilities(w: Any) -> Any:
    return ag.softmax(w, over="j")


@case("w", "h i", oracle=lambda x: x["w"].var(-1))
def variance(w: Any) -> Any:
    mean = ag.reduce_sum(w, over="j") / J
    return ag.reduce_sum((w - mean) * (w - mean), over="j") / J


def inputs(name: str, seed: int = 0, dtype: str = "float32") -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    arrays = {n: rng.standard_normal(SHAPES[n]).astype(dtype) for n in SHAPES}
    return {n: arrays[n] for n in CASES[name].inputs}

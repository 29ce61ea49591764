"""Shapes to time attention on, what their result must be, and attngen as one of the implementations that are timed.

An implementation is a function `prepare(spec, inputs, threads)` that returns a function without arguments: one call of
attention, allocating its output. What `prepare` does is not timed. It raises an error for what it cannot do.

spec: B, Hq, Hkv, Sq, Sk, D, dv, dtype ("f32", "f64", "f16", "bf16"), causal; a `Shape` has these. inputs: q (B, Hq, Sq, D),
k (B, Hkv, Sk, D), v (B, Hkv, Sk, dv), arrays. The output is (B, Hq, Sq, dv), of NumPy or PyTorch.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import attngen
from attngen.ir.diagnostics import Error
from attngen.names import suggest
from attngen.reference import BLOCK, one_head

ITEM_BYTES: Mapping[str, int] = {"f32": 4, "f64": 8, "f16": 2, "bf16": 2}
ALLOWED: Mapping[str, float] = {"f32": 2e-5, "f64": 1e-11, "f16": 4e-3, "bf16": 2.5e-2}
"""The largest error allowed, relative to the largest value of the right result."""


@dataclass(frozen=True)
class Shape:
    """One call of attention; the names of its fields are those that other benchmarks of attention use."""

    name: str
    B: int
    Hq: int
    Hkv: int
    Sq: int
    Sk: int
    D: int
    Dv: int = 0
    """0: the same as D."""
    dtype: str = "f32"
    causal: bool = False
    """Query i sees the keys j ≤ i."""

    @property
    def dv(self) -> int:
        return self.Dv or self.D

    @property
    def flops(self) -> float:
        """Of the two products, as attention is usually counted; half when causal."""
        return (1 if self.causal else 2) * float(self.B * self.Hq * self.Sq * self.Sk * (self.D + self.dv))

    @property
    def bytes(self) -> int:
        """The inputs and the output, once."""
        return (self.B * (self.Hq * self.Sq + self.Hkv * self.Sk) * (self.D + self.dv)) * ITEM_BYTES[self.dtype]

    def __str__(self) -> str:
        heads = f"h={self.Hq}" + (f" h_kv={self.Hkv}" if self.Hkv != self.Hq else "")
        depths = f"d={self.D}" + (f" d_v={self.Dv}" if self.Dv else "")
        return f"b={self.B} {heads} q={self.Sq} kv={self.Sk} {depths} {self.dtype}" + (" causal" if self.causal else "")


SHAPES: Mapping[str, Shape] = {
    shape.name: shape
    for shape in (
        Shape("tiny", 1, 1, 1, 16, 16, 32),
        Shape("enc-small", 32, 12, 12, 32, 32, 64),
        Shape("bert", 8, 12, 12, 128, 128, 64),
        Shape("vit-b", 4, 12, 12, 197, 197, 64),
        Shape("vit-l-577", 1, 16, 16, 577, 577, 64),
        Shape("gpt2-full", 1, 12, 12, 1024, 1024, 64),
        Shape("self-512", 1, 8, 8, 512, 512, 64),
        Shape("self-2048", 1, 8, 8, 2048, 2048, 64),
        Shape("sd-self", 2, 8, 8, 4096, 4096, 40),
        Shape("sd-cross", 2, 8, 8, 4096, 77, 40),
        Shape("odd", 2, 7, 7, 333, 517, 80),
        Shape("dv-ne-dk", 1, 16, 16, 1024, 1024, 192, 128),
        Shape("gpt2-causal", 1, 12, 12, 1024, 1024, 64, causal=True),
        Shape("llama-prefill", 1, 32, 8, 2048, 2048, 128, causal=True),
        Shape("long-causal", 1, 8, 8, 8192, 8192, 64, causal=True),
        Shape("decode-gqa", 1, 32, 8, 1, 4096, 128),
        Shape("decode-batch16", 16, 32, 8, 1, 1024, 128),
        Shape("f64", 1, 8, 8, 512, 512, 64, dtype="f64"),
        Shape("bert-f16", 8, 12, 12, 128, 128, 64, dtype="f16"),
        Shape("bert-bf16", 8, 12, 12, 128, 128, 64, dtype="bf16"),
        Shape("decode-f16", 1, 32, 8, 1, 4096, 128, dtype="f16"),
        Shape("decode-bf16", 1, 32, 8, 1, 4096, 128, dtype="bf16"),
    )
}


def find_shape(name: str) -> Shape:
    if name not in SHAPES:
        raise Error(f"there is no shape {name!r}; {suggest(name, SHAPES)}")
    return SHAPES[name]


@dataclass(frozen=True)
class Inputs:
    q: Any
    k: Any
    v: Any


def make_inputs(shape: Shape) -> Inputs:
    """Standard normal arrays, the same ones whenever the extents are the same."""
    s = shape
    rng = np.random.default_rng(zlib.crc32(repr((s.B, s.Hq, s.Hkv, s.Sq, s.Sk, s.D, s.dv)).encode()))
    dtype = element_dtype(s.dtype)
    drawn = np.float64 if s.dtype == "f64" else np.float32
    lengths = ((s.B, s.Hq, s.Sq, s.D), (s.B, s.Hkv, s.Sk, s.D), (s.B, s.Hkv, s.Sk, s.dv))
    return Inputs(*(rng.standard_normal(n, drawn).astype(dtype) for n in lengths))


def element_dtype(name: str) -> np.dtype[Any]:
    if name == "bf16":
        try:
            from ml_dtypes import bfloat16
        except ImportError:
            raise Error("bf16 arrays need the package ml_dtypes: pip install ml_dtypes") from None
        return np.dtype(bfloat16)
    return np.dtype({"f32": np.float32, "f64": np.float64, "f16": np.float16}[name])


def expected(shape: Shape, inputs: Inputs) -> np.ndarray:
    """The result in float64, a head and a block of queries at a time."""
    out = np.empty((shape.B, shape.Hq, shape.Sq, shape.dv))
    rows = max(1, BLOCK // shape.Sk)
    for b, h in np.ndindex(shape.B, shape.Hq):
        at = b, h * shape.Hkv // shape.Hq
        key, value = inputs.k[at].astype(np.float64), inputs.v[at].astype(np.float64)
        for start in range(0, shape.Sq, rows):
            query = inputs.q[b, h, start : start + rows].astype(np.float64)
            scores = query @ key.T / np.sqrt(shape.D)
            if shape.causal:
                places = np.arange(start, start + len(query))[:, None]
                scores[np.arange(shape.Sk) > places] = -np.inf
            out[b, h, start : start + rows] = one_head(scores, value)
    return out


def relative_error(out: np.ndarray, right: np.ndarray) -> float:
    """The largest error, relative to the largest value of the right result; infinite if shapes differ or it is not finite."""
    if out.shape != right.shape or not np.isfinite(out).all():
        return float("inf")
    return float(np.max(np.abs(out - right), initial=0.0) / max(float(np.max(np.abs(right), initial=0.0)), 1e-300))


def keywords(spec: Any) -> dict[str, Any]:
    """What `scaled_dot_product_attention` must be told. A spec may also have window (keys that a query sees, itself included),
    softcap, alibi (slopes 2^(-8(h+1)/heads)), keypad with lengths(), docs with doc_ids(), and prefix (keys that all see)."""

    def has(name: str) -> Any:
        return getattr(spec, name, None)

    given: dict[str, Any] = {}
    if spec.causal and not has("prefix"):
        given["is_causal"] = True
    if window := has("window"):
        given["window"] = (window - 1, 0)
    if softcap := has("softcap"):
        given["softcap"] = softcap
    if has("alibi"):
        given["alibi_slopes"] = np.array([2.0 ** (-8 * (h + 1) / spec.Hq) for h in range(spec.Hq)], np.float32)
    if has("keypad"):
        given["seqused_k"] = np.asarray(spec.lengths(), np.int32)
    if has("docs"):
        document: Any = spec.doc_ids()
        given["mask_mod"] = lambda b, h, i, j: document[i] == document[j]  # pyright: ignore[reportUnknownLambdaType]
    if prefix := has("prefix"):
        given["mask_mod"] = lambda b, h, i, j: (j <= i) | (j < prefix)  # pyright: ignore[reportUnknownLambdaType]
    if spec.Hq != spec.Hkv:
        given["enable_gqa"] = True
    return given


def prepare(spec: Any, inputs: Any, threads: int) -> Callable[[], Any]:
    """attngen as an implementation to time. The first call compiles, and is made here."""
    attngen.set_num_threads(threads)
    given = keywords(spec)

    def call() -> Any:
        return attngen.scaled_dot_product_attention(inputs.q, inputs.k, inputs.v, **given)

    call()
    return call

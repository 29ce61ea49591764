"""What attngen is timed beside: implementations as `attngen.bench` describes them, found by name or as module:function."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from attngen.ir.diagnostics import Error
from attngen.names import suggest

MOST_SCORES = 1 << 30
"""How many bytes a matrix of scores may take before an implementation that holds it is left out."""

Prepare = Callable[[Any, Any, int], Callable[[], Any]]


@dataclass(frozen=True)
class Implementation:
    """prepare: module:function. needs: the package it is about, and how to get it."""

    prepare: str
    needs: str = ""


OURS = "attngen"
IMPLEMENTATIONS: Mapping[str, Implementation] = {
    OURS: Implementation("attngen.bench:prepare"),
    "torch-sdpa": Implementation("attngen.bench_peers:prepare_torch", needs="torch"),
    "numpy": Implementation("attngen.bench_peers:prepare_numpy"),
}
"""The first peer here that can do a shape is its baseline."""


def installed() -> list[str]:
    """The names of implementations whose package is there."""
    return [name for name, x in IMPLEMENTATIONS.items() if not x.needs or importlib.util.find_spec(x.needs)]


def check_name(name: str) -> None:
    """Raise Error unless this is an implementation that can be loaded, or looks like module:function."""
    if ":" in name:
        return
    if name not in IMPLEMENTATIONS:
        raise Error(f"there is no implementation {name!r}; {suggest(name, IMPLEMENTATIONS)} Or give module:function")
    if name not in installed():
        needed = IMPLEMENTATIONS[name].needs
        raise Error(f"{name} needs the package {needed}, which is not installed: pip install {needed}")


def load(name: str) -> Prepare:
    """The `prepare` of an implementation."""
    path = IMPLEMENTATIONS[name].prepare if name in IMPLEMENTATIONS else name
    module, _, attribute = path.partition(":")
    found: Any = getattr(import_module(module), attribute)
    return found


def prepare_numpy(spec: Any, inputs: Any, threads: int) -> Callable[[], Any]:
    """Products by BLAS and a softmax in place, as one writes it with care; the number of threads is that of the process."""
    if spec.dtype in ("f16", "bf16"):
        raise Error("NumPy has no BLAS for elements of 16 bits")
    scores = spec.B * spec.Hq * spec.Sq * spec.Sk * inputs.q.itemsize
    if scores > MOST_SCORES:
        raise Error(f"the scores would take {scores / 2**30:.1f} GiB")
    group = spec.Hq // spec.Hkv
    # Query heads that share a key head are rows of one product.
    query = inputs.q.reshape(spec.B, spec.Hkv, group * spec.Sq, spec.D)
    key, value, scale = inputs.k.swapaxes(-1, -2), inputs.v, inputs.q.dtype.type(spec.D**-0.5)
    hidden: Any = None
    if spec.causal:
        hidden = np.tile(np.where(np.tri(spec.Sq, spec.Sk, dtype=bool), 0, -np.inf).astype(query.dtype), (group, 1))

    def call() -> Any:
        s = np.matmul(query * scale, key)
        if hidden is not None:
            s += hidden
        s -= s.max(axis=-1, keepdims=True)
        np.exp(s, out=s)
        total = s.sum(axis=-1, keepdims=True)
        out = np.matmul(s, value)
        out /= total
        return out.reshape(spec.B, spec.Hq, spec.Sq, spec.dv)

    return call


def prepare_torch(spec: Any, inputs: Any, threads: int) -> Callable[[], Any]:
    """PyTorch's scaled_dot_product_attention, with the algorithm that PyTorch chooses."""
    torch: Any = import_module("torch")
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)

    def tensor(x: Any) -> Any:
        if spec.dtype == "bf16":
            return torch.from_numpy(x.view(np.int16).copy()).view(torch.bfloat16)
        return torch.from_numpy(x.copy())

    query, key, value = (tensor(x) for x in (inputs.q, inputs.k, inputs.v))
    attention = torch.nn.functional.scaled_dot_product_attention
    given = {"is_causal": True} if spec.causal else {}
    if spec.Hq != spec.Hkv:
        given["enable_gqa"] = True
    return lambda: attention(query, key, value, **given)


def to_float64(out: Any) -> np.ndarray:
    """The result of a call as an array, of NumPy or PyTorch."""
    if not isinstance(out, np.ndarray) and hasattr(out, "double"):
        out = out.double().numpy()
    return np.asarray(out, np.float64)

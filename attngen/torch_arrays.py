"""Tensors of torch as arguments: NumPy arrays on the same memory, and results as tensors again.

Torch is never imported here: where no one has, there are no tensors.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from attngen.arrays import Array
from attngen.ir.diagnostics import Error
from attngen.ir.types import BF16
from attngen.specs import array_dtype

F = TypeVar("F", bound=Callable[..., Any])


def shared(tensor: Any) -> Array:
    """A detached tensor in the memory of this machine as an array. bf16, which NumPy lacks, goes by way of integers."""
    if str(tensor.dtype) != "torch.bfloat16":
        return tensor.numpy()
    return tensor.view(sys.modules["torch"].int16).numpy().view(array_dtype(BF16))


def to_array(name: str, tensor: Any) -> Any:
    """The array of an argument; Error for tensors that are elsewhere, not strided, or part of a graph of gradients. A tensor on
    a GPU is left to the kernel that reads it."""
    if tensor.device.type == "cuda":
        return tensor
    if tensor.device.type != "cpu":
        raise Error(f"{name}: a tensor on the device {tensor.device} cannot be read here; use {name}.cpu()")
    if tensor.requires_grad and sys.modules["torch"].is_grad_enabled():
        raise Error(f"{name}: requires gradients, which are not computed; use {name}.detach() or torch.no_grad()")
    try:
        return shared(tensor.detach())
    except (TypeError, RuntimeError) as e:
        raise Error(f"{name}: NumPy cannot read this tensor of {tensor.dtype}: {e}") from None


def to_tensor(x: Any) -> Any:
    """The tensor on an array's memory."""
    torch: Any = sys.modules["torch"]
    if isinstance(x, torch.Tensor):
        return x
    if x.dtype.name != "bfloat16":
        return torch.from_numpy(x)
    return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)


def accepts_tensors(function: F) -> F:
    """Let a function of arrays take tensors of torch as well, in any argument. Its results are tensors if the first argument
    is one. No element is copied."""
    names = [*inspect.signature(function).parameters]

    def converted(*args: Any, **kwargs: Any) -> Any:
        kind: Any = getattr(sys.modules.get("torch"), "Tensor", None)
        if kind is None or not any(isinstance(x, kind) for x in (*args, *kwargs.values())):
            return function(*args, **kwargs)
        tensors: list[tuple[Any, Any]] = []

        def array(name: str, x: Any) -> Any:
            if not isinstance(x, kind):
                return x
            tensors.append((to_array(name, x), x))
            return tensors[-1][0]

        positional = [array(name, x) for name, x in zip(names, args, strict=False)] + [*args[len(names) :]]
        found: Any = function(*positional, **{name: array(name, x) for name, x in kwargs.items()})
        if not isinstance(args[0] if args else kwargs.get(names[0]), kind):
            return found
        several: list[Array] = [*found] if isinstance(found, tuple) else [found]
        given = {id(made): tensor for made, tensor in tensors}
        results = [given[id(x)] if id(x) in given else to_tensor(x) for x in several]
        return tuple(results) if isinstance(found, tuple) else results[0]

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        # torch.compile looks into whatever runs unless it is told not to; it is there only if somebody has loaded it.
        dynamo: Any = sys.modules.get("torch._dynamo")
        return (converted if dynamo is None else dynamo.disable(converted))(*args, **kwargs)

    return call  # pyright: ignore[reportReturnType]  (wraps: the same signature)

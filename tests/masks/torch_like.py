"""A stand-in for torch with the parts of it that modifications meet: it asks an argument with `__torch_function__` first.

Real torch takes its place in the same tests where it is installed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

float32 = SimpleNamespace(name="float32")


def dispatched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        flat = [y for x in (*args, *kwargs.values()) for y in (x if isinstance(x, tuple) else (x,))]
        for x in flat:
            if hasattr(type(x), "__torch_function__") and not isinstance(x, Array):
                return type(x).__torch_function__(call, (type(x),), args, kwargs)
        plain = [unwrapped(x) for x in args]
        return Array(function(*plain, **kwargs))

    call.__name__ = name
    return call


def unwrapped(x: Any) -> Any:
    return tuple(map(unwrapped, x)) if isinstance(x, tuple) else x.data if isinstance(x, Array) else x


class Array:
    """A tensor in the memory of this machine."""

    device = SimpleNamespace(type="cpu")

    def __init__(self, data: Any) -> None:
        self.data = np.asarray(data)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def dtype(self) -> str:
        return f"torch.{self.data.dtype.name}"

    def detach(self) -> Array:
        return self

    def numpy(self) -> np.ndarray:
        return self.data

    def item(self) -> Any:
        return self.data.item()

    __getitem__ = dispatched("__getitem__", lambda x, key: x[key])
    __sub__, __rsub__ = dispatched("sub", operator.sub), dispatched("__rsub__", lambda a, b: b - a)
    __add__ = __radd__ = dispatched("add", operator.add)
    __mul__ = __rmul__ = dispatched("mul", operator.mul)
    __and__ = __rand__ = dispatched("__and__", operator.and_)
    __or__ = __ror__ = dispatched("__or__", operator.or_)
    __floordiv__, __mod__ = dispatched("__floordiv__", operator.floordiv), dispatched("remainder", operator.mod)
    __eq__, __lt__, __le__ = dispatched("eq", operator.eq), dispatched("lt", operator.lt), dispatched("le", operator.le)
    __gt__, __ge__ = dispatched("gt", operator.gt), dispatched("ge", operator.ge)

    def __float__(self) -> float:
        return float(self.data.item())

    def __bool__(self) -> bool:
        return bool(self.data.item())

    def __index__(self) -> int:
        return int(self.data.item())


tensor = Array


def arange(*args: Any) -> Array:
    return Array(np.arange(*args))


def full_like(x: Any, value: float) -> Any:
    return dispatched("full_like", lambda x, value: np.full_like(x, value))(x, value)


NAMES: Sequence[str] = ("where", "tanh", "abs", "exp2", "minimum", "maximum", "logical_and", "logical_or", "logical_not")
where, tanh, abs, exp2, minimum, maximum, logical_and, logical_or, logical_not = (
    dispatched(name, getattr(np, name)) for name in NAMES
)
clamp = dispatched("clamp", lambda x, min=None, max=None: np.clip(x, min, max))

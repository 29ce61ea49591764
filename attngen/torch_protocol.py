"""Which torch functions and methods work on traced values. Torch itself is never imported: it hands over the function called.

The names are torch's; NumPy's methods of the same names work too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from attngen import arithmetic
from attngen.arithmetic import Operand
from attngen.ir import build
from attngen.ir import elementwise as ew
from attngen.ir.core import Value
from attngen.ir.diagnostics import Error
from attngen.ir.types import F32, I1, I32, I64, ElementType
from attngen.numpy_protocol import FUNCTIONS, UFUNCS, Function
from attngen.specs import read_dtype
from attngen.tracing import user_error


def _clamp(x: Operand, min: Operand | None = None, max: Operand | None = None) -> Value:
    for cls, limit in ((ew.Max, min), (ew.Min, max)):
        x = x if limit is None else arithmetic.binary(cls, x, limit)
    return arithmetic.lift(x, arithmetic.common(x))


def _divide(a: Operand, b: Operand, rounding_mode: str | None = None) -> Value:
    if rounding_mode is None:
        return arithmetic.divide(a, b)
    if rounding_mode == "floor":
        return arithmetic.binary(ew.FloorDiv, a, b)
    raise user_error(f"a division of traced values rounds by floor, not by {rounding_mode!r}")


def _scaled(cls: type[ew.Binary], a: Operand, b: Operand, alpha: Operand = 1) -> Value:
    return arithmetic.binary(cls, a, b if alpha == 1 else arithmetic.binary(ew.Mul, b, alpha))


def _clamp_min(x: Operand, min: Operand) -> Value:
    return _clamp(x, min=min)


def _clamp_max(x: Operand, max: Operand) -> Value:
    return _clamp(x, max=max)


def _fill(x: Operand, mask: Operand, value: Operand) -> Value:
    return arithmetic.select(mask, value, x)


def full_like(x: Operand, value: Operand, dtype: Any = None) -> Value:
    """A number with the axes of x."""
    assert isinstance(x, Value)
    number = arithmetic.lift(value, x.element if dtype is None else element_of(dtype))
    return build.expand(number, axes=x.tensor.axes)


def _not_a_number(x: Operand) -> Value:
    return arithmetic.compare("ne", x, x)


def _infinite(x: Operand) -> Value:
    return arithmetic.compare("eq", arithmetic.signed(ew.Abs, arithmetic.as_float(x)), math.inf)


def cast(x: Operand, to: Any = None, dtype: Any = None) -> Value:
    """`x.to(dtype)`, `x.astype(dtype)`, `x.type_as(other)`; a device says nothing."""
    wanted = to if dtype is None else dtype
    if wanted is None or isinstance(wanted, str) and wanted.partition(":")[0] in ("cpu", "cuda", "meta"):
        return arithmetic.lift(x, arithmetic.common(x))
    return arithmetic.lift(x, wanted.element if isinstance(wanted, Value) else element_of(wanted))


def element_of(dtype: Any) -> ElementType:
    """The element type of a dtype of torch or NumPy, or of its name."""
    name = str(dtype).removeprefix("torch.")
    try:
        return read_dtype(name if name != str(dtype) else dtype, "dtype")
    except Error as e:
        raise user_error(str(e)) from None


def _truth(x: Operand) -> Value:
    return x if isinstance(x, Value) and x.element is I1 else arithmetic.compare("ne", x, 0)


def _to(element: ElementType) -> Function:
    return partial(cast, to=element.value)


_UNARY: Mapping[str, type[ew.Unary]] = {
    "exp": ew.Exp,
    "exp2": ew.Exp2,
    "log": ew.Log,
    "log2": ew.Log2,
    "tanh": ew.Tanh,
    "sigmoid": ew.Sigmoid,
    "sqrt": ew.Sqrt,
    "rsqrt": ew.Rsqrt,
    "floor": ew.Floor,
    "round": ew.Round,
}

_RENAMED: Mapping[str, Callable[..., Any]] = {
    "true_divide": np.true_divide,
    "truediv": np.true_divide,
    "floordiv": np.floor_divide,
    "floor_divide": np.floor_divide,
    "remainder": np.remainder,
    "mod": np.remainder,
    "pow": np.power,
    "square": np.square,
    "reciprocal": np.reciprocal,
    "neg": np.negative,
    "negative": np.negative,
    "abs": np.absolute,
    "absolute": np.absolute,
    "mul": np.multiply,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "eq": np.equal,
    "ne": np.not_equal,
    "not_equal": np.not_equal,
    "lt": np.less,
    "less": np.less,
    "le": np.less_equal,
    "less_equal": np.less_equal,
    "gt": np.greater,
    "greater": np.greater,
    "ge": np.greater_equal,
    "greater_equal": np.greater_equal,
    "and": np.logical_and,
    "logical_and": np.logical_and,
    "bitwise_and": np.logical_and,
    "or": np.logical_or,
    "logical_or": np.logical_or,
    "bitwise_or": np.logical_or,
    "xor": np.logical_xor,
    "logical_xor": np.logical_xor,
    "bitwise_xor": np.logical_xor,
    "invert": np.logical_not,
    "logical_not": np.logical_not,
    "bitwise_not": np.logical_not,
    "where": np.where,
}

NAMES: Mapping[str, Function] = {
    **{name: partial(arithmetic.unary, cls) for name, cls in _UNARY.items()},
    **{name: {**UFUNCS, **FUNCTIONS}[f] for name, f in _RENAMED.items()},
    "add": partial(_scaled, ew.Add),
    "sub": partial(_scaled, ew.Sub),
    "subtract": partial(_scaled, ew.Sub),
    "div": _divide,
    "divide": _divide,
    "clamp": _clamp,
    "clip": _clamp,
    "clamp_min": _clamp_min,
    "clamp_max": _clamp_max,
    "masked_fill": _fill,
    "full_like": full_like,
    "zeros_like": partial(full_like, value=0),
    "ones_like": partial(full_like, value=1),
    "isnan": _not_a_number,
    "isinf": _infinite,
}
"""Functions, by torch's names."""

METHODS: Mapping[str, Function] = {
    **{name: f for name, f in NAMES.items() if name not in ("and", "or", "mod", "where")},
    "to": cast,
    "astype": cast,
    "type_as": cast,
    "float": _to(F32),
    "double": _to(ElementType.F64),
    "int": _to(I32),
    "long": _to(I64),
    "bool": _truth,
    "contiguous": cast,
}
"""Methods of traced values that are no operators."""


def find(name: str) -> Function | None:
    """The function behind a name such as `minimum`, `__mul__` or `__rsub__`."""
    plain = name.strip("_") if name.startswith("__") else name
    if plain in NAMES:
        return NAMES[plain]
    forward = NAMES.get(plain[1:]) if plain.startswith("r") else None
    if forward is None:
        return None

    def swapped(a: Operand, b: Operand) -> Value:
        return forward(b, a)

    return swapped

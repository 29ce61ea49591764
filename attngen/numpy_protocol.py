"""Which NumPy functions work on traced values, and what to write instead of the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from attngen import arithmetic
from attngen.ir import elementwise as ew
from attngen.ir.core import Value

Function = Callable[..., Value]
"""From operands (values and numbers) to a value."""


def _unary(cls: type[ew.Unary]) -> Function:
    return partial(arithmetic.unary, cls)


def _binary(cls: type[ew.Binary]) -> Function:
    return partial(arithmetic.binary, cls)


UFUNCS: Mapping[np.ufunc, Function] = {
    np.add: _binary(ew.Add),
    np.subtract: _binary(ew.Sub),
    np.multiply: _binary(ew.Mul),
    np.true_divide: arithmetic.divide,
    np.floor_divide: _binary(ew.FloorDiv),
    np.remainder: _binary(ew.Mod),
    np.maximum: _binary(ew.Max),
    np.minimum: _binary(ew.Min),
    np.power: arithmetic.power,
    np.float_power: arithmetic.power,
    np.square: partial(arithmetic.power, exponent=2),
    np.reciprocal: partial(arithmetic.divide, 1.0),
    np.negative: partial(arithmetic.signed, ew.Neg),
    np.absolute: partial(arithmetic.signed, ew.Abs),
    np.fabs: _unary(ew.Abs),
    np.exp: _unary(ew.Exp),
    np.exp2: _unary(ew.Exp2),
    np.log: _unary(ew.Log),
    np.log2: _unary(ew.Log2),
    np.tanh: _unary(ew.Tanh),
    np.sqrt: _unary(ew.Sqrt),
    np.floor: _unary(ew.Floor),
    np.rint: _unary(ew.Round),
    np.equal: partial(arithmetic.compare, "eq"),
    np.not_equal: partial(arithmetic.compare, "ne"),
    np.less: partial(arithmetic.compare, "lt"),
    np.less_equal: partial(arithmetic.compare, "le"),
    np.greater: partial(arithmetic.compare, "gt"),
    np.greater_equal: partial(arithmetic.compare, "ge"),
    np.logical_and: partial(arithmetic.logic, ew.And),
    np.logical_or: partial(arithmetic.logic, ew.Or),
    np.logical_not: arithmetic.negation,
    np.logical_xor: arithmetic.differ,
    np.bitwise_and: partial(arithmetic.logic, ew.And),
    np.bitwise_or: partial(arithmetic.logic, ew.Or),
    np.invert: arithmetic.negation,
    np.bitwise_xor: arithmetic.differ,
}


FUNCTIONS: Mapping[Callable[..., Any], Function] = {
    np.where: arithmetic.select,
    np.clip: arithmetic.clip,  # pyright: ignore[reportUnknownMemberType]
    np.round: arithmetic.round_to,
    np.around: arithmetic.round_to,
}

_REDUCE_SUM, _REDUCE_MAX = 'attngen.reduce_sum(x, over="j")', 'attngen.reduce_max(x, over="j")'
_CONTRACT, _NAMED = (
    'attngen.contract(a, b, over="d")',
    "axes have names and no order: nothing needs to be transposed or reshaped",
)

INSTEAD: Mapping[str, str] = {
    "sum": _REDUCE_SUM,
    "add.reduce": _REDUCE_SUM,
    "mean": 'attngen.reduce_sum(x, over="j") / x.extent("j")',
    "max": _REDUCE_MAX,
    "amax": _REDUCE_MAX,
    "maximum.reduce": _REDUCE_MAX,
    "min": '-attngen.reduce_max(-x, over="j")',
    "amin": '-attngen.reduce_max(-x, over="j")',
    "minimum.reduce": '-attngen.reduce_max(-x, over="j")',
    "matmul": _CONTRACT,
    "dot": _CONTRACT,
    "einsum": _CONTRACT,
    "tensordot": _CONTRACT,
    "inner": _CONTRACT,
    "vecdot": _CONTRACT,
    "transpose": _NAMED,
    "swapaxes": _NAMED,
    "moveaxis": _NAMED,
    "reshape": _NAMED,
    "expand_dims": _NAMED,
    "arange": 'attngen.index("j")',
    "sign": "attngen.where(x > 0, 1.0, attngen.where(x < 0, -1.0, 0.0))",
    "fmax": "attngen.maximum(x, y)",
    "fmin": "attngen.minimum(x, y)",
    "expm1": "attngen.exp(x) - 1",
    "log1p": "attngen.log(1 + x)",
    "log10": "attngen.log(x) / math.log(10)",
    "logaddexp": "attngen.log(attngen.exp(x) + attngen.exp(y))",
    "shape": 'x.extent("d"), or x.axes for the names',
}
"""NumPy's name -> what says the same about traced values."""

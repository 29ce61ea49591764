"""The functions of the language of programs. Each takes traced values (elementwise ones numbers too) and returns one.

Axes are named: operands broadcast by name, and `over` says which axes are summed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from attngen import arithmetic
from attngen.ir import elementwise as ew
from attngen.ir.core import Value
from attngen.renaming import rename_axes
from attngen.tensor import Like, Tensor, apply, plain, unwrap, unwrap_traced
from attngen.tracing import user_error

Over = str | Sequence[str]
"""One or several axis names: "j", "j e" or ("j", "e")."""


def contract(a: Tensor, b: Tensor, over: Over, *, where: Like | None = None) -> Tensor:
    """The sum of products over the named axes, which both have: `contract(q, k, over="d")`. Other shared axes stay.

    where: a condition; products where it is false are left out, so that 0·NaN never happens.
    """
    return _over("contract", partial(arithmetic.contract, where=_operand(where)), over, a, b)


def score(query: Tensor, key: Tensor, over: Over) -> Tensor:
    """How similar each query is to each key: their contraction, as the step `attn.score`."""
    return _over("score", arithmetic.score, over, query, key)


def scale(x: Tensor, by: float) -> Tensor:
    """The scores times a number, as the step `attn.scale`. A traced factor multiplies with `*`."""
    if isinstance(by, Tensor):
        raise user_error("scale: by= must be a number, got a traced value", help="multiply with *")
    return apply(partial(arithmetic.scale, by=plain(by)), x)


def softmax(x: Tensor, over: Over) -> Tensor:
    """exp(x - max x) / Σ exp(x - max x) over the named axes. Where every x is -inf the result is 0."""
    return _over("softmax", arithmetic.softmax, over, x)


def weigh(weights: Tensor, value: Tensor, over: Over, *, where: Like | None = None) -> Tensor:
    """The sum of values by weight: their contraction, as the step `attn.weigh`. where: what is false takes no part."""
    return _over("weigh", partial(arithmetic.weigh, where=_operand(where)), over, weights, value)


def mask(x: Tensor, keep: Like) -> Tensor:
    """The scores where keep is true, -inf elsewhere, as the step `attn.mask`."""
    return apply(arithmetic.mask, x, keep)


def logsumexp(x: Tensor, over: Over) -> Tensor:
    """log Σ exp x over the named axes, natural logarithm. Where every x is -inf the result is -inf."""
    return _over("logsumexp", arithmetic.logsumexp, over, x)


def reduce_sum(x: Tensor, over: Over) -> Tensor:
    """The sum over the named axes; of nothing 0."""
    return _over("reduce_sum", partial(arithmetic.reduce, "sum"), over, x)


def reduce_max(x: Tensor, over: Over) -> Tensor:
    """The largest element over the named axes; of nothing -inf."""
    return _over("reduce_max", partial(arithmetic.reduce, "max"), over, x)


def _operand(where: Like | None) -> arithmetic.Operand | None:
    return None if where is None else unwrap(where)


def _over(what: str, function: Callable[..., Value], over: Over, *operands: Tensor) -> Tensor:
    def checked(*_: object) -> Value:
        values = [unwrap_traced(x, what) for x in operands]
        return function(*values, arithmetic.axes_in_order(over, values, what))

    return apply(checked, *operands)


def index(axis: str) -> Tensor:
    """The coordinate along an axis of the program's inputs: 0, 1, 2, …"""
    return apply(lambda: arithmetic.index(axis))


def where(condition: Like, a: Like, b: Like) -> Tensor:
    """a where the condition is true, b elsewhere. What is not chosen never counts, NaN included."""
    return apply(arithmetic.select, condition, a, b)


def rename(x: Tensor, **names: str) -> Tensor:
    """The same computation with axes renamed: `rename(x, i="j")` is x with its axis i called j.

    Arrays that x is computed from are read under the new names: so one array gives queries and keys.
    """
    return apply(partial(rename_axes, names=names), x)


# ---------------------------------------------------------------- elementwise


def exp(x: Like) -> Tensor:
    """e to the power of x."""
    return apply(partial(arithmetic.unary, ew.Exp), x)


def exp2(x: Like) -> Tensor:
    """2 to the power of x."""
    return apply(partial(arithmetic.unary, ew.Exp2), x)


def log(x: Like) -> Tensor:
    """The natural logarithm."""
    return apply(partial(arithmetic.unary, ew.Log), x)


def log2(x: Like) -> Tensor:
    """The logarithm to base 2."""
    return apply(partial(arithmetic.unary, ew.Log2), x)


def tanh(x: Like) -> Tensor:
    """The hyperbolic tangent."""
    return apply(partial(arithmetic.unary, ew.Tanh), x)


def sigmoid(x: Like) -> Tensor:
    """1 / (1 + exp(-x))."""
    return apply(partial(arithmetic.unary, ew.Sigmoid), x)


def sqrt(x: Like) -> Tensor:
    """The square root."""
    return apply(partial(arithmetic.unary, ew.Sqrt), x)


def rsqrt(x: Like) -> Tensor:
    """1 / sqrt(x)."""
    return apply(partial(arithmetic.unary, ew.Rsqrt), x)


def floor(x: Like) -> Tensor:
    """The largest whole number that is not above x, as a float."""
    return apply(partial(arithmetic.unary, ew.Floor), x)


def round(x: Like) -> Tensor:
    """The nearest whole number, ties to even, as a float."""
    return apply(partial(arithmetic.unary, ew.Round), x)


def abs(x: Like) -> Tensor:
    """The absolute value."""
    return apply(partial(arithmetic.signed, ew.Abs), x)


def maximum(a: Like, b: Like) -> Tensor:
    """The larger of two; NaN if either is."""
    return apply(partial(arithmetic.binary, ew.Max), a, b)


def minimum(a: Like, b: Like) -> Tensor:
    """The smaller of two; NaN if either is."""
    return apply(partial(arithmetic.binary, ew.Min), a, b)

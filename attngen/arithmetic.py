"""Arithmetic on what a traced program handles: values of the IR and plain numbers, of mixed element types.

Numbers are weak: they take the element type of the values they meet. Of two element types the wider wins, a float over an
integer, f32 over f16 with bf16. An integer that needs to be a float becomes the program's float.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from attngen.ir import attn, build
from attngen.ir import elementwise as ew
from attngen.ir.core import Value
from attngen.ir.types import BF16, F16, F32, I1, I64, ElementType
from attngen.names import kind_of, suggest
from attngen.tracing import current, user_error

Number = bool | int | float
Operand = Value | Number

_WIDTH = [ElementType.I1, ElementType.I8, ElementType.I32, ElementType.I64, ElementType.INDEX, F16, BF16, F32, ElementType.F64]


def join(elements: Sequence[ElementType]) -> ElementType:
    """The element type that values of these types are computed in together."""
    if F16 in elements and BF16 in elements and ElementType.F64 not in elements:
        return F32
    return max(elements, key=_WIDTH.index)


def common(*operands: Operand) -> ElementType:
    """The element type of an operation: that of the values, but no number may lose its fraction."""
    elements = [x.element for x in operands if isinstance(x, Value)]
    numbers = [x for x in operands if not isinstance(x, Value)]
    joined = join(elements) if elements else I1
    if joined.is_float or all(isinstance(x, bool) for x in numbers):
        return joined
    if any(isinstance(x, float) for x in numbers):
        return current().default_float
    return I64 if joined is I1 else joined


def lift(x: Operand, element: ElementType) -> Value:
    """The operand as a value of this element type."""
    if isinstance(x, Value):
        return build.cast(x, element)
    check_fits(x, element)
    return build.constant(x, element)


def check_fits(x: Number, element: ElementType) -> None:
    if element.is_float:
        try:
            with np.errstate(over="ignore"):
                overflows = math.isfinite(x) and math.isinf(float(element.accumulator.numpy.type(x)))
        except OverflowError:  # a whole number that is no float of any size
            overflows = True
    else:
        bits = 1 if element is I1 else 8 * element.bytes - 1
        overflows = not (0 if element is I1 else -(2**bits)) <= x < 2**bits
    if overflows:
        shown = x if abs(x) < 10**40 else "given" if isinstance(x, int) else f"{x:g}"
        raise user_error(
            f"the number {shown} does not fit {element}", help="convert the values to a wider type, or use math.inf"
        )


def lifted(*operands: Operand) -> list[Value]:
    element = common(*operands)
    return [lift(x, element) for x in operands]


def as_float(x: Operand) -> Value:
    """The operand as a float: as it is if it is one, else the program's float."""
    if isinstance(x, Value) and x.element.is_float:
        return x
    return lift(x, current().default_float)


def as_accumulator(x: Operand) -> Value:
    value = as_float(x)
    return build.cast(value, value.element.accumulator)


# ---------------------------------------------------------------- elementwise


def unary(cls: type[ew.Unary], x: Operand) -> Value:
    return build.unary(cls, as_float(x))


def signed(cls: type[ew.Unary], x: Operand) -> Value:
    """neg and abs, which integers have too."""
    return build.unary(cls, *lifted(x))


def binary(cls: type[ew.Binary], a: Operand, b: Operand) -> Value:
    return build.binary(cls, *lifted(a, b))


def divide(a: Operand, b: Operand) -> Value:
    element = common(a, b)
    element = element if element.is_float else current().default_float
    return build.div(lift(a, element), lift(b, element))


def compare(predicate: str, a: Operand, b: Operand) -> Value:
    return build.compare(predicate, *lifted(a, b))


def logic(cls: type[ew.Binary], a: Operand, b: Operand) -> Value:
    return build.binary(cls, truth(a), truth(b))


def negation(x: Operand) -> Value:
    return build.unary(ew.Not, truth(x))


def differ(a: Operand, b: Operand) -> Value:
    """Exclusive or."""
    return build.compare("ne", truth(a), truth(b))


def truth(x: Operand) -> Value:
    if isinstance(x, Value) and x.element is I1 or isinstance(x, bool):
        return lift(x, I1)
    given = x.element if isinstance(x, Value) else repr(x)
    raise user_error(f"& | ^ ~ combine conditions, not {given}", help="compare first: (x > 0) & (y > 0)")


def condition(x: Operand, what: str) -> Value:
    if not (isinstance(x, Value) and x.element is I1 or isinstance(x, bool)):
        given = x.element if isinstance(x, Value) else repr(x)
        raise user_error(f"{what}: the condition must be true or false, not {given}", help="compare first: x > 0")
    return lift(x, I1)


def select(keep: Operand, a: Operand, b: Operand) -> Value:
    return build.select(condition(keep, "where"), *lifted(a, b))


LARGEST_POWER = 16


def power(x: Operand, exponent: Operand) -> Value:
    """x ** n for whole n by multiplication; ±0.5 by square root; a positive number to the power of a value by exp2."""
    if not isinstance(exponent, Value):
        if exponent in (0.5, -0.5):
            return unary(ew.Sqrt if exponent > 0 else ew.Rsqrt, x)
        if abs(exponent) <= LARGEST_POWER and exponent == int(exponent):
            n = int(exponent)
            if n < 0:
                return divide(1.0, whole_power(as_float(x), -n))
            return whole_power(lift(x, common(x)), n)
    elif not isinstance(x, Value) and 0 < x < math.inf:
        return unary(ew.Exp2, exponent if x == 2 else binary(ew.Mul, as_float(exponent), math.log2(x)))
    raise user_error(
        f"** takes whole exponents up to {LARGEST_POWER}, 0.5 and -0.5, or a positive number as its base",
        help="for positive x write attngen.exp2(p * attngen.log2(x))",
    )


def whole_power(x: Value, n: int) -> Value:
    if n == 0:
        return build.expand(build.constant(1, x.element), axes=x.tensor.axes)
    if n == 1:
        return x
    half = whole_power(x, n // 2)
    square = build.mul(half, half)
    return build.mul(square, x) if n % 2 else square


def round_to(x: Operand, digits: Operand = 0) -> Value:
    if isinstance(digits, Value) or digits != 0:
        raise user_error("a traced value is rounded to whole numbers", help="for two digits write attngen.round(x * 100) / 100")
    return unary(ew.Round, x)


def clip(x: Operand, low: Operand, high: Operand) -> Value:
    return binary(ew.Min, binary(ew.Max, x, low), high)


# ---------------------------------------------------------------- products and reductions


def contract(a: Value, b: Value, over: tuple[str, ...], where: Operand | None = None) -> Value:
    return build.contract(*floats(a, b), over, kept(where))


def score(query: Value, key: Value, over: tuple[str, ...]) -> Value:
    query, key = floats(query, key)
    return attn.Score(query=query, key=key, over=over).result


def weigh(weights: Value, value: Value, over: tuple[str, ...], where: Operand | None = None) -> Value:
    weights, value = floats(as_accumulator(weights), as_float(value))
    return attn.Weigh(weights=weights, value=value, keep=kept(where), over=over).result


def kept(where: Operand | None) -> Value | None:
    """The mask of a sum of products; none at all where it is plainly true."""
    return None if where is None or where is True else condition(where, "where=")


def mask(x: Operand, keep: Operand) -> Value:
    return attn.Mask(value=as_float(x), keep=condition(keep, "mask")).result


def scale(x: Operand, by: object) -> Value:
    value = as_float(x)
    if not isinstance(by, int | float):
        raise user_error(f"scale: by= must be a number, got a {kind_of(by)}")
    check_fits(by, value.element)
    return attn.Scale(value=value, by=float(by)).result


def softmax(x: Value, over: tuple[str, ...]) -> Value:
    return attn.Softmax(value=as_accumulator(x), over=over).result


def logsumexp(x: Value, over: tuple[str, ...]) -> Value:
    return attn.logsumexp(as_accumulator(x), over)


def reduce(kind: str, x: Value, over: tuple[str, ...]) -> Value:
    return build.reduce(kind, as_float(x), over)


def floats(a: Value, b: Value) -> tuple[Value, Value]:
    element = join([a.element, b.element])
    element = element if element.is_float else current().default_float
    return lift(a, element), lift(b, element)


def index(axis: object) -> Value:
    known = current().extents
    if not isinstance(axis, str):
        raise user_error(f"index: expected the name of an axis, got {axis!r}", help='write attngen.index("j")')
    if axis not in known:
        raise user_error(f"index: no parameter of this program has an axis {axis!r}", help=suggest(axis, known, "its axes are"))
    return build.index(axis, known[axis])


def axes_in_order(over: object, operands: Sequence[Value], what: str) -> tuple[str, ...]:
    """`"j e"` or `("j", "e")` as axis names; each must be an axis of every operand."""
    given: list[Any] = over.split() if isinstance(over, str) else [*over] if isinstance(over, tuple | list) else [over]  # pyright: ignore[reportUnknownVariableType]
    names = tuple(str(name) for name in given)
    if not all(isinstance(name, str) for name in given):
        raise user_error(f"{what}: over= takes names of axes, got {over!r}", help='write over="j" or over=("j", "e")')
    if not names:
        raise user_error(f"{what}: over= names no axis", help='give axis names, such as over="j" or over=("j", "e")')
    for name in names:
        if names.count(name) > 1:
            raise user_error(f"{what}: over= names axis {name} twice")
        for v in operands:
            if name not in v.names:
                which = v.hint or ("an operand" if len(operands) > 1 else "the value")
                raise user_error(f"{what}: {which} has no axis {name!r}", help=suggest(name, v.names, "its axes are"))
    return names

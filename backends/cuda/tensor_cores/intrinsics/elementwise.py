"""Elementwise ops on tiles: one scalar instruction, or a few, for each register."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from attngen.backends.cuda.tensor_cores.intrinsics.emitter import F32, I8, I32, I64, Emitter, intrinsic
from attngen.backends.cuda.tensor_cores.tiles import Carrier, Tile

Scalar = Callable[[Emitter, list[Any]], Any]

INTEGERS = ("i32", "i64")


def unary(text: str) -> Scalar:
    return lambda e, a: e.asm(f"{text} $0, $1;", [F32], a)


def binary(text: str) -> Scalar:
    return lambda e, a: e.asm(f"{text} $0, $1, $2;", [F32], a)


def python(function: Callable[[float], float]) -> Scalar:
    return lambda e, a: e.python(function, "f32", ["f32"], a)


def exp(x: float) -> float:
    return math.exp(x)


def log(x: float) -> float:
    return math.log(x)


def log2(x: float) -> float:
    return math.log2(x)


def tanh(x: float) -> float:
    return math.tanh(x)


def sigmoid(e: Emitter, a: list[Any]) -> Any:
    """1 / (1 + 2^(-x · log2 e)): 1 plus something is at least 1, so the reciprocal is near to exact."""
    power = e.asm("ex2.approx.ftz.f32 $0, $1;", [F32], [e.b.fmul(a[0], e.f32(-math.log2(math.e)))])
    return e.asm("rcp.approx.ftz.f32 $0, $1;", [F32], [e.b.fadd(power, e.f32(1.0))])


FLOATS: Mapping[str, Scalar] = {
    "nd.add": lambda e, a: e.b.fadd(*a),
    "nd.sub": lambda e, a: e.b.fsub(*a),
    "nd.mul": lambda e, a: e.b.fmul(*a),
    "nd.div": binary("div.full.f32"),  # two ulp; div.rn is a call, and calls make wgmma wait for each other
    "nd.max": binary("max.NaN.f32"),
    "nd.min": binary("min.NaN.f32"),
    "nd.neg": lambda e, a: e.b.fsub(e.f32(-0.0), a[0]),  # NVVM refuses fneg
    "nd.abs": unary("abs.f32"),
    "nd.exp2": unary("ex2.approx.ftz.f32"),
    "nd.exp": python(exp),
    "nd.log": python(log),
    "nd.log2": python(log2),
    "nd.tanh": python(tanh),
    "nd.sigmoid": sigmoid,
    "nd.sqrt": unary("sqrt.rn.f32"),
    "nd.rsqrt": unary("rsqrt.approx.f32"),
    "nd.floor": unary("cvt.rmi.f32.f32"),
    "nd.round": unary("cvt.rni.f32.f32"),
}


def extreme(predicate: str) -> Scalar:
    return lambda e, a: e.b.select(e.b.icmp_signed(predicate, *a), *a)


def absolute(e: Emitter, a: list[Any]) -> Any:
    zero = a[0].type(0)
    return e.b.select(e.b.icmp_signed("<", a[0], zero), e.b.sub(zero, a[0]), a[0])


def divided(e: Emitter, a: list[Any]) -> tuple[Any, Any]:
    """Quotient and remainder rounded towards minus infinity; 0 where the divisor is 0, as NumPy has it."""
    x, y = a
    zero, one = x.type(0), x.type(1)
    none = e.b.icmp_signed("==", y, zero)
    y = e.b.select(none, one, y)
    quotient, rest = e.b.sdiv(x, y), e.b.srem(x, y)
    differ = e.b.icmp_signed("<", e.b.xor(rest, y), zero)
    below = e.b.and_(differ, e.b.icmp_signed("!=", rest, zero))
    quotient = e.b.sub(quotient, e.b.zext(below, x.type))
    rest = e.b.add(rest, e.b.select(below, y, zero))
    return e.b.select(none, zero, quotient), e.b.select(none, zero, rest)


WHOLE: Mapping[str, Scalar] = {
    "nd.add": lambda e, a: e.b.add(*a),
    "nd.sub": lambda e, a: e.b.sub(*a),
    "nd.mul": lambda e, a: e.b.mul(*a),
    "nd.max": extreme(">="),
    "nd.min": extreme("<="),
    "nd.neg": lambda e, a: e.b.sub(a[0].type(0), a[0]),
    "nd.abs": absolute,
    "nd.floordiv": lambda e, a: divided(e, a)[0],
    "nd.mod": lambda e, a: divided(e, a)[1],
}

TRUTHS: Mapping[str, Scalar] = {
    "nd.and": lambda e, a: e.b.and_(*a),
    "nd.or": lambda e, a: e.b.or_(*a),
    "nd.not": lambda e, a: e.b.not_(a[0]),
}

SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def is_float(element: Carrier) -> bool:
    return element in ("f32", "f16", "bf16")


def widened(e: Emitter, x: Any, to: Any) -> Any:
    """An integer as one of another width."""
    if x.type.width == to.width:
        return x
    return e.b.sext(x, to) if x.type.width < to.width else e.b.trunc(x, to)


def whole_type(element: Carrier) -> Any:
    return I64 if element == "i64" else I32


def compared(e: Emitter, predicate: str, a: list[Any], element: Carrier) -> Any:
    sign = SIGNS[predicate]
    if is_float(element):
        return e.b.fcmp_unordered(sign, *a) if predicate == "ne" else e.b.fcmp_ordered(sign, *a)
    if element == "i1":
        a = [e.b.zext(x, I32) for x in a]
    return e.b.icmp_signed(sign, *a)


def converted(e: Emitter, x: Any, source: Carrier, to: Carrier, narrow: bool) -> Any:
    """A number as another type has it; floats to integers towards zero."""
    if is_float(source):
        if is_float(to):
            return x
        if to == "i1":
            return e.b.fcmp_unordered("!=", x, e.f32(0.0))
        bits = 64 if to == "i64" else 32
        x = e.asm(f"cvt.rzi.s{bits}.f32 $0, $1;", [whole_type(to)], [x])
    elif is_float(to):
        return e.b.uitofp(x, F32) if source == "i1" else e.b.sitofp(x, F32)
    elif to == "i1":
        return x if source == "i1" else e.b.icmp_signed("!=", x, x.type(0))
    else:
        x = e.b.zext(x, whole_type(to)) if source == "i1" else widened(e, x, whole_type(to))
    return narrowed(e, x) if narrow else x


def narrowed(e: Emitter, x: Any) -> Any:
    """An integer as 8 bits hold it."""
    return e.b.sext(e.b.trunc(x, I8), x.type)


def elementwise(name: str, op: str, predicate: str, narrow: bool, result: Tile, operands: tuple[Tile, ...]) -> Any:
    """The op on tiles that broadcast to the result's. narrow: the result has 8 bits."""

    def scalar(e: Emitter, a: list[Any]) -> Any:
        kinds: list[Carrier] = [t.element for t in operands]
        if op == "nd.cast":
            return converted(e, a[0], kinds[0], result.element, narrow)
        if op == "nd.compare":
            wide: Carrier = "i64" if "i64" in kinds else kinds[0]
            a = [widened(e, x, whole_type(wide)) for x in a] if wide in INTEGERS else a
            return compared(e, predicate, a, wide)
        first = a.pop(0) if op == "nd.select" else None
        if result.element in INTEGERS:
            a = [widened(e, x, whole_type(result.element)) for x in a]
        if first is not None:
            return e.b.select(first, *a)
        table = FLOATS if is_float(result.element) else TRUTHS if result.element == "i1" else WHOLE
        made = table[op](e, a)
        return narrowed(e, made) if narrow else made

    def body(e: Emitter, *values: Any) -> Any:
        each = [*zip(values, operands, strict=True)]
        return e.tile(result, [scalar(e, [e.get(item, t, at) for item, t in each]) for at in result.places()])

    return intrinsic(name, result, operands, body)


def spread(name: str, operand: Tile, result: Tile) -> Any:
    """A value repeated along more axes, or an integer of another width."""

    def body(e: Emitter, value: Any) -> Any:
        elements = [e.get(value, operand, at) for at in result.places()]
        if result.element in INTEGERS:
            elements = [widened(e, x, whole_type(result.element)) for x in elements]
        return e.tile(result, elements)

    return intrinsic(name, result, [operand], body)


def again(name: str, tile: Tile) -> Any:
    """(number) -> the same, of which the compiler does not know that it is the same."""

    def body(e: Emitter, x: Any) -> Any:
        return e.asm("mov.b32 $0, $1;", [x.type], [x], effect=True)

    return intrinsic(name, tile, [tile], body)

"""Ops on numbers as source text, and which values are computed wherever they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from attngen.backends import Unsupported
from attngen.ir import elementwise as ew
from attngen.ir.core import Op
from attngen.ir.nd import Constant, Expand, Index
from attngen.ir.types import BF16, F16, F32, F64, I1, I8, I32, I64, INDEX, ElementType, round_bf16

TEXT: Mapping[type[Op], str] = {
    ew.Add: "{0} + {1}",
    ew.Sub: "{0} - {1}",
    ew.Mul: "{0} * {1}",
    ew.Div: "divide({0}, {1})",
    ew.Max: "maximum({0}, {1})",
    ew.Min: "minimum({0}, {1})",
    ew.Neg: "negative({0})",
    ew.Abs: "absolute({0})",
    ew.FloorDiv: "floordiv({0}, {1})",
    ew.Mod: "mod({0}, {1})",
    ew.Floor: "floor({0})",
    ew.Round: "rint({0})",
    ew.Exp: "exp({0})",
    ew.Exp2: "exp2({0})",
    ew.Log: "log({0})",
    ew.Log2: "log2({0})",
    ew.Tanh: "tanh({0})",
    ew.Sigmoid: "sigmoid({0})",
    ew.Sqrt: "sqrt({0})",
    ew.Rsqrt: "rsqrt({0})",
    ew.And: "{0} & {1}",
    ew.Or: "{0} | {1}",
    ew.Not: "not {0}",
    ew.Select: "select({0}, {1}, {2})",
}
SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}

QUICK = (
    *(ew.Add, ew.Sub, ew.Mul, ew.Neg, ew.Abs, ew.Max, ew.Min, ew.FloorDiv, ew.Mod),
    *(ew.Compare, ew.And, ew.Or, ew.Not, ew.Select, ew.Cast, Constant, Index, Expand),
)
"""Ops that a value may be made of that is computed again wherever it is read, instead of being stored: masks, distances."""
MOST_QUICK = 16

REGISTER = {F16: F32, BF16: F32, INDEX: I64}
"""Element types whose numbers are those of another one while they are computed with."""
CALLED = {F64: "f64", F32: "f32", I64: "i64", I32: "i32", I8: "i8"}


def literal(value: float, element: ElementType) -> str:
    """A constant of this type. (Without the type around it, Numba takes 0.5 for a float of 64 bits.)"""
    if element is I1:
        return str(bool(value))
    if not element.is_float:
        number = str(int(value))
        return number if element is INDEX else f"{CALLED[element]}({number})"
    if element is F16:
        with np.errstate(over="ignore"):
            value = float(np.float16(value))
    if element is BF16:
        value = float(round_bf16(value))
    return f"{CALLED[REGISTER.get(element, element)]}({float(value)!r})"


def cast(text: str, source: ElementType, to: ElementType) -> str:
    """Floats round to nearest even; to an integer, towards zero; to i1, whether it is not 0."""
    have, want = REGISTER.get(source, source), REGISTER.get(to, to)
    if to is I1:
        return text if source is I1 else f"{text} != {literal(0, source)}"
    if to in (F16, BF16):
        if source is to:
            return text
        return f"round_{to}({text if have in (F32, F64) else f'f32({text})'})"
    return text if have is want else f"{CALLED[want]}({text})"


def elementwise(op: Op, args: Sequence[str]) -> str:
    """An elementwise op as an expression."""
    element = op.results[0].element
    if isinstance(op, ew.Cast):
        return cast(args[0], op.value.element, op.to)
    if isinstance(op, ew.Compare):
        return f"{args[0]} {SIGNS[op.predicate]} {args[1]}"
    if type(op) not in TEXT:
        help = "write it with the ops of `nd`, or choose target cpu or numpy"
        raise Unsupported("backend cuda", f"does not know {op.name}", loc=op.loc, ir=repr(op)[1:-1], help=help)
    text = TEXT[type(op)].format(*args)
    if isinstance(op, ew.Select):
        return text
    if element in (F16, BF16):
        return f"round_{element}({text})"
    if element in (I8, I32) and isinstance(op, ew.Add | ew.Sub | ew.Mul):
        return f"{CALLED[element]}({text})"  # Numba computes in 64 bits
    return text


def combined(kind: str, x: str, y: str) -> str:
    """One step of a reduction."""
    return f"{x} + {y}" if kind == "sum" else f"{kind}imum({x}, {y})"

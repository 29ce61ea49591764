"""What each elementwise op is in LLVM, on scalars and vectors alike.

No fast-math flags: infinities and NaN keep their meaning, and products and sums round separately.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attngen.backends.cpu import functions, half
from attngen.backends.cpu.functions import is_float, like
from attngen.backends.cpu.vector import BIT, REGISTER, Code, Ir, ll
from attngen.ir import elementwise as ew
from attngen.ir.core import Op
from attngen.ir.types import F32, ElementType


def extremum(sign: str) -> Callable[[Code, Ir, Ir], Ir]:
    """Maximum (">") or minimum ("<"): NaN if either is. One vector instruction keeps the NaN of the second operand, a test
    that of the first."""

    def build(c: Code, x: Ir, y: Ir) -> Ir:
        if not is_float(x):
            return c.b.select(c.b.icmp_signed(sign, x, y), x, y)
        larger = c.b.select(c.b.fcmp_ordered(sign, x, y), x, y)
        return c.b.select(c.b.fcmp_unordered("uno", x, x), x, larger)

    return build


maximum, minimum = extremum(">"), extremum("<")


def combine(c: Code, kind: str, x: Ir, *values: Ir) -> Ir:
    """Some steps of a reduction from x on. Extrema look for NaN in pairs of values at once: a NaN in x stays, since of an
    unordered pair the second is chosen."""
    if kind == "sum":
        return c.b.fadd(x, tree(c.b.fadd, values))
    if not is_float(x):
        if getattr(x.type, "element", x.type) == BIT:
            return tree(c.b.or_ if kind == "max" else c.b.and_, (x, *values))
        return tree(lambda a, b: (maximum if kind == "max" else minimum)(c, a, b), (x, *values))
    if len(values) == 1:
        return (maximum if kind == "max" else minimum)(c, values[0], x)

    def further(a: Ir, b: Ir) -> Ir:
        return c.b.select(c.b.fcmp_ordered(">" if kind == "max" else "<", a, b), a, b)

    pairs = zip(values[::2], (*values[1::2], values[-1]), strict=False)
    wrong = tree(c.b.or_, [c.b.fcmp_unordered("uno", a, b) for a, b in pairs])
    return c.b.select(wrong, c.constant(math.nan, x.type), further(tree(further, values), x))


def tree(join: Callable[[Ir, Ir], Ir], values: Sequence[Ir]) -> Ir:
    """The values joined pairwise, so that few wait for each other."""
    left = list(values)
    while len(left) > 1:
        left = [*(join(a, b) for a, b in zip(left[::2], left[1::2], strict=False)), *left[len(left) // 2 * 2 :]]
    return left[0]


def divide_floor(c: Code, x: Ir, y: Ir) -> tuple[Ir, Ir]:
    """(x // y, x % y) as Python has them. By 0, integers give 0; floats what x / y gives, and NaN."""
    b, kind = c.b, x.type
    zero, one = c.constant(0.0 if is_float(x) else 0, kind), c.constant(1.0 if is_float(x) else 1, kind)
    if is_float(x):
        rest = b.frem(x, y)
        wrong = b.and_(b.fcmp_unordered("!=", rest, zero), b.xor(b.fcmp_ordered("<", y, zero), b.fcmp_ordered("<", rest, zero)))
        quotient = b.fdiv(b.fsub(x, rest), y)
        quotient = c.intrinsic("roundeven", b.select(wrong, b.fsub(quotient, one), quotient))
        rest = b.select(wrong, b.fadd(rest, y), rest)
        rest = b.select(b.fcmp_ordered("==", rest, zero), c.intrinsic("copysign", zero, y), rest)
        return b.select(b.fcmp_ordered("==", y, zero), b.fdiv(x, y), quotient), rest
    # A division that the processor would stop at is replaced by one that it does not: x / -1 is -x.
    by_zero, by_minus = b.icmp_signed("==", y, zero), b.icmp_signed("==", y, c.constant(-1, kind))
    safe = b.select(b.or_(by_zero, by_minus), one, y)
    quotient, rest = b.sdiv(x, safe), b.srem(x, safe)
    wrong = b.and_(b.icmp_signed("!=", rest, zero), b.xor(b.icmp_signed("<", rest, zero), b.icmp_signed("<", safe, zero)))
    quotient, rest = b.select(wrong, b.sub(quotient, one), quotient), b.select(wrong, b.add(rest, safe), rest)
    quotient = b.select(by_minus, b.sub(zero, x), b.select(by_zero, zero, quotient))
    return quotient, b.select(b.or_(by_zero, by_minus), zero, rest)


def compare(c: Code, op: ew.Compare, x: Ir, y: Ir) -> Ir:
    sign = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}[op.predicate]
    if is_float(x):
        return c.b.fcmp_unordered(sign, x, y) if op.predicate == "ne" else c.b.fcmp_ordered(sign, x, y)
    return (c.b.icmp_unsigned if op.lhs.element is ElementType.I1 else c.b.icmp_signed)(sign, x, y)


def cast(c: Code, x: Ir, source: ElementType, to: ElementType) -> Ir:
    """Floats round to nearest even; to an integer, towards zero; to i1, whether it is not 0."""
    if source is to:
        return x
    if source in half.HALVES:
        return cast(c, half.widen(c, x, source), F32, to)
    if to in half.HALVES:
        # No integer that f32 does not hold exactly is within f16; for bf16 NumPy rounds by f32 as well.
        return half.from_float(c, x, source, to) if source.is_float else cast(c, cast(c, x, source, F32), F32, to)
    b, kind = c.b, like(x.type, REGISTER[to.value])
    if kind == x.type:
        return x
    if to is ElementType.I1:
        zero = ll.Constant(x.type, None)
        return b.fcmp_unordered("!=", x, zero) if source.is_float else b.icmp_signed("!=", x, zero)
    if source is ElementType.I1:
        return b.uitofp(x, kind) if to.is_float else b.zext(x, kind)
    if source.is_float and to.is_float:
        return b.fpext(x, kind) if to.bytes > source.bytes else b.fptrunc(x, kind)
    if source.is_float:
        return b.fptosi(x, kind)
    if to.is_float:
        return b.sitofp(x, kind)
    return b.sext(x, kind) if to.bytes > source.bytes else b.trunc(x, kind)


def instruction(floats: str, integers: str = "") -> Callable[..., Ir]:
    """The builder's method of this name; another one for integers where it is given."""

    def build(c: Code, *args: Ir) -> Ir:
        return getattr(c.b, floats if not integers or is_float(args[0]) else integers)(*args)

    return build


def calling(name: str) -> Callable[[Code, Ir], Ir]:
    def build(c: Code, x: Ir) -> Ir:
        return c.intrinsic(name, x)

    return build


def negative(c: Code, x: Ir) -> Ir:
    return c.b.fneg(x) if is_float(x) else c.b.neg(x)


def absolute(c: Code, x: Ir) -> Ir:
    if is_float(x):
        return c.intrinsic("fabs", x)
    return c.b.select(c.b.icmp_signed("<", x, ll.Constant(x.type, None)), c.b.neg(x), x)


def floor_divide(c: Code, x: Ir, y: Ir) -> Ir:
    return divide_floor(c, x, y)[0]


def modulo(c: Code, x: Ir, y: Ir) -> Ir:
    return divide_floor(c, x, y)[1]


def inverse_root(c: Code, x: Ir) -> Ir:
    return c.b.fdiv(c.constant(1.0, x.type), c.intrinsic("sqrt", x))


def invert(c: Code, x: Ir) -> Ir:
    return c.b.xor(x, c.constant(1, like(x.type, BIT)))


BUILD: Mapping[type[Op], Callable[..., Ir]] = {
    ew.Add: instruction("fadd", "add"),
    ew.Sub: instruction("fsub", "sub"),
    ew.Mul: instruction("fmul", "mul"),
    ew.Div: instruction("fdiv"),
    ew.Max: maximum,
    ew.Min: minimum,
    ew.FloorDiv: floor_divide,
    ew.Mod: modulo,
    ew.Neg: negative,
    ew.Abs: absolute,
    ew.Floor: calling("floor"),
    ew.Round: calling("roundeven"),
    ew.Exp: functions.exp,
    ew.Exp2: functions.exp2,
    ew.Log: functions.log,
    ew.Log2: functions.log2,
    ew.Tanh: functions.tanh,
    ew.Sqrt: calling("sqrt"),
    ew.Rsqrt: inverse_root,
    ew.Sigmoid: functions.sigmoid,
    ew.And: instruction("and_"),
    ew.Or: instruction("or_"),
    ew.Not: invert,
    ew.Select: instruction("select"),
}


def build(c: Code, op: Op, args: list[Any]) -> Ir:
    """One op of a chain."""
    if isinstance(op, ew.Cast):
        return cast(c, args[0], op.value.element, op.to)
    args = [half.widened(c, x, value.element) for x, value in zip(args, op.operands, strict=True)]
    if isinstance(op, ew.Compare):
        return compare(c, op, *args)
    return half.narrowed(c, BUILD[type(op)](c, *args), op.results[0].element)

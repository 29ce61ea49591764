"""What each elementwise op is in LLVM, on scalars and vectors alike.

No fast-math flags: infinities and NaN keep their meaning, and products and sums round separately.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attngen.backends.cpu.vector import BIT, I32, REGISTER, Code, Ir, ll
from attngen.ir import elementwise as ew
from attngen.ir.core import Op
from attngen.ir.types import ElementType

# 2**r for |r| <= 1/2 and e**r for |r| <= ln(2)/2: f32 coefficients of least relative error (2e-9), f64 the Taylor series.
EXP2_F32 = (
    1.0,
    0.6931472028551283,
    0.24022647913619555,
    0.055503324710269274,
    0.009618437358311537,
    0.0013398874445368877,
    0.00015353361810328746,
)
EXP_F32 = (
    1.0,
    1.0000000321793956,
    0.49999994206377985,
    0.16666431191899864,
    0.04166800244827283,
    0.008374161473646731,
    0.001384364628582986,
)
EXP2_F64 = tuple(math.log(2) ** n / math.factorial(n) for n in range(14))
EXP_F64 = tuple(1 / math.factorial(n) for n in range(14))
# 2**r for 0 <= r < 1, of least relative error among polynomials that are 1 at 0: 2e-9 and 3e-16, found by iteratively
# reweighted least squares (Lawson 1961).
EXP2_UP_F32 = (
    1.0,
    0.6931470444432271,
    0.24022930555328503,
    0.05548528061466528,
    0.00967545157375626,
    0.0012467846391380525,
    0.00021612915120409532,
)
EXP2_UP_F64 = (
    1.0,
    0.6931471805599465,
    0.24022650695901054,
    0.05550410866662445,
    0.009618129090284694,
    0.0013333559109793914,
    0.00015403496737323474,
    1.5253501169029289e-05,
    1.3203973269706529e-06,
    1.0289886646429374e-07,
    6.387398845877173e-09,
    6.61019847337423e-10,
)
# ln(2) in two parts: a multiple of the first by a small integer is exact.
LN2_F32, LN2_F64 = (0.693359375, -2.12194440e-4), (6.93147180369123816490e-01, 1.90821492927058770002e-10)


def is_float(x: Ir) -> bool:
    kind = x.type.element if isinstance(x.type, ll.VectorType) else x.type
    return isinstance(kind, ll.FloatType | ll.DoubleType)


def is_single(x: Ir) -> bool:
    return isinstance(x.type.element if isinstance(x.type, ll.VectorType) else x.type, ll.FloatType)


def like(kind: Ir, element: Ir) -> Ir:
    """The element type with as many lanes as `kind`."""
    return ll.VectorType(element, kind.count) if isinstance(kind, ll.VectorType) else element


# ---------------------------------------------------------------- functions


def polynomial(c: Code, x: Ir, coefficients: tuple[float, ...]) -> Ir:
    total = c.constant(coefficients[-1], x.type)
    for coefficient in reversed(coefficients[:-1]):
        total = c.intrinsic("fma", total, x, c.constant(coefficient, x.type))
    return total


def scale_by_power(c: Code, p: Ir, n: Ir) -> Ir:
    """p · 2**n for an integral n in float, by adding to the exponent; 0 for p = 1 and the n below the smallest exponent."""
    single = is_single(p)
    whole, bits = like(p.type, I32), like(p.type, I32 if single else REGISTER["i64"])
    power = c.b.fptosi(n, whole)
    power = power if single else c.b.sext(power, bits)
    power = c.b.shl(power, c.constant(23 if single else 52, bits))
    return c.b.bitcast(c.b.add(c.b.bitcast(p, bits), power), p.type)


def exp2(c: Code, x: Ir) -> Ir:
    """2**x: relative error 8e-8 in f32, 5e-16 in f64; results below the smallest normal number are 0 or correct."""
    b, kind, single = c.b, x.type, is_single(x)
    if c.target.scales and c.fills_register(kind):
        return scale_up(c, polynomial(c, above_floor(c, x), EXP2_UP_F32 if single else EXP2_UP_F64), x)
    low, high = (-126.0, 128.0) if single else (-1022.0, 1024.0)
    # Comparisons that NaN fails: it becomes a harmless number here, and comes back at the end.
    a = b.select(b.fcmp_ordered(">=", x, c.constant(low, kind)), x, c.constant(low - 1, kind))
    a = b.select(b.fcmp_ordered("<", a, c.constant(high, kind)), a, c.constant(high, kind))
    n = c.intrinsic("nearbyint", a)
    p = polynomial(c, b.fsub(a, n), EXP2_F32 if single else EXP2_F64)
    return b.select(b.fcmp_unordered("uno", x, x), x, scale_by_power(c, p, n))


def above_floor(c: Code, x: Ir) -> Ir:
    """x - floor(x); 0 for infinities. One instruction of AVX-512 (VREDUCEPS, rounding down)."""
    return c.avx512("reduce", x, x, ll.Constant(I32, 9))


def scale_up(c: Code, p: Ir, x: Ir) -> Ir:
    """p · 2**floor(x), also where that is infinite, 0 or below the normal numbers. One instruction of AVX-512 (VSCALEFPS)."""
    return c.avx512("scalef", p, p, x)


def exp(c: Code, x: Ir) -> Ir:
    """e**x = 2**n · e**r with n = round(x / ln 2), r = x - n·ln 2 in two steps (Cody and Waite 1980)."""
    b, kind, single = c.b, x.type, is_single(x)
    low, high = (-87.3365447504, 88.72283172607422) if single else (-708.3964185322641, 709.782712893384)
    bottom = c.constant(-127 * math.log(2) if single else -1023 * math.log(2), kind)
    a = b.select(b.fcmp_ordered("<", x, c.constant(high, kind)), x, c.constant(high, kind))
    a = b.select(b.fcmp_ordered(">=", a, c.constant(low, kind)), a, bottom)
    n = c.intrinsic("nearbyint", b.fmul(a, c.constant(math.log2(math.e), kind)))
    r = a
    for part in LN2_F32 if single else LN2_F64:
        r = c.intrinsic("fma", n, c.constant(-part, kind), r)
    y = scale_by_power(c, polynomial(c, r, EXP_F32 if single else EXP_F64), n)
    y = b.select(b.fcmp_ordered("<", x, c.constant(low, kind)), c.constant(0.0, kind), y)
    y = b.select(b.fcmp_ordered(">", x, c.constant(high, kind)), c.constant(math.inf, kind), y)
    return b.select(b.fcmp_unordered("uno", x, x), x, y)


def sigmoid(c: Code, x: Ir) -> Ir:
    """1 / (1 + e**-x), by e**-|x| so that nothing overflows."""
    b, one = c.b, c.constant(1.0, x.type)
    e = exp(c, b.fneg(c.intrinsic("fabs", x)))
    return b.fdiv(b.select(b.fcmp_ordered("<", x, c.constant(0.0, x.type)), e, one), b.fadd(one, e))


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
    """Some steps of a reduction from x on. A maximum looks for NaN in pairs of values at once: x itself stays NaN since the
    vector instruction keeps its second operand when there is one."""
    if kind != "max":
        return c.b.fadd(x, tree(c.b.fadd, values))
    if len(values) == 1:
        return maximum(c, values[0], x)

    def larger(a: Ir, b: Ir) -> Ir:
        return c.b.select(c.b.fcmp_ordered(">", a, b), a, b)

    pairs = zip(values[::2], (*values[1::2], values[-1]), strict=False)
    wrong = tree(c.b.or_, [c.b.fcmp_unordered("uno", a, b) for a, b in pairs])
    return c.b.select(wrong, c.constant(math.nan, x.type), larger(tree(larger, values), x))


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
    b, kind = c.b, like(x.type, REGISTER[to.value])
    if source is to or kind == x.type:
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
    ew.Exp: exp,
    ew.Exp2: exp2,
    ew.Log: calling("log"),
    ew.Log2: calling("log2"),
    ew.Tanh: calling("tanh"),
    ew.Sqrt: calling("sqrt"),
    ew.Rsqrt: inverse_root,
    ew.Sigmoid: sigmoid,
    ew.And: instruction("and_"),
    ew.Or: instruction("or_"),
    ew.Not: invert,
    ew.Select: instruction("select"),
}


def build(c: Code, op: Op, args: list[Any]) -> Ir:
    """One op of a chain."""
    if isinstance(op, ew.Compare):
        return compare(c, op, *args)
    if isinstance(op, ew.Cast):
        return cast(c, args[0], op.value.element, op.to)
    return BUILD[type(op)](c, *args)

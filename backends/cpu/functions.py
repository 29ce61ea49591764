"""Functions on vectors of f32 and f64, by polynomials; right for infinities and NaN.

Coefficients without another source are those of least relative error, found by iteratively reweighted least squares
(Lawson 1961).
"""

from __future__ import annotations

import math

import numpy as np

from attngen.backends.cpu.vector import I32, REGISTER, Code, Ir, ll

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
# (tanh(x) / x - 1) / x² as a polynomial in x² up to TANH_NEAR, and (atanh(s) / s - 1) / s² in s² for s up to 0.172.
TANH_NEAR = 0.625
TANH_F32 = (
    -0.3333333317229847,
    0.13333303576842956,
    -0.053959263617953224,
    0.021768947413004013,
    -0.008344029227526204,
    0.0022928301915631937,
)
TANH_F64 = (
    -0.3333333333333332,
    0.13333333333323977,
    -0.0539682539594592,
    0.021869488213741524,
    -0.00886322927978253,
    0.0035920553277415754,
    -0.0014552949838017822,
    0.0005874042879559422,
    -0.0002307348420871924,
    7.95779028378446e-05,
    -1.7244945414713492e-05,
)
ATANH_F32 = (0.3333333327696834, 0.20000061106640216, 0.1427539212544844, 0.1166567833888119)
ATANH_F64 = tuple(1 / (2 * n + 3) for n in range(10))


def is_float(x: Ir) -> bool:
    kind = x.type.element if isinstance(x.type, ll.VectorType) else x.type
    return isinstance(kind, ll.FloatType | ll.DoubleType)


def is_single(x: Ir) -> bool:
    return isinstance(x.type.element if isinstance(x.type, ll.VectorType) else x.type, ll.FloatType)


def like(kind: Ir, element: Ir) -> Ir:
    """The element type with as many lanes as `kind`."""
    return ll.VectorType(element, kind.count) if isinstance(kind, ll.VectorType) else element


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
    scales = c.target.scales and c.fills_register(kind)
    # From here on results are infinite or 0; comparisons that NaN fails.
    low, high = (-104.0, 89.0) if single else (-746.0, 710.0)
    if not scales:
        low, high = (-87.3365447504, 88.72283172607422) if single else (-708.3964185322641, 709.782712893384)
    bottom = low if scales else -127 * math.log(2) if single else -1023 * math.log(2)
    a = b.select(b.fcmp_ordered(">", x, c.constant(high, kind)), c.constant(high, kind), x)
    a = b.select(b.fcmp_ordered("<", a, c.constant(low, kind)), c.constant(bottom, kind), a)
    n = c.intrinsic("nearbyint", b.fmul(a, c.constant(math.log2(math.e), kind)))
    r = a
    for part in LN2_F32 if single else LN2_F64:
        r = c.intrinsic("fma", n, c.constant(-part, kind), r)
    p = polynomial(c, r, EXP_F32 if single else EXP_F64)
    if scales:
        return scale_up(c, p, n)
    # A NaN becomes a harmless number on the way to an integer, and comes back at the end.
    number = b.select(b.fcmp_unordered("uno", x, x), c.constant(0.0, kind), n)
    y = scale_by_power(c, p, number)
    y = b.select(b.fcmp_ordered("<", x, c.constant(low, kind)), c.constant(0.0, kind), y)
    y = b.select(b.fcmp_ordered(">", x, c.constant(high, kind)), c.constant(math.inf, kind), y)
    return b.select(b.fcmp_unordered("uno", x, x), x, y)


def sigmoid(c: Code, x: Ir) -> Ir:
    """1 / (1 + e**-x): where e**-x overflows, the result is 0 instead of less than the smallest normal number."""
    one = c.constant(1.0, x.type)
    return c.b.fdiv(one, c.b.fadd(one, exp(c, c.b.fneg(x))))


def tanh(c: Code, x: Ir) -> Ir:
    """x + x³·g(x²) near 0, else 1 - 2 / (e**2|x| + 1) with the sign of x: relative error 2e-7 in f32, 7e-16 in f64."""
    b, kind, single = c.b, x.type, is_single(x)
    size, square = c.intrinsic("fabs", x), b.fmul(x, x)
    near = c.intrinsic("fma", b.fmul(x, square), polynomial(c, square, TANH_F32 if single else TANH_F64), x)
    one = c.constant(1.0, kind)
    rest = b.fdiv(c.constant(2.0, kind), b.fadd(exp(c, b.fadd(size, size)), one))
    far = c.intrinsic("copysign", b.fsub(one, rest), x)
    return b.select(b.fcmp_ordered("<", size, c.constant(TANH_NEAR, kind)), near, far)


def logarithm(c: Code, x: Ir, base_two: bool) -> Ir:
    """n·log 2 + log m with x = 2**n · m and m around 1; log m = 2·atanh(s), s = (m - 1) / (m + 1)."""
    b, kind, single = c.b, x.type, is_single(x)
    bits = like(kind, I32 if single else REGISTER["i64"])
    mantissa, bias, lift = (23, 127, 25) if single else (52, 1023, 54)
    small = b.fcmp_ordered("<", x, c.constant(2.0 ** (1 - bias), kind))
    a = b.select(small, b.fmul(x, c.constant(2.0**lift, kind)), x)
    # Subtracting the bits of √½ leaves n in front and the distance of m from √½ behind.
    root = int(np.float32(math.sqrt(0.5)).view(np.int32)) if single else int(np.float64(math.sqrt(0.5)).view(np.int64))
    whole = b.sub(b.bitcast(a, bits), c.constant(root, bits))
    n = b.sitofp(b.ashr(whole, c.constant(mantissa, bits)), kind)
    m = b.bitcast(b.add(b.and_(whole, c.constant((1 << mantissa) - 1, bits)), c.constant(root, bits)), kind)
    n = b.select(small, b.fsub(n, c.constant(float(lift), kind)), n)
    f = b.fsub(m, c.constant(1.0, kind))
    s = b.fdiv(f, b.fadd(f, c.constant(2.0, kind)))
    square = b.fmul(s, s)
    # 2·atanh(s) = f - s·(f - 2·s²·g(s²)), which keeps the large term f exact.
    tail = b.fmul(b.fmul(square, c.constant(2.0, kind)), polynomial(c, square, ATANH_F32 if single else ATANH_F64))
    less = b.fmul(s, b.fsub(f, tail))
    if base_two:
        high, low = (1.44269502162933349609375, 1.92596299e-8) if single else (1.4426950408889634, 2.0355273740931033e-17)
        upper = b.fmul(f, c.constant(high, kind))
        lost = c.intrinsic("fma", f, c.constant(high, kind), b.fneg(upper))
        lost = c.intrinsic("fma", f, c.constant(low, kind), lost)
        lost = c.intrinsic("fma", less, c.constant(-high, kind), lost)
        y = b.fadd(b.fadd(n, upper), lost)
        # Where n is not 0 the sum rounds upper: what that loses is small against n.
    else:
        high, low = LN2_F32 if single else LN2_F64
        y = b.fsub(f, b.fsub(less, b.fmul(n, c.constant(low, kind))))
        y = c.intrinsic("fma", n, c.constant(high, kind), y)
    zero, inf = c.constant(0.0, kind), c.constant(math.inf, kind)
    y = b.select(b.fcmp_ordered("==", x, zero), c.constant(-math.inf, kind), y)
    y = b.select(b.fcmp_ordered("<", x, zero), c.constant(math.nan, kind), y)
    return b.select(b.fcmp_unordered("ueq", x, inf), x, y)


def log(c: Code, x: Ir) -> Ir:
    """The natural logarithm: relative error 1.2e-7 in f32, 2.5e-16 in f64."""
    return logarithm(c, x, False)


def log2(c: Code, x: Ir) -> Ir:
    """The logarithm to base 2: relative error 1.5e-7 in f32, 3e-16 in f64."""
    return logarithm(c, x, True)

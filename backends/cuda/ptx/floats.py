"""Arithmetic on floats (PTX ISA, "Floating-Point Instructions", "Half Precision Floating-Point Instructions").

The approximate functions of the device are computed more exactly here; results agree within the errors that the ISA states.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attngen.backends.cuda.ptx.decode import Decoder, Effect
from attngen.backends.cuda.ptx.rounding import MODES, flush, from_bf16, fused, narrow, to_bf16, two_product, two_sum, widen
from attngen.backends.cuda.ptx.syntax import Immediate
from attngen.backends.cuda.ptx.types import TYPES, Array, Type

PACKED = {"f16x2": TYPES["f16"], "bf16x2": TYPES["bf16"], "f32x2": TYPES["f32"]}
FLOATS = ("f16", "bf16", "f16x2", "bf16x2", "f32", "f32x2", "f64")

Function = Callable[..., Array]
"""From arrays of an element type to an array of that type; bf16 arrays are uint16."""


def is_float(d: Decoder) -> bool:
    return d.modifiers.left[-1:] != [] and d.modifiers.left[-1] in FLOATS


def elementwise(d: Decoder, t: Type, operands: int, f: Callable[[Type], Function]) -> Effect:
    """An effect `d = f(a, b, …)`; f is told the element type. Packed types work on both halves; ftz and sat are read here."""
    ftz, sat = d.modifiers.flag("ftz") and PACKED.get(t.name, t).name == "f32", d.modifiers.flag("sat")
    relu = d.modifiers.flag("relu")
    element = PACKED.get(t.name, t)
    inputs = [elements(d, n, t) for n in range(1, operands + 1)]
    store, function = d.write(0, t), f(element)

    def effect() -> None:
        values = [flush(x) for x in inputs] if ftz else inputs
        result = function(*values)
        if ftz:
            result = flush(result)
        if sat:
            result = limited(result, element, 0.0, 1.0)
        if relu:
            result = limited(result, element, 0.0, np.inf)
        store(result if element is t else np.ascontiguousarray(result).reshape(-1).view(t.numpy))

    return effect


def elements(d: Decoder, n: int, t: Type) -> Array:
    """An operand; of a packed type its two halves, shape (lanes, 2)."""
    if t.name not in PACKED:
        return d.read(n, t)
    whole = d.read(n, t)
    if isinstance(d.operand(n), Immediate):
        whole = np.ascontiguousarray(whole)
    return whole.view(PACKED[t.name].numpy).reshape(-1, 2)


def limited(x: Array, t: Type, low: float, high: float) -> Array:
    """Between two limits; NaN becomes the lower one."""
    wide = from_bf16(x) if t.name == "bf16" else x
    kept = np.where(np.isnan(wide), wide.dtype.type(low), np.clip(wide, wide.dtype.type(low), wide.dtype.type(high)))
    return to_bf16(kept.astype(np.float32)) if t.name == "bf16" else kept


def native(f: Callable[..., Array]) -> Callable[[Type], Function]:
    """A function that NumPy rounds correctly in the type itself, or in float32 for bf16."""
    return lambda t: (lambda *args: to_bf16(f(*map(from_bf16, args)).astype(np.float32))) if t.name == "bf16" else f


def binary(d: Decoder) -> Effect:
    """`add`, `sub`, `mul`."""
    t, mode = d.modifiers.type(), d.modifiers.choice(*MODES) or "rn"
    nearest = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[d.i.opcode]
    if mode == "rn":
        return elementwise(d, t, 2, native(nearest))

    def exact(element: Type) -> Function:
        def f(a: Array, b: Array) -> Array:
            x, y = widen(a, element), widen(b, element)
            pair = two_product(x, y) if d.i.opcode == "mul" else two_sum(x, -y if d.i.opcode == "sub" else y)
            return narrow(*pair, element, mode)

        return f

    return elementwise(d, t, 2, exact)


def fma(d: Decoder) -> Effect:
    """`fma`, and `mad` on floats, which is the same."""
    t, mode = d.modifiers.type(), d.modifiers.choice(*MODES) or "rn"
    if t.name in ("f32", "f32x2") and mode == "rn":
        return elementwise(d, t, 3, lambda element: fused)

    def exact(element: Type) -> Function:
        def f(a: Array, b: Array, c: Array) -> Array:
            x, y, z = (widen(var, element) for var in (a, b, c))
            if element.bits < 64:
                return narrow(*two_sum(x * y, z), element, mode)
            p, e = two_product(x, y)
            s, g = two_sum(p, z)
            high, low = two_sum(s, np.where(np.isfinite(e + g), e + g, 0.0))
            return narrow(high, np.where(np.isfinite(low), low, 0.0), element, mode)

        return f

    return elementwise(d, t, 3, exact)


def divide(d: Decoder) -> Effect:
    """`div.rn`, `.approx`, `.full`."""
    t = d.modifiers.type()
    d.modifiers.drop("approx", "full")
    mode = d.modifiers.choice(*MODES) or "rn"
    if mode == "rn":
        return elementwise(d, t, 2, native(np.divide))

    def exact(element: Type) -> Function:
        def f(a: Array, b: Array) -> Array:
            return narrow(widen(a, element) / widen(b, element), 0.0, element, mode)

        return f

    return elementwise(d, t, 2, exact)


UNARY: dict[str, Callable[[Array], Array]] = {
    "rcp": np.reciprocal,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
}


def function(d: Decoder) -> Effect:
    """One of UNARY, in float64, rounded once."""
    t = d.modifiers.type()
    d.modifiers.drop("approx")
    mode = d.modifiers.choice(*MODES) or "rn"
    inner = UNARY[d.i.opcode]

    def exact(element: Type) -> Function:
        def f(a: Array) -> Array:
            return narrow(inner(widen(a, element)), 0.0, element, mode)

        return f

    return elementwise(d, t, 1, exact)


def sign(d: Decoder) -> Effect:
    """`neg` and `abs`: only the sign bit changes, of a NaN too."""
    t = d.modifiers.type()
    bit = 1 << (PACKED.get(t.name, t).bits - 1)

    def f(element: Type) -> Function:
        raw = np.dtype(f"u{element.bytes}")
        mask = raw.type(bit)

        def changed(a: Array) -> Array:
            bits = a.view(raw)
            return (bits ^ mask if d.i.opcode == "neg" else bits & ~mask).view(element.numpy)

        return changed

    return elementwise(d, t, 1, f)


def extremum(d: Decoder) -> Effect:
    """`min` and `max` of two or three: a NaN gives way to a number unless `.NaN` is said; −0 is less than +0."""
    t = d.modifiers.type()
    propagate, absolute = d.modifiers.flag("NaN"), d.modifiers.flag("abs")
    xorsign = d.modifiers.flag("xorsign")
    least = d.i.opcode == "min"

    def two(a: Array, b: Array) -> Array:
        negative = np.signbit(a) ^ np.signbit(b)
        if absolute:
            a, b = np.abs(a), np.abs(b)
        raw = f"u{a.dtype.itemsize}"
        zeros = (a.view(raw) | b.view(raw)) if least else (a.view(raw) & b.view(raw))
        pick = {(True, True): np.minimum, (True, False): np.fmin, (False, True): np.maximum, (False, False): np.fmax}
        chosen = np.where(a == b, zeros.view(a.dtype), pick[least, propagate](a, b))
        return np.where(negative, -chosen, chosen) if absolute and xorsign else chosen

    def f(*args: Array) -> Array:
        result = two(*np.broadcast_arrays(*args[:2]))
        return two(result, args[2]) if len(args) > 2 else result

    return elementwise(d, t, len(d.operands) - 1, native(f))


def copysign(d: Decoder) -> Effect:
    """`copysign d, a, b`: b with the sign of a."""

    def f(a: Array, b: Array) -> Array:
        return np.copysign(b, a)

    return elementwise(d, d.modifiers.type(), 2, lambda element: f)


def testp(d: Decoder) -> Effect:
    """`testp.op.type p, a`."""
    t = d.modifiers.type()
    a, store = d.read(1, t), d.write(0, TYPES["pred"])
    tests: dict[str, Callable[[], Array]] = {
        "finite": lambda: np.isfinite(a),
        "infinite": lambda: np.isinf(a),
        "number": lambda: ~np.isnan(a),
        "notanumber": lambda: np.isnan(a),
        "normal": lambda: np.isfinite(a) & (np.abs(a) >= np.finfo(t.numpy).tiny),
        "subnormal": lambda: (a != 0) & (np.abs(a) < np.finfo(t.numpy).tiny),
    }
    test = tests[d.modifiers.choice(*tests)]
    return lambda: store(test())

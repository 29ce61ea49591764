"""`cvt` and `cvta` (PTX ISA, "Data Movement and Conversion Instructions": cvt, cvta)."""

from __future__ import annotations

import numpy as np

from attngen.backends.cuda.ptx.decode import Decoder, Effect, instruction
from attngen.backends.cuda.ptx.floats import limited
from attngen.backends.cuda.ptx.memory import WINDOWS
from attngen.backends.cuda.ptx.rounding import MODES, flush, narrow, to_tf32, two_sum, widen
from attngen.backends.cuda.ptx.types import B32, F32, S64, TYPES, Array, Type

INTEGRAL = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


@instruction("cvt")
def cvt(d: Decoder) -> Effect:
    """`cvt{.rounding}{.ftz}{.sat}{.relu}.dtype.stype d, a`; two sources for packed types, the first into the upper half."""
    out, source = d.modifiers.take(2)
    if out in ("f16x2", "bf16x2") and source == "f32":
        return pack(d, TYPES[out[:-2]])
    if out == "tf32" and source == "f32":
        mode = d.modifiers.choice("rna", "rn", "rz")
        a, write, relu = d.read(1, F32), d.write(0, B32), d.modifiers.flag("relu")
        return lambda: write(to_tf32(np.maximum(a, np.float32(0)) if relu else a, mode).view(np.uint32))
    if out not in TYPES or source not in TYPES or "x2" in out + source:
        raise d.modifiers.refused(f"the conversion .{out}.{source}")
    t, s = TYPES[out], TYPES[source]
    a, store = d.read(1, s), d.write(0, t)
    if t.is_float and s.is_float:
        return between_floats(d, a, s, t)
    if t.is_float:
        mode = d.modifiers.choice(*MODES) or "rn"
        sat = d.modifiers.flag("sat")

        def from_integer() -> None:
            result = narrow(*(parts(a) if s.bits == 64 else (a.astype(np.float64), 0.0)), t, mode)
            store(limited(result, t, 0.0, 1.0) if sat else result)

        return from_integer
    if s.is_float:
        rounding = INTEGRAL[d.modifiers.choice(*INTEGRAL) or "rzi"]
        ftz = d.modifiers.flag("ftz") and s is F32
        d.modifiers.drop("sat")
        return lambda: store(to_integer(rounding(widen(flush(a) if ftz else a, s)), t))
    if d.modifiers.flag("sat"):
        return lambda: store(clipped(a, t))
    return lambda: store(a.astype(t.numpy))


def parts(a: Array) -> tuple[Array, Array]:
    """An integer of 64 bits as float64 and its rounding error."""
    upper = (a >> a.dtype.type(32)).astype(np.float64) * 2.0**32
    return two_sum(upper, (a & a.dtype.type(0xFFFFFFFF)).astype(np.float64))


def to_integer(x: Array, t: Type) -> Array:
    """A rounded float64 to an integer: limits are kept, NaN becomes 0."""
    low, high = np.iinfo(t.numpy).min, np.iinfo(t.numpy).max
    x = np.where(np.isnan(x), 0.0, x)
    inside = np.clip(x, float(low), float(high))
    over = inside >= float(high)
    return np.where(over, t.numpy.type(high), np.where(over, 0.0, inside).astype(t.numpy))


def clipped(a: Array, t: Type) -> Array:
    """An integer limited to the range of another integer type."""
    low, high = int(np.iinfo(t.numpy).min), int(np.iinfo(t.numpy).max)
    own = np.iinfo(a.dtype)
    return np.clip(a, max(low, int(own.min)), min(high, int(own.max))).astype(t.numpy)


def between_floats(d: Decoder, a: Array, s: Type, t: Type) -> Effect:
    mode = d.modifiers.choice(*MODES, *INTEGRAL, "rna")
    ftz = d.modifiers.flag("ftz")
    sat, relu = d.modifiers.flag("sat"), d.modifiers.flag("relu")
    store = d.write(0, t)

    def effect() -> None:
        wide = widen(flush(a) if ftz and s is F32 else a, s)
        if mode in INTEGRAL:
            wide = INTEGRAL[mode](wide)
        result = narrow(wide, 0.0, t, mode if mode in (*MODES, "rna") else "rn")
        if ftz and t is F32:
            result = flush(result)
        if sat or relu:
            result = limited(result, t, 0.0, 1.0 if sat else np.inf)
        store(result)

    return effect


def pack(d: Decoder, t: Type) -> Effect:
    """`cvt.rn.f16x2.f32 d, a, b`: a to the upper half, b to the lower."""
    mode = d.modifiers.choice("rn", "rz") or "rn"
    relu = d.modifiers.flag("relu")
    d.modifiers.drop("satfinite")
    a, b, store = d.read(1, F32), d.read(2, F32), d.write(0, B32)

    def half(x: Array) -> Array:
        result = narrow(x.astype(np.float64), 0.0, t, mode)
        return (limited(result, t, 0.0, np.inf) if relu else result).view(np.uint16).astype(np.uint32)

    return lambda: store((half(a) << np.uint32(16)) | half(b))


@instruction("cvta")
def cvta(d: Decoder) -> Effect:
    """`cvta.space.u64` to a generic address, `cvta.to.space.u64` from one."""
    d.modifiers.type()
    to, space = (
        d.modifiers.flag("to"),
        d.modifiers.choice("global", "shared", "shared::cta", "shared::cluster", "local", "const", "param"),
    )
    base = WINDOWS.get(space.partition("::")[0], 0)
    store = d.write(0, S64)
    if to:
        a = d.read(1, S64)
        return lambda: store(a - base)
    address = d.address(1, space)
    return lambda: store(address() + base)

"""Comparison and selection (PTX ISA, "Comparison and Selection Instructions")."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attngen.backends.cuda.ptx.decode import Decoder, Effect, instruction
from attngen.backends.cuda.ptx.floats import PACKED, elements
from attngen.backends.cuda.ptx.rounding import flush, from_bf16
from attngen.backends.cuda.ptx.syntax import Pair
from attngen.backends.cuda.ptx.types import F32, PRED, S32, TYPES, UNSIGNED, Array, Type

ORDER: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
UNORDERED = {"equ": "eq", "neu": "ne", "ltu": "lt", "leu": "le", "gtu": "gt", "geu": "ge"}
COMBINE = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def comparison(d: Decoder, t: Type, name: str) -> Callable[[Array, Array], Array]:
    """A test of two values of type t. Ordered tests are false if either is NaN, unordered ones true."""

    def wide(x: Array) -> Array:
        return from_bf16(x) if t.name == "bf16" else x

    def nan(a: Array, b: Array) -> Array:
        return np.isnan(wide(a)) | np.isnan(wide(b))

    if name in ("num", "nan") and t.is_float:
        return nan if name == "nan" else lambda a, b: ~nan(a, b)
    if name in UNORDERED and t.is_float:
        f = ORDER[UNORDERED[name]]
        return lambda a, b: f(wide(a), wide(b)) | nan(a, b)
    if name not in ORDER:
        raise d.modifiers.refused(f"the comparison {name}")
    if t.is_float:
        f = ORDER[name]
        return (lambda a, b: f(wide(a), wide(b)) & ~nan(a, b)) if name == "ne" else lambda a, b: f(wide(a), wide(b))
    f = ORDER[name]
    kind = np.dtype(UNSIGNED[t.bits]) if name in ("lo", "ls", "hi", "hs") else t.numpy
    return lambda a, b: f(a.view(kind), b.view(kind))


@instruction("setp")
def setp(d: Decoder) -> Effect:
    """`setp.cmp{.bool}{.ftz}.type p{|q}, a, b{, c}`: p = (a cmp b) bool c; q the same for the opposite."""
    t = d.modifiers.type()
    ftz = d.modifiers.flag("ftz") and t is F32
    combine = COMBINE.get(d.modifiers.choice(*COMBINE))
    (name,) = d.modifiers.take(1)
    element = PACKED.get(t.name, t)
    test = comparison(d, element, name)
    target = d.operand(0)
    packed = t.name in PACKED
    stores = [d.write(o, PRED) for o in ((target.first, target.second) if isinstance(target, Pair) else (target,))]
    a, b = (elements(d, n, t) if packed else d.read(n, t) for n in (1, 2))
    c = d.predicate(3) if combine is not None else None

    def effect() -> None:
        held = test(flush(a), flush(b)) if ftz else test(a, b)
        results = [held[:, 0], held[:, 1]] if packed else [held, ~held]
        for store, result in zip(stores, results, strict=False):
            store(result if c is None or combine is None else combine(result, c()))

    return effect


@instruction("set")
def set_value(d: Decoder) -> Effect:
    """`set.cmp{.bool}{.ftz}.dtype.stype d, a, b{, c}`: 1.0 or all ones, else 0."""
    t = d.modifiers.type()
    out = d.modifiers.type()
    ftz = d.modifiers.flag("ftz") and t is F32
    combine = COMBINE.get(d.modifiers.choice(*COMBINE))
    (name,) = d.modifiers.take(1)
    test = comparison(d, t, name)
    a, b, store = d.read(1, t), d.read(2, t), d.write(0, out)
    c = d.predicate(3) if combine is not None else None

    def effect() -> None:
        held = test(flush(a), flush(b)) if ftz else test(a, b)
        if c is not None and combine is not None:
            held = combine(held, c())
        store(held.astype(out.numpy) if out.kind == "f" else np.where(held, np.array(-1).astype(out.numpy), out.numpy.type(0)))

    return effect


@instruction("selp")
def selp(d: Decoder) -> Effect:
    """`selp d, a, b, p`: a if p, else b."""
    t = d.modifiers.type()
    a, b, store, p = d.read(1, t), d.read(2, t), d.write(0, t), d.predicate(3)
    return lambda: store(np.where(p(), a, b))


@instruction("slct")
def slct(d: Decoder) -> Effect:
    """`slct.dtype.s32|f32 d, a, b, c`: a if c ≥ 0, else b."""
    by = TYPES[d.modifiers.take(1)[0]]
    if by not in (S32, F32):
        raise d.modifiers.refused(f"the selector type .{by.name}")
    t = d.modifiers.type()
    d.modifiers.drop("ftz")
    a, b, c, store = d.read(1, t), d.read(2, t), d.read(3, by), d.write(0, t)
    return lambda: store(np.where(c >= 0, a, b))

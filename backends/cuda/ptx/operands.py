"""Operands of instructions: from words to `syntax.Operand` (PTX ISA, "Instruction Operands")."""

from __future__ import annotations

from attngen.backends.cuda.ptx.cursor import Cursor, Scope
from attngen.backends.cuda.ptx.errors import PtxError
from attngen.backends.cuda.ptx.syntax import (
    Group,
    Immediate,
    Memory,
    Not,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)

SPECIAL = {
    *(f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"),
    *(f"%{name}.{axis}" for name in ("clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid") for axis in "xyz"),
    *("%laneid", "%warpid", "%nwarpid", "%smid", "%nsmid", "%gridid", "%cluster_ctarank", "%cluster_nctarank"),
    *("%lanemask_eq", "%lanemask_le", "%lanemask_lt", "%lanemask_ge", "%lanemask_gt"),
    *("%dynamic_smem_size", "%total_smem_size", "%is_explicit_cluster"),
}
"""Predefined registers that have a value in the interpreter."""


def operand(c: Cursor, scope: Scope) -> Operand:
    """One operand, `d|p` included."""
    first = single(c, scope)
    return Pair(first, single(c, scope)) if c.accept("|") else first


def operands(c: Cursor, scope: Scope, end: str) -> tuple[Operand, ...]:
    """Operands with commas, up to and including the word `end`."""
    found: list[Operand] = []
    while not c.accept(end):
        if found:
            c.expect(",")
        found.append(operand(c, scope))
    return tuple(found)


def single(c: Cursor, scope: Scope) -> Operand:
    if c.accept("!"):
        return Not(single(c, scope))
    if c.accept("{"):
        return Vector(operands(c, scope, "}"))
    if c.accept("("):
        return Group(operands(c, scope, ")"))
    if c.accept("["):
        return memory(c, scope)
    if c.word.kind == "name":
        return named(c, scope)
    return c.constant()


def named(c: Cursor, scope: Scope) -> Operand:
    """A register, one element of a vector register, a predefined register, or a symbol with an offset."""
    if c.word.text == "_":
        c.next()
        return Sink()
    name = c.word.text
    known = scope.register(name)
    if known is not None:
        c.next()
        if c.word.kind == "dotted":
            element = known + c.next().text
            return Register(element)
        return Register(known)
    if name.startswith("%"):
        loc = c.loc
        c.next()
        if c.word.kind == "dotted":
            name += c.next().text
        if name not in SPECIAL:
            raise PtxError(f"there is no register {name}: it is neither declared nor predefined", loc)
        return Special(name)
    c.next()
    return Symbol(scope.variable(name) or name, offset(c))


def offset(c: Cursor) -> int:
    """`+4`, `-4` or `+-4` after a name; 0 if there is none."""
    if c.accept("+"):
        return c.integer()
    if c.word.text == "-":
        return c.integer()
    return 0


def memory(c: Cursor, scope: Scope) -> Memory:
    """What stands between `[` and `]`."""
    base = single(c, scope)
    if isinstance(base, Symbol):
        base, extra = Symbol(base.name), base.offset
    else:
        extra = offset(c)
    coordinates = None
    if c.accept(","):
        inner = single(c, scope)
        coordinates = inner if isinstance(inner, Vector) else Vector((inner,))
    c.expect("]")
    if not isinstance(base, (Register, Symbol, Immediate)):
        raise c.error("a register, a variable or a constant as address")
    return Memory(base, extra, coordinates)

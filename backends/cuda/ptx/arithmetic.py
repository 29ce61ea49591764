"""Opcodes that exist for integers and for floats: the type says which."""

from __future__ import annotations

from attngen.backends.cuda.ptx import floats, integers
from attngen.backends.cuda.ptx.decode import Decoder, Effect, instruction


@instruction("add", "sub")
def add(d: Decoder) -> Effect:
    return floats.binary(d) if floats.is_float(d) else integers.binary(d)


@instruction("mul")
def mul(d: Decoder) -> Effect:
    return floats.binary(d) if floats.is_float(d) else integers.multiply(d)


@instruction("mad", "madc", "fma")
def mad(d: Decoder) -> Effect:
    return floats.fma(d) if floats.is_float(d) else integers.multiply(d)


@instruction("min", "max")
def extremum(d: Decoder) -> Effect:
    return floats.extremum(d) if floats.is_float(d) else integers.binary(d)


@instruction("div", "rem")
def div(d: Decoder) -> Effect:
    return floats.divide(d) if floats.is_float(d) and d.i.opcode == "div" else integers.binary(d)


@instruction("neg", "abs")
def sign(d: Decoder) -> Effect:
    return floats.sign(d) if floats.is_float(d) else integers.unary(d)


instruction("rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh")(floats.function)
instruction("copysign")(floats.copysign)
instruction("testp")(floats.testp)

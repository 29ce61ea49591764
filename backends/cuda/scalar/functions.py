"""What the source of scalar kernels calls: memory by address, and functions of numbers whose types decide what they are.

In registers f16 and bf16 are floats that such a number can hold. Numba's own operators do the rest: +, -, * and comparisons,
which mean the same on a device and in Python. (Its `-x` does not: NVVM refuses `fneg`.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from attngen.backends.cuda.toolchain.compiler import numba_cuda
from attngen.ir.types import ElementType

Ir = Any
"""A value or a builder of llvmlite."""

SHARED = "attngen_shared"
"""The dynamic shared memory of a block."""

REGISTERS: Mapping[str, str] = {
    "f64": "float64",
    **dict.fromkeys(("f32", "f16", "bf16"), "float32"),
    **dict.fromkeys(("i64", "index"), "int64"),
    "i32": "int32",
    "i8": "int8",
    "i1": "boolean",
}
"""What Numba calls the type that an element has in a register."""


@cache
def namespace() -> Mapping[str, Any]:
    """Names of the generated source, for Numba."""
    return Functions().names


def emit(build: Callable[..., Ir]) -> Callable[[Any, Ir, Any, Any], Ir]:
    """What Numba calls to make the code of an intrinsic."""

    def code(context: Any, b: Ir, signature: Any, args: Any) -> Ir:
        made = build(b, *args)
        return context.get_dummy_value() if made is None else made

    return code


class Functions:
    """Makes the functions. They are intrinsics, one or a few instructions each."""

    def __init__(self) -> None:
        cuda = numba_cuda()
        self.types: Any = cuda.types
        self.intrinsic: Any = import_module("numba.cuda.extending").intrinsic
        self.ll: Any = import_module("llvmlite.ir")
        t, ll = self.types, self.ll
        self.word = {n: ll.IntType(n) for n in (1, 8, 16, 32, 64)}
        words = {"f16": 16, "bf16": 16, "i64": 64, "i32": 32, "i8": 8, "i1": 8, "index": 64}
        self.memory = {"f64": ll.DoubleType(), "f32": ll.FloatType(), **{name: self.word[n] for name, n in words.items()}}
        self.names: dict[str, Any] = {"cuda": cuda, "inf": math.inf, "nan": math.nan}
        self.names |= {"f32": t.float32, "f64": t.float64, "i8": t.int8, "i32": t.int32, "i64": t.int64}
        for element in ElementType:
            self.access(element.value)
        self.names |= {"div": self.coordinate("udiv"), "rem": self.coordinate("urem")}
        for name in ("exp", "exp2", "log", "log2", "tanh", "sqrt", "floor", "rint"):
            self.names[name] = self.unary(lambda b, x, name=name: self.libdevice(b, name, x))
        self.names |= {
            "absolute": self.unary(self.absolute),
            "negative": self.unary(self.negative),
            "sigmoid": self.unary(self.sigmoid),
            "rsqrt": self.unary(lambda b, x: b.fdiv(x.type(1.0), self.libdevice(b, "sqrt", x))),
            "divide": self.binary(lambda b, x, y: b.fdiv(x, y)),
            "floordiv": self.binary(lambda b, x, y: self.divided(b, x, y)[0]),
            "mod": self.binary(lambda b, x, y: self.divided(b, x, y)[1]),
            "maximum": self.binary(lambda b, x, y: self.extreme(b, "max", x, y)),
            "minimum": self.binary(lambda b, x, y: self.extreme(b, "min", x, y)),
            "round_f16": self.unary(lambda b, x: self.widened(b, self.narrowed(b, x, "f16"), "f16"), t.float32),
            "round_bf16": self.unary(lambda b, x: self.widened(b, self.narrowed(b, x, "bf16"), "bf16"), t.float32),
            "select": self.choice(),
            "synchronize": self.barrier(),
        }

    # ---- how Numba gets them

    def unary(self, build: Callable[[Ir, Ir], Ir], result: Any = None) -> Any:
        def function(context: Any, x: Any) -> Any:
            given = self.types.unliteral(x)
            return (result or given)(given), emit(build)

        return self.intrinsic(function)

    def binary(self, build: Callable[[Ir, Ir, Ir], Ir]) -> Any:
        def function(context: Any, x: Any, y: Any) -> Any:
            given = self.types.unliteral(x)
            return given(given, given), emit(build)

        return self.intrinsic(function)

    def choice(self) -> Any:
        def build(b: Ir, condition: Ir, x: Ir, y: Ir) -> Ir:
            return b.select(condition, x, y)

        def function(context: Any, condition: Any, x: Any, y: Any) -> Any:
            given = self.types.unliteral(x)
            return given(self.types.boolean, given, given), emit(build)

        return self.intrinsic(function)

    def coordinate(self, instruction: str) -> Any:
        """On numbers from 0 to 2^31: faster than Numba's operators on 64 bits with a sign."""

        def build(b: Ir, x: Ir, y: Ir) -> Ir:
            x, y = (b.trunc(value, self.word[32]) for value in (x, y))
            return b.zext(getattr(b, instruction)(x, y), self.word[64])

        def function(context: Any, x: Any, y: Any) -> Any:
            t = self.types.int64
            return t(t, t), emit(build)

        return self.intrinsic(function)

    def barrier(self) -> Any:
        """Waits for all threads of the block. Not `bar.sync`, for which the lanes of a warp must have come together, wherever
        the compiler has put the code before it."""
        kind = self.ll.FunctionType(self.ll.VoidType(), [])

        def build(b: Ir) -> None:
            b.call(self.ll.InlineAsm(kind, "barrier.sync 0;", "~{memory}", side_effect=True), [])

        def function(context: Any) -> Any:
            return self.types.void(), emit(build)

        return self.intrinsic(function)

    # ---- memory

    def access(self, element: str) -> None:
        """load_f32(address), store_f32(address, x) for global memory; get_f32(first byte, n), put_f32(first byte, n, x) for
        the n-th element of a part of shared memory."""
        t, kind = self.types, self.memory[element]
        register, address = getattr(t, REGISTERS[element]), t.int64

        def somewhere(b: Ir, place: Ir) -> Ir:
            return b.inttoptr(place, self.ll.PointerType(kind, addrspace=1))

        def here(b: Ir, first: Ir, n: Ir) -> Ir:
            start = b.gep(self.shared(b.module), [self.word[32](0), b.trunc(first, self.word[32])])
            return b.gep(b.bitcast(start, self.ll.PointerType(kind, addrspace=3)), [b.trunc(n, self.word[32])])

        def reading(at: Callable[..., Ir]) -> Callable[..., Ir]:
            def build(b: Ir, *place: Ir) -> Ir:
                return self.widened(b, b.load(at(b, *place)), element)

            return build

        def writing(at: Callable[..., Ir]) -> Callable[..., Ir]:
            def build(b: Ir, *args: Ir) -> None:
                b.store(self.narrowed(b, args[-1], element), at(b, *args[:-1]))

            return build

        def load(context: Any, place: Any) -> Any:
            return register(address), emit(reading(somewhere))

        def store(context: Any, place: Any, x: Any) -> Any:
            return t.void(address, register), emit(writing(somewhere))

        def get(context: Any, first: Any, n: Any) -> Any:
            return register(address, address), emit(reading(here))

        def put(context: Any, first: Any, n: Any, x: Any) -> Any:
            return t.void(address, address, register), emit(writing(here))

        for function in (load, store, get, put):
            self.names[f"{function.__name__}_{element}"] = self.intrinsic(function)

    def shared(self, module: Ir) -> Ir:
        found = module.globals.get(SHARED)
        if found is None:
            found = self.ll.GlobalVariable(module, self.ll.ArrayType(self.word[8], 0), SHARED, addrspace=3)
            # Were it aligned at 16 bytes, NVVM would read past what is there, and not use it.
            found.linkage, found.align = "external", 8
        return found

    def widened(self, b: Ir, x: Ir, element: str) -> Ir:
        """From memory to a register."""
        match element:
            case "f16":
                return b.fpext(b.bitcast(x, self.ll.HalfType()), self.memory["f32"])
            case "bf16":
                return b.bitcast(b.shl(b.zext(x, self.word[32]), self.word[32](16)), self.memory["f32"])
            case "i1":
                return b.icmp_unsigned("!=", x, x.type(0))
            case _:
                return x

    def narrowed(self, b: Ir, x: Ir, element: str) -> Ir:
        """From a register to memory: to nearest, ties to even; NaN stays NaN."""
        match element:
            case "f16":
                return b.bitcast(b.fptrunc(x, self.ll.HalfType()), self.word[16])
            case "bf16":
                if x.type == self.memory["f64"]:
                    x = b.fptrunc(x, self.memory["f32"])
                return self.assembly(b, "cvt.rn.bf16.f32 $0, $1;", "=h,f", self.word[16], x)
            case "i1":
                return b.zext(x, self.word[8])
            case _:
                return x

    # ---- functions of numbers

    def assembly(self, b: Ir, text: str, constraints: str, result: Ir, *args: Ir) -> Ir:
        kind = self.ll.FunctionType(result, [x.type for x in args])
        return b.call(self.ll.InlineAsm(kind, text, constraints), args)

    def libdevice(self, b: Ir, name: str, *args: Ir) -> Ir:
        """A function of libdevice."""
        kind = args[0].type
        name = f"__nv_{name}{'f' if kind == self.memory['f32'] else ''}"
        found = b.module.globals.get(name) or self.ll.Function(
            b.module, self.ll.FunctionType(kind, [x.type for x in args]), name
        )
        return b.call(found, args)

    def is_float(self, x: Ir) -> bool:
        return x.type in (self.memory["f32"], self.memory["f64"])

    def absolute(self, b: Ir, x: Ir) -> Ir:
        return self.libdevice(b, "fabs", x) if self.is_float(x) else b.select(b.icmp_signed("<", x, x.type(0)), b.neg(x), x)

    def negative(self, b: Ir, x: Ir) -> Ir:
        return b.fsub(x.type(-0.0), x) if self.is_float(x) else b.neg(x)

    def sigmoid(self, b: Ir, x: Ir) -> Ir:
        one = x.type(1.0)
        e = self.libdevice(b, "exp", self.negative(b, self.libdevice(b, "fabs", x)))
        return b.fdiv(b.select(b.fcmp_ordered("<", x, x.type(0.0)), e, one), b.fadd(one, e))

    def extreme(self, b: Ir, which: str, x: Ir, y: Ir) -> Ir:
        """NaN if either is."""
        if x.type == self.memory["f32"]:
            return self.assembly(b, f"{which}.NaN.f32 $0, $1, $2;", "=f,f,f", x.type, x, y)
        sign = ">" if which == "max" else "<"
        if x.type == self.memory["f64"]:
            chosen = b.select(b.fcmp_unordered(sign, x, y), x, y)
            return b.select(b.fcmp_unordered("uno", y, y), y, chosen)
        if x.type == self.word[1]:
            return b.or_(x, y) if which == "max" else b.and_(x, y)
        return b.select(b.icmp_signed(sign, x, y), x, y)

    def divided(self, b: Ir, x: Ir, y: Ir) -> tuple[Ir, Ir]:
        """(x // y, x % y) as Python has them. By 0, integers give 0; floats what x / y gives, and NaN."""
        kind = x.type
        if self.is_float(x):
            zero, one = kind(0.0), kind(1.0)
            rest = self.libdevice(b, "fmod", x, y)
            differ = b.xor(b.fcmp_ordered("<", y, zero), b.fcmp_ordered("<", rest, zero))
            wrong = b.and_(b.fcmp_unordered("!=", rest, zero), differ)
            quotient = b.fdiv(b.fsub(x, rest), y)
            quotient = self.libdevice(b, "rint", b.select(wrong, b.fsub(quotient, one), quotient))
            rest = b.select(wrong, b.fadd(rest, y), rest)
            rest = b.select(b.fcmp_ordered("==", rest, zero), self.libdevice(b, "copysign", zero, y), rest)
            return b.select(b.fcmp_ordered("==", y, zero), b.fdiv(x, y), quotient), rest
        zero, one = kind(0), kind(1)
        # x / -1 is -x, also for the least number, whose division is undefined.
        by_zero, by_minus = b.icmp_signed("==", y, zero), b.icmp_signed("==", y, kind(-1))
        safe = b.select(b.or_(by_zero, by_minus), one, y)
        quotient, rest = b.sdiv(x, safe), b.srem(x, safe)
        differ = b.xor(b.icmp_signed("<", rest, zero), b.icmp_signed("<", safe, zero))
        wrong = b.and_(b.icmp_signed("!=", rest, zero), differ)
        quotient, rest = b.select(wrong, b.sub(quotient, one), quotient), b.select(wrong, b.add(rest, safe), rest)
        quotient = b.select(by_minus, b.neg(x), b.select(by_zero, zero, quotient))
        return quotient, b.select(b.or_(by_zero, by_minus), zero, rest)

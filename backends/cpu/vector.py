"""Building LLVM functions: integers, loops, and memory accesses of a whole vector or one element."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import llvmlite.ir as untyped  # pyright: ignore[reportMissingTypeStubs]

from attngen.backends.cpu.target import Target
from attngen.ir.types import ElementType

ll: Any = untyped
Ir = Any
"""A value, type or function of llvmlite, which has no types of its own."""

I64, I32, BIT, BYTE = ll.IntType(64), ll.IntType(32), ll.IntType(1), ll.IntType(8)
POINTER, VOID = ll.PointerType(), ll.VoidType()
REGISTER: Mapping[str, Ir] = {
    "f64": ll.DoubleType(),
    "f32": ll.FloatType(),
    "f16": ll.IntType(16),
    "bf16": ll.IntType(16),
    "i64": I64,
    "index": I64,
    "i32": I32,
    "i8": BYTE,
    "i1": BIT,
}

Size = int | str
"""A number known now, or the name of an argument of the function being built."""


@dataclass(frozen=True)
class Operand:
    """Where a tile lies: its address (a name), bytes from element to element along each axis, and the axes in memory order.

    padded: rows along the last axis may be read and written up to a whole vector, since they lie in scratch memory.
    """

    address: str
    strides: Mapping[str, Size]
    order: tuple[str, ...]
    element: ElementType
    padded: bool = False

    def unit(self, axis: str) -> bool:
        """Whether vectors can be loaded along the axis."""
        return self.strides.get(axis) == self.element.bytes

    def room(self, axis: str) -> bool:
        """Whether a last, partial vector along the axis may be read and written as a whole one."""
        return self.padded and self.order[-1:] == (axis,)

    def names(self) -> list[str]:
        return [self.address, *(s for s in self.strides.values() if isinstance(s, str))]


class Code:
    """One LLVM function `void f(i64…)` while it is being written."""

    def __init__(self, module: Ir, name: str, arguments: Sequence[str], target: Target, result: Ir = VOID) -> None:
        self.module, self.target = module, target
        kind = ll.FunctionType(result, [I64] * len(arguments))
        self.function: Ir = ll.Function(module, kind, module.get_unique_name(name))
        self.function.linkage = "internal"
        self.function.attributes.add("noinline")
        self.function.attributes.add("nounwind")
        self.b: Ir = ll.IRBuilder(self.function.append_basic_block("entry"))
        self.values: dict[str, Ir] = dict(zip(arguments, self.function.args, strict=True))
        self.mask: Ir | None = None
        """Which lanes of a vector exist, where not all do."""

    # ---- numbers

    def size(self, x: Size | Ir) -> Ir:
        """A number known now, an argument by its name, or a value as it is."""
        if isinstance(x, int):
            return ll.Constant(I64, x)
        return self.values[x] if isinstance(x, str) else x

    def times(self, a: Size | Ir, b: Size | Ir) -> Ir:
        if a == 1 or b == 1:
            return self.size(b if a == 1 else a)
        return self.b.mul(self.size(a), self.size(b))

    # ---- control

    def loop(
        self, start: Size | Ir, stop: Size | Ir, step: int, carried: Sequence[Ir], body: Callable[[Ir, list[Ir]], Sequence[Ir]]
    ) -> list[Ir]:
        """`for x in range(start, stop, step): carried = body(x, carried)`; the last carried values."""
        if isinstance(start, int) and isinstance(stop, int) and stop - start <= step:
            return list(body(self.size(start), list(carried))) if stop > start else list(carried)
        b, first, end = self.b, self.size(start), self.size(stop)
        before, head, after = b.block, self.function.append_basic_block("loop"), self.function.append_basic_block("end")
        b.cbranch(b.icmp_signed("<", first, end), head, after)
        b.position_at_end(head)
        x = b.phi(I64)
        x.add_incoming(first, before)
        phis: list[Ir] = []
        for value in carried:
            phis.append(b.phi(value.type))
            phis[-1].add_incoming(value, before)
        results = list(body(x, list(phis)))
        following, latch = b.add(x, self.size(step)), b.block
        x.add_incoming(following, latch)
        for phi, value in zip(phis, results, strict=True):
            phi.add_incoming(value, latch)
        again = b.cbranch(b.icmp_signed("<", following, end), head, after)
        again.set_metadata("llvm.loop", self.as_written())
        b.position_at_end(after)
        merged: list[Ir] = []
        for value, result in zip(carried, results, strict=True):
            merged.append(b.phi(value.type))
            merged[-1].add_incoming(value, before)
            merged[-1].add_incoming(result, latch)
        return merged

    def as_written(self) -> Ir:
        """What tells LLVM to leave a loop as it is: it has the vectors and the register tile that it should have."""
        found = self.module.__dict__.get("attngen_loops")
        if found is None:
            off = [self.module.add_metadata(["llvm.loop.vectorize.enable", ll.Constant(BIT, 0)])]
            off.append(self.module.add_metadata(["llvm.loop.unroll.disable"]))
            found = self.module.add_metadata(off)
            found.operands = (found, *found.operands)  # the name of a loop is a node that refers to itself
            self.module.__dict__["attngen_loops"] = found
        return found

    def cut(
        self,
        length: Size | Ir,
        sizes: Sequence[int],
        carried: Sequence[Ir],
        body: Callable[[Ir, int, list[Ir]], Sequence[Ir]],
    ) -> list[Ir]:
        """Run along an axis in the largest size first, what remains in the next: `body(start, size, carried)`. What is less
        than the smallest size is left over."""
        state, start = list(carried), 0
        for size in sizes:
            if isinstance(length, int):
                assert isinstance(start, int)
                stop = start + (length - start) // size * size
            elif size == 1:
                stop = length
            else:
                begun = self.size(start)
                stop = self.b.add(begun, self.whole(self.b.sub(self.size(length), begun), size))
            state = self.loop(start, stop, size, state, lambda x, s, size=size: body(x, size, s))
            start = stop
        return state

    @contextmanager
    def tail(self, length: Size, width: int) -> Generator[Ir | None]:
        """Inside, loads and stores touch only the lanes that are left over after whole vectors; None if there are none."""
        if isinstance(length, int):
            start, rest = length // width * width, length % width
            if not rest:
                yield None
                return
            self.mask = ll.Constant(ll.VectorType(BIT, width), [n < rest for n in range(width)])
            yield self.size(start)
            self.mask = None
            return
        start = self.whole(length, width)
        rest = self.b.sub(self.size(length), start)
        with self.b.if_then(self.b.icmp_signed(">", rest, self.size(0))):
            lanes = ll.Constant(ll.VectorType(I64, width), list(range(width)))
            self.mask = self.b.icmp_signed("<", lanes, self.splat(rest, width))
            yield start
            self.mask = None

    def round_up(self, length: Size, size: int) -> Ir:
        return self.b.and_(self.b.add(self.size(length), self.size(size - 1)), self.size(-size))

    def whole(self, length: Size | Ir, size: int) -> Ir:
        return self.b.mul(self.b.udiv(self.size(length), self.size(size)), self.size(size))

    def finish(self) -> Ir:
        self.b.ret_void()
        return self.function

    # ---- memory

    def pointer(self, operand: Operand) -> Ir:
        return self.b.inttoptr(self.values[operand.address], POINTER)

    def move(self, pointer: Ir, operand: Operand, axis: str, by: int | Ir) -> Ir:
        """The pointer `by` elements further along an axis; as it is where the operand lacks the axis."""
        stride = operand.strides.get(axis, 0)
        if stride == 0 or isinstance(by, int) and by == 0:
            return pointer
        offset = stride * by if isinstance(stride, int) and isinstance(by, int) else self.times(stride, by)
        return self.b.gep(pointer, [self.size(offset)], source_etype=BYTE)

    def vector_type(self, element: ElementType, width: int, memory: bool = False) -> Ir:
        kind = BYTE if memory and element is ElementType.I1 else REGISTER[element.value]
        return ll.VectorType(kind, width) if width > 1 else kind

    def load(self, pointer: Ir, operand: Operand, axis: str, width: int) -> Ir:
        """`width` elements along an axis: one load where they lie next to each other, the same element where the operand
        lacks the axis, else one by one."""
        element, kind = operand.element, self.vector_type(operand.element, 1, memory=True)
        if axis not in operand.strides or width == 1:
            one = self.b.load(pointer, align=1, typ=kind)
            return self.splat(self.truth(one, element), width)
        if operand.unit(axis):
            kind = self.vector_type(element, width, memory=True)
            if self.mask is None or operand.room(axis):
                many = self.b.load(pointer, align=1, typ=kind)
            else:
                args = [pointer, ll.Constant(I32, 1), self.mask, ll.Constant(kind, None)]
                many = self.named(f"llvm.masked.load.{mangled(kind)}.p0", kind, args)
            return self.truth(many, element)
        many = ll.Constant(ll.VectorType(kind, width), ll.Undefined)
        for lane in range(width):
            one = self.b.load(self.move(pointer, operand, axis, lane), align=1, typ=kind)
            many = self.b.insert_element(many, one, ll.Constant(I32, lane))
        return self.truth(many, element)

    def store(self, value: Ir, pointer: Ir, operand: Operand, axis: str, width: int) -> None:
        if operand.element is ElementType.I1:
            value = self.b.zext(value, self.vector_type(operand.element, width, memory=True))
        if width > 1 and self.mask is not None and not operand.room(axis):
            if isinstance(self.mask, ll.Constant) and not self.mask.constant[1].constant:
                # One lane. LLVM would store it as wide as it was before it was made narrower.
                self.b.store(self.b.extract_element(value, ll.Constant(I32, 0)), pointer, align=1)
                return
            self.named(f"llvm.masked.store.{mangled(value.type)}.p0", VOID, [value, pointer, ll.Constant(I32, 1), self.mask])
            return
        if width == 1 or operand.unit(axis):
            self.b.store(value, pointer, align=1)
            return
        for lane in range(width):
            one = self.b.extract_element(value, ll.Constant(I32, lane))
            self.b.store(one, self.move(pointer, operand, axis, lane), align=1)

    def truth(self, value: Ir, element: ElementType) -> Ir:
        """A truth value is a byte in memory, a bit in a register."""
        return self.b.icmp_unsigned("!=", value, ll.Constant(value.type, None)) if element is ElementType.I1 else value

    def splat(self, value: Ir, width: int) -> Ir:
        if width == 1:
            return value
        undefined = ll.Constant(ll.VectorType(value.type, width), ll.Undefined)
        one = self.b.insert_element(undefined, value, ll.Constant(I32, 0))
        return self.b.shuffle_vector(one, undefined, ll.Constant(ll.VectorType(I32, width), [0] * width))

    # ---- arithmetic

    def constant(self, number: float | int, kind: Ir) -> Ir:
        """A number as a scalar, or in every lane."""
        if isinstance(kind, ll.VectorType):
            return ll.Constant(kind, [number] * kind.count)
        return ll.Constant(kind, number)

    def intrinsic(self, name: str, *args: Ir, result: Ir = None) -> Ir:
        """Call `llvm.<name>`, overloaded on the type of its first operand. `fma` rounds twice where the target has no such
        instruction."""
        if name == "fma" and not self.target.fused:
            return self.b.fadd(self.b.fmul(args[0], args[1]), args[2])
        return self.named(f"llvm.{name}.{mangled(args[0].type)}", result or args[0].type, args)

    def fills_register(self, kind: Ir) -> bool:
        """Whether a vector has exactly the lanes of one register."""
        return (
            isinstance(kind, ll.VectorType)
            and kind.count * (8 if mangled(kind.element) == "f64" else 4) == self.target.row_bytes
        )

    def avx512(self, name: str, passed: Ir, *args: Ir) -> Ir:
        """An instruction of AVX-512 on whole registers of floats, all lanes on, rounding as the processor does now."""
        kind = passed.type
        letter = "d" if kind.count == 8 else "s"
        mask = ll.Constant(ll.IntType(kind.count), -1)
        return self.named(f"llvm.x86.avx512.mask.{name}.p{letter}.512", kind, [*args, passed, mask, ll.Constant(I32, 4)])

    def named(self, full: str, result: Ir, args: Sequence[Ir]) -> Ir:
        """Call a function of LLVM's by its full name."""
        function = self.module.globals.get(full)
        if function is None:
            function = ll.Function(self.module, ll.FunctionType(result, [a.type for a in args]), full)
        return self.b.call(function, args)


def mangled(kind: Ir) -> str:
    """A type as names of intrinsics have it: `v16f32`."""
    scalar = kind.element if isinstance(kind, ll.VectorType) else kind
    suffix = {"double": "f64", "float": "f32"}.get(str(scalar), str(scalar))
    return f"{f'v{kind.count}' if isinstance(kind, ll.VectorType) else ''}{suffix}"

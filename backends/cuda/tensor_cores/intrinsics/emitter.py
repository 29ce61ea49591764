"""What intrinsics are written with: an LLVM builder that knows PTX, and tuples of registers as tiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from attngen.backends.cuda.tensor_cores.tiles import Carrier, Place, Tile

# Not as names: numba-cuda puts its own modules in the place of Numba's, which checkers of types do not see.
ir: Any = import_module("llvmlite.ir")
cuda: Any = import_module("numba.cuda")
types: Any = cuda.types
cgutils: Any = import_module("numba.cuda.cgutils")
extending: Any = import_module("numba.cuda.extending")

I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
F32, HALF = ir.FloatType(), ir.HalfType()

NUMBA: Mapping[str, Any] = {
    "f32": types.float32,
    "i32": types.int32,
    "u32": types.uint32,
    "i64": types.int64,
    "i1": types.boolean,
    "none": types.void,
}
LETTERS = {str(I16): "h", str(I32): "r", str(I64): "l", str(F32): "f"}


def carrier(element: Carrier, layout: str) -> str:
    """What one register holds: a 16-bit float that does not share one is kept as a rounded f32; a truth value in a tuple is
    an integer."""
    if element in ("f16", "bf16"):
        return "u32" if layout == "tile" else "f32"
    return "i32" if element == "i1" and layout != "one" else element


def numba_type(tile: Tile | str) -> Any:
    if isinstance(tile, str):
        return NUMBA[tile]
    one: Any = NUMBA[carrier(tile.element, tile.layout)]
    return one if tile.layout == "one" else types.UniTuple(one, tile.registers)


class Emitter:
    """An LLVM builder inside of a kernel."""

    def __init__(self, context: Any, builder: Any) -> None:
        self.context, self.b = context, builder

    # ---- constants

    def i32(self, value: int) -> Any:
        return ir.Constant(I32, value)

    def i64(self, value: int) -> Any:
        return ir.Constant(I64, value)

    def f32(self, value: float) -> Any:
        return ir.Constant(F32, value)

    # ---- PTX

    def asm(self, text: str, results: Sequence[Any], args: Sequence[Any], *, effect: bool = False) -> Any:
        """Inline PTX: `$0`, `$1` … are the results, then the arguments. effect: it is neither moved nor left out, and memory
        changes. The results are one value, or a list."""
        made = ir.VoidType() if not results else results[0] if len(results) == 1 else ir.LiteralStructType(results)
        letters = [f"={LETTERS[str(t)]}" for t in results] + [LETTERS[str(a.type)] for a in args]
        if effect:
            letters.append("~{memory}")
        function = ir.FunctionType(made, [a.type for a in args])
        value = self.b.call(ir.InlineAsm(function, text, ",".join(letters), side_effect=effect), list(args))
        return value if len(results) < 2 else [self.b.extract_value(value, i) for i in range(len(results))]

    def python(self, function: Callable[..., Any], result: str, kinds: Sequence[str], args: Sequence[Any]) -> Any:
        """A Python function of scalars, compiled into the kernel."""
        signature: Any = NUMBA[result](*(NUMBA[number] for number in kinds))
        return self.context.compile_internal(self.b, function, signature, list(args))

    # ---- tiles

    def get(self, value: Any, tile: Tile, at: Place) -> Any:
        """One element of a tile, as a scalar: f32 for 16-bit floats, a bit for truth values."""
        if tile.layout == "one":
            return value
        word = self.b.extract_value(value, tile.index(at))
        if tile.packed:
            return self.half(word, tile.element, at.c)
        return self.b.icmp_unsigned("!=", word, self.i32(0)) if tile.element == "i1" else word

    def half(self, word: Any, element: Carrier, c: int) -> Any:
        """One of the two 16-bit floats of a register as f32."""
        if element == "bf16":
            bits = self.b.and_(word, self.i32(0xFFFF0000)) if c else self.b.shl(word, self.i32(16))
            return self.b.bitcast(bits, F32)
        bits = self.b.trunc(self.b.lshr(word, self.i32(16)) if c else word, I16)
        return self.b.fpext(self.b.bitcast(bits, HALF), F32)

    def pack(self, low: Any, high: Any, element: Carrier) -> Any:
        """Two f32 rounded to 16-bit floats in one register."""
        return self.asm(f"cvt.rn.{element}x2.f32 $0, $2, $1;", [I32], [low, high])

    def rounded(self, x: Any, element: Carrier) -> Any:
        """An f32 rounded to a 16-bit float, as f32."""
        return self.half(self.pack(x, x, element), element, 0)

    def words(self, value: Any, count: int) -> list[Any]:
        return [self.b.extract_value(value, i) for i in range(count)]

    def tuple(self, words: Sequence[Any]) -> Any:
        made = ir.Constant(ir.ArrayType(words[0].type, len(words)), ir.Undefined)
        for i, word in enumerate(words):
            made = self.b.insert_value(made, word, i)
        return made

    def tile(self, tile: Tile, elements: Sequence[Any]) -> Any:
        """A tile from its elements in the order of `places`, as `get` gives them."""
        if tile.element in ("f16", "bf16") and not tile.packed:
            elements = [self.rounded(x, tile.element) for x in elements]
        if tile.layout == "one":
            return elements[0]
        if tile.packed:
            pairs = zip(elements[::2], elements[1::2], strict=True)
            return self.tuple([self.pack(low, high, tile.element) for low, high in pairs])
        if tile.element == "i1":
            elements = [self.b.zext(x, I32) for x in elements]
        return self.tuple(elements)


Body = Callable[..., Any]


def intrinsic(name: str, result: Tile | str, args: Sequence[Tile | str], body: Body) -> Any:
    """A function that kernels can call: `body(emitter, *values)` builds it. result: a tile, or the name of a scalar type."""
    signature = numba_type(result)(*map(numba_type, args))

    def made() -> Any:
        def code(context: Any, builder: Any, _: Any, values: Sequence[Any]) -> Any:
            value = body(Emitter(context, builder), *values)
            return context.get_dummy_value() if value is None else value

        return signature, code

    names = [f"a{i}" for i in range(len(args))]
    scope: dict[str, Any] = {"made": made}
    exec(f"def {name}({', '.join(('typing_context', *names))}):\n    return made()", scope)
    return extending.intrinsic(scope[name])

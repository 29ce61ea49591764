"""Between global memory, shared memory and registers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attngen.backends.cuda.tensor_cores.intrinsics.emitter import F32, HALF, I1, I8, I16, I32, I64, Emitter, intrinsic, ir
from attngen.backends.cuda.tensor_cores.tiles import Place, Tile

BITS = {"f16": 16, "bf16": 16, "f32": 32, "i8": 8, "i1": 8, "i32": 32, "i64": 64}
"""Of an element in global memory."""


def shared_base(name: str) -> Any:
    """() -> the address of the block's dynamic shared memory, which is aligned to 1024 bytes."""

    def body(e: Emitter) -> Any:
        module = e.b.module
        found = module.globals.get("attngen_shared")
        if found is None:
            found = ir.GlobalVariable(module, ir.ArrayType(I8, 0), "attngen_shared", addrspace=3)
            found.linkage, found.align = "external", 1024
        return e.b.trunc(e.b.ptrtoint(found, I64), I32)

    return intrinsic(name, "i32", [], body)


def statement(name: str, text: str) -> Any:
    """() does what one instruction does."""

    def body(e: Emitter) -> None:
        e.asm(text, [], [], effect=True)

    return intrinsic(name, "none", [], body)


def barrier(name: str) -> Any:
    return statement(name, "bar.sync 0;")


def commit(name: str) -> Any:
    """The copies begun since the last commit become a group."""
    return statement(name, "cp.async.commit_group;")


def wait(name: str, pending: int) -> Any:
    """Until at most so many groups of this thread are under way."""
    return statement(name, f"cp.async.wait_group {pending};")


# ---- rows of a tile


class Rows:
    """Where row n of a tile is: its row axes, outermost first, as (extent in the tile, stride, how many are inside)."""

    def __init__(self, e: Emitter, extents: Sequence[int], values: Sequence[Any]) -> None:
        self.e, self.extents = e, extents
        self.strides, self.limits = values[: len(extents)], values[len(extents) :]

    def find(self, row: Any) -> tuple[Any, Any]:
        """(offset in bytes, whether the row is inside) of a row number, i32."""
        e = self.e
        if not self.extents:
            return e.i64(0), e.b.icmp_signed("==", row, e.i32(0))
        offset, inside = e.i64(0), None
        for axis in reversed(range(len(self.extents))):
            extent = e.i32(self.extents[axis])
            # The outermost axis takes what is left, so that rows past the end of the tile are past its limit.
            here = row if axis == 0 else e.b.srem(row, extent)
            row = row if axis == 0 else e.b.sdiv(row, extent)
            offset = e.b.add(offset, e.b.mul(e.b.sext(here, I64), self.strides[axis]))
            fits = e.b.icmp_signed("<", here, self.limits[axis])
            inside = fits if inside is None else e.b.and_(inside, fits)
        return offset, inside

    @staticmethod
    def parameters(count: int) -> list[str]:
        return ["i64"] * count + ["i32"] * count


def copy_rows(name: str, extents: tuple[int, ...], rows: int, pieces: int, held: int, stride: int, threads: int) -> Any:
    """(shared address, global address, thread, strides and limits of the row axes) begins the copy of a tile, 16 bytes at a
    time, zeros behind its end. pieces: of a row in shared memory; held: those of them that are in the array."""
    across = min(pieces, threads)
    at_once = threads // across

    def body(e: Emitter, shared: Any, address: Any, thread: Any, *values: Any) -> None:
        find = Rows(e, extents, values)
        begin, first = e.b.urem(thread, e.i32(across)), e.b.udiv(thread, e.i32(across))
        works = e.b.icmp_unsigned("<", thread, e.i32(at_once * across))
        rest = e.b.add(shared, e.b.mul(first, e.i32(stride)))
        # A row with more pieces than there are threads takes several turns.
        for turn in range(0, pieces, across):
            piece = e.b.add(begin, e.i32(turn))
            column = e.b.icmp_unsigned("<", piece, e.i32(held))
            bytes = e.b.shl(piece, e.i32(4))
            target = e.b.add(rest, bytes)
            source = e.b.add(address, e.b.zext(e.b.select(column, bytes, e.i32(0)), I64))
            here = e.b.and_(works, e.b.icmp_unsigned("<", piece, e.i32(pieces))) if pieces > across else works
            for start in range(0, rows, at_once):
                row = e.b.add(first, e.i32(start))
                offset, inside = find.find(row)
                inside = e.b.and_(inside, column)
                place = e.b.select(inside, e.b.add(source, offset), address)
                size = e.b.select(inside, e.i32(16), e.i32(0))
                active = e.b.and_(here, e.b.icmp_unsigned("<", row, e.i32(rows)))
                text = (
                    f"{{ .reg .pred p; setp.ne.b32 p, $3, 0; "
                    f"@p cp.async.cg.shared.global [$0+{start * stride}], [$1], 16, $2; }}"
                )
                e.asm(text, [], [target, place, size, e.b.zext(active, I32)], effect=True)

    return intrinsic(name, "none", ["i32", "i64", "i32", *Rows.parameters(len(extents))], body)


def copy_element(name: str, extents: tuple[int, ...], stride: int) -> Any:
    """(shared address, global address, row, column, byte stride of columns, columns inside, strides and limits of the row
    axes) copies one 16-bit element, or a zero."""

    def body(e: Emitter, shared: Any, address: Any, row: Any, column: Any, step: Any, columns: Any, *values: Any) -> None:
        offset, inside = Rows(e, extents, values).find(row)
        inside = e.b.and_(inside, e.b.icmp_signed("<", column, columns))
        place = e.b.add(address, e.b.add(offset, e.b.mul(e.b.sext(column, I64), step)))
        x = guarded_load(e, 16, place, inside)
        target = e.b.add(shared, e.b.add(e.b.mul(row, e.i32(stride)), e.b.shl(column, e.i32(1))))
        e.asm("st.shared.b16 [$0], $1;", [], [target, x], effect=True)

    return intrinsic(name, "none", ["i32", "i64", "i32", "i32", "i64", "i32", *Rows.parameters(len(extents))], body)


# ---- elements in global memory


def guarded_load(e: Emitter, bits: int, address: Any, inside: Any) -> Any:
    """The bits at an address, or zero."""
    kind = {8: I16, 16: I16, 32: I32, 64: I64}[bits]
    zero = f"mov.b{max(bits, 16)} $0, 0;"
    load = f"@p ld.global.{'u8' if bits == 8 else f'b{bits}'} $0, [$1];"
    text = f"{{ .reg .pred p; setp.ne.b32 p, $2, 0; {zero} {load} }}"
    # A result that is written before all arguments are read must not share a register with one.
    function = ir.FunctionType(kind, [I64, I32])
    letter = {I16: "h", I32: "r", I64: "l"}[kind]
    asm = ir.InlineAsm(function, text, f"=&{letter},l,r,~{{memory}}", side_effect=True)
    return e.b.call(asm, [address, e.b.zext(inside, I32)])


def decoded(e: Emitter, bits: Any, element: str) -> Any:
    """Bits from memory as an element is worked with."""
    if element == "f32":
        return e.b.bitcast(bits, F32)
    if element == "bf16":
        return e.b.bitcast(e.b.shl(e.b.zext(bits, I32), e.i32(16)), F32)
    if element == "f16":
        return e.b.fpext(e.b.bitcast(bits, HALF), F32)
    if element == "i1":
        return e.b.icmp_unsigned("!=", bits, I16(0))
    return e.b.sext(e.b.trunc(bits, I8), I32) if element == "i8" else bits


def load_tile(name: str, element: str, result: Tile, extents: tuple[int, ...]) -> Any:
    """(address, this thread's first row, its first column, byte stride of columns, columns inside, strides and limits of the
    row axes) -> a tile, zero outside."""

    def body(e: Emitter, address: Any, row: Any, column: Any, step: Any, columns: Any, *values: Any) -> Any:
        find = Rows(e, extents, values)
        along_rows, along_columns = result.layout in ("row", "tile"), result.layout in ("col", "tile")
        rows = [find.find(e.b.add(row, e.i32(8 * r))) for r in range(2)] if along_rows else [(e.i64(0), I1(1))]
        # One place for each row, which moves from block to block: distances of columns would all be kept in registers.
        first = e.b.mul(e.b.sext(column, I64), step) if along_columns else e.i64(0)
        here = [e.b.add(e.b.add(address, offset), first) for offset, _ in rows]
        further = e.b.shl(step, e.i64(3))
        elements: list[Any] = []
        for at in result.places():
            place, inside = here[at.r], rows[at.r][1]
            if along_columns:
                place = e.b.add(place, step) if at.c else place
                fits = e.b.icmp_signed("<", e.b.add(column, e.i32(8 * at.n + at.c)), columns)
                inside = e.b.and_(inside, fits)
                if at.c:
                    here[at.r] = e.b.add(here[at.r], further)
            elements.append(decoded(e, guarded_load(e, BITS[element], place, inside), element))
        return e.tile(result, elements)

    return intrinsic(name, result, ["i64", "i32", "i32", "i64", "i32", *Rows.parameters(len(extents))], body)


def load_one(name: str, element: str, result: Tile) -> Any:
    """(address) -> the element there."""

    def body(e: Emitter, address: Any) -> Any:
        return e.tile(result, [decoded(e, guarded_load(e, BITS[element], address, I1(1)), element)])

    return intrinsic(name, result, ["i64"], body)


def encoded(e: Emitter, x: Any, element: str) -> Any:
    """An element as bits for memory."""
    if element == "f32":
        return e.b.bitcast(x, I32)
    if element in ("f16", "bf16"):
        return e.b.trunc(e.pack(x, x, element), I16)  # pyright: ignore[reportArgumentType]
    if element in ("i1", "i8"):
        return e.b.zext(x, I16) if element == "i1" else e.b.trunc(x, I16)
    return x


def guarded_store(e: Emitter, bits: int, address: Any, x: Any, inside: Any) -> None:
    text = f"{{ .reg .pred p; setp.ne.b32 p, $2, 0; @p st.global.{'u8' if bits == 8 else f'b{bits}'} [$0], $1; }}"
    e.asm(text, [], [address, x, e.b.zext(inside, I32)], effect=True)


def store_tile(name: str, element: str, value: Tile, extents: tuple[int, ...]) -> Any:
    """(tile, address, this thread's first row, its first column, byte stride of columns, columns inside, whether neighbours
    along columns can be written together, strides and limits of the row axes). A value that does not vary along columns is
    written by one lane of each row, one that does not vary along rows by the lanes of the first."""

    def body(
        e: Emitter, tile: Any, address: Any, row: Any, column: Any, step: Any, columns: Any, pairs: Any, *values: Any
    ) -> None:
        find = Rows(e, extents, values)
        bits = BITS[element]
        first_row = e.b.icmp_signed("==", row, e.i32(0))
        rows = [find.find(e.b.add(row, e.i32(8 * r))) for r in range(2)] if extents else [(e.i64(0), first_row)]
        together = e.b.icmp_unsigned("!=", pairs, e.i32(0))
        along_columns = value.layout in ("col", "tile")
        for r, (offset, inside) in enumerate(rows):
            start = e.b.add(address, offset)
            if not along_columns:
                inside = e.b.and_(inside, e.b.icmp_signed("==", column, e.i32(0)))
                guarded_store(e, bits, start, encoded(e, e.get(tile, value, Place(0, r, 0)), element), inside)
                continue
            for n in range(value.blocks):
                here = [e.b.add(column, e.i32(8 * n + c)) for c in range(2)]
                fits = [e.b.and_(inside, e.b.icmp_signed("<", x, columns)) for x in here]
                places = [e.b.add(start, e.b.mul(e.b.sext(x, I64), step)) for x in here]
                words = [e.get(tile, value, Place(n, r, c)) for c in range(2)]
                alone = fits
                if value.packed:
                    both = e.b.and_(fits[1], together)
                    guarded_store(e, 32, places[0], e.b.extract_value(tile, value.index(Place(n, r, 0))), both)
                    alone = [e.b.and_(x, e.b.not_(together)) for x in fits]
                for place, word, fit in zip(places, words, alone, strict=True):
                    guarded_store(e, bits, place, encoded(e, word, element), fit)

    kinds = [value, "i64", "i32", "i32", "i64", "i32", "i32", *Rows.parameters(len(extents))]
    return intrinsic(name, "none", kinds, body)


# ---- coordinates


def coordinates(name: str, result: Tile, extents: tuple[int, ...], axis: int) -> Any:
    """(first coordinate, this thread's first row, its first column) -> coordinates along a row axis, the one of this number,
    or along columns."""

    def body(e: Emitter, first: Any, row: Any, column: Any) -> Any:
        elements: list[Any] = []
        for at in result.places():
            if result.layout == "row":
                here = e.b.add(row, e.i32(8 * at.r))
                for inner in extents[axis + 1 :][::-1]:
                    here = e.b.sdiv(here, e.i32(inner))
                here = e.b.srem(here, e.i32(extents[axis])) if axis else here
            else:
                here = e.b.add(column, e.i32(8 * at.n + at.c))
            if result.element == "i64":
                elements.append(e.b.add(first, e.b.sext(here, I64)))
            else:
                elements.append(e.b.add(e.b.trunc(first, I32), here))
        return e.tile(result, elements)

    return intrinsic(name, result, ["i64", "i32", "i32"], body)


def inside(name: str, result: Tile) -> Any:
    """(columns inside, this thread's first column) -> which columns are inside."""

    def body(e: Emitter, columns: Any, column: Any) -> Any:
        places = result.places()
        return e.tile(result, [e.b.icmp_signed("<", e.b.add(column, e.i32(8 * at.n + at.c)), columns) for at in places])

    return intrinsic(name, result, ["i32", "i32"], body)


def look_up(name: str, element: str, result: Tile, at: Sequence[Tile], extents: tuple[int, ...], along: bool) -> Any:
    """(address, for each coordinate: tile, stride, length; this thread's first row, its first column, byte stride of columns,
    columns inside, strides and limits of row axes) -> elements of a table. Coordinates are held to the table. along: whether
    the table has the column axis itself."""
    count = len(at)

    def body(e: Emitter, address: Any, *values: Any) -> Any:
        tiles, steps, lengths = values[:count], values[count : 2 * count], values[2 * count : 3 * count]
        row, column, step, columns, *rest = values[3 * count :]
        find = Rows(e, extents, rest)
        rows = [find.find(e.b.add(row, e.i32(8 * r))) for r in range(2)] if extents else []
        elements: list[Any] = []
        for here in result.places():
            place, inside = address, I1(1)
            for tile, value, stride, length in zip(at, tiles, steps, lengths, strict=True):
                x = e.get(value, tile, here)
                x = e.b.sext(x, I64) if x.type != I64 else x
                x = e.b.select(e.b.icmp_signed("<", x, length), x, e.b.sub(length, e.i64(1)))
                x = e.b.select(e.b.icmp_signed("<", x, e.i64(0)), e.i64(0), x)
                place = e.b.add(place, e.b.mul(x, stride))
            if extents:
                offset, inside = rows[here.r]
                place = e.b.add(place, offset)
            if along:
                there = e.b.add(column, e.i32(8 * here.n + here.c))
                place = e.b.add(place, e.b.mul(e.b.sext(there, I64), step))
                inside = e.b.and_(inside, e.b.icmp_signed("<", there, columns))
            elements.append(decoded(e, guarded_load(e, BITS[element], place, inside), element))
        return e.tile(result, elements)

    kinds: list[Tile | str] = ["i64", *at, *(["i64"] * (2 * count)), "i32", "i32", "i64", "i32", *Rows.parameters(len(extents))]
    return intrinsic(name, result, kinds, body)

"""Products of warps: ldmatrix reads 8 × 8 matrices from shared memory, mma.sync multiplies (PTX ISA, "Warp Level Matrix
Multiply-Accumulate Instructions": fragments of m16n8k16)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attngen.backends.cuda.tensor_cores.intrinsics.emitter import F32, I1, I16, I32, Emitter, cgutils, intrinsic
from attngen.backends.cuda.tensor_cores.tiles import Carrier, Place, Tile


def load_matrices(e: Emitter, address: Any, offset: int, trans: bool) -> list[Any]:
    """Four matrices; each lane gives the address of one row."""
    word = ".trans" if trans else ""
    text = f"ldmatrix.sync.aligned.m8n8.x4{word}.shared.b16 {{$0, $1, $2, $3}}, [$4+{offset}];"
    return e.asm(text, [I32] * 4, [address], effect=True)


def left_fragments(name: str, result: Tile) -> Any:
    """(address of this lane's part of the first 16 columns) -> the left operand's registers."""

    def body(e: Emitter, address: Any) -> Any:
        words: list[Any] = []
        for part in range(result.blocks // 2):
            words += load_matrices(e, address, 32 * part, trans=False)
        return e.tuple(words)

    return intrinsic(name, result, ["i32"], body)


def mma(e: Emitter, element: Carrier, a: list[Any], b: list[Any], c: list[Any]) -> list[Any]:
    text = (
        f"mma.sync.aligned.m16n8k16.row.col.f32.{element}.{element}.f32 "
        "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
    )
    return e.asm(text, [F32] * 4, [*a, *b, *c])


def product(name: str, left: Tile, result: Tile, stride: int, trans: bool, add: bool) -> Any:
    """(left operand, address of this lane's row of the right one[, sums]) -> sums. stride: bytes between rows of the right
    operand, whose rows are columns of the product, or, with trans, elements of the sum."""

    def body(e: Emitter, value: Any, address: Any, *sums: Any) -> Any:
        a = e.words(value, left.registers)
        c = e.words(sums[0], result.registers) if add else [e.f32(0.0)] * result.registers
        for part in range(left.blocks // 2):
            for n in range(result.blocks // 2):
                offset = 16 * part * stride + 32 * n if trans else 16 * n * stride + 32 * part
                b = load_matrices(e, address, offset, trans)
                for half in range(2):
                    at = 4 * (2 * n + half)
                    c[at : at + 4] = mma(
                        e, left.element, a[4 * part : 4 * part + 4], b[2 * half : 2 * half + 2], c[at : at + 4]
                    )
        return e.tuple(c)

    return intrinsic(name, result, [left, "i32", *([result] if add else [])], body)


def in_row(e: Emitter, row: Any, byte: Any, stride: int, panel: int) -> Any:
    """Where a byte of a row is; in panels, 16-byte pieces are swizzled by the row."""
    if panel:
        number, byte = e.b.lshr(byte, e.i32(7)), e.b.and_(byte, e.i32(127))
        byte = e.b.xor(byte, e.b.shl(e.b.and_(row, e.i32(7)), e.i32(4)))
        byte = e.b.add(byte, e.b.mul(number, e.i32(panel)))
    return e.b.add(e.b.mul(row, e.i32(stride)), byte)


def masked_step(name: str, left: Tile, mask: Tile, result: Tile, stride: int, panel: int, trans: bool, part: int) -> Any:
    """(left operand, mask, base address of the right one, column 2 (lane % 4), x, sums) -> sums with the products of element
    16 part + x of the sum, for those that the mask keeps: what it does not keep is never multiplied. panel: bytes of a panel,
    if the right operand lies in panels."""

    def body(e: Emitter, value: Any, keep: Any, base: Any, column: Any, x: Any, sums: Any) -> Any:
        high = e.b.icmp_unsigned(">=", x, e.i32(8))
        odd = e.b.icmp_unsigned("!=", e.b.and_(x, e.i32(1)), e.i32(0))
        lane = e.b.and_(e.b.lshr(x, e.i32(1)), e.i32(3))

        def of_lane(tile: Tile, words: Any, r: int) -> Any:
            """The element of row r, which one lane of four has."""
            four = [e.get(words, tile, Place(2 * part + h, r, c)) for h in range(2) for c in range(2)]
            four = [e.b.zext(item, I32) if item.type == I1 else item for item in four]
            mine = e.b.select(high, e.b.select(odd, four[3], four[2]), e.b.select(odd, four[1], four[0]))
            text = (
                "{ .reg .u32 t; mov.u32 t, %laneid; and.b32 t, t, 28; or.b32 t, t, $2; shfl.sync.idx.b32 $0, $1, t, 31, -1; }"
            )
            return e.asm(text, [mine.type], [mine, lane], effect=True)

        weights = [of_lane(left, value, r) for r in range(2)]
        kept = [e.b.icmp_unsigned("!=", of_lane(mask, keep, r), e.i32(0)) for r in range(2)]
        c = e.words(sums, result.registers)
        element = e.b.add(e.i32(16 * part), x)
        for n in range(result.blocks):
            for side in range(2):
                at = e.b.add(column, e.i32(8 * n + side))
                row, place = (element, at) if trans else (at, element)
                address = e.b.add(base, in_row(e, row, e.b.shl(place, e.i32(1)), stride, panel))
                bits = e.asm("ld.shared.b16 $0, [$1];", [I16], [address], effect=True)
                factor = e.half(e.b.zext(bits, I32), left.element, 0)
                for r in range(2):
                    index = result.index(Place(n, r, side))
                    total = e.b.fadd(c[index], e.b.fmul(weights[r], factor))
                    c[index] = e.b.select(kept[r], total, c[index])
        return e.tuple(c)

    return intrinsic(name, result, [left, mask, "i32", "i32", "i32", result], body)


def finite(name: str, element: Carrier, rows: int, pieces: int, stride: int) -> Any:
    """(base address, lane) -> whether no float of the tile is infinite or NaN, the same in all lanes of the warp. pieces: of
    16 bytes in a row."""
    count = rows * pieces

    def body(e: Emitter, base: Any, lane: Any) -> Any:
        def place(n: Any) -> Any:
            number = e.b.add(lane, e.b.shl(n, e.i32(5)))
            row, piece = e.b.udiv(number, e.i32(pieces)), e.b.urem(number, e.i32(pieces))
            address = e.b.add(base, e.b.add(e.b.mul(row, e.i32(stride)), e.b.shl(piece, e.i32(4))))
            return address if count % 32 == 0 else e.b.select(e.b.icmp_unsigned("<", number, e.i32(count)), address, base)

        return all_finite(e, element, -(-count // 32), place)

    return intrinsic(name, Tile("one", "i1"), ["i32", "i32"], body)


def all_finite(e: Emitter, element: Carrier, count: int, place: Callable[[Any], Any]) -> Any:
    """Whether no lane of the warp finds an infinity or NaN among the 16 bytes of shared memory at place(n), n < count. In a
    loop, since loads that all run ahead take the registers of everything else."""
    exponent, unit = (0x7F807F80, 0x00800080) if element == "bf16" else (0x7C007C00, 0x04000400)
    found = cgutils.alloca_once_value(e.b, e.i32(0))
    with cgutils.for_range(e.b, e.i32(count)) as loop:
        marks = e.b.load(found)
        for word in e.asm("ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];", [I32] * 4, [place(loop.index)], effect=True):
            # An exponent of ones carries into the bit of the sign.
            marks = e.b.or_(marks, e.b.add(e.b.and_(word, e.i32(exponent)), e.i32(unit)))
        e.b.store(marks, found)
    bad = e.b.icmp_unsigned("!=", e.b.and_(e.b.load(found), e.i32(0x80008000)), e.i32(0))
    text = "{ .reg .pred p, q; setp.ne.b32 p, $1, 0; vote.sync.any.pred q, p, -1; selp.b32 $0, 1, 0, q; }"
    any_lane = e.asm(text, [I32], [e.b.zext(bad, I32)], effect=True)
    return e.b.icmp_unsigned("==", any_lane, e.i32(0))

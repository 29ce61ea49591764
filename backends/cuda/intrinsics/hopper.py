"""Hopper's own instructions: copies of boxes by tensor maps, mbarriers, products of warpgroups, registers handed over.

Sources: PTX ISA, "Data Movement and Conversion Instructions: Tensor copy", "mbarrier", "Asynchronous Warpgroup Level Matrix
Instructions".
"""

from __future__ import annotations

from typing import Any

from attngen.backends.cuda.intrinsics.emitter import F32, I32, Emitter, intrinsic, ir
from attngen.backends.cuda.tiles import Carrier, Tile


def plain(name: str, text: str, kinds: tuple[str, ...] = ()) -> Any:
    """One instruction without a result."""
    return intrinsic(name, "none", kinds, lambda e, *args: e.asm(text, [], list(args), effect=True))


def barrier_init(name: str) -> Any:
    """(address, how many arrivals complete a phase)"""
    return plain(name, "mbarrier.init.shared::cta.b64 [$0], $1;", ("i32", "i32"))


def barriers_visible(name: str) -> Any:
    """Initialised barriers are there for copies too."""
    return plain(name, "fence.mbarrier_init.release.cluster;")


def barrier_expect(name: str) -> Any:
    """(address, bytes that copies will bring in this phase); arrives as well."""
    return plain(name, "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", ("i32", "i32"))


def barrier_arrive(name: str) -> Any:
    """(address, lane) One arrival of the warp, once all its lanes are there."""

    def body(e: Emitter, address: Any, lane: Any) -> None:
        text = (
            "{ .reg .pred p; bar.warp.sync 0xffffffff; setp.eq.u32 p, $1, 0; @p mbarrier.arrive.shared::cta.b64 _, [$0]; }"
        )
        e.asm(text, [], [address, lane], effect=True)

    return intrinsic(name, "none", ["i32", "i32"], body)


def barrier_wait(name: str) -> Any:
    """(address, parity) Until the phase of this parity is complete."""
    text = (
        "{ .reg .pred p; WAIT_${:uid}: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1; "
        "@p bra DONE_${:uid}; bra WAIT_${:uid}; DONE_${:uid}: }"
    )
    return plain(name, text, ("i32", "i32"))


def copy_box(name: str, rank: int) -> Any:
    """(shared address, tensor map, barrier, coordinates, the innermost first) begins the copy of a box."""
    coordinates = ", ".join(f"${k + 3}" for k in range(rank))
    text = (
        f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        f"[$0], [$1, {{{coordinates}}}], [$2];"
    )
    return plain(name, text, ("i32", "i64", "i32", *("i32",) * rank))


def registers(name: str, count: int, more: bool) -> Any:
    """How many registers a thread of this warpgroup has from here on."""
    return plain(name, f"setmaxnreg.{'inc' if more else 'dec'}.sync.aligned.u32 {count};")


def warpgroup_product(
    name: str,
    element: Carrier,
    left: Tile | None,
    result: Tile,
    lefts: tuple[int, ...],
    rights: tuple[int, ...],
    trans: bool,
    add: bool,
) -> Any:
    """(left operand: registers, or the descriptor of one in shared memory; descriptor of the right one[, sums]) -> sums.

    lefts, rights: what is added to the descriptors for each 16 elements of the sum. Everything from the fence to the wait is
    one piece of PTX, so that nothing else touches the registers meanwhile.
    """
    count = result.registers
    sums = ", ".join(f"${k}" for k in range(count))
    columns = 8 * result.blocks
    first = count if left is None else count + left.registers

    def body(e: Emitter, a: Any, b: Any, *added: Any) -> Any:
        words = [a] if left is None else e.words(a, left.registers)
        lines = ["{ .reg .b64 da, db; .reg .pred no, yes; setp.ne.b32 no, 0, 0; setp.eq.b32 yes, 0, 0; wgmma.fence.sync.aligned;"]
        for k, right in enumerate(rights):
            lines.append(f"add.s64 db, ${first + (left is None)}, {right};")
            if left is None:
                lines.append(f"add.s64 da, ${count}, {lefts[k]};")
                operand, tail = "da", f"1, 1, 0, {int(trans)}"
            else:
                operand = "{" + ", ".join(f"${count + 4 * k + i}" for i in range(4)) + "}"
                tail = f"1, 1, {int(trans)}"
            scale = "yes" if add or k else "no"
            lines.append(
                f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{element}.{element} "
                f"{{{sums}}}, {operand}, db, {scale}, {tail};"
            )
        lines.append("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; }")
        before = e.words(added[0], count) if add else []
        args = [*words, b, *before]
        letters = ["=f"] * count + (["l"] if left is None else ["r"] * len(words)) + ["l"]
        letters += [str(k) for k in range(len(before))] + ["~{memory}"]
        kind = ir.FunctionType(ir.LiteralStructType([F32] * count), [x.type for x in args])
        value = e.b.call(ir.InlineAsm(kind, " ".join(lines), ",".join(letters), side_effect=True), args)
        return e.tuple([e.b.extract_value(value, k) for k in range(count)])

    return intrinsic(name, result, ["i64" if left is None else left, "i64", *([result] if add else [])], body)


def finite_words(name: str, element: Carrier, bytes: int) -> Any:
    """(address, lane) -> whether no 16-bit float of so many bytes is infinite or NaN, the same in all lanes."""
    exponent, unit = (0x7F807F80, 0x00800080) if element == "bf16" else (0x7C007C00, 0x04000400)

    def body(e: Emitter, base: Any, lane: Any) -> Any:
        found = e.i32(0)
        start = e.b.add(base, e.b.shl(lane, e.i32(4)))
        for at in range(0, bytes, 512):
            text = f"ld.shared.v4.b32 {{$0, $1, $2, $3}}, [$4+{at}];"
            for word in e.asm(text, [I32] * 4, [start], effect=True):
                found = e.b.or_(found, e.b.add(e.b.and_(word, e.i32(exponent)), e.i32(unit)))
        bad = e.b.icmp_unsigned("!=", e.b.and_(found, e.i32(0x80008000)), e.i32(0))
        text = "{ .reg .pred p, q; setp.ne.b32 p, $1, 0; vote.sync.any.pred q, p, -1; selp.b32 $0, 1, 0, q; }"
        any_lane = e.asm(text, [I32], [e.b.zext(bad, I32)], effect=True)
        return e.b.icmp_unsigned("==", any_lane, e.i32(0))

    return intrinsic(name, Tile("one", "i1"), ["i32", "i32"], body)


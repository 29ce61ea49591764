"""Hopper's own instructions: copies of boxes by tensor maps, mbarriers, products of warpgroups, registers handed over.

Sources: PTX ISA, "Data Movement and Conversion Instructions: Tensor copy", "mbarrier", "Asynchronous Warpgroup Level Matrix
Instructions".
"""

from __future__ import annotations

from typing import Any

from attngen.backends.cuda.tensor_cores.intrinsics.emitter import F32, Emitter, intrinsic, ir
from attngen.backends.cuda.tensor_cores.intrinsics.matrix import all_finite
from attngen.backends.cuda.tensor_cores.tiles import Carrier, Tile


def plain(name: str, text: str, kinds: tuple[str, ...] = ()) -> Any:
    """One instruction without a result."""

    def body(e: Emitter, *args: Any) -> None:
        e.asm(text, [], list(args), effect=True)

    return intrinsic(name, "none", kinds, body)


def barrier_init(name: str) -> Any:
    """(address, how many arrivals complete a phase)"""
    return plain(name, "mbarrier.init.shared::cta.b64 [$0], $1;", ("i32", "i32"))


def barriers_visible(name: str) -> Any:
    """Initialised barriers are there for copies too."""
    return plain(name, "fence.mbarrier_init.release.cluster;")


def barrier_expect(name: str) -> Any:
    """(address, bytes that copies will bring in this phase); arrives as well."""
    return plain(name, "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", ("i32", "i32"))


def barrier_arrive(name: str, gather: bool) -> Any:
    """(address, lane) One arrival of the warp. gather: once all its lanes are there, as they are behind products."""
    sync = "bar.warp.sync 0xffffffff; " if gather else ""
    text = f"{{ .reg .pred p; {sync}setp.eq.u32 p, $1, 0; @p mbarrier.arrive.shared::cta.b64 _, [$0]; }}"
    return plain(name, text, ("i32", "i32"))


def barrier_wait(name: str) -> Any:
    """(address, parity) Until the phase of this parity is complete."""
    text = (
        "{ .reg .pred p; WAIT_${:uid}: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1; "
        "@p bra DONE_${:uid}; bra WAIT_${:uid}; DONE_${:uid}: }"
    )
    return plain(name, text, ("i32", "i32"))


def copy_box(name: str, rank: int) -> Any:
    """(shared address, tensor map, barrier, coordinates, the innermost first) begins the copy of a box."""
    coordinates = ", ".join(f"${index + 3}" for index in range(rank))
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
    wait: bool = True,
) -> Any:
    """(left operand: registers, or the descriptor of one in shared memory; descriptor of the right one[, sums]) -> sums.

    lefts, rights: what is added to the descriptors for each 16 elements of the sum. Everything from the fence to the wait is
    one piece of PTX, so that nothing else touches the registers meanwhile. Without the wait, nothing may read the sums before
    `warpgroup_wait`.
    """
    count = result.registers
    sums = ", ".join(f"${index}" for index in range(count))
    columns = 8 * result.blocks
    first = count if left is None else count + left.registers

    def body(e: Emitter, a: Any, b: Any, *added: Any) -> Any:
        words = [a] if left is None else e.words(a, left.registers)
        lines = [
            "{ .reg .b64 da, db; .reg .pred no, yes; setp.ne.b32 no, 0, 0; setp.eq.b32 yes, 0, 0; wgmma.fence.sync.aligned;"
        ]
        for index, right in enumerate(rights):
            lines.append(f"add.s64 db, ${first + (left is None)}, {right};")
            if left is None:
                lines.append(f"add.s64 da, ${count}, {lefts[index]};")
                operand, tail = "da", f"1, 1, 0, {int(trans)}"
            else:
                operand = "{" + ", ".join(f"${count + 4 * index + i}" for i in range(4)) + "}"
                tail = f"1, 1, {int(trans)}"
            scale = "yes" if add or index else "no"
            lines.append(
                f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{element}.{element} "
                f"{{{sums}}}, {operand}, db, {scale}, {tail};"
            )
        lines.append(f"wgmma.commit_group.sync.aligned;{' wgmma.wait_group.sync.aligned 0;' if wait else ''} }}")
        before = e.words(added[0], count) if add else []
        args = [*words, b, *before]
        letters = ["=f"] * count + (["l"] if left is None else ["r"] * len(words)) + ["l"]
        letters += [str(index) for index in range(len(before))] + ["~{memory}"]
        kind = ir.FunctionType(ir.LiteralStructType([F32] * count), [x.type for x in args])
        value = e.b.call(ir.InlineAsm(kind, " ".join(lines), ",".join(letters), side_effect=True), args)
        return e.tuple([e.b.extract_value(value, index) for index in range(count)])

    return intrinsic(name, result, ["i64" if left is None else left, "i64", *([result] if add else [])], body)


def warpgroup_wait(name: str, tile: Tile) -> Any:
    """(sums of products that have been begun) -> the sums, once all products of the warpgroup are done."""
    count = tile.registers

    def body(e: Emitter, value: Any) -> Any:
        words = e.words(value, count)
        letters = ",".join(["=f"] * count + [str(index) for index in range(count)] + ["~{memory}"])
        kind = ir.FunctionType(ir.LiteralStructType([F32] * count), [F32] * count)
        made = e.b.call(ir.InlineAsm(kind, "wgmma.wait_group.sync.aligned 0;", letters, side_effect=True), words)
        return e.tuple([e.b.extract_value(made, index) for index in range(count)])

    return intrinsic(name, tile, [tile], body)


def finite_words(name: str, element: Carrier, bytes: int) -> Any:
    """(address, lane) -> whether no 16-bit float of so many bytes is infinite or NaN, the same in all lanes."""

    def body(e: Emitter, base: Any, lane: Any) -> Any:
        start = e.b.add(base, e.b.shl(lane, e.i32(4)))
        return all_finite(e, element, -(-bytes // 512), lambda n: e.b.add(start, e.b.shl(n, e.i32(9))))

    return intrinsic(name, Tile("one", "i1"), ["i32", "i32"], body)

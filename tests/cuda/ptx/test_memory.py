"""Loads, stores and atomics in every state space, with vectors, and functions with their parameters."""

from __future__ import annotations

import numpy as np
import pytest

from attngen.backends.cuda import ptx
from attngen.backends.cuda.ptx.rounding import from_bf16, to_bf16
from tests.cuda.ptx.kernels import apply, entry, run

OWN = "mad.wide.u32 %d1, %r0, 4, %d0;"
"""The thread's element of the output."""


def test_vectors_and_cache_operators() -> None:
    source = np.arange(128, dtype=np.uint32)
    body = """
    ld.param.u64 %d2, [given]; mad.wide.u32 %d2, %r0, 16, %d2; mad.wide.u32 %d1, %r0, 16, %d0;
    ld.global.nc.L1::no_allocate.v4.b32 {%r1, %r2, %r3, %r4}, [%d2];
    st.global.cs.v2.u32 [%d1+8], {%r1, %r2}; st.global.wt.v2.u32 [%d1], {%r3, %r4};
    """
    out = run(body, np.zeros(128, np.uint32), given=source).reshape(-1, 2, 2)
    np.testing.assert_array_equal(out, source.reshape(-1, 2, 2)[:, ::-1])


def test_packing_and_unpacking() -> None:
    a = np.random.default_rng(0).integers(0, 2**63, 64).astype(np.uint64)
    swap = "{ .reg .b32 %lo, %hi; mov.b64 {%lo, %hi}, %a; mov.b64 %x, {%hi, %lo}; }"
    np.testing.assert_array_equal(
        apply(swap, [a], np.zeros_like(a)).view(np.uint32), a.view(np.uint32).reshape(-1, 2)[:, ::-1].ravel()
    )
    same = "{ .reg .b16 %w<4>; mov.b64 {%w0, %w1, %w2, %w3}, %a; mov.b64 %x, {%w3, %w1, %w2, %w0}; }"
    np.testing.assert_array_equal(
        apply(same, [a], np.zeros_like(a)).view(np.uint16).reshape(-1, 4), a.view(np.uint16).reshape(-1, 4)[:, [3, 1, 2, 0]]
    )


def test_constants_globals_and_their_initial_values() -> None:
    before = ".const .align 4 .f32 table[4] = {0f3F800000, 2.0, 3.5, -4.0};\n.global .align 4 .u32 counter[2] = {7, 0x10};"
    body = f"""{OWN}
    and.b32 %r1, %r0, 3; mov.u64 %d2, table; mad.wide.u32 %d2, %r1, 4, %d2; ld.const.f32 %r2, [%d2];
    ld.const.f32 %r3, [table+8]; add.f32 %r2, %r2, %r3; ld.global.u32 %r4, [counter+4]; cvt.rn.f32.u32 %r4, %r4;
    add.f32 %r2, %r2, %r4; st.global.f32 [%d1], %r2;
    """
    assert run(body, np.zeros(32, np.float32), before=before)[:4].tolist() == [1 + 3.5 + 16, 2 + 19.5, 3.5 + 19.5, -4 + 19.5]


def test_functions_with_parameters_and_branches_inside() -> None:
    before = """
    .func (.param .b32 result) larger(.param .b32 x, .reg .u32 y) {
      .reg .pred %p; .reg .b32 %r;
      ld.param.u32 %r, [x]; setp.gt.u32 %p, %r, y; @%p bra KEEP; mov.u32 %r, y;
      st.param.u32 [result], %r; ret;
      KEEP: st.param.u32 [result], %r; ret;
    }
    .func (.reg .u32 sum) fold(.reg .u32 a, .reg .u32 b) {
      .reg .u32 %t; { .param .b32 p; .param .b32 q; st.param.u32 [p], a; call (q), larger, (p, b); ld.param.u32 %t, [q]; }
      add.u32 sum, %t, 1000; ret;
    }
    """
    body = f"""{OWN} setp.lt.u32 %p1, %r0, 20; mov.u32 %r2, 5; @%p1 call.uni (%r2), fold, (%r0, 7);
    call (%r3), fold, (%r2, 0); sub.u32 %r3, %r3, 1000; st.global.u32 [%d1], %r3;"""
    assert run(body, np.zeros(32, np.uint32), before=before).tolist() == [max(t, 7) + 1000 if t < 20 else 5 for t in range(32)]


def test_recursion_and_missing_bodies_are_refused() -> None:
    before = ".extern .func other(.param .b32 x);\n.func again() { call again; ret; }"
    for text, complaint in (
        ("call again;", "recursion"),
        ("call other, (1);", "has no body"),
        ("call %d1, (1);", "a register"),
    ):
        with pytest.raises(ptx.Unsupported, match=complaint):
            run(text, np.zeros(1), before=before)


ATOMICS = {
    "add.u32": lambda old, t: old + t,
    "min.s32": lambda old, t: min(old, t),
    "max.u32": lambda old, t: max(old, t),
    "and.b32": lambda old, t: old & t,
    "or.b32": lambda old, t: old | t,
    "xor.b32": lambda old, t: old ^ t,
    "exch.b32": lambda old, t: t,
    "inc.u32": lambda old, t: 0 if old >= t else old + 1,
    "dec.u32": lambda old, t: t if old == 0 or old > t else old - 1,
}


@pytest.mark.parametrize("name", ATOMICS)
@pytest.mark.parametrize("space", ["global", "shared"])
def test_atomics_take_turns(name: str, space: str) -> None:
    """64 threads on three addresses: every thread gets the value that the one before it left."""
    place = (
        "mov.u32 %r3, sh; mad.lo.u32 %r3, %r1, 4, %r3; cvt.u64.u32 %d3, %r3;"
        if space == "shared"
        else "mad.wide.u32 %d3, %r1, 4, %d2;"
    )
    target = "%r3" if space == "shared" else "%d3"
    body = f"""{OWN} .shared .align 4 .b8 sh[12]; ld.param.u64 %d2, [cells]; rem.u32 %r1, %r0, 3; {place}
    setp.lt.u32 %p1, %r0, 3; @%p1 mov.u32 %r9, 9; @%p1 st.{space}.u32 [{target}], %r9; bar.sync 0;
    atom.{space}.{name} %r4, [{target}], %r0; st.global.u32 [%d1], %r4;"""
    out = run(body, np.zeros(64, np.uint32), threads=64, cells=np.zeros(3, np.uint32))
    held = [9, 9, 9]
    for t in range(64):
        assert out[t] == held[t % 3]
        held[t % 3] = ATOMICS[name](held[t % 3], t)


def test_compare_and_swap_as_a_lock_between_blocks() -> None:
    """A spin loop on global memory: blocks take turns, although warps of several blocks spin at once."""
    body = """.reg .b32 %old; ld.param.u64 %d2, [lock];
    setp.ne.u32 %p1, %r0, 0; @%p1 bra END;
    SPIN: atom.acquire.gpu.global.cas.b32 %old, [%d2], 0, 1; setp.ne.u32 %p2, %old, 0; @%p2 bra SPIN;
    ld.volatile.global.u32 %r1, [%d0]; add.u32 %r1, %r1, 1; st.volatile.global.u32 [%d0], %r1;
    atom.release.gpu.global.exch.b32 %old, [%d2], 0;
    END:"""
    assert run(body, np.zeros(1, np.uint32), grid=12, lock=np.zeros(1, np.uint32)).tolist() == [12]


def test_reductions_of_floats_and_halves() -> None:
    run("red.global.add.f32 [%d0], 0f3F000000;", out := np.zeros(1, np.float32), threads=100)
    assert out[0] == 50
    run("red.global.add.noftz.f16x2 [%d0], 0x3C003800;", halves := np.zeros(2, np.float16), threads=64)
    assert halves.tolist() == [32, 64]
    run("mov.b16 %h1, 0x3F80; red.global.add.noftz.bf16 [%d0], %h1;", brain := to_bf16(np.zeros(1, np.float32)), threads=64)
    assert from_bf16(brain)[0] == 64


def test_demands_of_an_entry_are_kept() -> None:
    for directive, complaint in (
        (".reqntid 64", "demands blocks of"),
        (".maxntid 16, 1", "allows 16 threads"),
        (".reqnctapercluster 2", "demands clusters of several blocks"),
    ):
        text = entry("").replace(") {", f") {directive} {{")
        with pytest.raises(ptx.PtxError, match=complaint):
            ptx.run(text, "f", 1, 32, [np.zeros(1)])


def test_arguments_are_checked() -> None:
    text = entry("", ".param .u64 out, .param .f32 scale, .param .align 8 .b8 pair[16]")
    array = np.zeros(4)
    assert ptx.run(text, "f", 1, 1, [array, 2, bytes(16)]).instructions == 1
    assert ptx.run(text, "f", 1, 1, {"pair": bytes(16), "scale": 1.5, "out": array}).entry == "f"
    for args, complaint in (
        ([array, 2], "has 3 parameters"),
        ([array, array, bytes(16)], "scale has 4 bytes, which is no address"),
        ([array[::2], 2, bytes(16)], "must be contiguous"),
        ([array, "two", bytes(16)], "neither a number nor an array"),
        ([array, 2, bytes(15)], "pair has 16 bytes, 15 are given"),
        ({"out": array, "scale": 1, "pear": bytes(16)}, r"missing: \['pair'\], unknown: \['pear'\]"),
    ):
        with pytest.raises(ptx.PtxError, match=complaint):
            ptx.run(text, "f", 1, 1, args)
    for grid, block, complaint in ((0, 1, "grid is 0"), ((1, 1, 1, 1), 1, "grid is"), (1, 2048, "allows 1024 threads")):
        with pytest.raises(ptx.PtxError, match=complaint):
            ptx.run(text, "f", grid, block, [array, 2, bytes(16)])
    with pytest.raises(ptx.PtxError, match="a block can have 232448"):
        ptx.run(text, "f", 1, 1, [array, 2, bytes(16)], shared_bytes=300_000)

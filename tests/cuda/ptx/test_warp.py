"""Exchange between lanes, control flow, barriers."""

from __future__ import annotations

import numpy as np
import pytest

from attngen.backends.cuda import ptx
from tests.cuda.ptx.kernels import entry, run

OWN = "mad.wide.u32 %d1, %r0, 4, %d0;"
SAVE = "st.global.u32 [%d1], %r1;"
LANES = np.arange(32)


@pytest.mark.parametrize(
    ("form", "source"),
    [
        ("bfly.b32 %r1|%p1, %r2, 5, 31", LANES ^ 5),
        ("up.b32 %r1|%p1, %r2, 3, 0", LANES - 3),
        ("down.b32 %r1|%p1, %r2, 4, 31", LANES + 4),
        ("idx.b32 %r1|%p1, %r2, 9, 31", LANES * 0 + 9),
        # Segments of eight lanes: the upper bits of c hold the mask of the segment.
        ("idx.b32 %r1|%p1, %r2, 2, 0x1807", LANES // 8 * 8 + 2),
        ("down.b32 %r1|%p1, %r2, 3, 0x1807", np.where(LANES % 8 + 3 < 8, LANES + 3, 99)),
        ("up.b32 %r1|%p1, %r2, 3, 0x1800", np.where(LANES % 8 >= 3, LANES - 3, 99)),
    ],
)
def test_shuffles(form: str, source: np.ndarray) -> None:
    body = f"{OWN} mul.lo.u32 %r2, %r0, 10; shfl.sync.{form}, -1; selp.u32 %r3, 1, 0, %p1; add.u32 %r1, %r1, %r3; {SAVE}"
    inside = (source >= 0) & (source < 32)
    expected = np.where(inside, source * 10 + 1, LANES * 10)
    np.testing.assert_array_equal(run(body, np.zeros(32, np.uint32)), expected)


def test_votes_and_matches_and_reductions() -> None:
    """In the half of each warp that takes a branch."""
    body = f"""{OWN} and.b32 %r2, %r0, 1; setp.eq.u32 %p1, %r2, 0; mov.u32 %r1, 0; @%p1 bra END;
    activemask.b32 %r3; shr.u32 %r4, %r0, 2; setp.gt.u32 %p2, %r4, 2;
    vote.sync.ballot.b32 %r5, %p2, %r3; vote.sync.all.pred %p3, %p2, %r3; vote.sync.any.pred %p4, !%p2, %r3;
    match.any.sync.b32 %r6, %r4, %r3; redux.sync.add.u32 %r7, %r0, %r3; redux.sync.max.s32 %r8, %r0, %r3;
    elect.sync %r9|%p5, %r3; selp.u32 %r10, 1000, 0, %p5;
    selp.u32 %r11, 1, 0, %p3; selp.u32 %r12, 2, 0, %p4;
    add.u32 %r1, %r5, %r6; add.u32 %r1, %r1, %r7; add.u32 %r1, %r1, %r8; add.u32 %r1, %r1, %r10; add.u32 %r1, %r1, %r11;
    add.u32 %r1, %r1, %r12; add.u32 %r1, %r1, %r9;
    END: {SAVE}"""
    odd = LANES[1::2]
    ballot = sum(1 << int(t) for t in odd if t // 4 > 2)
    expected = np.zeros(32, np.uint64)
    for t in odd:
        match = sum(1 << int(u) for u in odd if u // 4 == t // 4)
        expected[t] = ballot + match + odd.sum() + 31 + (1000 if t == 1 else 0) + 0 + 2 + 1
    np.testing.assert_array_equal(run(body, np.zeros(32, np.uint32)), (expected % 2**32).astype(np.uint32))


def test_match_all() -> None:
    body = f"{OWN} shr.u32 %r2, %r0, 5; match.all.sync.b32 %r1|%p1, %r2, -1; @!%p1 mov.u32 %r1, 3; {SAVE}"
    assert run(body, np.zeros(64, np.uint32), threads=64).tolist() == [0xFFFFFFFF] * 64


def test_loops_and_nested_branches_come_together_again() -> None:
    """Lanes leave a loop at different times; the exchange after it finds all of them."""
    body = f"""{OWN} mov.u32 %r1, 0; mov.u32 %r2, 0;
    LOOP: setp.ge.u32 %p1, %r2, %r0; @%p1 bra DONE;
    and.b32 %r3, %r2, 1; setp.eq.u32 %p2, %r3, 0; @%p2 bra EVEN; add.u32 %r1, %r1, 100; bra.uni NEXT;
    EVEN: add.u32 %r1, %r1, 1;
    NEXT: add.u32 %r2, %r2, 1; bra LOOP;
    DONE: shfl.sync.bfly.b32 %r4, %r1, 1, 31, -1; add.u32 %r1, %r1, %r4; {SAVE}"""
    sums = [(t + 1) // 2 + t // 2 * 100 for t in range(64)]
    assert run(body, np.zeros(64, np.uint32), threads=64).tolist() == [sums[t] + sums[t ^ 1] for t in range(64)]


def test_jump_tables_and_early_exits() -> None:
    body = f"""{OWN} setp.gt.u32 %p1, %r0, 5; @%p1 exit; rem.u32 %r2, %r0, 3;
    TABLE: .branchtargets ZERO, ONE, TWO;
    brx.idx %r2, TABLE;
    ZERO: mov.u32 %r1, 10; bra END;
    ONE: mov.u32 %r1, 20; bra END;
    TWO: mov.u32 %r1, 30;
    END: {SAVE}"""
    assert run(body, np.zeros(8, np.uint32), threads=8).tolist() == [10, 20, 30, 10, 20, 30, 0, 0]


def test_coordinates_of_threads_and_blocks() -> None:
    body = """ld.param.u64 %d0, [out];
    mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ctaid.y; mov.u32 %r5, %ntid.x;
    mov.u32 %r6, %nctaid.x;
    mad.lo.u32 %r7, %r4, %r6, %r3; mov.u32 %r8, %ntid.y; mul.lo.u32 %r9, %r5, %r8; mad.lo.u32 %r10, %r2, %r5, %r1;
    mad.lo.u32 %r11, %r7, %r9, %r10; mad.wide.u32 %d1, %r11, 4, %d0;
    mov.u32 %r12, %laneid; mov.u32 %r13, %warpid; mov.u32 %r14, %lanemask_lt;
    mad.lo.u32 %r12, %r13, 32, %r12; popc.b32 %r14, %r14; mad.lo.u32 %r12, %r14, 1000, %r12; st.global.u32 [%d1], %r12;"""
    out = np.zeros((3, 2, 5 * 9), np.uint32)
    ptx.run(entry(body), "f", (2, 3), (9, 5), [out])
    np.testing.assert_array_equal(out, np.broadcast_to(np.arange(45) + np.arange(45) % 32 * 1000, out.shape))


def test_barriers_count_reduce_and_separate_producers_from_consumers() -> None:
    """Warp 0 fills, warps 1 and 2 wait for it at barrier 1, and tell it by barrier 2 that they have read."""
    body = f"""{OWN} .shared .align 4 .b8 sh[128]; mov.u32 %r5, sh; and.b32 %r6, %r0, 31;
    mad.lo.u32 %r5, %r6, 4, %r5; mov.u32 %r7, 0;
    mov.u32 %r1, 0; setp.lt.u32 %p1, %r0, 32; @!%p1 bra CONSUME;
    PRODUCE: mad.lo.u32 %r8, %r7, 1000, %r0; st.shared.u32 [%r5], %r8; bar.arrive 1, 96; bar.sync 2, 96;
    add.u32 %r7, %r7, 1; setp.lt.u32 %p2, %r7, 3; @%p2 bra PRODUCE; bra END;
    CONSUME: bar.sync 1, 96; ld.shared.u32 %r8, [%r5]; add.u32 %r1, %r1, %r8; bar.arrive 2, 96;
    add.u32 %r7, %r7, 1; setp.lt.u32 %p2, %r7, 3; @%p2 bra CONSUME;
    END: setp.gt.u32 %p3, %r1, 3020; bar.red.popc.u32 %r9, 0, %p3; bar.red.or.pred %p4, 0, 96, %p3; selp.u32 %r10, 7, 0, %p4;
    add.u32 %r1, %r1, %r9; add.u32 %r1, %r1, %r10; {SAVE}"""
    sums = np.concatenate([np.zeros(32, int), 3000 + 3 * LANES, 3000 + 3 * LANES])
    expected = sums + (sums > 3020).sum() + 7
    np.testing.assert_array_equal(run(body, np.zeros(96, np.uint32), threads=96), expected)


def test_exited_threads_count_at_barriers() -> None:
    body = f"{OWN} setp.lt.u32 %p1, %r0, 32; @%p1 exit; bar.sync 0; mov.u32 %r1, 5; {SAVE}"
    assert run(body, np.zeros(64, np.uint32), threads=64).tolist() == [0] * 32 + [5] * 32

"""Who may touch shared memory when: lanes of a warp, warps around a buffer that is filled again, generic and async accesses."""

from __future__ import annotations

import numpy as np
import pytest

from attngen.backends.cuda import ptx
from tests.cuda.ptx.kernels import run

RING = """.shared .align 128 .b8 sh[256]; .shared .align 8 .b8 full[8]; .shared .align 8 .b8 empty[8];
ld.param.u64 %d2, [given];
setp.eq.u32 %p1, %r0, 0; mov.u32 %r1, 0; mov.u32 %r2, 0; mov.u32 %r12, 0;
@%p1 mbarrier.init.shared::cta.b64 [full], 1;
@%p1 mbarrier.init.shared::cta.b64 [empty], 2;
bar.sync 0;
setp.ge.u32 %p2, %r0, 32; @%p2 bra CONSUMER;
@!%p1 bra END;
PRODUCE: xor.b32 %r3, %r2, 1;
EMPTY: mbarrier.try_wait.parity.shared::cta.b64 %p3, [empty], %r3;
@!%p3 bra EMPTY;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [full], 256;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [sh], [%d2], 256, [full];
add.s64 %d2, %d2, 256; add.u32 %r1, %r1, 1; xor.b32 %r2, %r2, 1; setp.lt.u32 %p4, %r1, 4; @%p4 bra PRODUCE;
bra END;
CONSUMER: sub.u32 %r4, %r0, 32; mov.u32 %r5, sh; mad.lo.u32 %r5, %r4, 4, %r5; and.b32 %r6, %r0, 31; setp.eq.u32 %p5, %r6, 0;
CONSUME: setp.eq.u32 %p3, 0, 0;
FULL: @%p5 mbarrier.try_wait.parity.shared::cta.b64 %p3, [full], %r2;
@!%p3 bra FULL;
bar.warp.sync 0xffffffff;
ld.shared.u32 %r7, [%r5]; mad.lo.u32 %r12, %r12, 3, %r7;
bar.warp.sync -1;
@%p5 mbarrier.arrive.shared::cta.b64 _, [empty];
add.u32 %r1, %r1, 1; xor.b32 %r2, %r2, 1; setp.lt.u32 %p4, %r1, 4; @%p4 bra CONSUME;
mad.wide.u32 %d1, %r4, 4, %d0; st.global.u32 [%d1], %r12;
END:"""
"""One lane of each of two warps waits for a buffer and gives it back; one thread fills it four times."""

RING_DEFECTS = [
    ("bar.warp.sync -1;", "", "race: shared memory is overwritten that another warp read"),
    ("bar.warp.sync 0xffffffff;", "", "async: shared memory is read while a bulk copy|without waiting on the mbarrier"),
    ("bar.warp.sync 0xffffffff;", "bar.warp.sync 0xffff;", "divergence: the mask 0xffff names .* not the lane itself"),
    # One warp gives the buffer back while the other still reads it.
    (
        "@%p5 mbarrier.arrive.shared::cta.b64 _, [empty];",
        "setp.eq.u32 %p6, %r0, 32; @%p6 mbarrier.arrive.shared::cta.b64 _, [empty], 2;",
        "race: shared memory is overwritten that another warp read",
    ),
    ("[empty], 2;\nbar", "[empty], 1;\nbar", "mbarrier: more arrivals than the 1 it expects"),
    # It is filled again before its readers are done.
    ("@!%p3 bra EMPTY;", "", "mbarrier|race|async"),
    (
        "EMPTY: mbarrier.try_wait.parity.shared::cta.b64 %p3, [empty], %r3;",
        "EMPTY: setp.eq.u32 %p3, 0, 0;",
        "mbarrier|race|async",
    ),
]

EXCHANGE = """.shared .align 16 .b8 sh[512]; mov.u32 %r1, sh; mad.lo.u32 %r2, %r0, 16, %r1; ld.param.u64 %d2, [given];
xor.b32 %r3, %r0, 1; mad.lo.u32 %r3, %r3, 16, %r1; mad.wide.u32 %d2, %r0, 16, %d2;
cp.async.cg.shared.global [%r2], [%d2], 16;
cp.async.commit_group;
cp.async.wait_group 0;
bar.warp.sync -1;
ld.shared.u32 %r4, [%r3]; mad.wide.u32 %d1, %r0, 4, %d0; st.global.u32 [%d1], %r4;"""
"""A lane reads what its neighbour copied."""

OVERWRITE = """.shared .align 128 .b8 sh[256]; .shared .align 8 .b8 mb[8]; ld.param.u64 %d2, [given]; mov.u32 %r1, sh;
setp.eq.u32 %p1, %r0, 0; mad.lo.u32 %r2, %r0, 8, %r1;
@%p1 mbarrier.init.shared::cta.b64 [mb], 1;
st.shared.v2.u32 [%r2], {%r0, %r0};
fence.proxy.async;
bar.sync 0;
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [mb], 256;
@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [sh], [%d2], 256, [mb];
WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [mb], 0;
@!%p2 bra WAIT;
ld.shared.u32 %r4, [%r2]; mad.wide.u32 %d1, %r0, 4, %d0; st.global.u32 [%d1], %r4;"""
"""A bulk copy goes where threads have written."""

STORE = """.shared .align 128 .b8 sh[256]; mov.u32 %r1, sh; setp.eq.u32 %p1, %r0, 0; mad.lo.u32 %r2, %r0, 8, %r1;
st.shared.v2.u32 [%r2], {%r0, %r0};
fence.proxy.async;
bar.warp.sync -1;
@%p1 cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r1], 256;
@%p1 cp.async.bulk.commit_group;
@%p1 cp.async.bulk.wait_group.read 0;
bar.warp.sync 0xffffffff;
st.shared.v2.u32 [%r2], {%r0, %r0};"""
"""A bulk copy takes what a warp has written, which then writes there again."""

TURNS = """.shared .align 8 .b8 mb[8]; setp.eq.u32 %p1, %r0, 0; mov.u32 %r1, 0; mov.u32 %r2, 0;
@%p1 mbarrier.init.shared::cta.b64 [mb], 1;
bar.sync 0;
TURN: @%p1 mbarrier.arrive.shared::cta.b64 _, [mb];
WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [mb], %r2;
@!%p2 bra WAIT;
bar.sync 1;
xor.b32 %r2, %r2, 1; add.u32 %r1, %r1, 1; setp.lt.u32 %p3, %r1, 3; @%p3 bra TURN;"""
"""Two warps wait for the phases that one thread ends."""

REUSE = """.shared .align 16 .b8 sh[256]; mov.u32 %r1, sh; mad.lo.u32 %r2, %r0, 4, %r1;
xor.b32 %r3, %r0, 1; mad.lo.u32 %r3, %r3, 4, %r1;
st.shared.u32 [%r2], %r0;
bar.warp.sync -1;
ld.shared.u32 %r4, [%r3];
bar.warp.sync 0xffffffff;
st.shared.u32 [%r2], %r4;"""
"""A lane writes where its neighbour has read."""

CASES = [
    *((RING, 96, *defect) for defect in RING_DEFECTS),
    (EXCHANGE, 32, "bar.warp.sync -1;\n", "", "race: .* another lane of the warp wrote .* no bar.warp.sync"),
    (EXCHANGE, 32, "wait_group 0", "wait_group 1", "async: .* cp.async has not been waited for"),
    (REUSE, 32, "bar.warp.sync -1;", "", "race: shared memory is read that another lane of the warp wrote"),
    (REUSE, 32, "bar.warp.sync 0xffffffff;", "", "race: shared memory is overwritten that another lane of the warp read"),
    (TURNS, 64, "bar.sync 1;", "", "mbarrier: the phase after the one waited for can end before this thread has looked"),
    (OVERWRITE, 32, "fence.proxy.async;", "", "race: the async proxy overwrites .* no fence.proxy.async"),
    (OVERWRITE, 32, "fence.proxy.async;", "@%p1 fence.proxy.async;", "race: the async proxy overwrites"),
    (OVERWRITE, 32, "bar.sync 0;", "", "race: .* another lane of the warp wrote"),
    (STORE, 32, "bar.warp.sync -1;", "", "race: .* another lane of the warp wrote"),
    (STORE, 32, "fence.proxy.async;", "@%p1 fence.proxy.async;", "race: the async proxy reads"),
    (STORE, 32, "@%p1 cp.async.bulk.wait_group.read 0;", "", "async: .* an asynchronous instruction reads"),
    (STORE, 32, "bar.warp.sync 0xffffffff;", "", "race: shared memory is overwritten that another lane of the warp read"),
]


def attempt(body: str, threads: int) -> list[int]:
    return run(body, np.zeros(64, np.uint32), threads=threads, given=np.arange(256, dtype=np.uint32)).tolist()


def test_clean_programs() -> None:
    assert attempt(RING, 96) == [27 * n + 9 * (n + 64) + 3 * (n + 128) + n + 192 for n in range(64)]
    assert attempt(EXCHANGE, 32)[:32] == [4 * (n ^ 1) for n in range(32)]
    assert attempt(OVERWRITE, 32)[:32] == [2 * n for n in range(32)]
    attempt(REUSE, 32)
    attempt(TURNS, 64)
    assert attempt(STORE, 32) == [n // 2 for n in range(64)]


@pytest.mark.parametrize(
    ("body", "threads", "old", "new", "says"), CASES, ids=[f"{n}: {c[4][:40]}" for n, c in enumerate(CASES)]
)
def test_planted_defects(body: str, threads: int, old: str, new: str, says: str) -> None:
    assert body.count(old) == 1
    with pytest.raises(ptx.Defect, match=says):
        attempt(body.replace(old, new), threads)

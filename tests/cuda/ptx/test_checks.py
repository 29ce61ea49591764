"""Every check: a planted defect that it must report, with its line, thread and address, and a clean program it must accept."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pytest

from attngen.backends.cuda import ptx
from tests.cuda.ptx.kernels import entry, run


@dataclass(frozen=True)
class Case:
    """A clean body, the text to replace in it, and what must be said then. `line`: the body's line that is reported."""

    name: str
    body: str
    old: str
    new: str
    says: str
    line: str
    thread: str = ""
    threads: int = 64


EXCHANGE = """.shared .align 16 .b8 sh[512]; mov.u32 %r1, sh; mad.lo.u32 %r2, %r0, 4, %r1; xor.b32 %r3, %r0, 63;
mad.lo.u32 %r4, %r3, 4, %r1;
st.shared.u32 [%r2], %r0;
bar.sync 0;
ld.shared.u32 %r5, [%r4];
bar.sync 0;
st.shared.u32 [%r2], %r5;"""

COPY = """.shared .align 16 .b8 sh[1024]; mov.u32 %r1, sh; mad.lo.u32 %r2, %r0, 16, %r1; ld.param.u64 %d2, [given];
mad.wide.u32 %d2, %r0, 16, %d2;
cp.async.cg.shared.global [%r2], [%d2], 16;
cp.async.commit_group;
cp.async.wait_group 0;
ld.shared.u32 %r3, [%r2];
bar.sync 0;
ld.shared.u32 %r4, [sh+800];"""

EXCHANGE_WARP = """and.b32 %r1, %r0, 31; setp.lt.u32 %p1, %r1, 40;
@!%p1 bra END;
shfl.sync.bfly.b32 %r2, %r0, 1, 31, -1;
ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r3}, [sh];
END:"""

MBARRIER = """.shared .align 8 .b8 mb[8]; .shared .align 4 .b8 sh[256]; mov.u32 %r1, mb; mov.u32 %r9, sh;
mad.lo.u32 %r9, %r0, 4, %r9;
setp.ne.u32 %p1, %r0, 0;
@!%p1 mbarrier.init.shared::cta.b64 [%r1], 64;
bar.sync 0;
st.shared.u32 [%r9], %r0;
mbarrier.arrive.shared::cta.b64 %d2, [%r1];
WAIT:
mbarrier.try_wait.shared::cta.b64 %p2, [%r1], %d2;
@!%p2 bra WAIT;
xor.b32 %r5, %r0, 32; mov.u32 %r6, sh; mad.lo.u32 %r6, %r5, 4, %r6;
ld.shared.u32 %r7, [%r6];"""

LATE = """.shared .align 8 .b8 mb[8]; .shared .align 4 .b8 sh[4]; setp.ne.u32 %p1, %r0, 0; setp.eq.u32 %p3, %r0, 32;
@!%p1 mbarrier.init.shared::cta.b64 [mb], 1;
bar.sync 0;
setp.ge.u32 %p4, %r0, 32; @%p4 bra FILL;
WAIT:
mbarrier.try_wait.parity.shared::cta.b64 %p2, [mb], 0;
@!%p2 bra WAIT;
ld.shared.u32 %r7, [sh];
bra END;
FILL: @%p3 st.shared.u32 [sh], 1;
@%p3 mbarrier.arrive.shared::cta.b64 _, [mb];
END:"""

CASES = [
    Case(
        "write then read",
        EXCHANGE,
        "bar.sync 0;\nld",
        "\nld",
        "race: shared memory is read that another warp wrote",
        "ld.shared",
        "thread (0,0,0)",
    ),
    Case(
        "read then write",
        EXCHANGE,
        "bar.sync 0;\nst",
        "\nst",
        "race: shared memory is overwritten that another warp read",
        "st.shared.u32 [%r2]",
    ),
    Case("two writes", EXCHANGE, "[%r2], %r0", "[%r1], %r0", "race: two warps write different values", "st.shared.u32 [%r1]"),
    Case(
        "unwritten",
        EXCHANGE,
        "ld.shared.u32 %r5, [%r4]",
        "ld.shared.u32 %r5, [%r4+256]",
        "unwritten: .* nobody wrote",
        "ld.shared",
    ),
    Case(
        "outside shared",
        EXCHANGE,
        "[%r2], %r5",
        "[%r2+500], %r5",
        "bounds: 4 bytes of shared memory",
        "st.shared.u32 [%r2+500]",
        "thread (3,0,0)",
    ),
    Case(
        "misaligned",
        EXCHANGE,
        "[%r2], %r5",
        "[%r2+2], %r5",
        "alignment: .* must be at a multiple of 4",
        "st.shared.u32 [%r2+2]",
    ),
    Case(
        "global bounds",
        "ld.param.u64 %d2, [given];\nld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%d2+1008];",
        "1008",
        "1024",
        "bounds: .*1024 bytes after the start of given",
        "ld.global",
    ),
    Case(
        "no buffer",
        "ld.param.u64 %d2, [given];\nld.global.u32 %r1, [%d2];",
        "ld.param.u64 %d2, [given]",
        "mov.u64 %d2, 64",
        "bounds: .*no buffer",
        "ld.global",
    ),
    Case(
        "copy not waited for",
        COPY,
        "wait_group 0",
        "wait_group 1",
        "async: shared memory is read while cp.async has not been waited",
        "ld.shared.u32 %r3",
    ),
    Case(
        "copy not committed",
        COPY,
        "cp.async.commit_group;",
        "",
        "async: shared memory is read while cp.async",
        "ld.shared.u32 %r3",
    ),
    Case("copy of another warp", COPY, "bar.sync 0;", "", "race: .* another warp wrote", "ld.shared.u32 %r4"),
    Case(
        "divergent shuffle",
        EXCHANGE_WARP.replace("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r3}, [sh];", ""),
        "40",
        "20",
        "divergence: .* mask 0xffffffff",
        "shfl",
        "thread (0,0,0)",
    ),
    Case(
        "divergent matrix load",
        ".shared .align 16 .b8 sh[256]; mov.u32 %r7, 0; mov.u32 %r6, sh; shl.b32 %r5, %r0, 2; "
        "add.u32 %r6, %r6, %r5;\nst.shared.u32 [%r6], %r7; bar.sync 0;\n"
        + EXCHANGE_WARP.replace("shfl.sync.bfly.b32 %r2, %r0, 1, 31, -1;", ""),
        "40",
        "20",
        "divergence: all lanes of a warp must execute it",
        "ldmatrix",
        "thread (20,0,0)",
    ),
    Case(
        "divergent barrier",
        "setp.lt.u32 %p1, %r0, 64;\n@!%p1 bra END;\nbar.sync 0;\nEND:",
        "64",
        "40",
        "divergence",
        "bar.sync",
        "thread (40,0,0)",
    ),
    Case(
        "barrier that never fills",
        "setp.lt.u32 %p1, %r0, 64;\n@%p1 bar.sync 1, 64;\nbar.sync 0;",
        "64;\n@",
        "32;\n@",
        "deadlock: no thread can go on; threads wait at lines",
        "bar.sync 1",
    ),
    Case("too many at a barrier", "bar.sync 1, 64;", "64", "32", "deadlock: .* came to a barrier of 32", "bar.sync"),
    Case(
        "mbarrier not initialised",
        MBARRIER,
        "@!%p1 mbarrier.init.shared::cta.b64 [%r1], 64;",
        "",
        "mbarrier: there is no mbarrier here",
        "mbarrier.arrive",
    ),
    Case(
        "mbarrier with too many arrivals",
        MBARRIER,
        "[%r1], 64;",
        "[%r1], 40;",
        "mbarrier: more arrivals than the 40",
        "mbarrier.arrive",
    ),
    Case(
        "mbarrier that never completes",
        MBARRIER,
        "[%r1], 64;",
        "[%r1], 65;",
        "deadlock: no thread can go on",
        "mbarrier.try_wait",
    ),
    Case("mbarrier without a loop", LATE, "@!%p2 bra WAIT;", "", "unwritten", "ld.shared"),
    Case(
        "mbarrier not waited on",
        MBARRIER,
        "mbarrier.try_wait.shared::cta.b64 %p2, [%r1], %d2;",
        "setp.eq.u32 %p2, 0, 0;",
        "race: .*another warp wrote",
        "ld.shared",
    ),
    Case(
        "jump table",
        "TABLE: .branchtargets A, B;\nbrx.idx 1, TABLE;\nA: B:",
        "idx 1",
        "idx 2",
        "bounds: the index is beyond the 2 targets",
        "brx",
    ),
    Case("trap", "setp.gt.u32 %p1, %r0, 63;\n@%p1 trap;", "63", "62", "trap", "trap", "thread (63,0,0)"),
    Case(
        "write to constants",
        ".const .align 4 .b8 cs[4];\nmov.u64 %d2, %d0; st.u32 [%d2], 1;",
        "mov.u64 %d2, %d0;",
        "mov.u64 %d2, cs; cvta.const.u64 %d2, %d2;",
        "const memory cannot be written",
        "mov.u64",
    ),
]


def attempt(body: str, threads: int) -> None:
    run(body, np.zeros(512, np.uint32), threads=threads, given=np.zeros(256, np.uint32))


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_planted_defects_are_reported(case: Case) -> None:
    attempt(case.body, case.threads)
    assert case.body.count(case.old) == 1
    wrong = case.body.replace(case.old, case.new)
    with pytest.raises(ptx.Defect, match=case.says) as caught:
        attempt(wrong, case.threads)
    defect = caught.value
    assert f"{defect.kind}: " in str(defect)
    assert re.match(r"<ptx>:\d+: ", str(defect))
    assert "thread (" in defect.thread
    assert case.thread in defect.thread
    # Three lines come before: those of the module, the entry and its registers.
    assert case.line in wrong.splitlines()[defect.loc.line - 8]


def test_races_are_found_whatever_the_order() -> None:
    """The interpreter runs warps in step; the program would be right in that order, and is not in every other."""
    body = """.shared .align 4 .b8 sh[4]; setp.ne.u32 %p1, %r0, 0; @!%p1 st.shared.u32 [sh], %r0;
    bar.warp.sync -1; ld.shared.u32 %r1, [sh];"""
    with pytest.raises(ptx.Defect, match=r"race: .* another warp wrote"):
        attempt(body, 64)
    attempt(body, 32)
    with pytest.raises(ptx.Defect, match=r"race: .* another lane of the warp wrote"):
        attempt(body.replace("bar.warp.sync -1;", ""), 32)
    attempt(body.replace("bar.warp.sync -1;", ""), 1)


def test_endless_loops_meet_the_limit() -> None:
    with pytest.raises(ptx.Defect, match="has not ended within the limit"):
        ptx.run(entry("L: bra L;"), None, 1, 32, [np.zeros(1)], limit=1000)


def test_checks_can_be_left_away() -> None:
    text = entry(
        ".shared .align 4 .b8 sh[128]; mov.u32 %r1, %tid.x; shl.b32 %r1, %r1, 2; mov.u32 %r2, sh; "
        "add.u32 %r1, %r1, %r2; ld.shared.u32 %r3, [%r1];"
    )
    with pytest.raises(ptx.Defect, match="unwritten"):
        ptx.run(text, None, 1, 32, [np.zeros(1)])
    ptx.run(text, None, 1, 32, [np.zeros(1)], checks=False)
    with pytest.raises(ptx.Defect, match="bounds"):
        ptx.run(text, None, 1, 64, [np.zeros(1)], checks=False)


def test_copies_pad_with_zeros_and_read_no_more_than_they_say() -> None:
    body = """.shared .align 16 .b8 sh[1024]; mov.u32 %r1, sh; mad.lo.u32 %r2, %r0, 16, %r1;
    ld.param.u64 %d2, [given]; mad.wide.u32 %d2, %r0, 16, %d2;
    setp.lt.u32 %p1, %r0, 20; selp.u32 %r3, 16, 0, %p1; setp.eq.u32 %p2, %r0, 20; @%p2 mov.u32 %r3, 8;
    cp.async.cg.shared.global.L2::128B [%r2], [%d2], 16, %r3; cp.async.wait_all;
    ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [%r2]; mad.wide.u32 %d1, %r0, 16, %d0;
    st.global.v4.u32 [%d1], {%r4, %r5, %r6, %r7};"""
    given = np.arange(1, 83, dtype=np.uint32)
    out = run(body, np.full(128, 9, np.uint32), given=given)
    assert out.tolist() == [*range(1, 83), *[0] * 46]
    with pytest.raises(ptx.Defect, match="bounds: 16 bytes of global memory"):
        run(body.replace("mov.u32 %r3, 8", "mov.u32 %r3, 16"), out, given=given)


def test_copies_can_arrive_on_an_mbarrier() -> None:
    body = """.shared .align 16 .b8 sh[1024]; .shared .align 8 .b8 mb[8]; mov.u32 %r1, sh;
    mad.lo.u32 %r2, %r0, 16, %r1; mov.u32 %r8, mb;
    ld.param.u64 %d2, [given]; mad.wide.u32 %d2, %r0, 16, %d2; setp.eq.u32 %p1, %r0, 0;
    @%p1 mbarrier.init.shared.b64 [%r8], 64; bar.sync 0;
    cp.async.ca.shared.global [%r2], [%d2], 16; cp.async.mbarrier.arrive.noinc.shared.b64 [%r8];
    WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r8], 0; @!%p2 bra WAIT;
    xor.b32 %r3, %r0, 63; mad.lo.u32 %r4, %r3, 16, %r1; ld.shared.u32 %r5, [%r4]; mad.wide.u32 %d1, %r0, 4, %d0;
    st.global.u32 [%d1], %r5;"""
    out = run(body, np.zeros(64, np.uint32), threads=64, given=np.arange(256, dtype=np.uint32))
    assert out.tolist() == [4 * (63 - t) for t in range(64)]
    with pytest.raises(ptx.Defect, match="async: shared memory is read"):
        run(body.replace("@!%p2 bra WAIT;", ""), out, threads=64, given=np.arange(256, dtype=np.uint32))

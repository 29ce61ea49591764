"""A producer and a consumer warpgroup around a ring of two stages: tensor copies one way, mbarriers both ways."""

from __future__ import annotations

import numpy as np
import pytest

from attngen.backends.cuda import ptx
from tests.cuda.ptx.kernels import HEAD

STAGES, TILES = 2, 5

TEXT = (
    HEAD
    + """.extern .shared .align 1024 .b8 sh[];
.visible .entry ring(.param .u64 out, .param .align 64 .b8 map[128]) .maxntid 256 {
.reg .b32 %r<20>; .reg .b64 %d<9>; .reg .pred %p<5>; .shared .align 8 .b8 full[16]; .shared .align 8 .b8 empty[16];
ld.param.u64 %d0, [out]; mov.u64 %d1, map; cvta.param.u64 %d1, %d1; mov.u32 %r0, %tid.x; mov.u32 %r4, sh;
setp.ne.u32 %p1, %r0, 0; @%p1 bra READY;
mbarrier.init.shared::cta.b64 [full], 1; mbarrier.init.shared::cta.b64 [full+8], 1;
mbarrier.init.shared::cta.b64 [empty], 128; mbarrier.init.shared::cta.b64 [empty+8], 128;
fence.mbarrier_init.release.cluster;
READY:
bar.sync 0;
mov.u32 %r1, 0; mov.u32 %r2, 0; mov.u32 %r3, 0; mov.u32 %r12, 0;
setp.ge.u32 %p2, %r0, 128; @%p2 bra CONSUMER;
setmaxnreg.dec.sync.aligned.u32 40;
@%p1 bra END;
PRODUCE:
mad.lo.u32 %r5, %r2, 8, full; mad.lo.u32 %r6, %r2, 8, empty; mad.lo.u32 %r7, %r2, 1024, %r4; xor.b32 %r8, %r3, 1;
WAIT_EMPTY: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r6], %r8;
@!%p3 bra WAIT_EMPTY;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r5], 1024;
shl.b32 %r9, %r1, 3;
cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r7], [%d1, {0, %r9}], [%r5];
add.u32 %r1, %r1, 1; add.u32 %r2, %r2, 1; setp.eq.u32 %p4, %r2, 2; @%p4 xor.b32 %r3, %r3, 1; @%p4 mov.u32 %r2, 0;
setp.lt.u32 %p4, %r1, 5; @%p4 bra PRODUCE;
bra END;
CONSUMER:
setmaxnreg.inc.sync.aligned.u32 232; sub.u32 %r10, %r0, 128;
CONSUME:
mad.lo.u32 %r5, %r2, 8, full; mad.lo.u32 %r6, %r2, 8, empty; mad.lo.u32 %r7, %r2, 1024, %r4; mad.lo.u32 %r7, %r10, 8, %r7;
WAIT_FULL: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r5], %r3;
@!%p3 bra WAIT_FULL;
ld.shared.v2.u32 {%r8, %r9}, [%r7];
mbarrier.arrive.shared::cta.b64 _, [%r6];
mad.lo.u32 %r12, %r12, 3, %r8; add.u32 %r12, %r12, %r9;
add.u32 %r1, %r1, 1; add.u32 %r2, %r2, 1; setp.eq.u32 %p4, %r2, 2; @%p4 xor.b32 %r3, %r3, 1; @%p4 mov.u32 %r2, 0;
setp.lt.u32 %p4, %r1, 5; @%p4 bra CONSUME;
mad.wide.u32 %d2, %r10, 4, %d0; st.global.u32 [%d2], %r12;
END: ret;
}
"""
)


def launch(text: str) -> np.ndarray:
    """Two blocks do the same; the last one to write is as good as the first."""
    tiles = np.arange(TILES * 8 * 32, dtype=np.uint32).reshape(-1, 32)
    out = np.zeros(128, np.uint32)
    ptx.run(text, "ring", 2, 256, [out, ptx.TensorMap(tiles, (8, 32), 128)], STAGES * 1024)
    return out


def test_every_tile_arrives_once_and_in_order() -> None:
    chunks = np.arange(TILES * 256, dtype=np.uint32).reshape(TILES, 8, 8, 4)
    # 128-byte rows: the chunk of 16 bytes is exchanged by the number of the row.
    held = np.stack([chunks[:, r, [c ^ r for c in range(8)]] for r in range(8)], axis=1).reshape(TILES, 128, 2)
    expected = np.zeros(128, np.uint32)
    for tile in held:
        expected = expected * np.uint32(3) + tile[:, 0] + tile[:, 1]
    np.testing.assert_array_equal(launch(TEXT), expected)


DEFECTS = [
    ("@!%p3 bra WAIT_FULL;", "", "async: shared memory is read while a bulk copy into it has not completed"),
    ("@!%p3 bra WAIT_EMPTY;", "", "mbarrier: more arrivals than the 1 it expects"),
    ("mbarrier.arrive.shared::cta.b64 _, [%r6];\n", "", "deadlock: no thread can go on; threads wait at lines"),
    ("_, [%r5], 1024;", "_, [%r5], 512;", "deadlock|async"),
    ("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r5], 1024;", "mbarrier.arrive.shared::cta.b64 _, [%r5];", "async"),
    ("[%r5], %r3;", "[%r5], %r8;", "async|race|deadlock"),
    ("xor.b32 %r8, %r3, 1;", "mov.u32 %r8, %r3;", "deadlock"),
    ("[empty+8], 128;", "[empty+8], 64;", "mbarrier: more arrivals than the 64 it expects"),
    ("READY:\nbar.sync 0;", "READY:", "race: shared memory is used as an mbarrier that another warp wrote"),
    # The stage is given back before it is read.
    (
        "ld.shared.v2.u32 {%r8, %r9}, [%r7];\nmbarrier.arrive.shared::cta.b64 _, [%r6];",
        "mbarrier.arrive.shared::cta.b64 _, [%r6];\nld.shared.v2.u32 {%r8, %r9}, [%r7];",
        "race: shared memory is overwritten that another warp read|async",
    ),
    ("setp.ge.u32 %p2, %r0, 128;", "setp.ge.u32 %p2, %r0, 112;", "divergence: all lanes of a warp"),
]


@pytest.mark.parametrize(("old", "new", "says"), DEFECTS, ids=[f"{n}: {d[2][:40]}" for n, d in enumerate(DEFECTS)])
def test_planted_defects(old: str, new: str, says: str) -> None:
    assert TEXT.count(old) == 1
    with pytest.raises(ptx.Defect, match=says):
        launch(TEXT.replace(old, new))

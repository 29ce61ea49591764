"""Bulk copies, with and without tensor maps, mbarriers that they complete on, and clusters of one block."""

from __future__ import annotations

import numpy as np
import pytest

from attngen.backends.cuda import ptx
from tests.cuda.ptx.kernels import HEAD, run

START = """.extern .shared .align 1024 .b8 sh[];
.visible .entry f(.param .u64 out, .param .align 64 .b8 map[128], .param .u32 x, .param .u32 y, .param .u32 z) {
.reg .b32 %r<20>; .reg .b64 %d<9>; .reg .pred %p<5>; .shared .align 8 .b8 mb[8];
ld.param.u64 %d0, [out]; ld.param.u32 %r1, [x]; ld.param.u32 %r2, [y]; ld.param.u32 %r3, [z]; mov.u32 %r0, %tid.x;
mov.u32 %r4, sh; mov.u64 %d1, map; cvta.param.u64 %d1, %d1; setp.eq.u32 %p1, %r0, 0;
"""

LOAD = """@%p1 mbarrier.init.shared::cta.b64 [mb], 1;
bar.sync 0;
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [mb], {size};
@%p1 cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r4], [%d1, {corner}], [mb];
WAIT: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p2, [mb], 0;
@!%p2 bra WAIT;
mov.u32 %r5, %r0;
COPY: mad.lo.u32 %r6, %r5, 4, %r4; ld.shared.u32 %r7, [%r6]; mad.wide.u32 %d2, %r5, 4, %d0; st.global.u32 [%d2], %r7;
add.u32 %r5, %r5, 64; setp.lt.u32 %p3, %r5, {words}; @%p3 bra COPY;
ret; }}
"""

STORE = """mov.u32 %r5, %r0;
COPY: mad.lo.u32 %r6, %r5, 4, %r4; mad.wide.u32 %d2, %r5, 4, %d0; ld.global.u32 %r7, [%d2]; st.shared.u32 [%r6], %r7;
add.u32 %r5, %r5, 64; setp.lt.u32 %p3, %r5, {words}; @%p3 bra COPY;
fence.proxy.async.shared::cta;
bar.sync 0;
@!%p1 bra END;
cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group [%d1, {corner}], [%r4];
cp.async.bulk.commit_group;
cp.async.bulk.wait_group.read 0;
st.shared.u32 [%r4], 0;
END: ret; }}
"""


def text(form: str, rank: int, box: tuple[int, ...], size: int) -> str:
    corner = "{" + ", ".join(f"%r{n + 1}" for n in range(rank)) + "}"
    total = int(np.prod(box)) * size
    return HEAD + START + form.format(rank=rank, corner=corner, size=total, words=total // 4)


def swizzled(tile: np.ndarray, span: int) -> np.ndarray:
    """The rows of a tile, whose chunks of 16 bytes are exchanged by the number of the 128-byte line they lie in."""
    raw = np.ascontiguousarray(tile).view(np.uint8).reshape(-1, 16)
    out = np.zeros_like(raw)
    for n, chunk in enumerate(raw):
        line = n // 8
        out[n ^ (line % (span // 16) if span else 0)] = chunk
    return out.reshape(-1)


def boxed(array: np.ndarray, corner: tuple[int, ...], box: tuple[int, ...]) -> np.ndarray:
    """The box of an array at a corner, zero outside; both in the order of the axes."""
    out = np.zeros(box, array.dtype)
    for index in np.ndindex(*box):
        at = tuple(c + k for c, k in zip(corner, index, strict=True))
        if all(0 <= a < n for a, n in zip(at, array.shape, strict=True)):
            out[index] = array[at]
    return out


CASES = [
    (1, (100,), (64,), (60,), 0, np.float32),
    (2, (20, 64), (8, 64), (-3, 0), 128, np.float16),
    (2, (20, 64), (8, 32), (15, 40), 64, np.float16),
    (3, (3, 10, 48), (2, 8, 16), (2, -1, 40), 32, np.uint16),
    (3, (3, 10, 8), (2, 8, 8), (1, 5, 0), 0, np.float32),
]


@pytest.mark.parametrize(("rank", "shape", "box", "corner", "span", "dtype"), CASES)
def test_tensor_copies_in_and_out(
    rank: int, shape: tuple[int, ...], box: tuple[int, ...], corner: tuple[int, ...], span: int, dtype: type[np.generic]
) -> None:
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    where = [c % 2**32 for c in (*corner[::-1], 0, 0)][:3]
    out = np.zeros(int(np.prod(box)) * array.itemsize, np.uint8)
    args = [out, ptx.TensorMap(array, box, span), *where]
    ptx.run(text(LOAD, rank, box, array.itemsize), "f", 1, 64, args, 32768)
    np.testing.assert_array_equal(out, swizzled(boxed(array, corner, box), span))
    # The same bytes, written back into an empty array, fill the box and nothing else.
    back = np.zeros_like(array)
    ptx.run(text(STORE, rank, box, array.itemsize), "f", 1, 64, [out, ptx.TensorMap(back, box, span), *where], 32768)
    inside = boxed(np.ones(shape), corner, box)
    expected = np.zeros_like(array)
    for index in zip(*np.nonzero(inside), strict=True):
        at = tuple(c + k for c, k in zip(corner, index, strict=True))
        expected[at] = array[at]
    np.testing.assert_array_equal(back, expected)


PLAIN = """.shared .align 128 .b8 sh[512]; .shared .align 8 .b8 mb[8]; setp.eq.u32 %p1, %r0, 0; ld.param.u64 %d2, [given];
mov.u32 %r4, sh; mov.u32 %r9, mb;
@%p1 mbarrier.init.shared::cta.b64 [%r9], 33;
bar.sync 0;
@%p1 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r9], 256;
@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r4], [%d2], 256, [%r9];
mbarrier.arrive.shared::cta.b64 %d3, [%r9];
@%p1 mbarrier.arrive.release.cta.shared::cta.b64 %d4, [%r9], 1;
POLL: mbarrier.test_wait.shared::cta.b64 %p2, [%r9], %d3;
@!%p2 bra POLL;
mad.lo.u32 %r5, %r0, 8, %r4; ld.shared.v2.u32 {%r6, %r7}, [%r5]; add.u32 %r6, %r6, 1; st.shared.v2.u32 [%r5+256], {%r7, %r6};
fence.proxy.async;
bar.sync 0;
@%p1 cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r4+256], 256;
@%p1 cp.async.bulk.commit_group;
@%p1 cp.async.bulk.wait_group 0;
@%p1 mbarrier.inval.shared::cta.b64 [%r9];
barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"""


def plain(body: str) -> np.ndarray:
    return run(body, np.zeros(64, np.uint32), threads=32, given=np.arange(64, dtype=np.uint32))


def test_plain_copies() -> None:
    out = plain(PLAIN).reshape(-1, 2)
    np.testing.assert_array_equal(out, np.stack([np.arange(1, 64, 2), np.arange(0, 64, 2) + 1], axis=1))


PLAIN_DEFECTS = [
    ("@!%p2 bra POLL;", "", "async: shared memory is read while a bulk copy into it has not completed"),
    ("mb[8]; setp", "mb[8]; .shared .align 8 .b8 more[8]; setp", ""),
    ("[%r9], 256;", "[%r9], 240;", "deadlock|async"),
    ("@%p1 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r9], 256;", "", "async|deadlock"),
    ("fence.proxy.async;", "", "race: the async proxy reads .* no fence.proxy.async"),
    ("[%r4+256], 256;", "[%r4+256], 250;", "alignment: a bulk copy of 250 bytes"),
    ("[%r4+256], 256;", "[%r4+264], 240;", "alignment: .* multiple of 16"),
    ("[%d0], [%r4+256]", "[%d0+16], [%r4+256]", "bounds: 16 bytes of global memory"),
    ("[%r9], 33;", "[%r9], 0;", "mbarrier: the count 0 is not"),
    ("@%p1 mbarrier.inval.shared::cta.b64 [%r9];", "@%p1 st.shared.b64 [%r9], %d3;", "mbarrier: .* an mbarrier lies there"),
    ("mov.u32 %r9, mb;", "add.u32 %r9, %r4, 516;", "alignment: .* multiple of 8"),
]


@pytest.mark.parametrize(("old", "new", "says"), PLAIN_DEFECTS, ids=[f"{n}: {d[2][:40]}" for n, d in enumerate(PLAIN_DEFECTS)])
def test_planted_defects(old: str, new: str, says: str) -> None:
    assert PLAIN.count(old) == 1
    wrong = PLAIN.replace(old, new)
    if not says:
        plain(wrong)
        return
    with pytest.raises(ptx.Defect, match=says):
        plain(wrong)


STORE_DEFECTS = [
    ("cp.async.bulk.wait_group.read 0;", "", "async: .* an asynchronous instruction reads"),
    ("wait_group.read 0;", "wait_group.read 1;", "async: .* an asynchronous instruction reads"),
    ("fence.proxy.async.shared::cta;", "", "race: the async proxy reads"),
    ("bar.sync 0;", "", "race: .* another lane of the warp wrote"),
    ("], [%r4];", "], [%r4+64];", "alignment: .* multiple of 128"),
    ("mov.u64 %d1, map;", "mov.u64 %d1, map; mov.u64 %d1, x;", "bounds|alignment"),
    ("tensor.2d", "tensor.3d", "does not know the coordinates"),
]


@pytest.mark.parametrize(("old", "new", "says"), STORE_DEFECTS, ids=[f"{n}: {d[2][:40]}" for n, d in enumerate(STORE_DEFECTS)])
def test_planted_defects_in_tensor_stores(old: str, new: str, says: str) -> None:
    source = text(STORE, 2, (8, 64), 2)
    assert source.count(old) == 1
    args = [np.zeros(256, np.uint32), ptx.TensorMap(np.zeros((20, 64), np.uint16), (8, 64), 128), 0, 0, 0]
    ptx.run(source, "f", 1, 64, args, 32768)
    with pytest.raises(ptx.PtxError, match=says):
        ptx.run(source.replace(old, new), "f", 1, 64, args, 32768)


@pytest.mark.parametrize(
    ("array", "box", "span", "says"),
    [
        (np.zeros((4, 64)), (4,), 0, "a box of as many"),
        (np.zeros((4, 64))[:, ::2], (4, 32), 0, "contiguous"),
        (np.zeros((4, 64), np.uint16), (4, 4), 0, "rows of a multiple of 16 bytes, not 8"),
        (np.zeros((4, 64), np.uint16), (4, 64), 64, "no less than a row"),
        (np.zeros((4, 63), np.uint16), (4, 8), 0, "multiples of 16 bytes"),
        (np.zeros((4, 64), np.uint16), (257, 8), 0, "extents of 1 to 256"),
    ],
)
def test_tensor_maps_are_checked(array: np.ndarray, box: tuple[int, ...], span: int, says: str) -> None:
    with pytest.raises(ptx.PtxError, match=says):
        ptx.TensorMap(array, box, span)

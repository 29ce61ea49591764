"""`wgmma` with every swizzling mode and both ways round: tiles are laid out here element by element, as the ISA draws them."""

from __future__ import annotations

import numpy as np
import pytest

from attngen.backends.cuda import ptx
from tests.cuda.ptx.kernels import HEAD, decode, encode

MODES = {0: 0, 32: 3, 64: 2, 128: 1}
"""Bytes of a swizzled row -> the two bits of the descriptor."""


def placed(tile: np.ndarray, span: int, transposed: bool) -> tuple[np.ndarray, int, int]:
    """Shared memory that holds a tile (rows, depth), and the two strides of its descriptor, in bytes."""
    rows, depth = tile.shape
    size = tile.itemsize
    per = 16 // size
    image = np.full(65536 // size, 7, tile.dtype)
    leading, stride = 0, 0
    for r in range(rows):
        for c in range(depth):
            along, across = (r, c) if transposed else (c, r)
            if span == 0:
                # Core matrices of 8 by 16 bytes, one after the other; k runs fastest.
                chunks_along = (rows if transposed else depth) // per
                number = (across // 8) * chunks_along + along // per
                address = number * 128 + across % 8 * 16 + along % per * size
                leading, stride = (chunks_along * 128, 128) if transposed else (128, chunks_along * 128)
            else:
                # Blocks of `span` bytes by 8; along the contiguous direction a whole matrix of such blocks later.
                block, inside = divmod(along * size, span)
                blocks_across = (depth if transposed else rows) // 8
                row = across % 8
                line, column = divmod(row * span + inside, 128)
                chunk = column // 16 ^ line % {32: 2, 64: 4, 128: 8}[span]
                address = (block * blocks_across + across // 8) * 8 * span + line * 128 + chunk * 16 + inside % 16
                leading, stride = blocks_across * 8 * span, 8 * span
            image[address // size] = tile[r, c]
    return image.view(np.uint32), leading, stride


def descriptor(start: int, leading: int, stride: int, span: int) -> int:
    return start >> 4 | (leading >> 4) << 16 | (stride >> 4) << 32 | MODES[span] << 62


BODY = """.extern .shared .align 1024 .b8 sh[];
.visible .entry f(.param .u64 out, .param .u64 pa, .param .u64 pb, .param .u64 pc) {{
.reg .b32 %r<20>, %a<4>, %x<128>; .reg .b64 %d<9>; .reg .pred %p<3>; .reg .u64 %da, %db;
ld.param.u64 %d0, [out]; ld.param.u64 %d1, [pa]; ld.param.u64 %d2, [pb]; ld.param.u64 %d3, [pc];
mov.u32 %r0, %tid.x; mov.u32 %r1, sh;
mov.u32 %r2, %r0;
COPY: mad.wide.u32 %d4, %r2, 4, %d1; mad.wide.u32 %d5, %r2, 4, %d2; ld.global.u32 %r3, [%d4]; ld.global.u32 %r4, [%d5];
mad.lo.u32 %r5, %r2, 4, %r1; st.shared.u32 [%r5], %r3; st.shared.u32 [%r5+65536], %r4;
add.u32 %r2, %r2, 128; setp.lt.u32 %p1, %r2, 16384; @%p1 bra COPY;
fence.proxy.async;
bar.sync 0;
mad.wide.u32 %d6, %r0, {row}, %d3; {load} {fragment}
mov.u64 %da, {da}; mov.u64 %db, {db}; setp.ne.u32 %p2, 1, {fresh};
wgmma.fence.sync.aligned;
wgmma.mma_async.sync.aligned.m64n{n}k{k}.{result}.{element}.{element} {registers}, {a}, %db, %p2{constants};
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
mad.wide.u32 %d7, %r0, {row}, %d0; {store}
ret;
}}
"""


def program(
    n: int,
    element: str,
    da: int,
    db: int,
    turned: tuple[int, ...],
    fragment: bool = False,
    fresh: bool = False,
    out: str = "f32",
) -> str:
    depth = {"tf32": 8, "s8": 32}.get(element, 16)
    held = n // 4 if out == "f16" else n // 2
    registers = "{" + ", ".join(f"%x{i}" for i in range(held)) + "}"
    take = "mad.wide.u32 %d8, %r0, 16, %d1; ld.global.v4.u32 {%a0, %a1, %a2, %a3}, [%d8];" if fragment else ""
    constants = "" if element == "s8" else ", " + ", ".join(map(str, (1, 1, *turned)))
    load = " ".join(f"ld.global.u32 %x{i}, [%d6+{4 * i}];" for i in range(held))
    store = " ".join(f"st.global.u32 [%d7+{4 * i}], %x{i};" for i in range(held))
    a = "{%a0, %a1, %a2, %a3}" if fragment else "%da"
    given = {"row": 4 * held, "load": load, "fragment": take, "da": da, "db": db, "fresh": int(fresh), "n": n, "k": depth}
    return HEAD + BODY.format(**given, element=element, result=out, registers=registers, a=a, constants=constants, store=store)


def accumulators(matrix: np.ndarray) -> np.ndarray:
    """(64, n) -> (128 threads, n / 2 registers)."""
    out = np.zeros((128, matrix.shape[1] // 2), np.float32)
    for t in range(128):
        for i in range(out.shape[1]):
            out[t, i] = matrix[t // 32 * 16 + t % 32 // 4 + i % 4 // 2 * 8, i // 4 * 8 + t % 4 * 2 + i % 2]
    return out


def multiply(
    n: int, element: str, spans: tuple[int, int], turned: tuple[bool, bool], fresh: bool = False, result: str = "f32"
) -> None:
    generate = np.random.default_rng(n)
    depth = {"tf32": 8, "s8": 32}.get(element, 16)
    a, b = (generate.integers(-8, 8, (rows, depth)).astype(np.float32) for rows in (64, n))
    if element in ("tf32", "s8"):
        raw = tuple(x.astype(np.int8 if element == "s8" else np.float32) for x in (a, b))
    else:
        raw = tuple(encode(x, element) for x in (a, b))
    (image_a, la, sa), (image_b, lb, sb) = (placed(x, s, t) for x, s, t in zip(raw, spans, turned, strict=True))
    da, db = descriptor(0, la, sa, spans[0]), descriptor(65536, lb, sb, spans[1])
    dtype = {"f32": np.float32, "s32": np.int32, "f16": np.float16}[result]
    c = generate.integers(-8, 8, (64, n)).astype(np.float32)
    out = np.zeros((128, n // 2), dtype)
    text = program(n, element, da, db, () if element == "tf32" else tuple(map(int, turned)), fresh=fresh, out=result)
    ptx.run(text, "f", 1, 128, [out, image_a, image_b, accumulators(c).astype(dtype)], 131072)
    np.testing.assert_array_equal(out, accumulators(a @ b.T + (0 if fresh else c)))


@pytest.mark.parametrize("span", MODES)
@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, True)])
def test_swizzling_modes_both_ways_round(span: int, turned: tuple[bool, bool]) -> None:
    multiply(64, "f16", (span, span), turned)


@pytest.mark.parametrize(
    ("n", "element", "spans"),
    [(8, "bf16", (128, 0)), (256, "bf16", (128, 128)), (24, "f16", (32, 64)), (64, "tf32", (128, 32)), (96, "tf32", (0, 0))],
)
def test_extents_and_elements(n: int, element: str, spans: tuple[int, int]) -> None:
    multiply(n, element, spans, (False, False), fresh=n == 8)


@pytest.mark.parametrize(("element", "result"), [("s8", "s32"), ("f16", "f16")])
def test_other_accumulators(element: str, result: str) -> None:
    multiply(40, element, (32, 128) if element == "f16" else (32, 32), (False, False), result=result)


def clean() -> tuple[str, list[np.ndarray]]:
    """A from registers, b transposed in 128-byte rows."""
    generate = np.random.default_rng(3)
    a, b = generate.integers(-8, 8, (64, 16)).astype(np.float32), generate.integers(-8, 8, (64, 16)).astype(np.float32)
    fragment = np.zeros((128, 4, 2), np.uint16)
    raw = encode(a, "bf16")
    for t in range(128):
        for i in range(4):
            for e in range(2):
                fragment[t, i, e] = raw[t // 32 * 16 + t % 32 // 4 + i % 2 * 8, t % 4 * 2 + e + i // 2 * 8]
    given = np.zeros(16384, np.uint32)
    given[:512] = fragment.view(np.uint32).reshape(-1)
    image, leading, stride = placed(encode(b, "bf16"), 128, True)
    text = program(64, "bf16", 0, descriptor(65536, leading, stride, 128), (1,), fragment=True)
    np.testing.assert_array_equal(decode(raw, "bf16"), a)
    return text, [given, image, np.zeros((128, 32), np.float32), accumulators(a @ b.T)]


def test_a_from_registers() -> None:
    text, (given, image, c, expected) = clean()
    out = np.zeros((128, 32), np.float32)
    ptx.run(text, "f", 1, 128, [out, given, image, c], 131072)
    np.testing.assert_array_equal(out, expected)


DEFECTS = [
    ("wgmma.wait_group.sync.aligned 0;\n", "", "async: wgmma still uses register %x0"),
    ("wait_group.sync.aligned 0;", "wait_group.sync.aligned 1;", "async: wgmma still uses register"),
    ("wgmma.commit_group.sync.aligned;\n", "", "async: wgmma still uses register"),
    ("wgmma.fence.sync.aligned;\n", "", "async: register .* no wgmma.fence after"),
    ("wgmma.commit", "mov.b32 %a2, 0;\nwgmma.commit", "async: wgmma still uses register %a2"),
    ("wgmma.commit", "st.shared.u32 [%r1+65536], 0;\nwgmma.commit", "async: .* an asynchronous instruction reads"),
    ("fence.proxy.async;\n", "", "race: the async proxy reads .* no fence.proxy.async"),
    ("fence.proxy.async;", "fence.proxy.async.global;", "race: the async proxy reads"),
    ("bar.sync 0;\n", "", "race: shared memory is read that another lane of the warp wrote"),
    ("COPY: mad", "add.u32 %r2, %r2, 128;\nCOPY: mad", "unwritten"),
    ("wgmma.mma_async", "setp.gt.u32 %p1, %r0, 40;\n@%p1 wgmma.mma_async", "divergence"),
    ("wgmma.mma_async", "setp.gt.u32 %p1, %r0, 31;\n@%p1 wgmma.mma_async", "deadlock"),
    ("mov.u64 %db, ", "mul.wide.u32 %db, %r0, 2; add.u64 %db, %db, ", "divergence: the descriptor differs"),
    ("mov.u64 %db, ", "add.u64 %db, 4064, ", "bounds"),
    (", 1, 1, 1;", ", 1, 1, 1, 1;", "does not know the constants"),
    ("m64n64k16.f32.bf16.bf16", "m64n64k32.f32.e4m3.e4m3", "does not know the shape and types"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "says"), DEFECTS, ids=[f"{i}: {d[2][:40]}" for i, d in enumerate(DEFECTS)])
def test_planted_defects(old: str, new: str, says: str) -> None:
    text, (given, image, c, _) = clean()
    assert text.count(old) == 1
    with pytest.raises(ptx.PtxError, match=says):
        ptx.run(text.replace(old, new), "f", 1, 128, [np.zeros((128, 32), np.float32), given, image, c], 131072)

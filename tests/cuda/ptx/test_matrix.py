"""Tensor-core instructions: fragments are laid out here by the tables of the PTX ISA, element by element."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cuda.ptx.kernels import decode, encode, run


def fragment_a(matrix: np.ndarray, per: int) -> np.ndarray:
    """(16, k) -> (registers, 32 lanes, elements): rows g and g+8, columns t·per … of each half of k."""
    k = matrix.shape[1]
    out = np.zeros((k // (2 * per), 32, per), matrix.dtype)
    for lane in range(32):
        for r in range(out.shape[0]):
            for e in range(per):
                out[r, lane, e] = matrix[lane // 4 + 8 * (r % 2), lane % 4 * per + e + 4 * per * (r // 2)]
    return out


def fragment_b(matrix: np.ndarray, per: int) -> np.ndarray:
    """(k, 8) -> (registers, lanes, elements)."""
    out = np.zeros((matrix.shape[0] // (4 * per), 32, per), matrix.dtype)
    for lane in range(32):
        for r in range(out.shape[0]):
            for e in range(per):
                out[r, lane, e] = matrix[lane % 4 * per + e + 4 * per * r, lane // 4]
    return out


def matrix_c(registers: np.ndarray) -> np.ndarray:
    """(lanes, 4) -> (16, 8)."""
    out = np.zeros((16, 8), registers.dtype)
    for lane in range(32):
        for r in range(4):
            out[lane // 4 + 8 * (r // 2), lane % 4 * 2 + r % 2] = registers[lane, r]
    return out


def load(name: str, count: int, first: int) -> str:
    """Registers first… of each lane from a parameter that holds (registers, lanes)."""
    lines = [f"ld.param.u64 %d2, [{name}]; mad.wide.u32 %d2, %r0, 4, %d2;"]
    return " ".join(lines + [f"ld.global.b32 %r{first + n}, [%d2+{128 * n}];" for n in range(count)])


def names(first: int, count: int) -> str:
    return "{" + ", ".join(f"%r{first + n}" for n in range(count)) + "}"


SHAPES = [("f16", 16), ("f16", 8), ("bf16", 16), ("bf16", 8), ("tf32", 8), ("tf32", 4), ("s8", 32), ("u8", 16)]


@pytest.mark.parametrize(("element", "k"), SHAPES)
def test_mma(element: str, k: int) -> None:
    generate = np.random.default_rng(k)
    a, b = generate.integers(-8, 8, (16, k)).astype(np.float32), generate.integers(-8, 8, (k, 8)).astype(np.float32)
    c = generate.integers(-8, 8, (32, 4))
    if element in ("s8", "u8"):
        a, b = (np.abs(x) if element == "u8" else x for x in (a, b))
        raw, per, out, c = [x.astype(np.int8) for x in (a, b)], 4, "s32", c.astype(np.int32)
    elif element == "tf32":
        raw, per, out, c = [a, b], 1, "f32", c.astype(np.float32)
    else:
        raw, per, out, c = [encode(x, element) for x in (a, b)], 2, "f32", c.astype(np.float32)
    ra, rb = (np.ascontiguousarray(f(x, per)).view(np.uint32)[..., 0] for f, x in ((fragment_a, raw[0]), (fragment_b, raw[1])))
    result = np.zeros((32, 4), c.dtype)
    body = f"""{load("a", len(ra), 10)} {load("b", len(rb), 20)}
    ld.param.u64 %d3, [c]; mad.wide.u32 %d3, %r0, 16, %d3; ld.global.v4.b32 {names(30, 4)}, [%d3];
    mma.sync.aligned.m16n8k{k}.row.col.{out}.{element}.{element}.{out}
    {names(30, 4)}, {names(10, len(ra))}, {names(20, len(rb))}, {names(30, 4)};
    mad.wide.u32 %d1, %r0, 16, %d0; st.global.v4.b32 [%d1], {names(30, 4)};"""
    run(body, result, a=ra, b=rb, c=c)
    np.testing.assert_array_equal(matrix_c(result), a @ b + matrix_c(c))


def test_mma_with_half_accumulators() -> None:
    generate = np.random.default_rng(1)
    a, b, c = (generate.integers(-4, 4, shape).astype(np.float16) for shape in ((16, 16), (16, 8), (32, 4)))
    ra, rb = fragment_a(a, 2).view(np.uint32)[..., 0].copy(), fragment_b(b, 2).view(np.uint32)[..., 0].copy()
    result = np.zeros((32, 4), np.float16)
    body = f"""{load("a", 4, 10)} {load("b", 2, 20)} ld.param.u64 %d3, [c]; mad.wide.u32 %d3, %r0, 8, %d3;
    ld.global.v2.b32 {names(30, 2)}, [%d3];
    mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {names(30, 2)}, {names(10, 4)}, {names(20, 2)}, {names(30, 2)};
    mad.wide.u32 %d1, %r0, 8, %d0; st.global.v2.b32 [%d1], {names(30, 2)};"""
    run(body, result, a=ra, b=rb, c=c)
    np.testing.assert_array_equal(matrix_c(result), (a.astype(float) @ b + matrix_c(c)).astype(np.float16))


def test_integer_products_saturate_only_if_told() -> None:
    a, b = np.full((16, 32), 127, np.int8), np.full((32, 8), 127, np.int8)
    for word, expected in (("", np.int64(2**31 - 9 + 32 * 127 * 127).astype(np.int32)), (".satfinite", 2**31 - 1)):
        result = np.zeros((32, 4), np.int32)
        body = f"""{load("a", 4, 10)} {load("b", 2, 20)} mov.b32 %r30, 2147483639; mov.b32 %r31, %r30; mov.b32 %r32, %r30;
        mov.b32 %r33, %r30; mma.sync.aligned.m16n8k32.row.col{word}.s32.s8.s8.s32
        {names(30, 4)}, {names(10, 4)}, {names(20, 2)}, {names(30, 4)};
        mad.wide.u32 %d1, %r0, 16, %d0; st.global.v4.b32 [%d1], {names(30, 4)};"""
        ra, rb = (np.ascontiguousarray(f(x, 4)).view(np.uint32)[..., 0] for f, x in ((fragment_a, a), (fragment_b, b)))
        run(body, result, a=ra, b=rb)
        assert (result == expected).all()


def test_tf32_ignores_the_low_bits() -> None:
    a, b = np.full((16, 8), 1 + 2.0**-13, np.float32), np.ones((8, 8), np.float32)
    result = np.zeros((32, 4), np.float32)
    body = f"""{load("a", 4, 10)} {load("b", 2, 20)} mov.b32 %r30, 0; mov.b32 %r31, 0; mov.b32 %r32, 0; mov.b32 %r33, 0;
    mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {names(30, 4)}, {names(10, 4)}, {names(20, 2)}, {names(30, 4)};
    mad.wide.u32 %d1, %r0, 16, %d0; st.global.v4.b32 [%d1], {names(30, 4)};"""
    run(body, result, a=fragment_a(a, 1)[..., 0].copy(), b=fragment_b(b, 1)[..., 0].copy())
    assert (result == 8).all()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_matrices_of_eight_rows_go_to_registers_and_back(count: int, transposed: bool) -> None:
    """ldmatrix: lane l gets elements 2(l%4), +1 of row l/4, of each matrix; stmatrix puts them where they were."""
    given = np.arange(count * 64, dtype=np.uint16).reshape(count, 8, 8)
    lines = [
        "ld.param.u64 %d2, [given]; .shared .align 16 .b8 sh[1024]; mov.u32 %r1, sh; and.b32 %r2, %r0, 31; shl.b32 %r3, %r2, 4;"
    ]
    # The rows lie 16 bytes apart; lanes beyond 8·count hold addresses that must not be used.
    lines.append(f"add.u32 %r4, %r1, %r3; setp.lt.u32 %p1, %r2, {8 * count}; cvt.u64.u32 %d3, %r3; add.s64 %d2, %d2, %d3;")
    lines.append("@%p1 ld.global.v4.b32 {%r5, %r6, %r7, %r8}, [%d2]; @%p1 st.shared.v4.b32 [%r4], {%r5, %r6, %r7, %r8};")
    lines.append("@!%p1 mov.u32 %r4, 77; bar.warp.sync -1;")
    trans = ".trans" if transposed else ""
    lines.append(f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {names(10, count)}, [%r4];")
    lines.append(f"mad.wide.u32 %d1, %r0, {4 * count}, %d0;")
    lines += [f"st.global.b32 [%d1+{4 * n}], %r{10 + n};" for n in range(count)]
    lines.append(
        f"@%p1 add.u32 %r4, %r4, 512; stmatrix.sync.aligned.m8n8.x{count}{trans}.shared::cta.b16 [%r4], {names(10, count)};"
    )
    lines.append("@%p1 ld.shared.v4.b32 {%r5, %r6, %r7, %r8}, [%r4]; ld.param.u64 %d5, [back]; add.s64 %d5, %d5, %d3;")
    lines.append("@%p1 st.global.v4.b32 [%d5], {%r5, %r6, %r7, %r8};")
    back = np.zeros_like(given)
    out = run("\n".join(lines), np.zeros((32, count), np.uint32), given=given, back=back)
    halves = out.view(np.uint16).reshape(32, count, 2)
    for lane in range(32):
        for n in range(count):
            row, column = lane // 4, lane % 4 * 2
            expected = given[n, column : column + 2, row] if transposed else given[n, row, column : column + 2]
            assert halves[lane, n].tolist() == expected.tolist()
    np.testing.assert_array_equal(back, given)


def test_encoding_of_test_data() -> None:
    x = np.array([1.5, -2.0, 0.25])
    assert decode(encode(x, "bf16"), "bf16").tolist() == decode(encode(x, "f16"), "f16").tolist() == x.tolist()

# pyright: basic, reportMissingImports=false
"""Writes the .ptx files beside it: attention kernels compiled by Triton, an origin of PTX that is not ours.

Run `python make_triton.py` with triton installed (3.9.0 wrote what is here); no GPU and no driver is needed. The first line
of each file says how it was made and how it is launched, for the tests to read.
"""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HERE = Path(__file__).parent


@triton.jit
def attend(
    queries, keys, values, out, lse, rows, columns, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """One block of rows against all columns; ragged extents, log-sum-exp in base 2."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    head = tl.program_id(1).to(tl.int64)
    d = tl.arange(0, D)
    q = tl.load(queries + head * rows * D + m[:, None] * D + d[None, :], mask=m[:, None] < rows, other=0.0)
    acc = tl.zeros((BM, D), tl.float32)
    largest = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    end = tl.minimum(columns, (tl.program_id(0) + 1) * BM) if CAUSAL else columns
    for start in range(0, end, BN):
        n = start + tl.arange(0, BN)
        inside = n[None, :] < columns
        k = tl.load(keys + head * columns * D + n[:, None] * D + d[None, :], mask=n[:, None] < columns, other=0.0)
        s = tl.dot(q, tl.trans(k)) * scale
        if CAUSAL:
            inside = inside & (n[None, :] <= m[:, None])
        s = tl.where(inside, s, float("-inf"))
        new = tl.maximum(largest, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        correction = tl.exp2(largest - new)
        total = total * correction + tl.sum(p, 1)
        v = tl.load(values + head * columns * D + n[:, None] * D + d[None, :], mask=n[:, None] < columns, other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * correction[:, None])
        largest = new
    acc = acc / total[:, None]
    tl.store(out + head * rows * D + m[:, None] * D + d[None, :], acc.to(out.dtype.element_ty), mask=m[:, None] < rows)
    tl.store(lse + head * rows + m, largest + tl.log2(total), mask=m < rows)


@triton.jit
def attend_tma(
    queries, keys, values, out, lse, rows, columns, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr, SPECIALIZE: tl.constexpr,
):  # fmt: skip
    """The same, but queries, keys and values come through tensor maps of two axes, all heads below each other.

    SPECIALIZE: warps of their own for the copies.
    """
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    head = tl.program_id(1)
    d = tl.arange(0, D)
    q = queries.load([head * rows + tl.program_id(0) * BM, 0])
    acc = tl.zeros((BM, D), tl.float32)
    largest = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    end = tl.minimum(columns, (tl.program_id(0) + 1) * BM) if CAUSAL else columns
    for start in tl.range(0, end, BN, warp_specialize=SPECIALIZE):
        n = start + tl.arange(0, BN)
        inside = n[None, :] < columns
        s = tl.dot(q, keys.load([head * columns + start, 0]).T) * scale
        if CAUSAL:
            inside = inside & (n[None, :] <= m[:, None])
        s = tl.where(inside, s, float("-inf"))
        new = tl.maximum(largest, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        correction = tl.exp2(largest - new)
        total = total * correction + tl.sum(p, 1)
        v = values.load([head * columns + start, 0])
        acc = tl.dot(p.to(v.dtype), v, acc * correction[:, None])
        largest = new
    acc = acc / total[:, None]
    at = out + head.to(tl.int64) * rows * D + m[:, None] * D + d[None, :]
    tl.store(at, acc.to(out.dtype.element_ty), mask=m[:, None] < rows)
    tl.store(lse + head * rows + m, largest + tl.log2(total), mask=m < rows)


def make(
    capability: int,
    element: str,
    D: int,
    BM: int,
    BN: int,
    causal: bool,
    warps: int,
    stages: int,
    maps: bool,
    roles: bool = False,
) -> None:
    name = {"f16": "fp16", "bf16": "bf16"}[element]
    kinds = dict.fromkeys(("queries", "keys", "values", "out"), f"*{name}") | {"lse": "*fp32"}
    if maps:
        kinds |= {"queries": f"tensordesc<{name}[{BM}, {D}]>"}
        kinds |= dict.fromkeys(("keys", "values"), f"tensordesc<{name}[{BN}, {D}]>")
    kinds |= {"rows": "i32", "columns": "i32", "scale": "fp32"}
    constants = {"D": D, "BM": BM, "BN": BN, "CAUSAL": causal} | ({"SPECIALIZE": roles} if maps else {})
    aligned = {(n,): [["tt.divisibility", 16]] for n in range(3 if maps else 0, 5)}
    source = ASTSource(attend_tma if maps else attend, kinds, constexprs=constants, attrs=aligned)
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps, "num_stages": stages})
    facts = {"maker": f"triton {triton.__version__}", "element": element, "D": D, "BM": BM, "BN": BN, "CAUSAL": causal}
    facts |= {"threads": int(re.findall(r"\.reqntid (\d+)", made.asm["ptx"])[0]), "shared": made.metadata.shared}
    if maps:
        facts["maps"] = [
            {"box": x["block_size"], "swizzle": (0, 32, 64, 128)[x["swizzle"]]} for x in made.metadata.tensordesc_meta
        ]
    kind = "_tma" * maps + "_roles" * roles + "_causal" * causal
    write(f"attend_sm{capability}_{element}_d{D}{kind}.ptx", facts, made.asm["ptx"])


def write(name: str, facts: dict[str, object], ptx: str) -> None:
    """Without debug sections and line tables, which are two thirds of the text."""
    ptx = re.sub(r"(?ms)^\t?\.section\s+\.debug.*?^\t?\}\n", "", ptx)
    lines = [
        line.rstrip() for line in ptx.splitlines() if not re.match(r"\s*(\.loc|\.file|//|\$L__(tmp|func|info)\w*:|$)", line)
    ]
    (HERE / name).write_text("\n".join(["// " + json.dumps(facts), *lines]) + "\n")


def main() -> None:
    for capability, element in itertools.product((80, 90), ("f16", "bf16")):
        columns = 32 if capability == 80 else 64
        make(capability, element, D=64, BM=64, BN=columns, causal=element == "bf16", warps=4, stages=2, maps=False)
    make(90, "bf16", D=128, BM=128, BN=64, causal=False, warps=8, stages=2, maps=True)
    make(90, "f16", D=64, BM=64, BN=64, causal=True, warps=4, stages=3, maps=True)
    make(90, "bf16", D=64, BM=64, BN=64, causal=False, warps=4, stages=2, maps=True, roles=True)


if __name__ == "__main__":
    main()

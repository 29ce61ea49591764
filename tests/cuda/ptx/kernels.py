"""Small PTX programs around a few instructions, and Triton's and Numba's kernels with what is to be passed to them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from attngen.backends.cuda import ptx
from attngen.backends.cuda.ptx.rounding import from_bf16, to_bf16

DATA = Path(__file__).parent / "data"
HEAD = ".version 8.5\n.target sm_90a\n.address_size 64\n"


def entry(body: str, params: str = ".param .u64 out", before: str = "") -> str:
    """A module with one entry `f`. Registers of every width are declared: %p, %h, %r, %d."""
    registers = ".reg .pred %p<10>; .reg .b16 %h<20>; .reg .b32 %r<40>; .reg .b64 %d<20>;"
    return f"{HEAD}{before}\n.visible .entry f({params}) {{\n{registers}\n{body}\nret;\n}}\n"


def apply(text: str, inputs: Sequence[np.ndarray], out: np.ndarray) -> np.ndarray:
    """Run instructions on every thread: inputs arrive in %a, %b, %c, the result is taken from %x.

    Inputs and `out` have one element per thread; registers have their widths, predicates come as bytes.
    """
    n = out.size
    names = "abc"[: len(inputs)]
    params = ", ".join(f".param .u64 p{x}" for x in (*names, "x"))
    lines = ["mov.u32 %r0, %tid.x;"]
    for name, array in (*zip(names, inputs, strict=True), ("x", out)):
        bits = 8 * array.itemsize
        lines += [f".reg .b{max(bits, 16)} %{name}; ld.param.u64 %d0, [p{name}];"]
        lines += [f"mad.wide.u32 %d{ord(name) % 19}, %r0, {array.itemsize}, %d0;"]
        if name != "x":
            lines += [f"ld.global.b{bits} %{name}, [%d{ord(name) % 19}];"]
    lines += [text, f"st.global.b{8 * out.itemsize} [%d{ord('x') % 19}], %x;"]
    ptx.run(entry("\n".join(lines), params), "f", 1, n, [np.ascontiguousarray(a) for a in inputs] + [out])
    return out


def run(
    body: str, out: np.ndarray, threads: int = 32, shared: int = 0, grid: int = 1, before: str = "", **extra: Any
) -> np.ndarray:
    """Run a body that writes to the array `out`; %d0 holds its address, %r0 the thread. extra: more parameters."""
    params = ", ".join([".param .u64 out", *(f".param .u64 {n}" for n in extra)])
    start = "ld.param.u64 %d0, [out]; mov.u32 %r0, %tid.x;\n"
    ptx.run(entry(start + body, params, before), "f", grid, threads, [out, *extra.values()], shared)
    return out


@cache
def triton(name: str) -> tuple[str, dict[str, Any]]:
    """The PTX of a kernel made by Triton, and how it was made."""
    text = (DATA / f"{name}.ptx").read_text()
    return text, json.loads(text.splitlines()[0].removeprefix("// "))


def encode(x: np.ndarray, element: str) -> np.ndarray:
    return x.astype(np.float16) if element == "f16" else to_bf16(x.astype(np.float32))


def decode(x: np.ndarray, element: str) -> np.ndarray:
    return x.astype(np.float64) if element == "f16" else from_bf16(x).astype(np.float64)


def mapped(array: np.ndarray, how: dict[str, Any]) -> list[Any]:
    return [ptx.TensorMap(array, how["box"], how["swizzle"]), *array.shape, array.shape[1], 1]


def attend(text: str, facts: dict[str, Any], heads: int, rows: int, columns: int, checks: bool = True) -> tuple[float, float]:
    """Run one of Triton's kernels; the largest errors of the output, relative to the element's precision, and of its lse."""
    d, element = facts["D"], facts["element"]
    generate = np.random.default_rng(rows * columns)
    q, k, v = (encode(generate.standard_normal((heads, n, d)), element) for n in (rows, columns, columns))
    out, lse = encode(np.full((heads, rows, d), 7.0), element), np.full((heads, rows), 7, np.float32)
    scale = np.float32(np.log2(np.e) / np.sqrt(d))
    grid = (-(-rows // facts["BM"]), heads)
    given: list[Any] = [q, k, v]
    if "maps" in facts:
        # Triton passes each map with its shape, its strides, and whether it is padded.
        given = [x for a, m in zip(given, facts["maps"], strict=True) for x in mapped(a.reshape(-1, d), m)]
    ptx.run(text, None, grid, facts["threads"], [*given, out, lse, rows, columns, scale, 0, 0], facts["shared"], checks)
    s = np.einsum("hid,hjd->hij", decode(q, element), decode(k, element)) * float(scale)
    if facts["CAUSAL"]:
        s = np.where(np.arange(columns) <= np.arange(rows)[:, None], s, -np.inf)
    top = s.max(axis=2, keepdims=True)
    p = np.exp2(s - top)
    total = p.sum(axis=2, keepdims=True)
    expected = np.einsum("hij,hjd->hid", p / total, decode(v, element))
    precision = 2.0**-11 if element == "f16" else 2.0**-8
    error = np.abs(decode(out, element) - expected).max() / (precision * max(1.0, np.abs(expected).max()))
    return float(error), float(np.abs(lse - (top + np.log2(total))[..., 0]).max())

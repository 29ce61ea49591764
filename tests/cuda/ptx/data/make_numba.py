# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportPrivateImportUsage=false
"""Writes numba_scalar.ptx beside it: scalar kernels compiled by numba-cuda, with libdevice's exp, log, sin, pow and divisions.

Run `python make_numba.py` with numba-cuda installed (0.30.4 wrote what is here); no GPU and no driver is needed.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from numba import cuda
from numba.cuda import types
from numba.cuda.types import float32, float64, int32, int64


def elementary(x, y, out, n):
    i = cuda.grid(1)
    if i < n:
        out[i, 0] = math.exp(x[i])
        out[i, 1] = math.log(math.fabs(x[i]) + y[i])
        out[i, 2] = math.sin(x[i])
        out[i, 3] = math.pow(y[i], x[i])
        out[i, 4] = x[i] / y[i]
        out[i, 5] = math.sqrt(y[i])
        out[i, 6] = math.erf(x[i])
        out[i, 7] = math.tanh(x[i])


def integers(a, b, out, n):
    i = cuda.grid(1)
    if i < n:
        out[i, 0] = a[i] // b[i]
        out[i, 1] = a[i] % b[i]
        out[i, 2] = a[i] * b[i]
        out[i, 3] = (a[i] << 3) ^ (b[i] >> 2)
        steps = 0
        x = a[i]
        while x > 1:  # each thread takes its own number of steps
            x = x // 2 if x % 2 == 0 else 3 * x + 1
            steps += 1
        out[i, 4] = steps


def block_sum(x, total, n):
    part = cuda.shared.array(128, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    part[t] = x[i] if i < n else float32(0)
    cuda.syncthreads()
    step = 64
    while step > 0:
        if t < step:
            part[t] += part[t + step]
        cuda.syncthreads()
        step //= 2
    if t == 0:
        cuda.atomic.add(total, 0, part[0])


def main() -> None:
    texts: list[str] = []
    for f, signature in (
        (elementary, (float32[:], float32[:], float32[:, :], int32)),
        (elementary, (float64[:], float64[:], float64[:, :], int32)),
        (integers, (int64[:], int64[:], int64[:, :], int32)),
        (block_sum, (float32[:], float32[:], int32)),
    ):
        ptx, _ = cuda.compile_ptx(f, types.void(*signature), cc=(8, 0), device=False)
        name = f.__name__ + ("64" if signature[0] == float64[:] else "")
        (mangled,) = re.findall(r"\.visible \.entry (\w+)", ptx)
        lines = [x.rstrip() for x in ptx.replace(mangled, name).splitlines() if x.strip() and not x.strip().startswith("//")]
        texts.append("\n".join(lines) + "\n")
    for text in texts:
        name = re.findall(r"\.visible \.entry (\w+)", text)[0]
        (Path(__file__).parent / f"numba_{name}.ptx").write_text(text)


if __name__ == "__main__":
    main()

"""A kernel for Hopper's tensor cores on a machine without a GPU: derived, its machine code written to a file, its PTX run by an
interpreter and compared with float64.

python examples/cuda_without_a_gpu.py [attention.cubin]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import attngen
from attngen import Tensor, reference
from attngen.backends.cuda import ptx

SHAPES: dict[str, Any] = {"q": (1, 2, 150, 64), "k": (1, 2, 456, 64), "v": (1, 2, 456, 64)}


@attngen.program(q="b h i d", k="b h j d", v="b h j e", out="b h i e")
def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = attngen.score(q, k, over="d") * 0.125
    return attngen.weigh(attngen.softmax(s, over="j"), v, over="j")


def main(file: str) -> None:
    kernel = attngen.compile(attention, dtype="float16", target="cuda:sm_90a", **SHAPES)
    print("What is derived from three lines, before anything in it is about a GPU:\n")
    print(kernel.stages["canonicalize#3"])

    print("Its instructions, as they are written, how it is launched and what it takes:\n")
    for kind, count in ptx.statistics(kernel.stages["ptx"])["attention"].items():
        print(f"{count:5} {kind}")
    print("", *kernel.report().launches, sep="\n")

    kernel.export(file)
    size, name = Path(file).stat().st_size, Path(file).name
    print(f"\n{name}: {size:,} bytes of machine code, and in {name}.json how to launch it")

    emulated = attngen.compile(attention, dtype="float16", target="cuda:sm_90a,emulated", **SHAPES)
    q, k, v = (np.random.default_rng(0).standard_normal(shape).astype(np.float16) for shape in SHAPES.values())
    error = np.abs(emulated(q, k, v) - reference.attention(q, k, v, 0.125)).max()
    print(f"\nrun in the interpreter of PTX: the largest error against float64 is {error:.1e}, of numbers rounded to float16")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else f"{folder}/attention.cubin")

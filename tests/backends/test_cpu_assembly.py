"""The loops that sum products, read in assembly: everything they touch is in registers or comes from the operands."""

from __future__ import annotations

import platform
import re
from functools import cache

import pytest

import attngen

SHAPES = {"whole": (512, 512, 64, 64), "ragged": (45, 77, 20, 36), "short": (3, 50, 16, 16)}
TARGETS = ["cpu:x86-64-v3", "cpu:skylake-avx512", "cpu:neoverse-n1"]
"""AVX2, AVX-512, NEON: assembly for other machines is made and read here too."""

ROUNDING = re.compile(r"vround|vrndscale|frint")
STACK = re.compile(r"%[re]sp\b|\[sp\b|gather")


def product_loops(asm: str) -> list[list[str]]:
    """Instructions of each block that multiplies and adds vectors and ends in a jump to itself: of x86, or of Arm's 64 bits.
    Those of exponentials are left out."""
    found: list[list[str]] = []
    for block in re.split(r"\n(?=\.?L\w+:)", asm):
        name, _, body = block.partition(":")
        lines = [line.strip() for line in body.splitlines() if line.startswith("\t") and not line.startswith("\t.")]
        end = next((n for n, line in enumerate(lines) if re.match(r"(j\w+|b(\.\w+)?|cbn?z|tbn?z)\s", line)), None)
        if end is not None and lines[end].split()[-1] == name.strip():
            loop = lines[: end + 1]
            if products(loop) >= 2 and not any(ROUNDING.match(line) for line in loop):
                found.append(loop)
    return found


def products(loop: list[str]) -> int:
    return sum(line.startswith(("vfmadd", "fmla")) for line in loop)


@cache
def loops(target: str, name: str, dtype: str) -> list[list[str]]:
    i, j, d, e = SHAPES[name]
    kernel = attngen.compile(attngen.attention, dtype=dtype, target=target, q=(1, 2, i, d), k=(1, 2, j, d), v=(1, 2, j, e))
    return product_loops(kernel.stages["asm"])


READABLE = platform.machine() in ("x86_64", "AMD64", "aarch64", "arm64")
HOST = pytest.param("cpu", marks=pytest.mark.skipif(not READABLE, reason=f"hardware: assembly of {platform.machine()}"))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("target", [HOST, *TARGETS])
def test_no_stack_traffic_and_no_gathers(target: str, name: str, dtype: str) -> None:
    found = loops(target, name, dtype)
    assert len(found) >= 2
    for loop in found:
        assert not [line for line in loop if STACK.search(line)]


@pytest.mark.parametrize("target", [HOST, *TARGETS])
def test_most_of_the_largest_loop_is_arithmetic(target: str) -> None:
    most, length = max((products(x), len(x)) for x in loops(target, "whole", "float32"))
    assert most >= 8 and length <= 2 * most + 12

"""The loops that sum products, read in assembly: everything they touch is in registers or comes from the operands."""

from __future__ import annotations

import platform
import re

import pytest

import attngen

SHAPES = {"whole": (512, 512, 64, 64), "ragged": (45, 77, 20, 36), "short": (3, 50, 16, 16)}


def product_loops(asm: str) -> list[list[str]]:
    """Instructions of each block that multiplies and adds vectors and ends in a jump to itself."""
    found: list[list[str]] = []
    for block in re.split(r"\n(?=\.L\w+:)", asm):
        name, _, body = block.partition(":")
        lines = [line.strip() for line in body.splitlines() if line.startswith("\t") and not line.startswith("\t.")]
        end = next((n for n, line in enumerate(lines) if re.match(r"j\w+\s", line)), None)
        if end is not None and lines[end].split()[1] == name.strip():
            loop = lines[: end + 1]
            if sum("vfmadd" in line for line in loop) >= 2:
                found.append(loop)
    return found


X86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="reads x86 assembly")


@X86
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SHAPES)
def test_no_stack_traffic_and_no_gathers(name: str, dtype: str) -> None:
    i, j, d, e = SHAPES[name]
    kernel = attngen.compile(attngen.attention, dtype=dtype, q=(1, 2, i, d), k=(1, 2, j, d), v=(1, 2, j, e))
    loops = product_loops(kernel.stages["asm"])
    assert len(loops) >= 2
    for loop in loops:
        assert not [line for line in loop if "%rsp" in line or "gather" in line]


@X86
def test_most_of_the_largest_loop_is_arithmetic() -> None:
    kernel = attngen.compile(attngen.attention, q=(1, 2, 512, 64), k=(1, 2, 512, 64), v=(1, 2, 512, 64))
    products, length = max((sum("vfmadd" in line for line in x), len(x)) for x in product_loops(kernel.stages["asm"]))
    assert products >= 8 and length <= 2 * products + 12

"""Kernels for 64-bit Arm, executed by an emulator: NEON code against float64 NumPy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.export.kernels import EXAMPLES
from tests.export.tools import call_from_c, needs, run

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
TARGET = "cpu:neoverse-n1"


@needs(COMPILER, EMULATOR)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_object_code_under_the_emulator(name: str, dtype: str, tmp_path: Path) -> None:
    example = replace(EXAMPLES[name], dtype=dtype)
    kernel, given = example.kernel(TARGET), example.arrays()
    for suffix in (".o", ".c", ".h"):
        kernel.export(tmp_path / f"{name}{suffix}")
    build = [COMPILER, "-static", f"{name}.c", f"{name}.o", "-pthread", "-lm"]
    outputs = {n: (shape, dtype) for n, shape in example.outputs.items()}
    example.check(call_from_c(tmp_path, name, given, outputs, build=build, emulator=[EMULATOR], threads=2), given)


@needs(COMPILER)
def test_a_library_is_linked_by_the_cross_compiler(tmp_path: Path) -> None:
    EXAMPLES["attention"].kernel(TARGET).export(tmp_path / "attention.so")
    head = (tmp_path / "attention.so").read_bytes()[:20]
    assert head[:4] == b"\x7fELF" and head[18:20] == (183).to_bytes(2, "little")  # the number of AArch64
    lines = run(["aarch64-linux-gnu-nm", "-D", "-u", "attention.so"], tmp_path).split("\n")
    strong = {line.split()[1].partition("@")[0] for line in lines if line.split()[:1] == ["U"]}
    assert strong - {"__getauxval"} <= {
        "calloc",
        "free",
        "ldexp",
        "memcpy",
        "memset",
        "pthread_create",
        "pthread_join",
        "__stack_chk_fail",
    }

"""Functions as scalar kernels, run in the interpreter of PTX."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from attngen.backends.cuda import emit
from attngen.backends.cuda.build import Built
from attngen.backends.cuda.program import Program
from attngen.backends.cuda.runtime.kernels import Kernels
from attngen.backends.cuda.target import find
from attngen.backends.cuda.toolchain import compiler as toolchain
from attngen.ir.func import Func
from attngen.ir.interpreter import run
from attngen.ir.types import BF16, ElementType

TARGET = find("sm_80,emulated")


def stored(x: Any, element: ElementType) -> np.ndarray:
    """Values as memory holds them; those of bf16 must be exact."""
    if element is BF16:
        return (np.asarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return np.asarray(x, element.numpy)


def values(x: np.ndarray, element: ElementType) -> np.ndarray:
    return (x.astype(np.uint32) << 16).view(np.float32) if element is BF16 else x


def made(func: Func, shared_bytes: int | None = None) -> Program:
    target = TARGET if shared_bytes is None else dataclasses.replace(TARGET, shared_bytes=shared_bytes)
    return emit.program(func, target)


def execute(program: Program, inputs: Sequence[Any], ptx: Sequence[str] = ()) -> list[np.ndarray]:
    """The outputs, written to arrays whose axes run backwards: strides must not matter."""
    func = program.func
    kernels = Kernels(program, lambda: program, tuple(ptx) or compiled(program), b"")
    shapes = [x.shape for x in run(func, *inputs)]
    outputs = [
        stored(np.full(shape, 77), v.element)[(..., *[slice(None, None, -1)] * len(shape))]
        for shape, v in zip(shapes, func.outputs, strict=True)
    ]
    Built(kernels)([stored(x, v.element) for x, v in zip(inputs, func.args, strict=True)], outputs)
    return [values(x, v.element) for x, v in zip(outputs, func.outputs, strict=True)]


def compiled(program: Program) -> tuple[str, ...]:
    """The PTX of each kernel, which computes in f64 only if the function does."""
    texts = tuple(toolchain.ptx(entry, program.target) for entry in program.entries)
    wide = any("f64" in str(v.type) for op in program.func.walk() for v in (*op.operands, *op.results))
    assert wide or not any(".f64" in text for text in texts)
    assert not any(".local" in text or "call" in text for text in texts)
    return texts


def check(
    func: Func, inputs: Sequence[Any], tolerance: float = 1e-5, program: Program | None = None, ptx: Sequence[str] = ()
) -> None:
    """Against the interpreter of the IR: NaN and infinities at the same places."""
    with np.errstate(all="ignore"):
        wanted = run(func, *inputs)
        for got, want in zip(execute(program or made(func), inputs, ptx), wanted, strict=True):
            np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=tolerance, atol=tolerance)

"""A function as kernels."""

from __future__ import annotations

from attngen.backends.cuda.program import Program
from attngen.backends.cuda.target import Target
from attngen.ir.func import Func


def program(func: Func, target: Target) -> Program:
    from attngen.backends.cuda.scalar import scalar_program

    return scalar_program(func, target)

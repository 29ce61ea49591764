"""A program of two kernels written by hand, as Numba source: the compilers are tested without what makes such source."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np

from attngen.backends.cuda.program import Address, Entry, Length, Part, Program
from attngen.backends.cuda.target import find
from attngen.ir.parser import parse
from attngen.ir.types import ElementType, TensorType, UpTo

SIGNATURE = 'func @turned(%x: tensor<i=?<=512, f32> "i", %y: tensor<i=?<=512, f32> "i") -> (tensor<i=?<=512, f32> "i")'

ADD = """\
def add(a, b, c, n):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < n:
        store(c + 4 * i, load(a + 4 * i) + load(b + 4 * i))
"""
TURN = """\
def turn(a, c, n):
    dynamic = cuda.shared.array(0, float32)
    static = cuda.shared.array(128, float32)
    t = cuda.threadIdx.x
    i = cuda.blockIdx.x * cuda.blockDim.x + t
    dynamic[t] = load(a + 4 * i) if i < n else float32(0)
    cuda.syncthreads()
    static[t] = dynamic[127 - t]
    cuda.syncthreads()
    if i < n:
        store(c + 4 * i, static[t])
"""


def namespace() -> Mapping[str, Any]:
    cuda, extending = import_module("numba.cuda"), import_module("numba.cuda.extending")
    ir = import_module("llvmlite.ir")
    types = cuda.types

    def place(builder: Any, address: Any) -> Any:
        return builder.inttoptr(address, ir.PointerType(ir.FloatType(), 1))

    @extending.intrinsic
    def load(context: Any, address: Any) -> Any:
        return types.float32(types.uint64), lambda _, builder, s, args: builder.load(place(builder, args[0]))

    @extending.intrinsic
    def store(context: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            builder.store(args[1], place(builder, args[0]))
            return context.get_dummy_value()

        return types.void(types.uint64, types.float32), generate

    return {"cuda": cuda, "float32": types.float32, "load": load, "store": store}


GRID = (Part("i", UpTo(512), 128),)
ADDING = Entry("add", ADD, namespace, (Address(0), Address(1), Address(3), Length("i")), GRID, 128, 0)
TURNING = Entry("turn", TURN, namespace, (Address(3), Address(2), Length("i")), GRID, 128, 512, 0, 2)


def program(target: str) -> Program:
    """out = x + y, each part of 128 elements turned around. (An element past the end is 0.)"""
    temporary = TensorType((("i", UpTo(512)),), ElementType.F32)
    return Program(parse(f"{SIGNATURE} {{\n  return %x\n}}\n"), find(target), (ADDING, TURNING), (temporary,))


def expected(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    whole = np.zeros(512, np.float32)
    whole[: len(x)] = x + y
    return whole.reshape(4, 128)[:, ::-1].reshape(512)[: len(x)]

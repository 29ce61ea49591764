"""What scalar kernels call, in Python: for Numba's simulator, which runs each thread of a block as one of Python's.

Run as a script in a process of its own, with NUMBA_ENABLE_CUDASIM=1: the simulator takes the place of all of `numba.cuda`.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from attngen.backends.cuda.program import Address, Program, Stride
from attngen.backends.cuda.scalar.source import NAMES
from attngen.ir.elementwise import Sigmoid
from attngen.ir.types import ElementType

F32 = np.float32
JUNK = 0xFF


def memory(address: int, dtype: Any) -> Any:
    buffer: Any = (ctypes.c_char * dtype.itemsize).from_address(address)
    return np.frombuffer(buffer, dtype)


def load(element: ElementType) -> Callable[[int], Any]:
    dtype = np.dtype(element.numpy)
    convert: Any = int if element.value in ("i64", "index") else F32 if element.value == "f16" else dtype.type

    def read(address: int) -> Any:
        return convert(memory(address, dtype)[0])

    return read


def store(element: ElementType) -> Callable[[int, Any], None]:
    dtype = np.dtype(element.numpy)

    def write(address: int, x: Any) -> None:
        memory(address, dtype)[0] = x

    return write


def synchronize() -> None:
    thread: Any = threading.current_thread()
    thread.syncthreads()


def namespace(shared: np.ndarray) -> dict[str, Any]:
    """shared: memory for the block that runs."""
    names: dict[str, Any] = {
        "cuda": import_module("numba.cuda"),
        "inf": np.inf,
        "nan": np.nan,
        "synchronize": synchronize,
        "i64": int,
        "f32": F32,
        "f64": np.float64,
        "i32": np.int32,
        "i8": np.int8,
        "div": int.__floordiv__,
        "rem": int.__mod__,
        **{name: getattr(np, name) for name in ("exp", "exp2", "log", "log2", "tanh", "sqrt", "floor", "rint", "absolute")},
        "maximum": np.maximum,
        "minimum": np.minimum,
        "negative": np.negative,
        "divide": np.divide,
        "floordiv": np.floor_divide,
        "mod": np.mod,
        "sigmoid": Sigmoid.numpy,
        "rsqrt": lambda x: 1 / np.sqrt(x),
        "select": lambda condition, x, y: x if condition else y,
        "round_f16": lambda x: F32(np.float16(x)),
    }
    for element in ElementType:
        if element is not ElementType.BF16:
            read, write, size, start = load(element), store(element), element.bytes, shared.ctypes.data
            names[f"load_{element}"], names[f"store_{element}"] = read, write
            names[f"get_{element}"] = lambda at, n, read=read, size=size, start=start: read(start + at + n * size)
            names[f"put_{element}"] = lambda at, n, x, write=write, size=size, start=start: write(start + at + n * size, x)
    assert set(names) == {name for name in NAMES if "bf16" not in name}
    return names


def simulate(program: Program, inputs: list[np.ndarray], outputs: list[np.ndarray]) -> None:
    """Runs kernels that need no memory between them and have no runtime extents."""
    func, arrays = program.func, (*inputs, *outputs)
    layouts = (*(p.layout for p in func.params), *func.out_layouts)
    cuda: Any = import_module("numba.cuda")
    for entry in program.entries:
        scope = namespace(np.full(entry.shared_bytes + 1, JUNK, np.uint8))
        exec(entry.text, scope)
        given: list[int] = []
        for parameter in entry.parameters:
            match parameter:
                case Address(array):
                    given.append(arrays[array].ctypes.data)
                case Stride(array, axis):
                    given.append(arrays[array].strides[layouts[array].names.index(axis)])
                case _:
                    raise ValueError(f"{entry.name}: the simulator is given addresses and strides alone, not {parameter}")
        cuda.jit(scope[entry.name])[entry.blocks({}), entry.threads](*given)


def main() -> None:
    """Attention with log-sum-exp under a mask, small and ragged."""
    from attngen.backends.cuda.emit import program
    from attngen.backends.cuda.target import find
    from attngen.ir.interpreter import run
    from attngen.ir.passes import PIPELINE
    from attngen.ir.pipeline import run_pipeline
    from attngen.ir.types import F32 as ELEMENT
    from attngen.ir.types import TensorType
    from tests.cuda.test_scalar import causal

    shapes = {"q": {"h": 1, "i": 7, "d": 4}, "k": {"h": 1, "j": 9, "d": 4}, "v": {"h": 1, "j": 9, "e": 3}}
    types = {name: TensorType(tuple(axes.items()), ELEMENT) for name, axes in shapes.items()}
    func = run_pipeline(causal.trace(types), PIPELINE.replace("tile", "tile{h=1 i=4 j=4}", 1)).func
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(tuple(axes.values())).astype(F32) for axes in shapes.values()]
    wanted = run(func, *inputs)
    outputs = [np.full(x.shape, np.nan, F32) for x in wanted]
    simulate(program(func, find("sm_80")), inputs, outputs)
    for got, want in zip(outputs, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


if __name__ == "__main__":
    main()

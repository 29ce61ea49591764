"""A short way into a small kernel: one native function that checks arrays, reads their places, and calls the object code.

Python calls it as it calls its own built-in functions, with a table of what the kernel expects. What is not exactly that (other
types, shapes, element types, memory that overlaps) it leaves to the long way, which explains it: then it returns None. It reads
the fields of array objects where NumPy's binary interface has them (`PyArrayObject_fields`); a probe makes sure of that.
"""

from __future__ import annotations

import ctypes
import os
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any

import llvmlite.binding as untyped  # pyright: ignore[reportMissingTypeStubs]
import numpy as np

from attngen.backends.cpu.loading import Loaded
from attngen.backends.cpu.target import host
from attngen.backends.cpu.vector import BYTE, I32, I64, POINTER, VOID, Code, Ir, ll

llvm: Any = untyped

HEAD = object.__basicsize__
DATA, NDIM, SHAPE, STRIDES, DESCR, FLAGS = (HEAD + n for n in (0, 8, 16, 24, 40, 48))
"""Where an array object has its fields."""
TYPE = HEAD - 8
C_CONTIGUOUS, WRITABLE = 0x1, 0x400
MOST_DIMS, MOST_AXES, MOST_ARRAYS = 8, 12, 24
MOST_SCRATCH = 1 << 18
"""Bytes of working memory that are taken from the stack."""

WORDS = ("entry", "save", "restore", "incref", "none", "type", "arrays", "given", "outputs", "scratch", "parts")
"""The table's first words: addresses of functions and objects, then counts."""
RECORD = 4 + MOST_DIMS + 2 * MOST_AXES
"""Words of an array's record: its argument, element type, dimensions, axes; extents; for each axis dimension and factor."""
BYTES = bytes.__basicsize__ - 1
"""Where a bytes object has its bytes."""

Direct = Callable[..., Any]


@dataclass(frozen=True)
class Expected:
    """One array: which argument it is, its element type and shape, and for each axis a dimension and how many of its elements
    lie between two neighbours along the axis."""

    argument: int
    dtype: Any
    shape: tuple[int, ...]
    axes: tuple[tuple[int, int], ...]


def direct(loaded: Loaded, expected: Sequence[Expected], given: int, outputs: int, scratch: int, parts: int) -> Direct | None:
    """A function of `given` arrays, the last of which is written: it returns that one, or None if they are not as expected.

    expected: in the order of the kernel's arguments, the last `outputs` of them written. None if there is no short way.
    """
    fits = all(len(x.shape) <= MOST_DIMS and len(x.axes) <= MOST_AXES for x in expected)
    if not fits or len(expected) > MOST_ARRAYS or scratch > MOST_SCRATCH or not supported():
        return None
    head = (loaded.address, *interpreter(), id(np.ndarray), len(expected), given, outputs, scratch, parts)
    words = array("q", head)
    for x in expected:
        shape = (*x.shape, *(0,) * (MOST_DIMS - len(x.shape)))
        axes = [n for axis in (*x.axes, *((0, 0),) * (MOST_AXES - len(x.axes))) for n in axis]
        words.extend((x.argument, id(x.dtype), len(x.shape), len(x.axes), *shape, *axes))
    return native().bound(words.tobytes())


@cache
def interpreter() -> tuple[int, ...]:
    """Addresses of functions and of None."""
    api = ctypes.pythonapi
    functions = (api.PyEval_SaveThread, api.PyEval_RestoreThread, api.Py_IncRef)
    return (*(int(ctypes.cast(f, ctypes.c_void_p).value or 0) for f in functions), id(None))


@cache
def supported() -> bool:
    """Whether array objects and bytes are laid out as is assumed here."""
    try:
        x = np.zeros((3, 5), np.float32)[:, 1:]
        word, text = ctypes.c_int64.from_address, (12345).to_bytes(8, "little")
        shape, strides = word(id(x) + SHAPE).value, word(id(x) + STRIDES).value
        flags = ctypes.c_int32.from_address(id(x) + FLAGS).value
        return (
            word(id(x) + DATA).value == x.__array_interface__["data"][0]
            and ctypes.c_int32.from_address(id(x) + NDIM).value == 2
            and [word(shape + 8 * index).value for index in range(2)] == [3, 4]
            and [word(strides + 8 * index).value for index in range(2)] == [20, 4]
            and word(id(x) + DESCR).value == id(x.dtype)
            and word(id(x) + TYPE).value == id(np.ndarray)
            and (flags & WRITABLE, flags & C_CONTIGUOUS) == (WRITABLE, 0)
            and word(id(text) + BYTES).value == 12345
        )
    except (AttributeError, ValueError):  # another Python than CPython
        return False


class MethodDef(ctypes.Structure):
    """`PyMethodDef`."""

    _fields_ = [("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p)]


METH_FASTCALL = 0x80


class Native:
    """The native function, the same one for all kernels."""

    def __init__(self) -> None:
        module = ll.Module("direct")
        write(Code(module, "attngen_direct", ("self", "arguments", "count"), host(), I64))
        self.loaded = Loaded(assembled(str(module)), "attngen_direct")
        self.definition = MethodDef(b"attngen_direct", self.loaded.address, METH_FASTCALL, None)
        make: Any = ctypes.pythonapi.PyCFunction_NewEx
        make.argtypes, make.restype = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p], ctypes.py_object
        self.make = make

    def bound(self, table: bytes) -> Direct:
        """The function with a table as its `self`."""
        return self.make(ctypes.addressof(self.definition), table, None)


class Only:
    """The only one there is: functions that it has given away call its code for as long as they live."""

    def __init__(self) -> None:
        self.made: Native | None = None
        self.reset()

    def reset(self) -> None:
        """A forked child may have been given a lock that nobody there will release."""
        self.lock = Lock()

    def __call__(self) -> Native:
        with self.lock:
            self.made = self.made or Native()
            return self.made


native = Only()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=native.reset)


def assembled(text: str) -> bytes:
    machine = host().machine()
    module = llvm.parse_assembly(text)
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    module.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(2))
    builder.getModulePassManager().run(module, builder)
    return machine.emit_object(module)


# ---------------------------------------------------------------- the function


def write(c: Code) -> None:
    """`PyObject *attngen_direct(PyObject *self, PyObject *const *arguments, Py_ssize_t count)`, all of them as integers."""
    b, size = c.b, c.size
    c.function.linkage = "external"
    table = b.add(c.values["self"], size(BYTES))

    def load(address: Ir, offset: int = 0, typ: Ir = I64) -> Ir:
        return b.load(b.inttoptr(b.add(address, size(offset)), POINTER), align=1, typ=typ)

    def element(base: Ir, index: Ir) -> Ir:
        return b.add(base, b.mul(index, size(8)))

    def call(address: Ir, result: Ir, *args: Ir) -> Ir:
        kind = ll.FunctionType(result, [a.type for a in args])
        return b.call(b.inttoptr(address, kind.as_pointer()), args)

    word = {name: load(table, 8 * index) for index, name in enumerate(WORDS)}
    records = b.add(table, size(8 * len(WORDS)))
    numbers = b.ptrtoint(b.alloca(ll.ArrayType(I64, MOST_ARRAYS * (MOST_AXES + 1) + 8)), I64)
    lows = b.ptrtoint(b.alloca(ll.ArrayType(I64, MOST_ARRAYS)), I64)
    highs = b.ptrtoint(b.alloca(ll.ArrayType(I64, MOST_ARRAYS)), I64)
    otherwise = c.function.append_basic_block("otherwise")

    def require(condition: Ir) -> None:
        then = c.function.append_basic_block("then")
        b.cbranch(condition, then, otherwise)
        b.position_at_end(then)

    def store(value: Ir, address: Ir) -> None:
        b.store(value, b.inttoptr(address, POINTER), align=8)

    require(b.icmp_signed("==", c.values["count"], word["given"]))
    first_output = b.sub(word["arrays"], word["outputs"])

    def one_array(n: Ir, state: list[Ir]) -> list[Ir]:
        """Check one array; write its address and the distances along its axes."""
        (place,) = state
        record = b.add(records, b.mul(n, size(8 * RECORD)))
        x = load(element(c.values["arguments"], load(record)))
        require(b.icmp_signed("==", load(x, TYPE), word["type"]))
        require(b.icmp_signed("==", load(x, DESCR), load(record, 8)))
        dims = load(record, 16)
        require(b.icmp_signed("==", b.sext(load(x, NDIM, I32), I64), dims))
        written = b.icmp_signed(">=", n, first_output)
        wanted = b.select(written, ll.Constant(I32, C_CONTIGUOUS | WRITABLE), ll.Constant(I32, 0))
        require(b.icmp_signed("==", b.and_(load(x, FLAGS, I32), wanted), wanted))
        data, shape, strides = load(x, DATA), load(x, SHAPE), load(x, STRIDES)

        def one_dim(index: Ir, ends: list[Ir]) -> list[Ir]:
            length = load(element(shape, index))
            require(b.icmp_signed("==", length, load(element(record, b.add(index, size(4))))))
            far = b.mul(load(element(strides, index)), b.sub(length, size(1)))
            zero = size(0)
            low, high = (b.select(b.icmp_signed(sign, far, zero), far, zero) for sign in ("<", ">"))
            return [b.add(ends[0], low), b.add(ends[1], high)]

        low, high = c.loop(0, dims, 1, [data, data], one_dim)
        store(low, element(lows, n))
        store(high, element(highs, n))
        store(data, place)

        def one_axis(index: Ir, at: list[Ir]) -> list[Ir]:
            pair = b.add(record, b.add(size(8 * (4 + MOST_DIMS)), b.mul(index, size(16))))
            store(b.mul(load(element(strides, load(pair))), load(pair, 8)), at[0])
            return [b.add(at[0], size(8))]

        return c.loop(0, load(record, 24), 1, [b.add(place, size(8))], one_axis)

    (end,) = c.loop(0, word["arrays"], 1, [numbers], one_array)

    def one_output(n: Ir, _: list[Ir]) -> list[Ir]:
        """What is written lies apart from all else. Ends are last elements, which no element is wider than 8 bytes."""

        def other(m: Ir, _: list[Ir]) -> list[Ir]:
            low, high = load(element(lows, n)), load(element(highs, n))
            before = b.icmp_signed("<=", b.add(load(element(highs, m)), size(8)), low)
            after = b.icmp_signed(">=", load(element(lows, m)), b.add(high, size(8)))
            require(b.or_(b.icmp_signed("==", n, m), b.or_(before, after)))
            return []

        c.loop(0, word["arrays"], 1, (), other)
        return []

    c.loop(first_output, word["arrays"], 1, (), one_output)
    scratch = b.ptrtoint(b.alloca(BYTE, b.add(word["scratch"], size(64))), I64)
    for index, value in enumerate((c.round_up(scratch, 64), size(0), size(0), word["parts"])):
        store(value, b.add(end, size(8 * index)))
    thread = call(word["save"], I64)
    call(word["entry"], VOID, numbers)
    call(word["restore"], VOID, thread)
    result = load(element(c.values["arguments"], b.sub(word["given"], size(1))))
    call(word["incref"], VOID, result)
    b.ret(result)
    b.position_at_end(otherwise)
    call(word["incref"], VOID, word["none"])
    b.ret(word["none"])

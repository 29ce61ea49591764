"""DLPack's capsules by ctypes: `DLManagedTensor` of dlpack.h, read and made."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_char_p, c_int, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p, py_object
from importlib import import_module
from math import prod
from typing import Any

import numpy as np

from attngen.ir.diagnostics import Error

CUDA, MANAGED = 2, 13
"""DLDeviceType."""
NAME = b"dltensor"
CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
"""DLDataTypeCode of NumPy's kinds, and of bfloat16."""
BFLOAT = 4


class Tensor(Structure):
    """DLTensor."""

    _fields_ = [
        *(("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32)),
        *(("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)),
        *(("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)), ("byte_offset", c_uint64)),
    ]


class Managed(Structure):
    """DLManagedTensor."""


DELETER = ctypes.CFUNCTYPE(None, c_void_p)
Managed._fields_ = [("tensor", Tensor), ("context", c_void_p), ("deleter", DELETER)]

python: Any = ctypes.pythonapi
get_pointer = ctypes.PYFUNCTYPE(c_void_p, py_object, c_char_p)(("PyCapsule_GetPointer", python))
new_capsule = ctypes.PYFUNCTYPE(py_object, c_void_p, c_char_p, c_void_p)(("PyCapsule_New", python))
# A capsule that is being destroyed must not be taken as an object.
is_valid = ctypes.PYFUNCTYPE(c_int, c_void_p, c_char_p)(("PyCapsule_IsValid", python))
dying_pointer = ctypes.PYFUNCTYPE(c_void_p, c_void_p, c_char_p)(("PyCapsule_GetPointer", python))


def read_capsule(name: str, capsule: Any) -> tuple[int, tuple[int, ...], tuple[int, ...], np.dtype[Any]]:
    """Address, shape, strides in bytes and dtype. The capsule keeps the memory."""
    tensor = Managed.from_address(get_pointer(capsule, NAME)).tensor
    dtype = read_dtype(name, tensor.code, tensor.bits, tensor.lanes)
    shape = tuple(int(tensor.shape[n]) for n in range(tensor.ndim))
    strides = dense_strides(shape, dtype.itemsize)
    if tensor.strides:
        strides = tuple(int(tensor.strides[n]) * dtype.itemsize for n in range(tensor.ndim))
    return (tensor.data or 0) + tensor.byte_offset, shape, strides, dtype


def read_dtype(name: str, code: int, bits: int, lanes: int) -> np.dtype[Any]:
    if (code, bits, lanes) == (BFLOAT, 16, 1):
        return bfloat16()
    kind = next((kind for kind, c in CODES.items() if c == code), "")
    try:
        if lanes == 1 and kind:
            return np.dtype(f"{kind}{bits // 8}")
    except TypeError:
        pass
    raise Error(f"{name}: elements of DLPack's type {code} with {lanes} · {bits} bits are not supported")


made: dict[int, Any] = {}
"""What capsules refer to, by their address, until whoever took them has no more use for it."""


def make_capsule(owner: Any, address: int, shape: Sequence[int], strides: Sequence[int], dtype: Any, device: int) -> Any:
    """A capsule that keeps `owner` alive. strides: in bytes."""
    rank, size = len(shape), dtype.itemsize
    dimensions, steps = (c_int64 * rank)(*shape), (c_int64 * rank)(*(s // size for s in strides))
    code = BFLOAT if dtype.name == "bfloat16" else CODES[dtype.kind]
    pointers = (ctypes.cast(x, POINTER(c_int64)) for x in (dimensions, steps))
    managed = Managed(Tensor(address, CUDA, device, rank, code, 8 * size, 1, *pointers, 0), None, forget)
    place = ctypes.addressof(managed)
    made[place] = managed, dimensions, steps, owner
    return new_capsule(place, NAME, ctypes.cast(destroy, c_void_p))


@DELETER
def forget(managed: int) -> None:
    made.pop(managed, None)


@DELETER
def destroy(capsule: int) -> None:
    """Of a capsule that nobody took: those who do change its name."""
    if is_valid(capsule, NAME):
        made.pop(dying_pointer(capsule, NAME) or 0, None)


def dense_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    return tuple(itemsize * prod(shape[n + 1 :]) for n in range(len(shape)))


def bfloat16() -> np.dtype[Any]:
    try:
        return np.dtype(import_module("ml_dtypes").bfloat16)
    except ImportError:
        raise Error("arrays of bfloat16 need the package ml_dtypes: pip install ml_dtypes") from None

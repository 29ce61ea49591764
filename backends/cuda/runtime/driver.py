"""NVIDIA's driver library by ctypes: the calls that launching kernels needs, declared as in cuda.h. Where kernels were compiled
before, no other part of CUDA has to be installed."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache
from typing import Any

from attngen.backends import Unsupported
from attngen.ir.diagnostics import Error

NO_DEVICE = 100
OUT_OF_MEMORY = 2
TOOLKIT = 13
"""The CUDA version, as far as it matters, of what makes the code: drivers of the same one and later ones load it."""
DRIVER = "580"
"""The first driver of that version."""

EXPORT = 'compile for "cuda:sm_90a" or another architecture to export, or run "cuda:sm_90a,emulated"'

SIGNATURES: Mapping[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetName": (c_void_p, c_int, c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (POINTER(c_void_p),),
    "cuCtxGetDevice": (POINTER(c_int),),
    "cuPointerGetAttribute": (c_void_p, c_int, c_uint64),
    "cuLibraryLoadData": (POINTER(c_void_p), c_char_p, c_void_p, c_void_p, c_uint, c_void_p, c_void_p, c_uint),
    "cuLibraryGetKernel": (POINTER(c_void_p), c_void_p, c_char_p),
    "cuKernelSetAttribute": (c_int, c_int, c_void_p, c_int),
    "cuLaunchKernel": (c_void_p, *(c_uint,) * 7, c_void_p, POINTER(c_void_p), c_void_p),
    "cuMemAlloc_v2": (POINTER(c_uint64), c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemAllocAsync": (POINTER(c_uint64), c_size_t, c_void_p),
    "cuMemFreeAsync": (c_uint64, c_void_p),
    "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_uint64, c_size_t, c_void_p),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamWaitEvent": (c_void_p, c_void_p, c_uint),
    "cuEventCreate": (POINTER(c_void_p), c_uint),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventDestroy_v2": (c_void_p,),
    "cuTensorMapEncodeTiled": (
        *(c_void_p, c_int, c_uint, c_uint64),
        *(POINTER(c_uint64), POINTER(c_uint64), POINTER(c_uint), POINTER(c_uint)),
        *(c_int,) * 4,
    ),
}
"""All return a code, 0 for success."""


class DriverError(Error):
    """A call failed."""

    def __init__(self, call: str, code: int, text: str) -> None:
        super().__init__(f"the CUDA driver's {call} failed: {text}")
        self.code = code


class Driver:
    """The library's functions, each of which raises DriverError if it fails."""

    def __init__(self, library: Any) -> None:
        self.functions = library
        for name, types in SIGNATURES.items():
            # An older driver lacks some; that it is too old is said before they are called.
            function = getattr(library, name, None)
            if function is not None:
                function.argtypes, function.restype = types, c_int

    def call(self, name: str, *args: Any) -> None:
        code = getattr(self.functions, name)(*args)
        if code:
            raise DriverError(name, code, self.text(code))

    def made(self, name: str, kind: Any, *args: Any) -> Any:
        """What a call writes to its first argument."""
        found = kind()
        self.call(name, ctypes.byref(found), *args)
        return found.value

    def text(self, code: int) -> str:
        """A code in words."""
        found: list[str] = []
        for name in ("cuGetErrorName", "cuGetErrorString"):
            words = c_char_p()
            if not getattr(self.functions, name)(code, ctypes.byref(words)) and words.value:
                found.append(words.value.decode())
        return ", ".join(found) or f"error {code}"


def load() -> Any:
    """The library, which comes with the driver. Raises OSError if there is none."""
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


@cache
def driver() -> Driver:
    """The driver, ready for use."""
    try:
        found = Driver(load())
    except OSError as e:
        raise no_gpu(f"the driver library is missing ({e})") from None
    try:
        found.call("cuInit", 0)
    except DriverError as e:
        raise no_gpu("the driver finds no device" if e.code == NO_DEVICE else str(e)) from None
    version: int = found.made("cuDriverGetVersion", c_int)
    if version < 1000 * TOOLKIT:
        raise Unsupported(
            "backend cuda",
            f"the NVIDIA driver here knows CUDA up to {version // 1000}.{version % 1000 // 10}; "
            f"kernels are made for CUDA {TOOLKIT}.0",
            help=f"install driver {DRIVER} or later",
        )
    return found


def no_gpu(why: str) -> Unsupported:
    return Unsupported("backend cuda", f"there is no NVIDIA GPU here: {why}", help=EXPORT)

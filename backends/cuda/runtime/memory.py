"""Memory of a device: for outputs of their own, for what kernels hold between them, and copies from and to this machine."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from ctypes import c_uint64, c_void_p
from math import prod
from typing import Any

import numpy as np

from attngen.backends.cuda.runtime.device import Device, device, inside
from attngen.backends.cuda.runtime.dlpack import CUDA, dense_strides, make_capsule
from attngen.backends.cuda.runtime.driver import DriverError, driver

LEGACY = 1
"""The legacy default stream: as a handle of the driver, and as `__dlpack__` and `__cuda_array_interface__` count."""
NO_TIMING = 2
"""CUevent_flags."""


class Buffer:
    """A dense array on a device, which any library reads by `__dlpack__` or `__cuda_array_interface__`. stream: the one on
    which it is written."""

    def __init__(self, shape: Sequence[int], dtype: np.dtype[Any], ordinal: int, stream: int) -> None:
        self.shape, self.dtype, self.ordinal, self.stream = tuple(shape), dtype, ordinal, stream
        self.strides = dense_strides(self.shape, dtype.itemsize)
        size = prod(self.shape) * dtype.itemsize
        self.address = 0
        if size:
            where = device(ordinal)
            with inside(where):
                self.address = where.driver.made("cuMemAlloc_v2", c_uint64, size)
            weakref.finalize(self, free, where, self.address).atexit = False

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype.name == "bfloat16":
            raise AttributeError("__cuda_array_interface__ has no bfloat16; use __dlpack__")
        data, typestr = (self.address, False), self.dtype.str
        return {"shape": self.shape, "typestr": typestr, "data": data, "strides": None, "version": 3, "stream": self.stream}

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.ordinal

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> Any:
        """stream: of the reader, which is to wait for what is being written; -1: it does that itself."""
        if stream not in (-1, self.stream):
            with inside(device(self.ordinal)):
                follow(stream or LEGACY, self.stream)
        return make_capsule(self, self.address, self.shape, self.strides, self.dtype, self.ordinal)


def free(where: Device, address: int) -> None:
    """The driver waits until nothing uses it."""
    with inside(where):
        where.driver.call("cuMemFree_v2", address)


class Scratch:
    """Bytes that are given back in the order of a stream, so that they can be dropped while kernels on it still wait."""

    def __init__(self, size: int, ordinal: int, stream: int) -> None:
        where = device(ordinal)
        with inside(where):
            self.address: int = where.driver.made("cuMemAllocAsync", c_uint64, size, stream)
        weakref.finalize(self, free_later, where, self.address, stream).atexit = False


def free_later(where: Device, address: int, stream: int) -> None:
    with inside(where):
        try:
            where.driver.call("cuMemFreeAsync", address, stream)
        except DriverError:  # the stream is gone
            where.driver.call("cuMemFree_v2", address)


def follow(stream: int, other: int) -> None:
    """What is done on a stream from now on comes after what has been done on the other."""
    d = driver()
    event = d.made("cuEventCreate", c_void_p, NO_TIMING)
    d.call("cuEventRecord", event, other)
    d.call("cuStreamWaitEvent", stream, event, 0)
    # The driver keeps it until it has happened.
    d.call("cuEventDestroy_v2", event)


def to_device(address: int, values: np.ndarray[Any, Any], stream: int) -> None:
    """Copy a contiguous array to a device. The driver has read it when this returns, as memory that is not locked always is."""
    driver().call("cuMemcpyHtoDAsync_v2", address, values.ctypes.data, values.nbytes, stream)


def to_host(values: np.ndarray[Any, Any], address: int, stream: int) -> None:
    """Fill a contiguous array from a device."""
    driver().call("cuMemcpyDtoHAsync_v2", values.ctypes.data, address, values.nbytes, stream)
    driver().call("cuStreamSynchronize", stream)

"""The NVIDIA GPUs of this machine."""

from __future__ import annotations

import ctypes
from collections.abc import Generator
from contextlib import contextmanager
from ctypes import c_int, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache

from attngen.backends import Unsupported
from attngen.backends.cuda.runtime.driver import Driver, DriverError, driver
from attngen.backends.cuda.target import KNOWN, Target

MULTIPROCESSORS, MAJOR, MINOR, SHARED_BYTES = 16, 75, 76, 97
"""CUdevice_attribute; shared memory is what one block may have, if its kernel asks for it."""
ORDINAL = 9
"""CUpointer_attribute: the device that memory belongs to."""


@dataclass(frozen=True)
class Device:
    """context: the primary one, which other libraries use too."""

    driver: Driver
    ordinal: int
    name: str
    capability: tuple[int, int]
    multiprocessors: int
    shared_bytes: int
    context: int

    def __str__(self) -> str:
        return f"{self.name} (compute capability {'.'.join(map(str, self.capability))})"

    def why_not(self, target: Target) -> str:
        """Why machine code for a target does not run here, or nothing."""
        if target.suffix and self.capability != target.capability:
            return f"code for {target.name} runs on compute capability {'.'.join(map(str, target.capability))} alone"
        if self.capability[0] != target.capability[0] or self.capability < target.capability:
            major, minor = target.capability
            return f"code for {target.name} runs on compute capability {major}.{minor} and later ones of {major}"
        return ""


@cache
def device(ordinal: int) -> Device:
    """Facts of a device. Raises Unsupported where there is no driver."""
    d = driver()
    handle = d.made("cuDeviceGet", c_int, ordinal)
    name = ctypes.create_string_buffer(256)
    d.call("cuDeviceGetName", name, len(name), handle)
    major, minor, count, shared = (
        d.made("cuDeviceGetAttribute", c_int, attribute, handle) for attribute in (MAJOR, MINOR, MULTIPROCESSORS, SHARED_BYTES)
    )
    context = d.made("cuDevicePrimaryCtxRetain", c_void_p, handle)
    return Device(d, ordinal, name.value.decode(), (major, minor), count, shared, context or 0)


def current() -> Device:
    """The device of the context that is current in this thread, else the first one."""
    d = driver()
    try:
        return device(d.made("cuCtxGetDevice", c_int))
    except DriverError:
        return device(0)


@contextmanager
def inside(x: Device) -> Generator[None]:
    """Calls inside of it are for this device; the context that was current before is so again behind it."""
    x.driver.call("cuCtxPushCurrent_v2", x.context)
    try:
        yield
    finally:
        x.driver.made("cuCtxPopCurrent_v2", c_void_p)


def owner(address: int) -> int:
    """The ordinal of the device that memory belongs to."""
    found = c_int()
    driver().call("cuPointerGetAttribute", ctypes.byref(found), ORDINAL, c_uint64(address))
    return found.value


def architecture(x: Device | None = None) -> str:
    """The target for a device, or the current one: the latest one whose code it runs."""
    x = current() if x is None else x
    found = [name for name, target in KNOWN.items() if not x.why_not(target)]
    if not found:
        first = next(iter(KNOWN.values()))
        raise Unsupported(
            "backend cuda",
            f"there are no kernels for {x}",
            help=f"the least is {'.'.join(map(str, first.capability))}; known are {', '.join(KNOWN)}",
        )
    return max(found, key=lambda name: (KNOWN[name].capability, KNOWN[name].suffix))


USUAL_MULTIPROCESSORS = 132
"""Of an H100 or H200."""


def multiprocessors() -> int:
    """Of the current device, if there is one."""
    return current().multiprocessors if has_gpu() else USUAL_MULTIPROCESSORS


def has_gpu() -> bool:
    """Whether there is one that the driver can use."""
    try:
        return bool(current())
    except (Unsupported, DriverError):
        return False

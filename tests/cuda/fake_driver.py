"""A driver library whose device is the interpreter of PTX: its memory is this process's, and its functions are called through
ctypes, as those of the real one are."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from ctypes import c_int
from typing import Any

import numpy as np

from attngen.backends.cuda import ptx
from attngen.backends.cuda.ptx.memory import Global
from attngen.backends.cuda.ptx.program import link
from attngen.backends.cuda.ptx.tensormaps import Tiles
from attngen.backends.cuda.runtime.driver import SIGNATURES

ELEMENTS = {0: 1, 3: 4, 5: 8, 6: 2, 7: 4, 8: 8, 9: 2}
"""Bytes of a CUtensorMapDataType."""
SUCCESS, INVALID_VALUE, NO_CONTEXT = 0, 1, 201


class FakeDriver:
    """calls: what was called, with arguments that are plain numbers. allocations: the memory of devices, by address."""

    def __init__(self, capability: tuple[int, int] = (8, 0), shared: int = 166912, version: int = 13000, devices: int = 1):
        self.facts = {16: 108, 75: capability[0], 76: capability[1], 97: shared}
        self.version, self.devices = version, devices
        self.calls: list[tuple[Any, ...]] = []
        self.contexts: list[int] = []
        self.allocations: dict[int, np.ndarray] = {}
        self.owners: dict[int, int] = {}
        self.texts: dict[bytes, tuple[str, ...]] = {}
        self.libraries: dict[int, tuple[str, ...]] = {}
        self.functions: dict[int, tuple[str, str]] = {}
        self.attributes: dict[int, int] = {}
        self.numbers = itertools.count(1001)
        for name, types in SIGNATURES.items():
            kind = ctypes.CFUNCTYPE(c_int, *types)
            setattr(self, name, kind(self.called(name, getattr(self, f"do_{name.removesuffix('_v2')}", self.nothing))))

    def called(self, name: str, function: Any) -> Any:
        def call(*args: Any) -> int:
            self.calls.append((name, *(x for x in args if isinstance(x, int | bytes | None))))
            return function(*args) or SUCCESS

        return call

    def cubin(self, texts: Sequence[str], target: object = None) -> bytes:
        """In place of machine code: a name for PTX."""
        made = f"cubin {next(self.numbers)}".encode()
        self.texts[made] = tuple(texts)
        return made

    def names(self) -> list[str]:
        return [name for name, *_ in self.calls]

    def array(self, values: np.ndarray, device: int = 0) -> np.ndarray:
        """Values in memory of a device."""
        memory = self.allocate(max(values.nbytes, 1), device)
        found = np.ndarray(values.shape, values.dtype, memory.data)
        found[...] = values
        return found

    def allocate(self, size: int, device: int) -> np.ndarray:
        whole = np.full(size + 512, 0xFF, np.uint8)
        start = -whole.ctypes.data % 256
        memory = whole[start : start + size]
        self.allocations[memory.ctypes.data], self.owners[memory.ctypes.data] = memory, device
        return memory

    # ---- what the calls do

    def nothing(self, *args: Any) -> None: ...

    def do_cuDriverGetVersion(self, version: Any) -> None:
        version[0] = self.version

    def do_cuGetErrorName(self, code: int, name: Any) -> None:
        name[0] = {INVALID_VALUE: b"CUDA_ERROR_INVALID_VALUE", 100: b"CUDA_ERROR_NO_DEVICE"}.get(code, b"CUDA_ERROR")

    def do_cuDeviceGet(self, device: Any, ordinal: int) -> int:
        device[0] = ordinal
        return SUCCESS if ordinal < self.devices else INVALID_VALUE

    def do_cuDeviceGetName(self, name: Any, size: int, device: int) -> None:
        ctypes.memmove(name, b"Fake GPU", 9)

    def do_cuDeviceGetAttribute(self, value: Any, attribute: int, device: int) -> None:
        value[0] = self.facts[attribute]

    def do_cuDevicePrimaryCtxRetain(self, context: Any, device: int) -> None:
        context[0] = 500 + device

    def do_cuCtxPushCurrent(self, context: int) -> None:
        self.contexts.append(context)

    def do_cuCtxPopCurrent(self, context: Any) -> None:
        context[0] = self.contexts.pop()

    def do_cuCtxGetDevice(self, device: Any) -> int:
        if not self.contexts:
            return NO_CONTEXT
        device[0] = self.contexts[-1] - 500
        return SUCCESS

    def do_cuPointerGetAttribute(self, found: int, attribute: int, address: int) -> int:
        first = max((a for a in self.owners if a <= address), default=0)
        if attribute != 9 or not first:
            return INVALID_VALUE
        c_int.from_address(found).value = self.owners[first]
        return SUCCESS

    def do_cuLibraryLoadData(self, library: Any, code: bytes, *rest: Any) -> None:
        library[0] = next(self.numbers)
        self.libraries[library[0]] = self.texts[code]

    def do_cuLibraryGetKernel(self, kernel: Any, library: int, name: bytes) -> None:
        kernel[0] = next(self.numbers)
        word = f".entry {name.decode()}("
        self.functions[kernel[0]] = (next(t for t in self.libraries[library] if word in t), name.decode())

    def do_cuKernelSetAttribute(self, attribute: int, value: int, kernel: int, device: int) -> int:
        self.attributes[kernel] = value
        return SUCCESS if attribute == 8 and value <= self.facts[97] else INVALID_VALUE

    def do_cuMemAlloc(self, address: Any, size: int) -> int:
        if not self.contexts:
            return NO_CONTEXT
        address[0] = self.allocate(size, self.contexts[-1] - 500).ctypes.data
        return SUCCESS

    def do_cuMemAllocAsync(self, address: Any, size: int, stream: int) -> int:
        return self.do_cuMemAlloc(address, size)

    def do_cuMemFree(self, address: int, stream: int = 0) -> None:
        del self.allocations[address]

    do_cuMemFreeAsync = do_cuMemFree

    def do_cuMemcpyHtoDAsync(self, target: int, source: int, size: int, stream: int) -> None:
        ctypes.memmove(target, source, size)

    do_cuMemcpyDtoHAsync = do_cuMemcpyHtoDAsync

    def do_cuEventCreate(self, event: Any, flags: int) -> None:
        event[0] = next(self.numbers)

    def do_cuTensorMapEncodeTiled(
        self, place: int, kind: int, rank: int, address: int, extents: Any, strides: Any, box: Any, ones: Any, *how: int
    ) -> int:
        size = ELEMENTS[kind]
        steps = (size, *(strides[k] for k in range(rank - 1)))
        swizzle = {0: 0, 1: 32, 2: 64, 3: 128}[how[1]]
        tiles = Tiles(size, swizzle, address, tuple(extents[:rank]), steps, tuple(box[:rank]))
        ctypes.memmove(place, tiles.encode(), 128)
        return INVALID_VALUE if place % 64 or address % 16 or any(s % 16 for s in steps[1:]) else SUCCESS

    def do_cuLaunchKernel(self, kernel: int, *rest: Any) -> int:
        grid, block, (shared, _, places, _) = rest[:3], rest[3:6], rest[6:]
        if not self.contexts or shared > max(48 * 1024, self.attributes.get(kernel, 0)):
            return INVALID_VALUE
        text, name = self.functions[kernel]
        given: list[bytes] = []
        for k, var in enumerate(link(ptx.parse(text), name).entry.params):
            given.append(ctypes.string_at(places[k], var.size))
        memory = Global()
        for address, content in self.allocations.items():
            memory.add(f"memory at {address}", content, address)
        ptx.run(text, name, grid, block, given, shared, memory=memory)
        data = memory.freeze()
        for address, content in self.allocations.items():
            start = address + int(memory.shifts[np.searchsorted(memory.starts, address, side="right") - 1])
            content[:] = data[start : start + content.size]
        return SUCCESS

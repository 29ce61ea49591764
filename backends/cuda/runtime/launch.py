"""Launches the kernels of a program one after the other on the device of its arrays, and on their stream."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_int32, c_int64, c_uint, c_uint8, c_uint64, c_void_p
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Any

from attngen.backends import Unsupported
from attngen.backends.cuda.program import Copyable, Entry, Length, Map, Parameter, Stride
from attngen.backends.cuda.runtime.arguments import (
    LINE,
    Slot,
    View,
    dense,
    filled,
    given_views,
    map_strides,
    runtime_lengths,
    slots,
)
from attngen.backends.cuda.runtime.device import Device, architecture, device, inside
from attngen.backends.cuda.runtime.device_arrays import DeviceArray, allocate
from attngen.backends.cuda.runtime.driver import driver
from attngen.backends.cuda.runtime.kernels import Kernels
from attngen.backends.cuda.runtime.map_parameters import ALIGNMENT, BYTES
from attngen.backends.cuda.runtime.memory import follow
from attngen.ir.diagnostics import Error
from attngen.ir.func import Func
from attngen.ir.types import ElementType

USUAL_SHARED = 48 * 1024
"""Bytes of dynamic shared memory that a kernel has without asking."""
MOST_DYNAMIC_SHARED = 8
"""CUfunction_attribute."""
MOST_BLOCKS = (1 << 31) - 1

CELLS: Mapping[type[Parameter], Any] = {Stride: c_int64, Length: c_int32, Copyable: c_int32}
"""What each parameter is to the driver, u64 if not listed."""

MAP_TYPES = {"f16": 6, "f32": 7, "f64": 8, "bf16": 9, "i64": 5, "i32": 3, "i8": 0, "i1": 0, "index": 5}
"""CUtensorMapDataType."""
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
"""CUtensorMapSwizzle."""
PROMOTE = 2
"""CUtensorMapL2promotion: 128 bytes at a time."""
MOST_MAPS = 1024
"""That are remembered."""


@dataclass(frozen=True)
class Plan:
    """What shapes, strides and alignment decide about a call. launches: each kernel with its handle, blocks and arguments."""

    kernels: Kernels
    views: Sequence[View]
    temporaries: Sequence[int]
    launches: Sequence[tuple[Entry, int, int, Sequence[Slot]]]


Plans = dict[Any, Plan]
MOST_PLANS = 256


def run(func: Func, suited: Callable[[Sequence[View]], Kernels], arrays: Sequence[DeviceArray], plans: Plans) -> None:
    """Launch the kernels that suit the arrays: inputs, then outputs. What runs on a GPU may still run when this returns. plans:
    of earlier calls."""
    where, first = device(one_device(func, arrays)), arrays[0]
    others = {x.stream for x in arrays} - {first.stream}
    key = (where.ordinal, *((x.shape, x.strides, x.address % LINE) for x in arrays))
    with inside(where):
        plan = plans.get(key)
        if plan is None:
            if len(plans) >= MOST_PLANS:
                plans.clear()
            plan = plans[key] = make_plan(func, suited, arrays, where)
        for stream in others:
            follow(first.stream, stream)
        keep: list[object] = []

        def memory(size: int) -> int:
            address, owner = allocate(size, first)
            keep.append(owner)
            return address

        def tensor_map(parameter: Map, address: int) -> bytes:
            x, number = plan.views[parameter.array], parameter.array
            shape = tuple(x.extents[name] for name in parameter.axes)
            strides = tuple(map_strides(x, parameter.axes))
            element = plan.kernels.program.arrays[number].element
            return encode(element, address, shape, strides, parameter.box, parameter.swizzle)

        addresses = [x.address for x in arrays]
        addresses += [memory(size) for size in plan.temporaries]
        for entry, function, blocks, given in plan.launches:
            launch(entry, function, blocks, filled(given, addresses, memory, tensor_map), first.stream)
        for stream in others:
            follow(stream, first.stream)


def make_plan(func: Func, suited: Callable[[Sequence[View]], Kernels], arrays: Sequence[DeviceArray], where: Device) -> Plan:
    lengths = runtime_lengths(func, arrays)
    views = given_views(func, lengths, [(x.address, x.strides) for x in arrays])
    kernels = suited(views)
    entries = kernels.program.entries
    temporaries = [dense(type, lengths) for type in kernels.program.temporaries]
    views += temporaries
    launches = [
        (entry, function, entry.blocks(lengths), slots(entry, views, lengths))
        for entry, function in zip(entries, loaded(kernels, where), strict=True)
    ]
    for entry, _, blocks, _ in launches:
        if blocks > MOST_BLOCKS:
            raise Error(f"{entry.name}: {blocks} blocks are more than a GPU takes ({MOST_BLOCKS}); give smaller extents")
    return Plan(kernels, views, [x.bytes for x in temporaries], launches)


def one_device(func: Func, arrays: Sequence[DeviceArray]) -> int:
    for number, x in enumerate(arrays):
        if x.device != arrays[0].device:
            name = func.params[number].name if number < len(func.params) else "out"
            raise Error(
                f"{name}: is on GPU {x.device}, and {func.params[0].name} on GPU {arrays[0].device}; "
                "pass arrays that are on the same one"
            )
    return arrays[0].device


def launch(entry: Entry, function: int, blocks: int, given: Sequence[int | bytes], stream: int) -> None:
    cells = [
        (c_uint8 * len(x)).from_buffer_copy(x) if isinstance(x, bytes) else CELLS.get(type(p), c_uint64)(x)
        for p, x in zip(entry.parameters, given, strict=True)
    ]
    places = (c_void_p * max(len(cells), 1))(*map(ctypes.addressof, cells))
    driver().call("cuLaunchKernel", function, blocks, 1, 1, entry.threads, 1, 1, entry.shared_bytes, stream, places, None)


@dataclass
class Loaded:
    """Machine code in the driver. ready: the devices on which its kernels may have all their shared memory."""

    functions: tuple[int, ...]
    ready: set[int]


lock = Lock()


def loaded(kernels: Kernels, where: Device) -> Sequence[int]:
    """The driver's handles of the kernels, ready to be launched on a device."""
    known: Loaded | None = kernels.loaded
    if known is not None and where.ordinal in known.ready:
        return known.functions
    check(kernels, where)
    with lock:
        found: Loaded = kernels.loaded or load(kernels)
        for entry, function in zip(kernels.program.entries, found.functions, strict=True):
            if entry.shared_bytes > USUAL_SHARED:
                given = (MOST_DYNAMIC_SHARED, entry.shared_bytes, function, where.ordinal)
                driver().call("cuKernelSetAttribute", *given)
        found.ready.add(where.ordinal)
        kernels.loaded = found
    return found.functions


def load(kernels: Kernels) -> Loaded:
    d, nothing = driver(), (None, None, 0)
    # The code stays in the driver: kernels that are launched may still run when nobody knows them any more.
    library = d.made("cuLibraryLoadData", c_void_p, kernels.cubin, *nothing, *nothing)
    names = [entry.name.encode() for entry in kernels.program.entries]
    return Loaded(tuple(d.made("cuLibraryGetKernel", c_void_p, library, name) for name in names), set())


def check(kernels: Kernels, where: Device) -> None:
    """Whether the device runs this code."""
    name, target = kernels.program.func.name, kernels.program.target
    help = f'compile for "cuda:{architecture(where)}"'
    if why := where.why_not(target):
        raise Unsupported("backend cuda", f"@{name} cannot run on {where}: {why}", help=help)
    most = max((entry.shared_bytes for entry in kernels.program.entries), default=0)
    if most > where.shared_bytes:
        raise Unsupported(
            "backend cuda",
            f"@{name} needs {most} bytes of shared memory for a block, {where} has {where.shared_bytes}",
            help=help,
        )


@lru_cache(MOST_MAPS)
def encode(
    element: ElementType, address: int, shape: tuple[int, ...], strides: tuple[int, ...], box: tuple[int, ...], swizzle: int
) -> bytes:
    """A tensor map as the hardware reads it; axes from the innermost, strides without it."""
    rank = len(shape)
    raw = ctypes.create_string_buffer(BYTES + ALIGNMENT)
    place = -(-ctypes.addressof(raw) // ALIGNMENT) * ALIGNMENT
    extents, steps = (c_uint64 * rank)(*shape), (c_uint64 * max(rank - 1, 1))(*strides)
    boxes, ones = (c_uint * rank)(*box), (c_uint * rank)(*(1,) * rank)
    kind, how = (MAP_TYPES[element.value], rank, address), (0, SWIZZLES[swizzle], PROMOTE, 0)
    driver().call("cuTensorMapEncodeTiled", place, *kind, extents, steps, boxes, ones, *how)
    return ctypes.string_at(place, BYTES)

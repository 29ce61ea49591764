"""Arrays on NVIDIA GPUs: where they lie, whoever made them, and the stream that whatever reads them is to follow."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, cast

import numpy as np

from attngen.backends.cuda.runtime.device import current, has_gpu, inside, owner
from attngen.backends.cuda.runtime.device import device as device_at
from attngen.backends.cuda.runtime.dlpack import CUDA, MANAGED, bfloat16, dense_strides, read_capsule
from attngen.backends.cuda.runtime.driver import driver
from attngen.backends.cuda.runtime.memory import LEGACY, Buffer, Scratch, to_device, to_host
from attngen.ir.diagnostics import Error


@dataclass(frozen=True, eq=False)
class DeviceArray:
    """What NumPy's arrays have of the same names, but for the elements. strides: in bytes; stream: handle of the one that the
    array's library works on now; object: what was given, which keeps the memory alive."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    device: int
    stream: int
    writeable: bool
    object: Any

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @cached_property
    def reach(self) -> tuple[int, int]:
        """Where the first byte lies, and the one after the last."""
        if not self.size:
            return self.address, self.address
        steps = [stride * (length - 1) for length, stride in zip(self.shape, self.strides, strict=True)]
        low, high = (self.address + sum(f(step, 0) for step in steps) for f in (min, max))
        return low, high + self.itemsize

    def __getitem__(self, index: Any) -> DeviceArray:
        """A view, by whole numbers, slices and `...`."""
        given = cast("tuple[Any, ...]", index) if isinstance(index, tuple) else (index,)
        at = given.index(...) if ... in given else len(given)
        before, after = given[:at], given[at + 1 :]
        keys = (*before, *(slice(None),) * (self.ndim - len(before) - len(after)), *after)
        address, shape, strides = self.address, list[int](), list[int]()
        for key, length, stride in zip(keys, self.shape, self.strides, strict=True):
            if isinstance(key, slice):
                places = range(length)[key]
                address += places.start * stride if places else 0
                shape.append(len(places))
                strides.append(places.step * stride)
            else:
                address += cast(int, range(length)[key]) * stride
        return replace(self, address=address, shape=tuple(shape), strides=tuple(strides))

    def reshape(self, shape: tuple[int, ...]) -> DeviceArray:
        """Of a dense array."""
        assert not self.size or self.strides == dense_strides(self.shape, self.itemsize)
        return replace(self, shape=shape, strides=dense_strides(shape, self.itemsize))


def read(name: str, x: Any, architecture: str = "sm_90a") -> DeviceArray:
    """What is known of an array on a GPU. Error for arrays elsewhere and for whatever is no array. architecture: of the
    kernel."""
    if isinstance(x, DeviceArray):
        return x
    if isinstance(x, np.ndarray):
        raise elsewhere(name, architecture)
    module = type(x).__module__.partition(".")[0]
    if is_tensor(x):
        return read_torch(name, x, architecture)
    if module == "cupy":
        stream = sys.modules["cupy"].cuda.get_current_stream(x.device.id).ptr
        return DeviceArray(x.data.ptr, x.shape, x.strides, x.dtype, x.device.id, stream or LEGACY, True, x)
    interface = found_interface(x)
    if interface is not None and "stream" in interface:
        return read_interface(name, x, interface)
    if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        kind, device = x.__dlpack_device__()
        if kind not in (CUDA, MANAGED):
            raise elsewhere(name, architecture)
        capsule = x.__dlpack__(stream=LEGACY)
        # JAX's arrays never change.
        return DeviceArray(*read_capsule(name, capsule), int(device), LEGACY, not module.startswith("jax"), (x, capsule))
    if interface is not None:
        return read_interface(name, x, interface)
    raise Error(
        f"{name}: expected an array on a GPU, of torch or CuPy or with __dlpack__ or __cuda_array_interface__, "
        f"got {type(x).__qualname__}"
    )


def on_device(x: Any) -> bool:
    """Whether an array says that it is on a GPU."""
    if hasattr(x, "__dlpack_device__"):
        return x.__dlpack_device__()[0] in (CUDA, MANAGED)
    return found_interface(x) is not None


def is_tensor(x: Any) -> bool:
    # Torch is never imported here: where no one has, there are no tensors. Another thread may be in the middle of importing it.
    kind: Any = getattr(sys.modules.get("torch"), "Tensor", None)
    return kind is not None and isinstance(x, kind)


def elsewhere(name: str, architecture: str) -> Error:
    none = "" if has_gpu() else " (and there is no NVIDIA GPU here)"
    return Error(
        f"{name}: lies in the memory of this machine, and the kernel runs on a GPU{none}; pass an array that is there, such as "
        f'{name}.cuda() of a tensor of torch or cupy.asarray({name}), or use target="cpu" or "cuda:{architecture},emulated"'
    )


def read_torch(name: str, x: Any, architecture: str = "sm_90a") -> DeviceArray:
    torch: Any = sys.modules["torch"]
    if x.device.type != "cuda":
        raise elsewhere(name, architecture)
    if x.requires_grad and torch.is_grad_enabled():
        raise Error(f"{name}: requires gradients, which are not computed; use {name}.detach() or torch.no_grad()")
    if x.layout != torch.strided or x.is_neg() or x.is_conj():
        raise Error(f"{name}: expected a dense tensor, got layout {x.layout}; use {name}.to_dense() or {name}.resolve_neg()")
    size = x.element_size()
    stream = torch.cuda.current_stream(x.device).cuda_stream or LEGACY
    strides = tuple(stride * size for stride in x.stride())
    return DeviceArray(x.data_ptr(), tuple(x.shape), strides, torch_dtype(name, x), x.device.index, stream, True, x)


def torch_dtype(name: str, x: Any) -> np.dtype[Any]:
    text = str(x.dtype).removeprefix("torch.")
    try:
        return bfloat16() if text == "bfloat16" else np.dtype(text)
    except TypeError:
        raise Error(f"{name}: the element type {x.dtype} is not supported") from None


def found_interface(x: Any) -> dict[str, Any] | None:
    """`__cuda_array_interface__`, if the array has it: it cannot say bfloat16."""
    try:
        return x.__cuda_array_interface__
    except (AttributeError, TypeError, KeyError):
        return None


def read_interface(name: str, x: Any, interface: dict[str, Any]) -> DeviceArray:
    if interface.get("mask") is not None:
        raise Error(f"{name}: a masked array's mask would be ignored; pass the array without it")
    dtype = np.dtype(interface["typestr"])
    if dtype.kind == "V":
        raise Error(f"{name}: __cuda_array_interface__ does not say what elements of {interface['typestr']} are")
    address, readonly = interface["data"]
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    strides = dense_strides(shape, dtype.itemsize) if strides is None else tuple(strides)
    device = owner(address) if address else 0
    # No stream: whoever made the array has waited for its work.
    return DeviceArray(address, shape, strides, dtype, device, interface.get("stream") or LEGACY, not readonly, x)


@dataclass(frozen=True)
class DeviceArrays:
    """Satisfies `attngen.backends.Arrays`. architecture: of the kernels."""

    architecture: str = "sm_90a"

    def read(self, name: str, x: Any) -> DeviceArray:
        return read(name, x, self.architecture)

    def small(self, x: Any) -> Any:
        return self.download(read("", x)) if on_device(x) else x

    def overlap(self, a: DeviceArray, b: DeviceArray) -> bool:
        (low, high), (first, last) = a.reach, b.reach
        return a.device == b.device and low < last and first < high

    def writeable(self, x: DeviceArray) -> bool:
        return x.writeable

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], like: Sequence[DeviceArray]) -> DeviceArray:
        """By no known library: a buffer that any library can read."""
        first = like[0]
        if is_tensor(first.object):
            torch: Any = sys.modules["torch"]
            return read_torch("out", torch.empty(shape, dtype=getattr(torch, dtype.name), device=first.object.device))
        if type(first.object).__module__.partition(".")[0] == "cupy":
            cupy: Any = sys.modules["cupy"]
            with cupy.cuda.Device(first.device):
                return read("out", cupy.empty(shape, dtype))
        buffer = Buffer(shape, dtype, first.device, first.stream)
        return DeviceArray(buffer.address, shape, buffer.strides, dtype, first.device, first.stream, True, buffer)

    def result(self, x: DeviceArray) -> Any:
        return x.object

    def upload(self, values: np.ndarray[Any, Any], like: Sequence[DeviceArray]) -> DeviceArray:
        values = np.ascontiguousarray(values).reshape(values.shape)
        ordinal, stream = (like[0].device, like[0].stream) if like else (current().ordinal, LEGACY)
        size = max(values.nbytes, 1)
        address, keep = allocate(size, like[0]) if like else allocated(size, ordinal, stream)
        if values.nbytes:
            with inside(device_at(ordinal)):
                to_device(address, values, stream)
        return DeviceArray(address, values.shape, values.strides, values.dtype, ordinal, stream, True, keep)

    def download(self, x: DeviceArray) -> np.ndarray[Any, Any]:
        return self.around(x)[0].copy()

    def fill(self, x: DeviceArray, values: np.ndarray[Any, Any]) -> None:
        elements, memory = self.around(x)
        elements[...] = values
        if memory.size:
            with inside(device_at(x.device)):
                to_device(x.reach[0], memory, x.stream)

    def wait(self, arrays: Sequence[DeviceArray]) -> None:
        for ordinal, stream in {(x.device, x.stream) for x in arrays}:
            with inside(device_at(ordinal)):
                driver().call("cuStreamSynchronize", stream)

    def around(self, x: DeviceArray) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """The elements, in a copy of all bytes from the first to the last one."""
        low, high = x.reach
        memory = np.empty(high - low, np.uint8)
        if memory.size:
            with inside(device_at(x.device)):
                to_host(memory, low, x.stream)
        return np.ndarray(x.shape, x.dtype, memory.data, x.address - low, x.strides), memory


def allocate(size: int, like: DeviceArray) -> tuple[int, object]:
    """Where so many bytes are, and what keeps them until it is dropped: then they serve whatever follows on the stream."""
    if is_tensor(like.object):
        torch: Any = sys.modules["torch"]
        made: Any = torch.empty(size, dtype=torch.uint8, device=like.object.device)
        return made.data_ptr(), made
    return allocated(size, like.device, like.stream)


def allocated(size: int, ordinal: int, stream: int) -> tuple[int, object]:
    """The same by the driver."""
    scratch = Scratch(size, ordinal, stream)
    return scratch.address, scratch

"""Launches, with a driver library in place of NVIDIA's that runs kernels in the interpreter of PTX."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attngen as ag
from attngen import onnx
from attngen.backends import get_backend
from attngen.backends.cuda.build import Built
from attngen.backends.cuda.runtime import device, dlpack, driver, launch
from attngen.backends.cuda.runtime.device_arrays import DeviceArrays
from attngen.backends.cuda.runtime.kernels import Kernels
from attngen.backends.cuda.runtime.memory import Buffer
from attngen.backends.cuda.toolchain import assembler
from attngen.cli import main
from attngen.ir.pipeline import parse_pipeline
from attngen.ir.types import ElementType
from attngen.lowering import own_tiling, parallelism
from attngen.table import KERNELS
from tests.cuda import launching
from tests.cuda.fake_driver import FakeDriver
from tests.kernels.reference import attention


class GpuArray:
    """An array of some library, as `__cuda_array_interface__` describes it."""

    def __init__(self, memory: np.ndarray, stream: int | None = 77, readonly: bool = False) -> None:
        self.memory, self.stream, self.readonly = memory, stream, readonly

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        x = self.memory
        data, typestr = (x.ctypes.data, self.readonly), x.dtype.str
        return {"shape": x.shape, "typestr": typestr, "data": data, "strides": x.strides, "version": 3, "stream": self.stream}


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def clear() -> None:
        for known in (driver.driver, device.device):
            known.cache_clear()
        launch.encode.cache_clear()
        KERNELS.reset()  # their code is in the driver of another test

    clear()
    yield
    clear()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    return install(monkeypatch, FakeDriver())


def install(monkeypatch: pytest.MonkeyPatch, fake: FakeDriver) -> FakeDriver:
    monkeypatch.setattr(driver, "load", lambda: fake)
    monkeypatch.setattr(assembler, "cubin", fake.cubin)
    return fake


def built(fake: FakeDriver, kernels: Kernels) -> Built:
    kernels.cubin = fake.cubin(kernels.ptx)
    return Built(kernels)


def read(*arrays: Any) -> list[Any]:
    return [DeviceArrays().read(f"x{k}", x) for k, x in enumerate(arrays)]


def elements(x: Any) -> np.ndarray:
    """Of any array that says where it is."""
    return DeviceArrays().download(DeviceArrays().read("x", x))


# ---- what is launched


def test_strides_lengths_and_the_stream_reach_the_kernel(gpu: FakeDriver) -> None:
    memory = gpu.array(launching.numbered((80, 24), np.float32))
    x, out = memory[70::-1, ::3], gpu.array(np.zeros((8, 71), np.float32)).T
    built(gpu, launching.copy(ElementType.F32, target="sm_80"))(read(GpuArray(x)), read(GpuArray(out)))
    assert np.array_equal(out, x)
    (call,) = [call for call in gpu.calls if call[0] == "cuLaunchKernel"]
    assert call[2:10] == (3, 1, 1, 32, 1, 1, 0, 77)
    assert not gpu.contexts


def test_arrays_of_several_streams_wait_for_each_other(gpu: FakeDriver) -> None:
    x, out = GpuArray(gpu.array(np.ones((3, 8), np.float32)), 5), GpuArray(gpu.array(np.zeros((3, 8), np.float32)), 9)
    built(gpu, launching.copy(ElementType.F32, target="sm_80"))(read(x), read(out))
    kept = [(name, *args[-2:]) for name, *args in gpu.calls if name in ("cuEventRecord", "cuStreamWaitEvent", "cuLaunchKernel")]
    streams = [call[2] if call[0] == "cuEventRecord" else call[0] for call in kept]
    assert streams == [9, "cuStreamWaitEvent", "cuLaunchKernel", 5, "cuStreamWaitEvent"]
    waits = [args[0] for name, *args in gpu.calls if name == "cuStreamWaitEvent"]
    assert waits == [5, 9]


def test_kernels_are_loaded_once_and_ask_for_much_shared_memory(gpu: FakeDriver) -> None:
    kernels = launching.copy(ElementType.F32, target="sm_80", shared_bytes=100_000)
    function = built(gpu, kernels)
    x, out = (gpu.array(np.ones((3, 8), np.float32)) for _ in range(2))
    for _ in range(2):
        function(read(GpuArray(x)), read(GpuArray(out)))
    assert [gpu.names().count(name) for name in ("cuLibraryLoadData", "cuKernelSetAttribute", "cuLaunchKernel")] == [1, 1, 2]
    assert list(gpu.attributes.values()) == [100_000]


@pytest.mark.parametrize("parameter", [launching.temporary, launching.workspace])
def test_memory_between_kernels_comes_and_goes_in_the_order_of_the_stream(gpu: FakeDriver, parameter: Any) -> None:
    x, out = (GpuArray(gpu.array(np.zeros((), np.float32))) for _ in range(2))
    built(gpu, launching.unwritten(parameter, "sm_80"))(read(x), read(out))
    gc.collect()
    order = [(name, args[-1]) for name, *args in gpu.calls if name.startswith(("cuMem", "cuLaunch"))]
    assert order[0] == ("cuMemAllocAsync", 77) and order[-1] == ("cuMemFreeAsync", 77)
    assert "cuLaunchKernel" in dict(order)
    assert np.isnan(elements(out))


def test_tensor_maps_are_encoded_once_for_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = install(monkeypatch, FakeDriver((9, 0)))
    memory = gpu.array(launching.numbered((8, 24), np.float32))
    out = gpu.array(np.zeros((8, 16), np.float32))
    function = built(gpu, launching.mapped("sm_90a"))
    for first in (4, 0, 4):
        function(read(GpuArray(memory[:, first : first + 16])), read(GpuArray(out)))
        assert np.array_equal(out, memory[:, first : first + 16])
    assert gpu.names().count("cuTensorMapEncodeTiled") == 2


def test_attention_on_arrays_of_a_gpu(gpu: FakeDriver) -> None:
    """The whole way: a mask beside them, small arrays of this machine, a strided query, two outputs of which one is given."""
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((1, n, 2, 16)).astype(np.float32).swapaxes(1, 2) for n in (9, 21, 21))
    mask, sinks = rng.random((9, 21)) < 0.7, np.array([0.5, -1.0])
    query, key, value = (GpuArray(gpu.array(x.swapaxes(1, 2)).swapaxes(1, 2)) for x in (q, k, v))
    out = GpuArray(gpu.array(np.zeros(q.shape, np.float32)))
    call: dict[str, Any] = {"is_causal": True, "causal_alignment": "bottom_right", "sinks": sinks, "return_lse": True}
    want, want_lse = ag.scaled_dot_product_attention(q, k, v, mask, **call)
    got, lse = ag.scaled_dot_product_attention(
        query, key, value, GpuArray(gpu.array(mask)), **call, out=out, target="cuda:sm_80"
    )
    assert got is out and isinstance(lse, Buffer)
    np.testing.assert_allclose(elements(out), want, rtol=0, atol=1e-5)
    np.testing.assert_allclose(elements(lse), want_lse, rtol=0, atol=1e-5)
    # Lengths and captured arrays from the GPU, another length of the keys, and none at all.
    used, table = GpuArray(gpu.array(np.array([17]))), rng.standard_normal(21).astype(np.float32)
    got = ag.scaled_dot_product_attention(
        query, key, value, seqused_k=used, score_mod=lambda s, b, h, i, j: s + table[j], target="cuda:sm_80"
    )
    want = ag.scaled_dot_product_attention(q, k[:, :, :17], v[:, :, :17], bias=table[:17])
    np.testing.assert_allclose(elements(got), want, rtol=0, atol=1e-5)
    key, value = (GpuArray(x.memory[:, :, :0]) for x in (key, value))
    got, lse = ag.scaled_dot_product_attention(query, key, value, return_lse=True, target="cuda:sm_80")
    assert not elements(got).any() and np.isneginf(elements(lse)).all()
    assert not gpu.contexts


def test_parts_on_a_gpu_are_merged_there(gpu: FakeDriver) -> None:
    rng = np.random.default_rng(3)
    arrays = [
        rng.standard_normal(shape).astype(np.float16 if len(shape) == 4 else np.float32)
        for shape in ((1, 5, 2, 8), (1, 2, 5)) * 2
    ]
    arrays[0][0, 3, 1], arrays[1][0, 1, 3] = np.nan, -np.inf
    got = ag.merge(*(GpuArray(gpu.array(x)) for x in arrays), layout="BSHD", target="cuda:sm_80")
    for x, want in zip(got, ag.merge(*arrays, layout="BSHD"), strict=True):
        np.testing.assert_allclose(elements(x), want, rtol=1e-3 if want.dtype == np.float16 else 1e-5)
    assert all(isinstance(x, Buffer) for x in got)


WHERE: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {
    "own entries": ((3, 12), {}),
    "every second entry, backwards": ((6, 12), {"cache_batch_idx": [5, 3, 1]}),
    "pages": ((9, 4), {"block_table": np.array([[7, 1, 8], [0, 3, -1], [5, 4, 6]])}),
}


@pytest.mark.parametrize(
    ("where", "past", "layout"),
    [
        ("own entries", 3, "BHSD"),
        ("every second entry, backwards", [7, 0, 10], "BSHD"),
        ("pages", 3, "BSHD"),
        ("pages", [7, 0, 10], "BHSD"),
    ],
)
def test_a_cache_on_a_gpu(gpu: FakeDriver, where: str, past: Any, layout: Any) -> None:
    """New keys are written where the same call for NumPy's arrays writes them, and nothing else is."""
    (count, size), said = WHERE[where]
    rng = np.random.default_rng(3)
    shapes = (3, 4, 2, 8), (count, 2, size, 8), (count, 2, size, 5), (3, 2, 2, 8), (3, 2, 2, 5)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    given = [x if layout == "BHSD" else np.ascontiguousarray(x.swapaxes(1, 2)) for x in arrays]
    on_gpu = [GpuArray(gpu.array(x)) for x in given]
    lengths = past if isinstance(past, int) else GpuArray(gpu.array(np.array(past)))
    bias = rng.standard_normal((2, size * (3 if where == "pages" else 1))).astype(np.float32)
    call: dict[str, Any] = {**said, "is_causal": True, "layout": layout}
    got = ag.attention_with_kvcache(*on_gpu, cache_seqlens=lengths, bias=GpuArray(gpu.array(bias)), **call, target="cuda:sm_80")
    want = ag.attention_with_kvcache(*given, cache_seqlens=past, bias=bias, **call)
    np.testing.assert_allclose(elements(got), want, rtol=0, atol=1e-5)
    for x, wanted in zip(on_gpu[1:3], given[1:3], strict=True):
        np.testing.assert_array_equal(x.memory, wanted)
    before = on_gpu[1].memory.copy()
    with pytest.raises(ag.Error, match=r"out: axis e has extent 6"):
        out = GpuArray(gpu.array(np.zeros((*given[0].shape[:-1], 6), np.float32)))
        ag.attention_with_kvcache(*on_gpu, cache_seqlens=lengths, **call, out=out, target="cuda:sm_80")
    np.testing.assert_array_equal(on_gpu[1].memory, before)


# ---- arrays


def test_capsules_are_read_as_dlpack_lays_them_out() -> None:
    """NumPy's own ones, and those made here, which NumPy's reader checks in turn."""
    for x in (np.zeros((3, 4, 5), np.float16)[::2, :, ::-1], np.zeros((), bool), np.zeros((2, 0), np.int64)):
        assert dlpack.read_capsule("x", x.__dlpack__()) == (x.ctypes.data, x.shape, x.strides, x.dtype)
    memory = np.zeros((3, 5), ml_dtypes.bfloat16)
    owner = SimpleNamespace()
    capsule = dlpack.make_capsule(owner, memory.ctypes.data, (3, 5), (10, 2), memory.dtype, 0)
    assert dlpack.read_capsule("x", capsule) == (memory.ctypes.data, (3, 5), (10, 2), memory.dtype)
    assert sys.getrefcount(owner) == 3
    del capsule
    assert sys.getrefcount(owner) == 2 and not dlpack.made


def test_an_output_of_no_library_is_read_by_all(gpu: FakeDriver) -> None:
    buffer = Buffer((2, 3), np.dtype(np.float32), 0, 77)
    interface = buffer.__cuda_array_interface__
    assert interface["stream"] == 77 and interface["data"] == (buffer.address, False)
    capsule = buffer.__dlpack__(stream=9)
    assert [name for name in gpu.names() if "Event" in name] == [
        *("cuEventCreate", "cuEventRecord", "cuStreamWaitEvent", "cuEventDestroy_v2")
    ]
    assert dlpack.read_capsule("x", capsule) == (buffer.address, (2, 3), (12, 4), np.dtype(np.float32))
    address = buffer.address
    del capsule, buffer
    assert gpu.calls[-2] == ("cuMemFree_v2", address) and address not in gpu.allocations
    assert not hasattr(Buffer((2,), np.dtype(ml_dtypes.bfloat16), 0, 1), "__cuda_array_interface__")


class Tensor:
    """A tensor of torch, as far as it is used."""

    def __init__(self, memory: np.ndarray, dtype: str = "", device: int = 0) -> None:
        self.memory, self.dtype = memory, dtype or f"torch.{memory.dtype.name}"
        self.shape, self.requires_grad, self.layout = memory.shape, False, "strided"
        self.device = SimpleNamespace(type="cuda", index=device)

    def data_ptr(self) -> int:
        return self.memory.ctypes.data

    def element_size(self) -> int:
        return self.memory.itemsize

    def stride(self) -> tuple[int, ...]:
        return tuple(s // self.memory.itemsize for s in self.memory.strides)

    def is_neg(self) -> bool:
        return False

    is_conj = is_neg


def test_tensors_of_torch_in_and_out(gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """bf16, which `__cuda_array_interface__` cannot say; the current stream of torch; outputs and scratch made by torch."""

    def empty(shape: Any, dtype: str, device: Any) -> Tensor:
        kind = {"bfloat16": ml_dtypes.bfloat16}.get(dtype, dtype)
        return Tensor(gpu.array(np.zeros(shape, kind)), f"torch.{dtype}")

    torch = SimpleNamespace(Tensor=Tensor, empty=empty, strided="strided", is_grad_enabled=lambda: True)
    torch.bfloat16, torch.float32, torch.uint8 = "bfloat16", "float32", "uint8"
    torch.get_num_threads = lambda: 1
    torch.cuda = SimpleNamespace(current_stream=lambda device: SimpleNamespace(cuda_stream=123))
    monkeypatch.setitem(sys.modules, "torch", torch)
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((1, 2, n, 16)).astype(ml_dtypes.bfloat16) for n in (9, 21, 21))
    query, key, value = (Tensor(gpu.array(x)) for x in (q, k, v))
    got, lse = ag.scaled_dot_product_attention(query, key, value, return_lse=True, target="cuda:sm_80")
    assert isinstance(got, Tensor) and isinstance(lse, Tensor) and got.dtype == "torch.bfloat16"
    want, want_lse = attention(q.astype(np.float32), k.astype(np.float32), v.astype(np.float32))
    np.testing.assert_allclose(got.memory.astype(np.float32), want, rtol=0, atol=2e-2)
    np.testing.assert_allclose(lse.memory, want_lse, rtol=0, atol=1e-2)
    assert {call[9] for call in gpu.calls if call[0] == "cuLaunchKernel"} == {123}
    key.requires_grad = True
    with pytest.raises(ag.Error, match=r"key: requires gradients.*key.detach\(\)"):
        ag.scaled_dot_product_attention(query, key, value, target="cuda:sm_80")


# ---- what is refused

GIVEN: dict[str, tuple[Callable[[FakeDriver], tuple[Any, Any]], str]] = {
    "an array of this machine": (
        lambda gpu: (np.zeros((3, 8), np.float32), None),
        r"x: lies in the memory of this machine, and the kernel runs on a GPU; .*x.cuda\(\) of a tensor.*cuda:sm_80,emulated",
    ),
    "no array": (lambda gpu: ([1, 2], None), r"x: expected an array on a GPU.*got list"),
    "a dtype": (lambda gpu: (GpuArray(gpu.array(np.zeros((3, 8)))), None), r"x: expected dtype float32, got float64"),
    "a shape": (lambda gpu: (GpuArray(gpu.array(np.zeros((3, 9), np.float32))), None), r"x: axis j has extent 9 .* expected 8"),
    "an output that shares memory": (lambda gpu: (x := on(gpu), x), r"out: shares memory with x"),
    "an output that is read-only": (
        lambda gpu: (on(gpu), GpuArray(gpu.array(np.zeros((3, 8), np.float32)), readonly=True)),
        r"out: the array is read-only",
    ),
    "an output that overlaps itself": (
        lambda gpu: (on(gpu), GpuArray(np.broadcast_to(gpu.array(np.zeros(8, np.float32)), (3, 8)))),
        r"out: elements share memory",
    ),
    "an output of this machine": (
        lambda gpu: (on(gpu), np.zeros((3, 8), np.float32)),
        r"out: lies in the memory of this",
    ),
    "another GPU": (
        lambda gpu: (on(gpu), GpuArray(gpu.array(np.zeros((3, 8), np.float32), device=1))),
        r"out: is on GPU 1, and x on GPU 0; pass arrays that are on the same one",
    ),
}


def on(gpu: FakeDriver) -> GpuArray:
    return GpuArray(gpu.array(np.zeros((3, 8), np.float32)))


@ag.program(x="i j", out="i j")
def doubled(x: Any) -> Any:
    return x + x


def test_an_array_of_a_machine_without_a_gpu(gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "load", lambda: refusing(100))
    driver.driver.cache_clear()
    with pytest.raises(ag.Error, match=r"runs on a GPU \(and there is no NVIDIA GPU here\); .*cuda:sm_89,emulated"):
        DeviceArrays("sm_89").read("x", np.zeros(3))


@pytest.mark.parametrize("what", GIVEN)
def test_arrays_that_do_not_fit(gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    gpu.devices = 2
    kernel = ag.compile(doubled, x=(3, 8), target="cuda:sm_80")
    make, message = GIVEN[what]
    x, out = make(gpu)
    with pytest.raises(ag.Error, match=message):
        kernel(x, out=out)
    assert "cuLaunchKernel" not in gpu.names()


@pytest.mark.parametrize("target", ["cpu", "numpy", "cuda:sm_80,emulated"])
def test_arrays_of_a_gpu_are_for_kernels_of_a_gpu(gpu: FakeDriver, target: str) -> None:
    with pytest.raises(ag.Error, match=r'x: .*GpuArray on a GPU cannot be read here; copy it .*or use target="cuda"'):
        ag.compile(doubled, x=(3, 8), target=target)(on(gpu))


MACHINES: dict[str, tuple[Callable[[], Any], str, str]] = {
    "no driver": (lambda: 1 / 0, "cuda", r"no NVIDIA GPU here: the driver library is missing.*\n.*cuda:sm_90a,emulated"),
    "no GPU": (lambda: refusing(100), "cuda", r"no NVIDIA GPU here: the driver finds no device.*\n.*to export"),
    "an old driver": (
        lambda: FakeDriver(version=12040),
        "cuda",
        r"driver here knows CUDA up to 12\.4; kernels are made for CUDA 13\.0\n.*install driver 580",
    ),
    "an old GPU": (lambda: FakeDriver((7, 5)), "cuda", r"no kernels for Fake GPU \(compute capability 7\.5\)\n.*least is 8\.0"),
    "another GPU": (
        lambda: FakeDriver((8, 0)),
        "cuda:sm_90a",
        r'run on Fake GPU \(compute capability 8\.0\): code for sm_90a runs on compute capability 9\.0 alone\n.*"cuda:sm_80"',
    ),
    "a later GPU": (lambda: FakeDriver((10, 0)), "cuda:sm_80", r"runs on compute capability 8\.0 and later ones of 8"),
    "little shared memory": (
        lambda: FakeDriver(shared=48),
        "cuda:sm_80",
        r"needs \d+ bytes of shared memory for a block, Fake GPU \(compute capability 8\.0\) has 48",
    ),
}


def refusing(code: int) -> FakeDriver:
    fake = FakeDriver()
    fake.__dict__["cuInit"] = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint)(lambda flags: code)
    return fake


@pytest.mark.parametrize("machine", MACHINES)
def test_machines_that_do_not_fit(monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    """Compiling for an architecture needs none of it."""
    make, target, message = MACHINES[machine]
    fake = FakeDriver() if machine == "no driver" else make()
    install(monkeypatch, fake)

    def missing() -> Any:
        raise OSError("libcuda.so.1: cannot open shared object file")

    if machine == "no driver":
        monkeypatch.setattr(driver, "load", missing)
    with pytest.raises(ag.Error, match=message):
        kernel = ag.compile(doubled, x=(3, 8), target=target)
        if machine == "little shared memory":
            # Whatever it has, of which this kernel takes more.
            executable: Any = kernel._built and kernel._built.executable
            object.__setattr__(executable.kernels.program.entries[0], "shared_bytes", 1024)
        kernel(on(fake))


@pytest.mark.parametrize(
    ("capability", "name"), [((8, 0), "sm_80"), ((8, 7), "sm_86"), ((9, 0), "sm_90a"), ((10, 3), "sm_100")]
)
def test_the_target_of_this_machine(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], name: str) -> None:
    install(monkeypatch, FakeDriver(capability))
    assert device.architecture() == name


def test_a_command_brings_arrays_to_the_gpu_and_back(gpu: FakeDriver, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--shape", "1,2,9,21,16", "--target", "cuda"]) == 0
    printed = capsys.readouterr().out
    assert "for cuda, float32" in printed and "allowed" in printed
    assert gpu.names().count("cuStreamSynchronize") >= gpu.names().count("cuLaunchKernel") - 1


def test_what_prepares_its_arrays_with_numpy_says_so(gpu: FakeDriver) -> None:
    x = np.zeros((1, 1, 8, 8), np.float32)
    with pytest.raises(ag.Error, match=r'target: .* works on NumPy arrays, which kernels for cuda cannot read; use "cpu"'):
        onnx.attention(x, x, x, target="cuda")


# ---- what is decided before


def test_as_many_parts_as_there_are_multiprocessors(gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parallelism("cuda", 4096) == parallelism("cuda:sm_80,emulated", 4096) == (128, 108)
    assert parallelism("cuda", 4) == (4, 4 * 108)  # blocks of one warp
    monkeypatch.setattr(driver, "load", lambda: refusing(100))
    driver.driver.cache_clear()
    assert parallelism("cuda:sm_90a", 4096) == (128, 132)
    with ag.threads(3):
        assert parallelism("cpu", 4096) == (32, 3)


@pytest.mark.parametrize(
    ("pipeline", "wanted"),
    [("canonicalize,tile,canonicalize", "canonicalize,tile-blocks,canonicalize"), ("tile{i=8}", "tile{i=8}"), ("", "")],
)
def test_axes_are_cut_for_blocks_unless_it_is_said_how(pipeline: str, wanted: str) -> None:
    steps = parse_pipeline(pipeline)
    assert str(own_tiling(steps, get_backend("cuda"), "sm_80")) == wanted
    assert own_tiling(steps, get_backend("cpu"), "") == steps

"""Tensors of torch in place of arrays. Where torch is not installed, a stand-in with what of it is used takes its place."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attngen as ag
from tests.kernels.reference import attention


class Tensor:
    """Memory with an element type; bf16 is no type of its memory's array."""

    def __init__(self, memory: np.ndarray, dtype: str = "", device: str = "cpu") -> None:
        self.memory, self.dtype = memory, dtype or f"torch.{memory.dtype.name}"
        self.device, self.requires_grad = SimpleNamespace(type=device), False

    def detach(self) -> Tensor:
        return Tensor(self.memory, self.dtype)

    def view(self, dtype: str) -> Tensor:
        return Tensor(self.memory.view(np.int16), dtype)

    def numpy(self) -> np.ndarray:
        if self.dtype in ("torch.bfloat16", "torch.float8"):
            raise TypeError(f"Got unsupported ScalarType {self.dtype}")
        return self.memory

    def data_ptr(self) -> int:
        return self.memory.ctypes.data


STAND_IN = SimpleNamespace(
    Tensor=Tensor,
    from_numpy=Tensor,
    int16="torch.int16",
    bfloat16="torch.bfloat16",
    is_grad_enabled=lambda: True,
    get_num_threads=lambda: 1,
)


@pytest.fixture(params=["stand-in", *(["torch"] if importlib.util.find_spec("torch") else [])])
def torch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "torch":
        return importlib.import_module("torch")
    monkeypatch.setitem(sys.modules, "torch", STAND_IN)
    return STAND_IN


def tensor(torch: Any, x: np.ndarray) -> Any:
    if x.dtype.name != "bfloat16":
        return torch.from_numpy(x)
    return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_tensors_in_and_out(torch: Any, dtype: Any) -> None:
    """The result has the type of the query; it and what is given are the memory that the kernel works on."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((2, n, 3, 8)).astype(dtype).swapaxes(1, 2) for n in (5, 9, 9)]
    want, want_lse = attention(arrays[0], arrays[1], arrays[2])
    q, k, v = (tensor(torch, x) for x in arrays)
    out, lse = ag.scaled_dot_product_attention(q, k, v, return_lse=True)
    assert isinstance(out, torch.Tensor) and str(out.dtype) == f"torch.{np.dtype(dtype).name}"
    made = np.empty((2, 3, 5, 8), dtype)
    memory = tensor(torch, made)
    assert ag.scaled_dot_product_attention(query=q, key=k, value=v, out=memory) is memory
    np.testing.assert_allclose(made.astype(float), want, atol=5e-3 if dtype is not ml_dtypes.bfloat16 else 3e-2)
    np.testing.assert_allclose(lse.numpy(), want_lse, atol=1e-5)
    copied = np.asarray(out.view(torch.int16).numpy() if str(out.dtype) == "torch.bfloat16" else out.numpy())
    np.testing.assert_array_equal(copied.view(made.dtype), made)


def test_arrays_beside_tensors(torch: Any) -> None:
    x = np.ones((1, 1, 4, 8), np.float32)
    mask = np.eye(4, dtype=bool)
    assert isinstance(ag.scaled_dot_product_attention(torch.from_numpy(x), x, x, attn_mask=mask), torch.Tensor)
    assert isinstance(ag.scaled_dot_product_attention(x, x, x, attn_mask=torch.from_numpy(mask)), np.ndarray)


def test_a_cache_of_tensors_is_appended_to(torch: Any) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, 1, 8)).astype(np.float16) for _ in range(3))
    keys, values = (rng.standard_normal((1, 2, 6, 8)).astype(np.float16) for _ in range(2))
    tensors = [torch.from_numpy(x) for x in (q, keys, values, k, v)]
    out = ag.attention_with_kvcache(*tensors, cache_seqlens=4)
    np.testing.assert_array_equal(keys[:, :, 4], k[:, :, 0])
    np.testing.assert_allclose(out.numpy(), attention(q, keys[:, :, :5], values[:, :, :5])[0], atol=2e-3)


def test_parts_are_merged(torch: Any) -> None:
    q, k, v = (np.random.default_rng(n).standard_normal((1, 2, 9, 8), dtype=np.float32) for n in range(3))
    halves = [ag.scaled_dot_product_attention(q, k[:, :, x], v[:, :, x], return_lse=True) for x in (slice(4), slice(4, 9))]
    want, want_lse = ag.scaled_dot_product_attention(q, k, v, return_lse=True)
    merged: Any = ag.merge(*(tensor(torch, x) for half in halves for x in half))
    for got, expected in zip(merged, (want, want_lse), strict=True):
        assert isinstance(got, torch.Tensor)
        np.testing.assert_allclose(np.asarray(got.numpy()), expected, atol=2e-6)


def test_what_cannot_be_read(torch: Any) -> None:
    x = torch.from_numpy(np.ones((1, 1, 4, 8), np.float32))
    learned = torch.from_numpy(np.ones((1, 1, 4, 8), np.float32))
    learned.requires_grad = True
    with pytest.raises(ag.Error, match=r"key: requires gradients.*use key.detach\(\) or torch.no_grad\(\)"):
        ag.scaled_dot_product_attention(x, learned, x)
    far = Tensor(np.ones(3, np.float32), device="cuda") if torch is STAND_IN else x.to("meta")
    with pytest.raises(ag.Error, match=r"value: a tensor on the device .* cannot be read here; use value.cpu\(\)"):
        ag.scaled_dot_product_attention(x, x, far)
    odd = Tensor(np.ones(3, np.int8), "torch.float8") if torch is STAND_IN else x.to(torch.float8_e5m2)
    with pytest.raises(ag.Error, match=r"query: NumPy cannot read this tensor of torch\.float8"):
        ag.scaled_dot_product_attention(odd, x, x)

"""Kernels in the interpreter read and write NumPy arrays of any strides and element types, and nothing beside them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import attngen as ag
from attngen.backends.cuda.build import Built
from attngen.backends.cuda.program import Parameter
from attngen.backends.cuda.ptx import Defect
from attngen.backends.cuda.toolchain import assembler
from attngen.ir.types import ElementType
from attngen.specs import DTYPES, array_dtype
from tests.cuda import launching

VIEWS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "dense": lambda x: x,
    "transposed": lambda x: np.asfortranarray(x),
    "negative": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "every second": lambda x: np.repeat(np.repeat(x, 2, 0), 3, 1)[::2, ::3],
    "misaligned": lambda x: np.pad(x, ((1, 0), (3, 2)))[1:, 3:-2],
    "far apart": lambda x: spread(x, (1 << 31) + 64),
}


def spread(x: np.ndarray, stride: int) -> np.ndarray:
    """Rows that lie further apart than 32 bits can count, in pages that are only there once they are written."""
    memory = np.zeros(stride * (len(x) - 1) + x.shape[1] * x.itemsize, np.uint8)
    found = np.ndarray(x.shape, x.dtype, memory, strides=(stride, x.itemsize))
    found[...] = x
    return found


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("element", DTYPES.values())
def test_strides_and_element_types(view: str, element: ElementType) -> None:
    rows = 3 if view == "far apart" else 70
    wanted = launching.numbered((rows, 8), array_dtype(element))
    x, out = VIEWS[view](wanted), VIEWS[view](np.zeros_like(wanted))
    Built(launching.copy(element))([x], [out])
    assert np.array_equal(out, wanted) and out.dtype == wanted.dtype


def test_an_array_without_strides_is_read() -> None:
    x, out = np.broadcast_to(np.float32(7), (5, 8)), np.zeros((5, 8), np.float32)
    Built(launching.copy(ElementType.F32))([x], [out])
    assert (out == 7).all()


@pytest.mark.parametrize(
    ("element", "target"), [("f32", "cuda:sm_80"), ("bf16", "cuda:sm_80"), ("bf16", "cuda:sm_90a")], ids=str
)
def test_keys_further_away_than_32_bits_can_count(element: str, target: str) -> None:
    """Sequences before batches, as in a cache of all layers: read element by element, by warps, by tensor maps."""
    dtype = array_dtype(ElementType(element))
    rng = np.random.default_rng(0)
    query, key, value = (rng.standard_normal((n, 64)).astype(dtype) for n in (17, 9, 9))
    want = ag.scaled_dot_product_attention(query, key, value)
    got = ag.scaled_dot_product_attention(query, spread(key, 1 << 29), value, target=f"{target},emulated")
    np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), rtol=0, atol=1e-5 if element == "f32" else 2e-2)


@pytest.mark.parametrize("view", ["every second", "misaligned"])
def test_what_lies_between_the_elements_is_out_of_bounds(view: str) -> None:
    x, out = VIEWS[view](np.ones((4, 8), np.float32)), np.zeros((4, 9), np.float32)
    with pytest.raises(Defect, match="bytes after the start of x, between its elements"):
        Built(launching.copy(ElementType.F32, read=9))([x], [out[:, :8]])


def test_nothing_beside_the_output_is_written() -> None:
    x, out = np.ones((4, 8), np.float32), np.zeros((4, 9), np.float32)
    with pytest.raises(Defect, match="after the start of x"):
        Built(launching.copy(ElementType.F32, read=40))([x], [out[:, :8]])
    assert not out.any()


@pytest.mark.parametrize("parameter", [launching.temporary, launching.workspace])
def test_memory_that_nobody_wrote_shows(parameter: Callable[[], Parameter]) -> None:
    out = np.zeros((), np.float32)
    Built(launching.unwritten(parameter))([np.zeros((), np.float32)], [out])
    assert np.isnan(out)


@pytest.mark.parametrize(
    ("array", "wanted"),
    [
        (np.zeros((4, 3, 8), np.float32), [0, 0, 1]),
        (np.zeros((4, 3, 9), np.float32)[:, :, :8], [0, 0, 0]),
        (np.zeros((4, 3, 12), np.float32)[:, :, :8], [0, 0, 1]),
        (np.zeros((4, 3, 12), np.float32)[:, :, 1:9], [0, 0, 0]),
        (np.zeros((4, 3, 12), np.float32)[:, :, 4:], [0, 0, 1]),
        (np.zeros((4, 3, 8), np.float32)[:, :, ::-1], [0, 0, 0]),
        (np.zeros((1, 3, 8), np.float32)[:, ::-1], [0, 0, 1]),
        (np.zeros((8, 3, 4), np.float32).T, [1, 0, 0]),
        (np.lib.stride_tricks.as_strided(np.zeros(99, np.float32), (1, 3, 8), (1, 32, 4)), [0, 0, 1]),
    ],
)
def test_which_rows_can_be_copied_sixteen_bytes_at_a_time(array: np.ndarray, wanted: list[int]) -> None:
    out = np.zeros(3, np.int64)
    Built(launching.flags(("i", "j", "k"), array.shape))([array, out.copy()], [out])
    assert out.tolist() == wanted


@pytest.mark.parametrize("columns", [slice(0, 16), slice(4, 20)])
def test_a_tensor_map_of_a_view(columns: slice) -> None:
    memory = launching.numbered((8, 24), np.float32)
    out = np.zeros((8, 16), np.float32)
    Built(launching.mapped("sm_90a,emulated"))([memory[:, columns]], [out])
    assert np.array_equal(out, memory[:, columns])


@pytest.mark.parametrize("view", ["misaligned", "negative", "transposed"])
def test_what_no_tensor_map_can_describe_goes_another_way(view: str) -> None:
    x, out = VIEWS[view](launching.numbered((8, 16), np.float32)), np.full((8, 16), -1, np.float32)
    Built(launching.mapped("sm_90a,emulated"))([x], [out])
    assert (out == -1).all()


def test_tensor_maps_by_value_are_assembled() -> None:
    kernels = launching.mapped("sm_90a")
    (text,) = kernels.ptx
    assert ".param .align 64 .b8 tile_param_0[128]" in text
    assert assembler.cubin((text,), kernels.program.target).startswith(b"\x7fELF")

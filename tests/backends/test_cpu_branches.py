"""Branches on the CPU: loops that leave out what a mask makes empty, and loops that run once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import attngen
from attngen.ir.passes import PIPELINE

Mask = Callable[[Any, Any], Any]

MASKS: dict[str, Mask] = {
    "causal": lambda i, j: j <= i,
    "window": lambda i, j: (j <= i) & (i - j < 37),
    "prefix": lambda i, j: (j <= i) | (j < 20),
    "blocks": lambda i, j: i // 24 == j // 24,
    "never": lambda i, j: j < 0 * i,
    "later": lambda i, j: j > i + 5,
}


def build(mask: Mask, shape: tuple[int, int, int, int], steps: str) -> attngen.Kernel:
    i, j, d, e = shape

    @attngen.program(q="b h i d", k="b h j d", v="b h j e", out="b h i e")
    def masked(q: attngen.Tensor, k: attngen.Tensor, v: attngen.Tensor) -> attngen.Tensor:
        s = attngen.contract(q, k, over="d") * 0.3
        s = attngen.where(mask(attngen.index("i"), attngen.index("j")), s, -np.inf)
        return attngen.contract(attngen.softmax(s, over="j"), v, over="j")

    pipeline = PIPELINE.replace("tile,", f"tile{{b=1 h=1 {steps}}},")
    return attngen.compile(masked, q=(1, 2, i, d), k=(1, 2, j, d), v=(1, 2, j, e), pipeline=pipeline)


def reference(mask: Mask, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    s = q @ k.swapaxes(-1, -2) * 0.3
    keep = np.broadcast_to(mask(np.arange(q.shape[2])[:, None], np.arange(k.shape[2])[None, :]), s.shape)
    s = np.where(keep, s, -np.inf)
    top = np.maximum(s.max(-1, keepdims=True), np.finfo(np.float64).min)
    p = np.exp(s - top)
    return p @ v / np.maximum(p.sum(-1, keepdims=True), np.finfo(np.float64).tiny)


@pytest.mark.parametrize("steps", ["i=16 j=16", "i=64 j=32", "i=512 j=512"])
@pytest.mark.parametrize("shape", [(70, 90, 9, 20), (96, 96, 16, 33), (1, 75, 8, 16)], ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str, shape: tuple[int, int, int, int], steps: str) -> None:
    i, j, d, e = shape
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((1, 2, *x)).astype(np.float32) for x in ((i, d), (j, d), (j, e))]
    got = build(MASKS[name], shape, steps)(*arrays)
    np.testing.assert_allclose(got, reference(MASKS[name], *arrays), rtol=1e-4, atol=2e-6)


def test_empty_parts_are_outside_of_the_loop_and_full_ones_a_branch_of_the_source() -> None:
    text = build(MASKS["causal"], (128, 128, 16, 16), "i=64 j=32").stages["python"]
    assert text.count("j_end = min((i + 63) + 1, 128)\n        for j in range(0, j_end, 32):\n            if ((j + 31) + ") == 1
    assert text.count("else:") == 1


def test_a_masked_nan_stays_away() -> None:
    shape = (64, 96, 8, 16)
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, 2, *x)).astype(np.float32) for x in ((64, 8), (96, 8), (96, 16)))
    want = reference(MASKS["causal"], q, k, v)
    k[:, :, 64:], v[:, :, 64:] = np.nan, np.inf
    got = build(MASKS["causal"], shape, "i=16 j=16")(q, k, v)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-6)


def test_a_loop_that_runs_once_leaves_no_trace() -> None:
    kernel = build(MASKS["causal"], (32, 48, 8, 16), "i=16 j=64")
    assert "for j" not in kernel.stages["python"]
    assert any("the loop over j runs once" in str(r) for r in kernel.remarks)


def masked_products(table: np.ndarray | None = None) -> attngen.Kernel:
    """Causal attention whose second product has the mask too; with a table it is the mask."""

    @attngen.program(q="h i d", k="h j d", v="h j e", out="h i e")
    def masked(q: attngen.Tensor, k: attngen.Tensor, v: attngen.Tensor) -> attngen.Tensor:
        i, j = attngen.index("i"), attngen.index("j")
        keep: Any = j <= i if table is None else table[i, j]
        s = attngen.where(keep, attngen.contract(q, k, over="d"), -np.inf)
        return attngen.contract(attngen.softmax(s, over="j"), v, over="j", where=keep)

    shape = (2, 70, 8)
    return attngen.compile(masked, q=shape, k=shape, v=(2, 70, 20), pipeline=PIPELINE.replace("tile,", "tile{h=1 i=32 j=32},"))


def test_masks_are_computed_in_registers() -> None:
    """Coordinates and comparisons have no place in memory, but for the branch that a finite tile does not take."""
    for kernel, count in ((build(MASKS["window"], (96, 96, 16, 16), "i=32 j=32"), 0), (masked_products(), 1)):
        text = kernel.stages["python"]
        assert ", index>" not in text and text.count(", i1>") == count
        assert "pack_ji" not in text and "pack_ij" not in text
        assert "nd.compare %j, %i" in text or "nd.sub %i, %j" in text


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("given", [False, True])
def test_only_what_the_mask_hides_does_not_count(value: float, given: bool) -> None:
    """A number that is not finite reaches the rows whose mask has it, and no other."""
    rng = np.random.default_rng(2)
    q, k = (rng.standard_normal((2, 70, 8)).astype(np.float32) for _ in range(2))
    v = rng.standard_normal((2, 70, 20)).astype(np.float32)
    keep = np.tril(np.ones((70, 70), bool))
    kernel = masked_products(keep if given else None)
    s = np.where(keep, np.einsum("hid,hjd->hij", q.astype(np.float64), k), -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    np.testing.assert_allclose(kernel(q, k, v), p @ v, rtol=1e-4, atol=2e-6)
    v[0, 40, 3] = value
    got = kernel(q, k, v)
    with np.errstate(invalid="ignore"):
        want = np.where(keep[..., None], p[..., None] * v[:, None], 0).sum(2)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-6)
    assert np.isfinite(got[0, :40]).all() and not np.isfinite(got[0, 40:, 3]).any()
    assert np.isfinite(np.delete(got[0], 3, axis=1)).all() and np.isfinite(got[1]).all()

"""Random numbers that C and Python make alike, and which elements of results a library is tested by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attngen.backends.cpu.export.interface import Sample
from attngen.ir.types import ElementType

SAMPLES = 24
"""Elements of an output that are compared, spread over it."""

SHARE = {ElementType.F64: 1e-11, ElementType.F32: 1e-4, ElementType.F16: 4e-3, ElementType.BF16: 3e-2}
"""What rounding may amount to, relative to the largest number of an output."""


def number(byte: Any) -> Any:
    """A float of a random byte, exact in every type of floats."""
    return (byte - 128.0) / 64.0


def random_bytes(seed: int, array: int, count: int) -> np.ndarray:
    """SplitMix64 of seed, array and index: its upper eight bits."""
    with np.errstate(over="ignore"):
        z = np.arange(count, dtype=np.uint64) + np.uint64((array << 40) + (seed << 56)) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((z ^ (z >> np.uint64(31))) >> np.uint64(56)).astype(np.int64)


def random_array(seed: int, array: int, shape: Sequence[int], dtype: Any, integers: int) -> np.ndarray:
    """What runtime.c fills an array with, before a test."""
    bytes = random_bytes(seed, array, int(np.prod(shape, dtype=np.int64))).reshape(shape)
    whole = np.dtype(dtype).kind in "iub"
    return (bytes % integers if whole else number(bytes)).astype(dtype)


def take_samples(array: int, result: np.ndarray, element: ElementType) -> tuple[Sample, ...]:
    """Elements of a right result, first and last included."""
    flat = np.asarray(result, np.float64).reshape(-1)
    finite = np.abs(flat[np.isfinite(flat)])
    allowed = SHARE.get(element, 0.0) * max(1.0, float(finite.max(initial=0.0)))
    places = sorted({int(place) for place in np.linspace(0, flat.size - 1, SAMPLES)})
    return tuple(Sample(array, place, float(flat[place]), allowed) for place in places)

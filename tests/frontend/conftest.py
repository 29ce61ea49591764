"""What the tests of the front end share: arrays, and the backends that kernels are built for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Arrays = Callable[..., Any]


@pytest.fixture
def normal() -> Arrays:
    """normal(2, 3, dtype="float64"): random numbers, the same in every run."""
    rng = np.random.default_rng(0)

    def make(*shape: int, dtype: str = "float32") -> Any:
        return rng.standard_normal(shape).astype(dtype)

    return make


@pytest.fixture(params=["numpy", "cpu"])
def target(request: pytest.FixtureRequest) -> str:
    return request.param

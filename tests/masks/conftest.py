"""What the tests of masks share: attention on each way to execute it, judged by the oracle of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from attngen.sdpa import Kernel, build_kernel
from attngen.sdpa_runtime import FAMILIES
from attngen.table import KERNELS
from tests.masks.ways import WAYS, Attend, attend


@pytest.fixture(params=WAYS)
def sdpa(request: pytest.FixtureRequest) -> Attend:
    """sdpa(query, key, value, …) -> (out, lse), by interpreter, NumPy backend and CPU backend."""

    def call(query: Any, key: Any, value: Any, **kwargs: Any) -> tuple[Any, Any]:
        return attend(request.param, query, key, value, **kwargs)

    return call


@pytest.fixture
def normal() -> Callable[..., Any]:
    """normal(2, 3): random numbers, the same in every run."""
    rng = np.random.default_rng(0)

    def make(*shape: int, dtype: str = "float32") -> Any:
        return rng.standard_normal(shape).astype(dtype)

    return make


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Kernel]]:
    """The kernels that have been compiled, none at first."""
    made: list[Kernel] = []

    def counted(*args: Any, **kwargs: Any) -> Kernel:
        made.append(build_kernel(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr("attngen.sdpa.build_kernel", counted)
    KERNELS.reset()
    FAMILIES.reset()
    yield made
    KERNELS.reset()
    FAMILIES.reset()

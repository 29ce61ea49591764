"""Every program of the derivation tests as machine code, against float64 NumPy, on ragged extents."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

import attngen as ag
from attngen.ir.passes import PIPELINE
from tests.derivation.programs import CASES, SHAPES, TILES, inputs

PIPELINES = {"chosen tiles": None, "ragged tiles": PIPELINE.replace("tile", TILES, 1)}


@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("target", ["cpu", "numpy"])
@pytest.mark.parametrize("name", CASES)
def test_program(name: str, target: str, pipeline: str) -> None:
    case, arrays = CASES[name], cast(dict[str, Any], inputs(name, seed=7))
    shapes: dict[str, Any] = {n: SHAPES[n] for n in case.inputs}
    kernel = ag.compile(case.program, **shapes, target=target, pipeline=PIPELINES[pipeline])
    found = kernel(**arrays)
    for got, want in zip(found if isinstance(found, tuple) else (found,), case.oracle(arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5 if name != "quantised" else 0.5)


@pytest.mark.parametrize("name", CASES)
def test_program_in_double_precision(name: str) -> None:
    case, arrays = CASES[name], cast(dict[str, Any], inputs(name, seed=8, dtype="float64"))
    shapes: dict[str, Any] = {n: SHAPES[n] for n in case.inputs}
    kernel = ag.compile(case.program, **shapes, dtype="float64")
    found = kernel(**arrays)
    for got, want in zip(found if isinstance(found, tuple) else (found,), case.oracle(arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12 if name != "quantised" else 0.5)

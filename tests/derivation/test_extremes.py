"""Scores at the edge of what a float can hold, through every pass, in the precision of the types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attngen as ag
from attngen.ir.interpreter import run
from attngen.ir.loop import loops
from attngen.ir.passes import PIPELINE
from attngen.ir.pipeline import Result, run_pipeline
from attngen.ir.types import F32, TensorType
from tests.derivation.programs import CASES, TILES, J, inputs

LOWEST, LARGEST = np.finfo(np.float32).min, np.finfo(np.float32).max
NAN, INF = np.nan, np.inf


@pytest.fixture(scope="module")
def biased() -> Result:
    case = CASES["biased"]
    return run_pipeline(case.program.trace(case.types()), PIPELINE.replace("tile", TILES, 1), verify_each="run")


def outputs(result: Result, row: np.ndarray) -> list[np.ndarray]:
    """The output of a row with this bias, after every pass."""
    arrays = inputs("biased")
    arrays["bias"][7] = row
    found = [run(func, *arrays.values())[0] for func in result.stages.values()]
    for out in found:
        assert np.all(np.isfinite(np.delete(out, 7, axis=1))), "another row is affected"
    return [out[0, 7] for out in found]


@pytest.mark.parametrize("level", [LOWEST, LOWEST / 2, -1e30, 1e30, LARGEST])
def test_a_row_of_equal_finite_biases_is_a_uniform_average(biased: Result, level: float) -> None:
    """finfo.min times log2(e) is -inf: the change of base must not turn such a row into a masked one."""
    average = inputs("biased")["v"][0].mean(axis=0)
    for out in outputs(biased, np.full(J, level, np.float32)):
        np.testing.assert_allclose(out, average, atol=1e-5)


def test_a_row_of_minus_infinity_is_zero(biased: Result) -> None:
    for out in outputs(biased, np.full(J, -INF, np.float32)):
        assert np.all(out == 0)


@pytest.mark.parametrize("masked", [-INF, LOWEST])
def test_masked_keys_do_not_count_whichever_trip_they_are_in(biased: Result, masked: float) -> None:
    arrays = inputs("biased")
    for kept in (slice(0, 3), slice(J - 3, J), slice(20, 30)):
        row = np.full(J, masked, np.float32)
        row[kept] = 0
        only = arrays | {"k": arrays["k"][:, kept], "v": arrays["v"][:, kept], "bias": np.zeros((37, kept.stop - kept.start))}
        (want,) = CASES["biased"].oracle(only)
        for out in outputs(biased, row):
            np.testing.assert_allclose(out, want[0, 7], atol=1e-5)


@pytest.mark.parametrize("bad", [NAN, INF])
def test_nan_or_infinity_in_a_kept_score_makes_its_row_nan(biased: Result, bad: float) -> None:
    row = np.zeros(J, np.float32)
    row[11] = bad
    for out in outputs(biased, row):
        assert np.all(np.isnan(out))


@pytest.mark.parametrize(("first", "second", "masked"), [(0.4, 0.4, False), (0.5, 0.4, False), (1, 1, True), (0.6, 0.6, True)])
def test_two_biases_count_by_their_sum(first: float, second: float, masked: bool) -> None:
    """finfo.min + finfo.min is -inf and masks; what is finite together is a uniform average, in base 2 as in base e."""

    @ag.program(q="i d", k="j d", v="j e", a="i j", b="j", out="i e")
    def two_biases(q: Any, k: Any, v: Any, a: Any, b: Any) -> Any:
        return ag.contract(ag.softmax(ag.contract(q, k, over="d") + a + b, over="j"), v, over="j")

    shapes = {"q": "i d", "k": "j d", "v": "j e", "a": "i j", "b": "j"}
    extents = {"i": 5, "j": 23, "d": 4, "e": 3}
    types = {n: TensorType(tuple((axis, extents[axis]) for axis in s.split()), F32) for n, s in shapes.items()}
    result = run_pipeline(two_biases.trace(types), PIPELINE.replace("tile", "tile{i=2 j=8}", 1), verify_each="run")
    assert len(loops(result.func.body)) == 1
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal([extents[axis] for axis in s.split()]).astype(np.float32) for s in shapes.values()]
    arrays[3][:], arrays[4][:] = first * LOWEST, second * LOWEST
    for func in result.stages.values():
        (out,) = run(func, *arrays)
        np.testing.assert_allclose(out, np.zeros_like(out) if masked else np.tile(arrays[2].mean(0), (5, 1)), atol=1e-5)

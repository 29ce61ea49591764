"""A loop that knows how its results merge can run in parts; nothing of the program changes."""

from __future__ import annotations

import numpy as np
import pytest

from attngen.backends import get_backend
from attngen.ir.interpreter import run
from attngen.ir.loop import Parallel, loops
from attngen.ir.passes import PIPELINE
from attngen.ir.pipeline import Result, parse_pipeline, run_pipeline
from tests.derivation.programs import CASES, TILES, inputs

TILED = PIPELINE.replace("tile", TILES, 1)
ONE_LOOP = [name for name, case in CASES.items() if case.loops == 1]


def split(name: str, into: int) -> Result:
    case = CASES[name]
    return run_pipeline(case.program.trace(case.types()), f"{TILED},split-reduction{{into={into}}}", verify_each="run")


@pytest.mark.parametrize("into", [2, 5, 100])
@pytest.mark.parametrize("name", ONE_LOOP)
def test_the_parts_make_the_whole(name: str, into: int) -> None:
    result = split(name, into)
    over_parts = [loop for loop in loops(result.func.body) if loop.axis == "j_part"]
    reasons = [r.message for r in result.remarks if r.origin == "split-reduction"]
    assert over_parts or any("is not split" in text for text in reasons), reasons
    arrays = inputs(name)
    for got, want in zip(run(result.func, *arrays.values(), wide=True), CASES[name].oracle(arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-8)


def test_most_programs_are_split() -> None:
    """Only a program whose carried values do not belong to one row of queries stays whole."""
    whole = [name for name in ONE_LOOP if not any(loop.axis == "j_part" for loop in loops(split(name, 3).func.body))]
    assert len(whole) <= 2, whole


def test_parts_are_no_more_work() -> None:
    def work(into: int) -> int:
        return sum(op.flops for op in split("standard", into).func.body.ops)

    assert work(1) <= work(5) < 1.5 * work(1)


@pytest.mark.parametrize("name", ["standard", "differential", "windowed", "with_lse", "sigmoid"])
def test_as_machine_code(name: str) -> None:
    result = split(name, 3)
    cuts = [op.axes for op in result.func.body.ops if isinstance(op, Parallel)]
    assert "j_part" in cuts[0]
    backend = get_backend("cpu")
    low = run_pipeline(result.func, parse_pipeline(backend.passes(""))).func
    arrays = list(inputs(name).values())
    want = CASES[name].oracle(inputs(name))
    outs = [np.full(x.shape, np.nan, np.float32) for x in want]
    backend.build(backend.emit(low, ""))(arrays, outs)
    for got, expected in zip(outs, want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)

"""Random cascades of reductions: right after every pass, and fused where the rules say so.

The full count: ATTNGEN_EXAMPLES=3000 python -m pytest tests/derivation/test_cascades.py
"""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from attngen.ir.interpreter import run
from attngen.ir.loop import loops
from attngen.ir.passes import PIPELINE
from attngen.ir.pipeline import difference, run_pipeline
from tests.derivation.cascades import Cascade, cascades, make

EXAMPLES = int(os.environ.get("ATTNGEN_EXAMPLES", "150"))
quick = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def check(case: Cascade) -> tuple[int, int]:
    """Every stage against the program itself; (loops before, loops after) fusing."""
    want = run(case.func, *case.arrays, wide=True)
    tile = f"tile{{i={case.tiles[0]} j={case.tiles[1]}}}"
    result = run_pipeline(case.func, PIPELINE.replace("tile", tile, 1))
    for name, stage in result.stages.items():
        for got, expected in zip(run(stage, *case.arrays, wide=True), want, strict=True):
            assert not (problem := difference(got, expected, 1e-6)), f"after {name}: {problem}\n{result.stages['input']}"
    before, after = (len(loops(result.stages[name].body)) for name in ("tile", "fuse-cascaded-reductions"))
    assert after <= before
    return before, after


@quick
@given(cascades())
def test_any_cascade_is_right_after_every_pass(case: Cascade) -> None:
    check(case)


@quick
@given(cascades(fusable_only=True))
def test_cascades_of_the_listed_rules_become_one_loop(case: Cascade) -> None:
    _, after = check(case)
    assert after == 1


def test_share_of_random_cascades_that_fuse(capsys: pytest.CaptureFixture[str]) -> None:
    """At least half of all cascades that have something to fuse end with fewer loops."""
    seen: list[tuple[int, int]] = []

    @settings(quick, database=None, derandomize=True)
    @given(cascades())
    def collect(case: Cascade) -> None:
        seen.append(check(case))

    collect()
    several = [(before, after) for before, after in seen if before > 1]
    fused, one = sum(after < before for before, after in several), sum(after == 1 for _, after in several)
    with capsys.disabled():
        shares = f"{fused / len(several):.0%} fused, {one / len(several):.0%} into one loop"
        sys.stdout.write(f"\n{len(several)} cascades of several loops: {shares}\n")
    assert fused >= len(several) / 2


def test_values_larger_than_a_float_can_hold_exponentiated() -> None:
    """Scores in the thousands overflow any exponential that is not kept relative to the running maximum."""
    case = make([("shift-by-maximum", 0, 0), ("weigh", 0, 0), ("normalise", 0, 0)], 5, 23, (2, 4), 1)
    case.arrays = (case.arrays[0] * 3000, *case.arrays[1:])
    check(case)
    func = run_pipeline(case.func, PIPELINE.replace("tile", "tile{i=2 j=4}", 1)).func
    for out in run(func, *(a.astype(np.float32) for a in case.arrays)):
        assert np.all(np.isfinite(out))

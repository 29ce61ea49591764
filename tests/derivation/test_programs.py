"""Derived, not matched: every program goes through the same passes, and ends as few loops as its dependences allow."""

from __future__ import annotations

import numpy as np
import pytest

from attngen.ir.func import Func
from attngen.ir.interpreter import run
from attngen.ir.loop import For, Load, loops, trips
from attngen.ir.passes import PIPELINE
from attngen.ir.pipeline import Result, run_pipeline
from attngen.ir.types import TensorType, UpTo, bound
from tests.derivation.programs import CASES, TILES, I, J, inputs

ONE_LOOP = [name for name, case in CASES.items() if case.loops == 1]


def derive(name: str) -> Result:
    case = CASES[name]
    types = case.types()
    return run_pipeline(case.program.trace(types), PIPELINE.replace("tile", TILES, 1), verify_each="run")


@pytest.fixture(scope="module")
def derived() -> dict[str, Result]:
    return {name: derive(name) for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_every_stage_is_the_program(name: str, derived: dict[str, Result]) -> None:
    """The interpreter runs the IR after every pass, and an oracle that knows nothing of the IR has the last word."""
    arrays = inputs(name)
    want = CASES[name].oracle(arrays)
    for stage, func in derived[name].stages.items():
        for got, expected in zip(run(func, *arrays.values(), wide=True), want, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-8, atol=1e-8, err_msg=f"after {stage}")


@pytest.mark.parametrize("name", CASES)
def test_loops_that_remain(name: str, derived: dict[str, Result]) -> None:
    result = derived[name]
    over_j = [loop for loop in loops(result.func.body) if loop.axis == "j"]
    assert len(over_j) == CASES[name].loops, f"{result.func}\n" + "\n".join(map(str, result.remarks))
    assert all(trips(loop.extent, loop.step) >= 4 and bound(loop.extent) % loop.step for loop in over_j)
    declined = [r for r in result.remarks if "needs another loop" in r.message]
    # Σ_j v in log_weighted does not depend on i: a nest of its own computes it once, which is no refusal.
    assert bool(declined) == (CASES[name].loops > 1 and name != "log_weighted"), result.remarks


@pytest.mark.parametrize("name", [n for n in CASES if n != "probabilities"])
def test_nothing_is_as_large_as_the_scores(name: str, derived: dict[str, Result]) -> None:
    """No value has both the full i and the full j extent, other than what the program reads or returns."""
    func = derived[name].func
    for op in func.walk():
        for v in op.results:
            if isinstance(v.type, TensorType) and not isinstance(op, Load):
                assert not (v.type.extents.get("i") == I and v.type.extents.get("j") == J), op


def test_tiles_are_ragged(derived: dict[str, Result]) -> None:
    loop = next(op for op in derived["standard"].func.walk() if isinstance(op, For))
    assert loop.body.args[0].range.extent == UpTo(8)


def test_differential_attention_runs_both_softmaxes_in_one_loop(derived: dict[str, Result]) -> None:
    (loop,) = loops(derived["differential"].func.body)
    assert len(loop.inits) == 6  # two maxima, two sums, two weighted sums


def test_passes_come_to_rest(derived: dict[str, Result]) -> None:
    """Running a pass on its own result changes nothing."""
    for name, result in derived.items():
        for stage, func in result.stages.items():
            text = stage.partition("#")[0]
            if text not in ("input", "tile"):
                again: Func = run_pipeline(func, text).func
                assert again == func, f"{text} on {name}"


TILINGS = ("d=3 i=16 j=16", "d=5 e=2 h=1 i=16 j=16", "j=7", "i=1 j=1 h=1", "e=2", "d=8 e=5 h=2 i=37 j=53")


@pytest.mark.parametrize("tiles", TILINGS)
@pytest.mark.parametrize("name", CASES)
def test_whatever_axes_are_cut(name: str, tiles: str) -> None:
    """Loops within loops, several nests, nothing cut at all: verified after every pass on a small instance."""
    types = CASES[name].types()
    axes = {axis for t in types.values() for axis in t.names}
    chosen = " ".join(word for word in tiles.split() if word.split("=")[0] in axes)
    if chosen:
        result = run_pipeline(
            CASES[name].program.trace(types), PIPELINE.replace("tile", f"tile{{{chosen}}}", 1), verify_each="run"
        )
        assert result.func.level == "loop"

"""Random combinations of everything in the signature, by every way to execute attention, against float64.

Few kernels are compiled: what is combined comes from a short list of seeds; values, strides and masks vary freely under each.
The full count: ATTNGEN_EXAMPLES=300 python -m pytest tests/masks/test_combinations.py
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.masks.plans import KINDS, Call, Plan, draw_plan, make_call
from tests.masks.ways import WAYS, attend

PLANS = int(os.environ.get("ATTNGEN_EXAMPLES", "12"))


@pytest.mark.parametrize("seed", range(PLANS))
def test_combinations(seed: int) -> None:
    """Never NaN where the table of semantics says 0 or a number; NaN and infinity in masked keys and values count nowhere."""
    plan = draw_plan(seed)
    try:
        vary(plan)
    except Exception as first:
        raise AssertionError(f"this combination is wrong: {smallest(plan)}") from first


def test_a_planted_error_is_found_and_what_it_needs_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.masks.test_combinations.WAYS", ("interpreter",))
    monkeypatch.setattr("attngen.sdpa_program.Attention.capped", lambda self, s: s)  # pyright: ignore[reportUnknownLambdaType]
    plan = next(x for x in map(draw_plan, range(PLANS)) if "softcap" in x.given and len(x.given) > 3)
    with pytest.raises(AssertionError, match=r"interpreter: (out|lse)\[.* is .*, not .*; \d+ of \d+ are wrong"):
        vary(plan, quick=True)
    assert list(smallest(plan).given) == ["softcap"]


def smallest(plan: Plan) -> Plan:
    """Without every argument that is not needed for a failure."""
    for name in plan.given:
        fewer = plan.without(name)
        try:
            vary(fewer, quick=True)
        except Exception:
            plan = fewer
    return plan


def vary(plan: Plan, quick: bool = False) -> None:
    """Many calls of one plan: the same kernel. quick: the first failure will do."""
    phases = [Phase.generate] if quick else [*Phase]

    @settings(max_examples=12, deadline=None, database=None, derandomize=True, phases=phases, report_multiple_bugs=False)
    @given(
        seed=st.integers(0, 2**32 - 1),
        kinds=st.tuples(*[st.integers(0, KINDS - 1)] * 5),
        density=st.sampled_from([0.0, 0.3, 0.9, 1.0]),
        size=st.sampled_from([0.1, 1.0, 30.0]),
        poison=st.booleans(),
    )
    def agrees(seed: int, kinds: tuple[int, ...], density: float, size: float, poison: bool) -> None:
        for way in WAYS:
            compare(plan, make_call(plan, seed, kinds, density, size, poison), way)

    agrees()


def compare(plan: Plan, call: Call, way: str) -> None:
    made = attend(way, *call.args, **call.given)
    out, *rest = made if isinstance(made, tuple) else (made,)
    assert call.given.get("out") is None or out is call.given["out"]
    if plan.sequences or call.given.get("layout") == "BSHD" and plan.rank > 2:
        out = out.swapaxes(-2, -3)
    for name, got, want, tolerance in zip(("out", "lse"), (out, *rest), call.want, call.tolerance, strict=False):
        wide: Any = np.asarray(got, np.float64)
        with np.errstate(invalid="ignore"):
            # The lowest float, which stands for a mask in one convention, has no multiple.
            lowest = (want < -1e38) & (wide < -1e38)
            wrong = ~(lowest | (wide == want) | (np.abs(wide - want) <= tolerance))
        assert not wrong.any(), (
            f"{way}: {name}{np.argwhere(wrong)[0].tolist()} is {wide[wrong][0]}, not {want[wrong][0]}; "
            f"{wrong.sum()} of {wrong.size} are wrong"
        )

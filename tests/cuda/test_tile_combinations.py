"""Random combinations of everything in the signature of attention, by tensor cores, against float64.

Few kernels are compiled: what is combined comes from a short list of seeds; values, strides and masks vary under each.
The full count: ATTNGEN_EXAMPLES=300 python -m pytest tests/cuda/test_tile_combinations.py
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest

import attngen
from tests.masks.oracle import attention
from tests.masks.plans import KINDS, Call, Plan, draw_plan, make_call
from tests.masks.test_combinations import compare

PLANS = int(os.environ.get("ATTNGEN_EXAMPLES", "12"))
CALLS = 3
TARGET = "cuda:sm_80,emulated"
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
LENGTHS = [(1, 1), (1, 80), (3, 70), (7, 63), (9, 64), (17, 17), (20, 65), (33, 15), (65, 79), (70, 33), (80, 80), (80, 16)]
"""Around the sizes of fragments and of parts; tables of modifications end at 80."""
WIDTHS = (5, 8, 20, 33, 40, 64, 72, 128)


def plan_of(seed: int) -> Plan:
    """One of 16-bit floats, with extents that matter here."""
    rng = np.random.default_rng([seed, 3])
    plan = draw_plan(seed)
    d, d_v = (int(n) for n in rng.choice(WIDTHS, 2))
    q_len, kv_len = LENGTHS[seed % len(LENGTHS)]
    plan = replace(plan, dtype=("bfloat16", "float16")[seed % 2], d=d, d_v=d_v, q_len=q_len, kv_len=kv_len)
    given = dict(plan.given)
    for name in ("attn_mask", "bias"):
        if name in given:
            element, shape = given[name] if name == "attn_mask" else ("", given[name])
            shape = tuple(1 if n == 1 else m for n, m in zip(shape, plan.scores[len(plan.scores) - len(shape) :], strict=True))
            given[name] = (element, shape) if element else shape
    return replace(plan, given=given)


def rounded(call: Call, dtype: str) -> Call:
    """Weights are rounded to 16 bits as well, before values are multiplied by them."""
    value = np.abs(np.asarray(call.args[2], np.float64))
    largest = float(np.max(value, initial=0, where=np.isfinite(value)))
    out, lse = call.tolerance
    return replace(call, tolerance=(out + ROUNDING[dtype] / 2 * largest, lse))


@pytest.mark.parametrize("seed", range(PLANS))
def test_combinations(seed: int) -> None:
    plan, rng = plan_of(seed), np.random.default_rng(seed)
    for _ in range(CALLS):
        kinds = [int(n) for n in rng.integers(0, KINDS, 5)]
        density, size = float(rng.choice([0.0, 0.3, 0.9, 1.0])), float(rng.choice([0.1, 1.0, 30.0]))
        call = make_call(plan, int(rng.integers(1 << 30)), kinds, density, size, bool(rng.integers(2)))
        compare(plan, rounded(call, plan.dtype), TARGET)


@pytest.mark.parametrize("dtype", ROUNDING)
def test_kept_infinities_and_nan_are_seen_and_masked_ones_are_not(dtype: str) -> None:
    """Where a mask keeps all, some and nothing of queries, keys and values that are not finite."""
    plan = Plan(0, dtype, (2,), 2, 1, 24, 70, 40, 24, 4, 0, {})
    for seed, density in enumerate((1.0, 0.5, 0.02)):
        q, k, v = make_call(plan, seed, [0] * 5, 1.0, 1.0, poison=False).args
        mask = np.random.default_rng(seed).random((24, 70)) < density
        v[0, 0, 5, 3], v[0, 0, 6, 4], v[0, 0, 60, 7], v[1, 0, 69, 0] = np.nan, np.inf, -np.inf, np.nan
        q[0, 1, 3, 0] = k[1, 0, 9, 1] = np.nan
        with np.errstate(invalid="ignore"):
            want, want_lse = attention(q, k, v, mask)
        out, lse = attngen.scaled_dot_product_attention(q, k, v, mask, return_lse=True, target=TARGET)
        np.testing.assert_allclose(np.asarray(out, np.float64), want, rtol=ROUNDING[dtype], atol=2 * ROUNDING[dtype])
        np.testing.assert_allclose(lse, want_lse, rtol=1e-6, atol=1e-5)

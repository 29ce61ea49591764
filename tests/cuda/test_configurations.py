"""Kernels of attention for GPUs: in some thirty configurations in which every two choices meet, the machine code is as fast
kernels need it, and what it computes is right. `results.py` has the table of all."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import pytest

import attngen as ag
from attngen.backends.cuda.target import find
from attngen.backends.cuda.toolchain import reports
from tests.cuda.configurations import ARCHITECTURES, DTYPES, MASKS, WIDTHS, Configuration, Found, examine

FACTORS = (ARCHITECTURES, WIDTHS, DTYPES, MASKS, (True, False), (True, False))
ALL = list(product(*FACTORS))


def pairs(chosen: tuple[object, ...]) -> set[tuple[object, ...]]:
    return {(a, b, chosen[a], chosen[b]) for a, b in combinations(range(len(FACTORS)), 2)}


def pairwise(seed: int) -> list[Configuration]:
    """Each in turn is the one with the most pairs that none before it has, the first of those in a random order."""
    left = set().union(*map(pairs, ALL))
    order = random.Random(seed).sample(ALL, len(ALL))
    found: list[Configuration] = []
    while left:
        best = max(order, key=lambda chosen: len(pairs(chosen) & left))
        left -= pairs(best)
        found.append(Configuration(*best))
    return found


CONFIGURATIONS = pairwise(seed=0)


def test_few_configurations_have_every_pair() -> None:
    assert len(CONFIGURATIONS) == len(set(CONFIGURATIONS)) < 40


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=str)
def test_configuration(configuration: Configuration) -> None:
    assert list(examine(configuration).faults()) == []


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_element_by_element(dtype: str) -> None:
    """What tensor cores cannot multiply; double precision where it is asked for and nowhere else."""
    shape = (1, 2, 150, 64)
    kernel = ag.compile(ag.attention, q=shape, k=shape, v=shape, dtype=dtype, target="cuda:sm_80,emulated")
    found = reports.forbidden(kernel.stages["ptx"], allow=["f64"] if dtype == "float64" else [])
    assembled = reports.assembled([kernel.stages["ptx"]], find("sm_80"))
    assert (found, assembled.complaints) == ([], ())
    assert all(not (u.stack or u.spill_stores or u.spill_loads) for u in assembled.usage.values())


USAGE = reports.Usage(255, 0, 0, 0, 1, 0)
RIGHT = Found(
    Configuration("sm_80", 64, "float16", "none"), "mma", 128, 64, 256, 1 << 16, USAGE, 64, 64, (), (), 1e-3, 2e-3, 1e-6
)


@pytest.mark.parametrize(
    "wrong",
    [
        {"engine": "wgmma"},
        {"usage": replace(USAGE, stack=8)},
        {"usage": replace(USAGE, spill_stores=4)},
        {"products": 63},
        {"products": 0, "expected": 0},
        {"forbidden": ("line 7: call: call.uni f;",)},
        {"complaints": ("ptxas info : (C7508) Potential Performance Loss",)},
        {"error": 0.003},
        {"error": math.nan},
        {"lse_error": 2e-5},
    ],
)
def test_every_fault_is_noticed(wrong: Mapping[str, Any]) -> None:
    assert list(RIGHT.faults()) == []
    assert len(list(replace(RIGHT, **wrong).faults())) == 1

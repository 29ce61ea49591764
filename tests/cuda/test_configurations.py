"""Kernels of attention for GPUs: in some thirty configurations in which every two choices meet, the machine code is as fast
kernels need it, and what it computes is right. `results.py` has the table of all."""

from __future__ import annotations

import random
from itertools import combinations, product

import pytest

from tests.cuda.configurations import ARCHITECTURES, DTYPES, MASKS, WIDTHS, Configuration, examine

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

"""What keeps kernels right is made wrong, one place at a time: a check of the interpreter or the result must show each defect.

A sample runs here. `ATTNGEN_MUTANTS=all pytest -s tests/cuda/test_mutations.py` runs all of them (a quarter of an hour) and
prints what found them.
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from tests.cuda.mutated_kernels import KERNELS, original, planted, verdict
from tests.cuda.mutations import Mutant

ALL = os.environ.get("ATTNGEN_MUTANTS") == "all"
SAMPLED = 5
"""Mutants of each kernel, if not all."""
MOST = 0.05
"""The share of all mutants that may be equivalent to the kernel as it was."""


@dataclass(frozen=True)
class Equivalent:
    """Mutants that are as right as the kernel. places: numbers among the rule's places in the kernel, or None for all."""

    kernels: Sequence[str]
    rule: str
    places: Sequence[int] | None
    why: str

    def covers(self, kernel: str, mutant: Mutant) -> bool:
        return kernel in self.kernels and mutant.rule == self.rule and (self.places is None or mutant.number in self.places)


EQUIVALENT: Sequence[Equivalent] = ()


def is_equivalent(kernel: str, mutant: Mutant) -> bool:
    return any(e.covers(kernel, mutant) for e in EQUIVALENT)


@pytest.mark.parametrize("kernel", KERNELS)
def test_planted_defects_are_found(kernel: str) -> None:
    assert original(kernel) < 1.5  # in units of the result's precision
    chosen = planted(kernel)
    if not ALL:
        chosen = random.Random(0).sample(chosen, min(SAMPLED, len(chosen)))
    found = {m: verdict(kernel, m.text) for m in chosen}
    if ALL:
        sys.stdout.write(f"\n{kernel}: {len(found)} mutants, {dict(Counter(v or 'equivalent' for v in found.values()))}\n")
    survivors = {m.name for m, v in found.items() if not v}
    listed = {m.name for m in chosen if is_equivalent(kernel, m)}
    assert survivors - listed == set(), "nothing found these"
    assert listed - survivors == set(), "these are found, and listed as equivalent"


def test_few_mutants_are_equivalent() -> None:
    every = [(kernel, m) for kernel in KERNELS for m in planted(kernel)]
    for e in EQUIVALENT:
        assert set(e.kernels) <= set(KERNELS)
        assert any(e.covers(kernel, m) for kernel, m in every), f"there is no place any more where {e.rule} is {e.why}"
    equivalent = sum(is_equivalent(kernel, m) for kernel, m in every)
    if ALL:
        sys.stdout.write(f"\n{len(every)} mutants, {equivalent} equivalent: {equivalent / len(every):.1%}\n")
    assert equivalent <= MOST * len(every)

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
SAMPLED = 4
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


SM80, SM90, MAPS, ROLES = (
    "Triton, sm_80",
    "Triton, sm_90",
    ("Triton, tensor maps", "Triton, tensor maps, causal"),
    "Triton, roles",
)
WGMMA = ("wgmma, D=128, causal", "wgmma, D=64", "wgmma, D=64, masked")
EQUIVALENT: Sequence[Equivalent] = (
    # PTX ISA, cp.async.commit_group: copies that no commit followed belong to the next group; wait_group 0 waits for all.
    Equivalent(
        [SM80, SM90], "delete cp.async.commit_group", (0, 2), "the copies join the next group, and all groups are waited for"
    ),
    Equivalent(
        ["mma, D=256"], "delete cp.async.commit_group", (0,), "as above: rows join the first tiles, which the loop waits for"
    ),
    # After the loop the result is staged. On sm_80 that is where the rows were: all warps read them before the last barrier
    # of the loop, and no copy goes there. On sm_90 it is where the columns were, copied there by the lanes that stage there.
    Equivalent([SM80], "delete cp.async.wait_group", (1,), "after the loop: no copy under way goes to what is touched next"),
    Equivalent([SM80, SM90], "wait_group n + 1 cp", (1,), "after the loop: no copy with data goes to what is touched next"),
    Equivalent([SM80, SM90], "delete bar.sync", (2,), "after the loop: all warps are done with what is overwritten next"),
    Equivalent(
        [SM90], "delete fence.proxy.async", (1,), "values were waited for together with keys, before the trip's first fence"
    ),
    # PTX ISA, wgmma.commit_group: a group belongs to the warpgroup. All four warps have issued its products when one has waited
    # for it, and all that they read has been read. (CUTLASS has one thread of a warpgroup give a buffer back.)
    Equivalent([SM90], "delete bar.sync", (1,), "after a wait for wgmma, whose groups the whole block has issued"),
    Equivalent(MAPS, "delete bar.sync", (3, 4, 5), "after a wait for wgmma, whose groups the whole block has issued"),
    Equivalent([ROLES], "delete bar.sync", (6, 7, 8, 10, 11, 12), "after a wait for wgmma, before a buffer is given back"),
    # A product begun ahead is followed, in all paths, by one that waits for all groups.
    Equivalent([*WGMMA[:2]], "delete wgmma.commit_group", (1,), "the product joins the next group, which is waited for"),
    Equivalent([WGMMA[0]], "delete wgmma.wait_group", (3,), "the product between has waited for all groups"),
    Equivalent([WGMMA[0]], "wait_group n + 1 wgmma", (3,), "as above"),
    Equivalent([WGMMA[1]], "delete wgmma.wait_group", (2,), "as above"),
    Equivalent([WGMMA[1]], "wait_group n + 1 wgmma", (2,), "as above"),
    # PTX ISA, fence: .mbarrier_init orders the initialisation for other blocks of a cluster; bar.sync does so inside a block.
    Equivalent(WGMMA, "delete fence.mbarrier_init", None, "there is one block in a cluster, and a barrier follows"),
    Equivalent(MAPS, "delete fence.proxy.async", (0,), "nothing was written by ordinary stores to where the copies go"),
    Equivalent([ROLES], "delete bar.sync", (0,), "a barrier of the whole block follows the initialisation of mbarriers"),
    Equivalent(
        [ROLES],
        "delete bar.sync",
        (1,),
        "rows are copied once, to where nothing was; no second phase can overtake a waiting thread",
    ),
    Equivalent([ROLES], "do not wait", (0, 1), "the place of the rows is free from the start"),
    Equivalent([ROLES], "delete mbarrier.arrive", (2, 5), "the place of the rows is given back, and nobody asks for it again"),
)
"""What these do not break, with the reason. Places are counted in the order of the text."""


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

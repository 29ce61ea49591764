"""Attention kernels made by Triton, for sm_80 and sm_90a: an origin that is not ours. They run, match, and pass every check."""

from __future__ import annotations

import re

import pytest

from attngen.backends.cuda import ptx
from tests.cuda.ptx.kernels import attend, triton

KERNELS = [f"attend_{arch}_{rest}" for arch in ("sm80", "sm90") for rest in ("f16_d64", "bf16_d64_causal")]


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("rows", "columns"), [(150, 200), (64, 32), (1, 333)])
def test_matches_float64(name: str, rows: int, columns: int) -> None:
    error, lse = attend(*triton(name), 2, rows, columns)
    assert error < 1.5  # in units of the element's precision
    assert lse < 1e-5


@pytest.mark.parametrize(
    "name", ["attend_sm90_bf16_d128_tma", "attend_sm90_f16_d64_tma_causal", "attend_sm90_bf16_d64_tma_roles"]
)
@pytest.mark.parametrize(("rows", "columns"), [(150, 200), (64, 32), (1, 333)])
def test_tensor_maps_match_float64(name: str, rows: int, columns: int) -> None:
    error, lse = attend(*triton(name), 2, rows, columns)
    assert error < 1.5
    assert lse < 1e-5


def without_waiting(text: str) -> list[str]:
    """The text without each of its waits on mbarriers, one at a time: the predicate that the loop around it tests is true."""
    wait = r"mbarrier\.try_wait\S*\s+(\w+),[^;]*;"
    return [f"{text[: m.start()]}setp.eq.u32 {m[1]}, 0, 0;{text[m.end() :]}" for m in re.finditer(wait, text)]


COPIES = [
    *(("attend_sm90_f16_d64_tma_causal", 256, p) for p in ("mbarrier.init", "mbarrier.arrive", "mbarrier.try_wait")),
    *(("attend_sm90_bf16_d64_tma_roles", 64, p) for p in ("mbarrier.arrive", "mbarrier.try_wait", "cp.async.bulk.tensor")),
]


@pytest.mark.parametrize(("name", "rows", "pattern"), COPIES)
def test_deleting_what_tensor_copies_need_is_caught(name: str, rows: int, pattern: str) -> None:
    text, facts = triton(name)
    mutants = without_waiting(text) if pattern == "mbarrier.try_wait" else deleted(text, pattern)
    survivors: list[int] = []
    for number, mutant in enumerate(mutants):
        try:
            attend(mutant, facts, 1, rows, 256)
        except ptx.Defect:
            continue
        survivors.append(number)
    assert survivors == [n for k, p, n in sorted(EQUIVALENT) if (k, p) == (name, pattern)]
    assert mutants


def deleted(text: str, pattern: str) -> list[str]:
    """The text without each of the lines that hold the pattern, one at a time; line numbers stay."""
    lines = text.splitlines()
    places = [k for k, line in enumerate(lines) if pattern in line]
    return ["\n".join([*lines[:k], "", *lines[k + 1 :]]) for k in places]


EQUIVALENT = {
    # After the loop the result is staged in shared memory. On sm_80 that is where the queries were, which all warps have read
    # before the last barrier of the loop, and no copy is under way to it. On sm_90a it is where the keys were; what is copied
    # there last comes from the lanes of the warp that stages it, and the order among lanes of a warp is taken as given.
    ("attend_sm80_f16_d64", "bar.sync", 2),
    ("attend_sm80_f16_d64", "cp.async.wait_group", 1),
    ("attend_sm90_f16_d64", "bar.sync", 2),
    # What the copies after this barrier overwrite was read by wgmma only, in groups that each warp has waited for. A group
    # belongs to the warpgroup, which here is the whole block: once it is complete, it is complete for all warps.
    ("attend_sm90_f16_d64", "bar.sync", 1),
    # A copy without its commit belongs to the next group, and every wait of these kernels is for all groups.
    ("attend_sm80_f16_d64", "cp.async.commit_group", 0),
    ("attend_sm80_f16_d64", "cp.async.commit_group", 2),
    ("attend_sm90_f16_d64", "cp.async.commit_group", 0),
    ("attend_sm90_f16_d64", "cp.async.commit_group", 2),
    # The values were waited for together with the keys, before the first fence of the round.
    ("attend_sm90_f16_d64", "fence.proxy.async", 1),
    # That the place of the queries is free is waited for, which it is from the start, and told, which nobody asks for.
    ("attend_sm90_bf16_d64_tma_roles", "mbarrier.try_wait", 0),
    ("attend_sm90_bf16_d64_tma_roles", "mbarrier.try_wait", 1),
    ("attend_sm90_bf16_d64_tma_roles", "mbarrier.arrive", 5),
    ("attend_sm90_bf16_d64_tma_roles", "mbarrier.arrive", 8),
}
"""Deletions that change nothing, by the number of the line among its like."""


def is_caught(text: str, name: str) -> bool:
    try:
        error, lse = attend(text, triton(name)[1], 1, 64, 200)
    except ptx.Defect:
        return True
    return not (error < 1.5 and lse < 1e-5)


AMPERE = ("bar.sync", "cp.async.wait_group", "cp.async.commit_group")
HOPPER = (*AMPERE, "fence.proxy.async", "wgmma.fence", "wgmma.commit_group", "wgmma.wait_group")


@pytest.mark.parametrize(
    ("name", "pattern"), [*(("attend_sm80_f16_d64", p) for p in AMPERE), *(("attend_sm90_f16_d64", p) for p in HOPPER)]
)
def test_deleting_synchronisation_is_caught(name: str, pattern: str) -> None:
    caught = [is_caught(text, name) for text in deleted(triton(name)[0], pattern)]
    assert [k for k, c in enumerate(caught) if not c] == [n for k, p, n in sorted(EQUIVALENT) if (k, p) == (name, pattern)]
    assert caught

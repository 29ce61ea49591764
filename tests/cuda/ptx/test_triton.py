"""Attention kernels made by Triton, for sm_80 and sm_90a: an origin that is not ours. They run, match, and pass every check."""

from __future__ import annotations

import pytest

from attngen.backends.cuda import ptx
from tests.cuda.ptx.kernels import attend, triton

KERNELS = ["attend_sm80_f16_d64", "attend_sm80_bf16_d64_causal"]


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("rows", "columns"), [(150, 200), (64, 32), (1, 333)])
def test_matches_float64(name: str, rows: int, columns: int) -> None:
    error, lse = attend(*triton(name), 2, rows, columns)
    assert error < 1.5  # in units of the element's precision
    assert lse < 1e-5


def deleted(text: str, pattern: str) -> list[str]:
    """The text without each of the lines that hold the pattern, one at a time; line numbers stay."""
    lines = text.splitlines()
    places = [k for k, line in enumerate(lines) if pattern in line]
    return ["\n".join([*lines[:k], "", *lines[k + 1 :]]) for k in places]


EQUIVALENT = {
    # The data that this wait and this barrier guard is waited for and read in the loop already: the last rounds copy nothing,
    # and the area they free is not the one that is written after the loop.
    ("attend_sm80_f16_d64", "bar.sync", 2),
    ("attend_sm80_f16_d64", "cp.async.wait_group", 1),
    # A group without its commit joins the next one, and each wait is for both.
    ("attend_sm80_f16_d64", "cp.async.commit_group", 0),
    ("attend_sm80_f16_d64", "cp.async.commit_group", 2),
}
"""Deletions that change nothing, by the number of the line among its like."""


def is_caught(text: str, name: str) -> bool:
    try:
        error, lse = attend(text, triton(name)[1], 1, 64, 200)
    except ptx.Defect:
        return True
    return not (error < 1.5 and lse < 1e-5)


@pytest.mark.parametrize("pattern", ["bar.sync", "cp.async.wait_group", "cp.async.commit_group"])
def test_deleting_synchronisation_is_caught(pattern: str) -> None:
    name = "attend_sm80_f16_d64"
    caught = [is_caught(text, name) for text in deleted(triton(name)[0], pattern)]
    assert [k for k, c in enumerate(caught) if not c] == [n for k, p, n in sorted(EQUIVALENT) if (k, p) == (name, pattern)]

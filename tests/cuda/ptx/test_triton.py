"""Attention kernels made by Triton, for sm_80 and sm_90a: an origin that is not ours. They run, match, and pass every check."""

from __future__ import annotations

import pytest

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

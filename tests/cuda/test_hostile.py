"""What nobody should ask for: rows that are longer than a block has threads, passes left out or run twice."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import attngen as ag
from attngen.backends.cuda import backend
from attngen.ir.diagnostics import Error
from attngen.ir.func import Func
from attngen.ir.passes import PIPELINE
from attngen.ir.pipeline import Step, parse_pipeline, run_pipeline
from attngen.ir.types import F16, bound
from tests.derivation.programs import CASES, TILES, inputs

VARIANT = "sm_80,emulated"
OWN = [*parse_pipeline(backend.passes(VARIANT)).steps]
CASE = CASES["windowed"]


@pytest.mark.parametrize(("heads", "rows", "d", "d_v"), [(1, 1, 512, 40), (5, 2, 257, 300)])
def test_a_row_has_more_pieces_than_a_block_has_threads(heads: int, rows: int, d: int, d_v: int) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(s).astype(np.float16) for s in ((heads, rows, d), (1, 17, d), (1, 17, d_v)))
    got = ag.scaled_dot_product_attention(q, k, v, target=f"cuda:{VARIANT}")
    want = ag.scaled_dot_product_attention(q.astype(np.float32), k.astype(np.float32), v.astype(np.float32))
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3)


def derived(steps: list[Step]) -> Func:
    start = run_pipeline(CASE.program.trace(CASE.types(F16)), PIPELINE.replace("tile", TILES, 1)).func
    return run_pipeline(start, ",".join(map(str, steps))).func


def run(func: Func) -> list[Any]:
    arrays = [x.astype(np.float16) for x in inputs("windowed").values()]
    each = zip(func.outputs, func.out_layouts, strict=True)
    outs = [np.zeros([bound(x.tensor.extents[n]) for n in layout.names], x.element.numpy) for x, layout in each]
    backend.build(backend.emit(func, VARIANT))(arrays, outs)
    return outs


@cache
def wanted() -> list[Any]:
    return run(derived(OWN))


@pytest.mark.parametrize("name", [s.name for s in OWN])
def test_a_pass_that_runs_twice_changes_nothing(name: str) -> None:
    twice = [step for s in OWN for step in ([s, s] if s.name == name else [s])]
    assert str(derived(twice)) == str(derived(OWN))


def test_all_passes_may_run_twice() -> None:
    assert str(derived([*OWN, *OWN])) == str(derived(OWN))


@pytest.mark.parametrize("name", [s.name for s in OWN])
def test_a_pass_that_is_left_out_is_an_error_that_names_it_or_a_slower_kernel(name: str) -> None:
    steps = [s for s in OWN if s.name != name]
    if name in ("pad-tiles", "choose-fragments"):
        with pytest.raises(Error, match=f"run the pass(.|\n)*{name}"):
            run(derived(steps))
    else:
        for got, want in zip(run(derived(steps)), wanted(), strict=True):
            np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), rtol=2e-3, atol=2e-3)

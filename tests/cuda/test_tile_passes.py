"""The passes of the CUDA backend: what they make means the same and reads as text, and a remark says what they left."""

from __future__ import annotations

import math
from typing import Any

import pytest

import attngen as ag
from attngen.backends.cuda import backend
from attngen.backends.cuda.ops import Grid, Mma, Stage
from attngen.ir.core import walk
from attngen.ir.loop import For
from attngen.ir.nd import Contract, Reduce
from attngen.ir.parser import parse
from attngen.ir.passes import PIPELINE
from attngen.ir.pipeline import Pipeline, Result, Step, parse_pipeline, run_pipeline
from attngen.ir.types import BF16, F16, F32, I1, TensorType
from tests.derivation.programs import CASES, TILES, I, J


def masked(q: Any, k: Any, v: Any, mask: Any) -> Any:
    keep: Any = mask & (ag.index("j") <= ag.index("i"))
    s: Any = ag.where(keep, ag.contract(q, k, over="d"), -math.inf)
    return ag.contract(ag.softmax(s, over="j"), v, over="j", where=keep)


def with_mask(axes: str, element: Any = BF16) -> tuple[Any, dict[str, TensorType]]:
    """The program with a boolean mask along these axes."""
    extents = {"i": I, "j": J}
    types = {**CASES["standard"].types(element), "mask": TensorType(tuple((n, extents[n]) for n in axes.split()), I1)}
    return ag.program(q="h i d", k="h j d", v="h j e", mask=axes, out="h i e")(masked), types


PROGRAMS = {
    "masked": with_mask("i j"),
    "keys masked": with_mask("j"),
    "f32": (CASES["standard"].program, CASES["standard"].types(F32)),
    **{
        name: (CASES[name].program, CASES[name].types(F16)) for name in ("windowed", "differential", "quantised", "two_sources")
    },
}


def derive(name: str) -> Result:
    program, types = PROGRAMS[name]
    pipeline = f"{PIPELINE.replace('tile', TILES, 1)},{backend.passes('sm_80,emulated')}"
    return run_pipeline(program.trace(types), pipeline, verify_each="run")


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_stage_is_the_program_and_reads_as_text(name: str) -> None:
    """The interpreter executes each stage."""
    result = derive(name)
    for stage, func in result.stages.items():
        assert parse(str(func)) == func, stage
    grids = [op for op in result.func.walk() if isinstance(op, Grid)]
    assert bool(grids) == (name != "f32")
    for grid in grids:
        assert all(isinstance(op, Mma) for op in walk(grid.body) if isinstance(op, Contract))
        loops = [op for op in grid.body.ops if isinstance(op, For)]
        assert all(op.stages == 2 for loop in loops for op in loop.body.ops if isinstance(op, Stage))


@pytest.mark.parametrize(
    ("element", "why"),
    [(F16, "as registers and shared memory of a block hold"), (F32, "as threads that work on single elements share")],
)
@pytest.mark.parametrize("tiling", ["tile-blocks", "tile-small-blocks", "tile-warpgroups"])
def test_axes_are_cut_for_the_reasons_of_blocks(tiling: str, element: Any, why: str) -> None:
    """And not for those of the CPU, which are of caches."""
    types = {
        name: TensorType((("b", 1), ("h", 2), (axis, 600), (last, 64)), element) for name, axis, last in ("qid", "kjd", "vje")
    }
    func = ag.attention.trace(types)
    chosen = run_pipeline(func, f"decompose-attn,{tiling}", verify_each=False)
    step = chosen.pipeline.steps[-1]
    asked = Step(step.name, {**step.options, "j": 8})
    said = [r.message for r in chosen.remarks if r.origin == tiling]
    again = [r.message for r in run_pipeline(func, Pipeline((Step("decompose-attn"), asked)), verify_each=False).remarks]
    assert [text.rpartition("; ")[2] for text in said] == ["nothing is shared between its parts, so one at a time"] * 2 + [
        f"as much of it {why}"
    ] * 2, said
    assert again[:3] == said[:3] and again[3].startswith("j: parts of 8 ") and again[3].endswith("as long as was asked for")


def test_passes_in_another_order_decline() -> None:
    """Those for grids where there are none, unless it has been said why; and one that comes too late."""
    program, types = PROGRAMS["windowed"]
    func = run_pipeline(program.trace(types), PIPELINE, verify_each=False).func
    names = [step.name for step in parse_pipeline(backend.passes("sm_90a")).steps]
    for name in names[2:]:
        result = run_pipeline(func, name)
        assert [str(r) for r in result.remarks] == [f"{name}: no cuda.grid to work on; run distribute first"]
        assert result.func == func
    late = run_pipeline(derive("windowed").func, "scale-late")
    assert [str(r) for r in late.remarks] == ["scale-late: declined: tiles have been padded; run it before pad-tiles"]
    assert not any("no cuda.grid" in r.message for r in derive("f32").remarks)


def test_scores_are_computed_once_for_both_kinds_of_parts() -> None:
    """Before the choice whether they need a mask."""
    (loop,) = (op for op in derive("windowed").func.walk() if isinstance(op, For))
    assert sum(isinstance(op, Mma) and op.over == ("d",) for op in walk(loop.body)) == 1


@pytest.mark.parametrize(("name", "scans"), [("masked", 0), ("keys masked", 2)])
def test_only_tables_along_one_axis_are_looked_through(name: str, scans: int) -> None:
    result = derive(name)
    assert sum(isinstance(op, Reduce) and op.acc is I1 for op in result.func.walk()) == scans
    assert any("mask is applied in every part" in r.message for r in result.remarks) == (not scans)


def test_a_nest_that_does_not_fit_tensor_cores_says_why() -> None:
    (why,) = (r.message for r in derive("f32").remarks if r.origin == "distribute")
    assert why == "declined, its elements are computed one by one: nd.contract reads f32, tensor cores multiply f16 and bf16"

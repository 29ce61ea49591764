"""Pipelines: their text, the checks between passes, and errors planted in passes, interpreter and reference."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest

from attngen.backends import Unsupported
from attngen.ir import pipeline as pipelines
from attngen.ir.build import add, maximum, mul
from attngen.ir.core import Block, Op, Value
from attngen.ir.diagnostics import Error, IRError
from attngen.ir.elementwise import Exp, Exp2, Max, Sub
from attngen.ir.func import Func
from attngen.ir.interpreter import run
from attngen.ir.loop import For
from attngen.ir.nd import Contract, Reduce
from attngen.ir.passes import PIPELINE
from attngen.ir.pipeline import Pipeline, parse_pipeline, register_pass, run_pipeline
from attngen.ir.rewrite import rewrite
from attngen.ir.types import AxisMismatch
from tests.derivation.programs import CASES, TILES, inputs

DERIVE = PIPELINE.replace("tile", TILES, 1)


def standard() -> Func:
    case = CASES["standard"]
    return case.program.trace(case.types())


# ---------------------------------------------------------------- text


@pytest.mark.parametrize(
    "text",
    [PIPELINE, DERIVE, f"builtin.module({DERIVE})", "builtin.module(nd.func(canonicalize))", " canonicalize , tile{i=4,j=8} "],
)
def test_pipeline_text_round_trips(text: str) -> None:
    parsed = parse_pipeline(text)
    assert parse_pipeline(str(parsed)) == parsed


@pytest.mark.parametrize(
    "text, message",
    [
        ("canonicalise", "there is no pass 'canonicalise'"),
        ("canonicalise", "did you mean canonicalize?"),
        ("tile{i=x}", "pass tile: option i must be int, got 'x'"),
        ("tile{i}", "pass tile: option i must be int, got ''"),
        ("tile{i=4 i=5}", "pass tile: option i is given twice"),
        ("canonicalize{speed=3}", "pass canonicalize has no option 'speed'"),
        ("canonicalize,", "ends in a comma"),
        ("canonicalize;tile", "cannot read"),
        ("tile{i=4", "cannot read"),
    ],
)
def test_bad_pipelines_are_named(text: str, message: str) -> None:
    with pytest.raises(IRError) as e:
        parse_pipeline(text)
    assert message in str(e.value)


def test_unknown_axis_is_named() -> None:
    with pytest.raises(IRError, match=r"there is no axis 'jj'; axes: .*\n.*did you mean j\?"):
        run_pipeline(standard(), "decompose-attn,tile{jj=4}")
    with pytest.raises(IRError, match="axis j: the length of a part must be at least 1, not 0"):
        run_pipeline(standard(), "decompose-attn,tile{j=0}")


def test_stages_are_named_and_counted() -> None:
    result = run_pipeline(standard(), "decompose-attn,canonicalize,fold-scale,canonicalize")
    assert list(result.stages) == ["input", "decompose-attn", "canonicalize", "fold-scale", "canonicalize#2"]


def test_chosen_tile_sizes_stand_in_the_pipeline() -> None:
    result = run_pipeline(standard(), PIPELINE)
    assert "tile{h=1 i=37 j=53}" in str(result.pipeline)
    assert run_pipeline(standard(), result.pipeline).func == result.func


# ---------------------------------------------------------------- planted errors


def wrong(change: type[Op], to: type[Op] | None = None, **attributes: object) -> pipelines.PassFunction:
    """A pass that spoils every op of a class."""

    def spoil(func: Func) -> Func:
        def rule(op: Op) -> Value | None:
            if type(op) is not change:
                return None
            if to is None:
                return dataclasses.replace(op, **attributes).result
            return to(**{name: getattr(op, name) for name in op.fields.operands}).result

        return rewrite(func, rule)

    return spoil


def spoiled_loop(func: Func) -> Func:
    """Forget to correct the carried sums when the maximum changes."""

    def rule(op: Op) -> Value | None:
        # x · ρ -> x, where x is a carried value
        carried = type(op).__name__ == "Mul" and op.operands[0].op is None and op.operands[0].hint == "sum"
        return op.operands[0] if carried else None

    return rewrite(func, rule)


def spoiled_remainder(func: Func) -> Func:
    """Leave out the ragged last trip of every loop."""

    def rule(op: Op) -> tuple[Value, ...] | None:
        if not isinstance(op, For) or not isinstance(op.extent, int) or op.extent % op.step == 0 or op.extent < op.step:
            return None
        return dataclasses.replace(op, inits=tuple(add(v, 1.0) for v in op.inits)).results

    return rewrite(func, rule)


PLANTED = {
    "another-base": ("fold-scale", wrong(Exp2, Exp)),
    "minimum": ("decompose-attn", wrong(Max, Sub)),
    "sum-of-maxima": ("decompose-attn", wrong(Reduce, kind="max")),
    "uncorrected": ("fuse-cascaded-reductions", spoiled_loop),
    "remainder": ("tile", spoiled_remainder),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_pass_that_changes_the_meaning_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    after, function = PLANTED[name]
    monkeypatch.setitem(pipelines.PASSES, name, pipelines.Pass(name, function))
    steps = [s for step in DERIVE.split(",") for s in ([step, name] if step.startswith(after) else [step])]
    run_pipeline(standard(), ",".join(steps), verify_each=True)  # it is well formed
    with pytest.raises(IRError, match=rf"error\[pass {name}\]: changed the meaning: output 0 of a small instance"):
        run_pipeline(standard(), ",".join(steps), verify_each="run")


def test_invalid_ir_is_blamed_on_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def drop_half(func: Func) -> Func:
        return func.with_body(Block(func.args, func.body.ops[1:], func.outputs))

    monkeypatch.setitem(pipelines.PASSES, "drop-half", pipelines.Pass("drop-half", drop_half))
    with pytest.raises(IRError, match=r"error\[pass drop-half\]: made invalid IR: .* is used where it is not defined"):
        run_pipeline(standard(), "decompose-attn,drop-half")


def test_a_broken_promise_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pipelines.PASSES, "lazy", pipelines.Pass("lazy", lambda func: func, leaves_no=("attn.",)))
    with pytest.raises(IRError) as e:
        run_pipeline(standard(), "lazy")
    assert "error[pass lazy]: must leave no attn.softmax, but 1 remains" in str(e.value)
    assert "programs.py" in str(e.value), "the user's line is shown"


def test_an_exception_in_a_pass_names_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(func: Func) -> Func:
        raise ZeroDivisionError

    monkeypatch.setitem(pipelines.PASSES, "crash", pipelines.Pass("crash", crash))
    with pytest.raises(IRError, match=r"error\[pass crash\]: failed: ZeroDivisionError"):
        run_pipeline(standard(), "crash")


@pytest.mark.parametrize(("returned", "shown"), [(None, "nothing"), ("text", "str")])
def test_a_pass_that_returns_no_function_is_named(returned: object, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(func: Func) -> Any:
        return returned

    monkeypatch.setitem(pipelines.PASSES, "forgetful", pipelines.Pass("forgetful", forgetful))
    with pytest.raises(IRError, match=rf"error\[pass forgetful\]: returned {shown}(.|\n)*a pass returns a Func"):
        run_pipeline(standard(), "forgetful")


def test_the_default_pipeline_has_a_name() -> None:
    assert parse_pipeline("canonicalize,default") == Pipeline(
        (*parse_pipeline("canonicalize").steps, *parse_pipeline(PIPELINE).steps)
    )


def test_two_passes_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two passes are named canonicalize"):
        register_pass("canonicalize")(lambda func: func)


@pytest.mark.parametrize("op, evaluate", [(Exp, lambda self, args, env: np.exp(args[0] * 1.001)), (Contract, None)])
def test_an_error_in_the_interpreter_is_caught_by_the_oracle(
    op: type[Op], evaluate: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oracle is NumPy written without the IR: an interpreter that is wrong everywhere still disagrees with it."""
    arrays = inputs("standard")
    (want,) = CASES["standard"].oracle(arrays)
    func = run_pipeline(standard(), "decompose-attn").func
    np.testing.assert_allclose(run(func, *arrays.values(), wide=True)[0], want, rtol=1e-8)
    right = Contract.evaluate
    monkeypatch.setattr(op, "evaluate", evaluate or (lambda self, args, env: right(self, args, env) + 1e-3))
    assert np.max(np.abs(run(func, *arrays.values(), wide=True)[0] - want)) > 1e-6


def test_an_error_in_the_oracle_is_caught_by_the_interpreter() -> None:
    arrays = inputs("standard")
    spoiled = arrays | {"k": arrays["k"] * np.float32(1.001)}
    (want,) = CASES["standard"].oracle(spoiled)
    assert np.max(np.abs(run(standard(), *arrays.values(), wide=True)[0] - want)) > 1e-6


def test_large_functions_at_loop_level_are_not_executed_but_said_so() -> None:
    case = CASES["standard"]
    types = {
        n: dataclasses.replace(t, axes=tuple((a, 4096 if a in "ij" else e) for a, e in t.axes)) for n, t in case.types().items()
    }
    func = run_pipeline(case.program.trace(types), DERIVE).func
    result = run_pipeline(func, "canonicalize", verify_each="run")
    assert any("not executed between passes" in r.message for r in result.remarks)
    small = run_pipeline(standard(), DERIVE).func
    assert not run_pipeline(small, Pipeline(parse_pipeline("canonicalize").steps), verify_each="run").remarks


def test_builder_folds() -> None:
    func = standard()
    q = func.args[0]
    assert mul(q, 1.0) is q and add(q, 0.0) is q and maximum(q, -np.inf) is q


def test_errors_pass_between_processes() -> None:
    for error in (Error("x"), IRError("tile", "x", help="y"), AxisMismatch("i", 3, 4), Unsupported("cpu", "x", help="y")):
        copied = pickle.loads(pickle.dumps(error))
        assert type(copied) is type(error) and str(copied) == str(error)

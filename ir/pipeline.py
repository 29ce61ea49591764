"""Passes and pipelines: registration, their text, and running them with checks between the steps.

A pass is a function from Func to Func; its typed keyword arguments are its options:

    @register_pass("scale-by-two", leaves_no=("attn.",))
    def scale_by_two(func: Func, *, times: int = 1) -> Func: ...

`scale-by-two{times=3}` runs it. A pass that takes axis names declares `**tiles: int`.
"""

from __future__ import annotations

import inspect
import re
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal, TypeVar, cast

import numpy as np

from attngen.ir.diagnostics import Error, IRError, Loc, Remark, collect_remarks
from attngen.ir.func import Func
from attngen.ir.interpreter import Interpreter
from attngen.ir.resize import example_inputs, shrink
from attngen.ir.types import TensorType
from attngen.ir.verify import verify

PassFunction = Callable[..., Func]
F = TypeVar("F", bound=PassFunction)
VerifyEach = bool | Literal["run"]

RUN_LIMIT = 20_000_000
"""The most floating point operations that a function at loop level may take to be executed between passes."""


@dataclass(frozen=True)
class Pass:
    """A registered pass. leaves_no: prefixes of op names that must be gone afterwards; resolve: fills in options that depend
    on the function (tile sizes), so that the pipeline's text says what was run."""

    name: str
    function: PassFunction
    leaves_no: tuple[str, ...] = ()
    resolve: Callable[[Func], Mapping[str, int]] | None = None

    @property
    def options(self) -> Mapping[str, inspect.Parameter]:
        parameters = inspect.signature(self.function, eval_str=True).parameters.values()
        return {p.name.replace("_", "-"): p for p in list(parameters)[1:] if p.kind is not p.VAR_KEYWORD}

    @property
    def takes_axes(self) -> bool:
        return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(self.function).parameters.values())

    @property
    def summary(self) -> str:
        """The first paragraph of its description."""
        return (inspect.getdoc(self.function) or "").partition("\n\n")[0].replace("\n", " ")


PASSES: dict[str, Pass] = {}

ALIASES: dict[str, str] = {}
"""Names that stand for several passes in the text of a pipeline."""


def register_pass(
    name: str, *, leaves_no: tuple[str, ...] = (), resolve: Callable[[Func], Mapping[str, int]] | None = None
) -> Callable[[F], F]:
    """Enter a function under a name, so that pipelines can run it."""

    def enter(function: F) -> F:
        known = PASSES.get(name)
        if known is not None and known.function.__qualname__ != function.__qualname__:
            raise Error(f"two passes are named {name}: {known.function.__module__} and {function.__module__}")
        PASSES[name] = Pass(name, function, leaves_no, resolve)
        return function

    return enter


@dataclass(frozen=True)
class Step:
    """A pass with its options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __str__(self) -> str:
        shown = " ".join(f"{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in self.options.items())
        return f"{self.name}{{{shown}}}" if shown else self.name


@dataclass(frozen=True)
class Pipeline:
    """Passes in order. `str(pipeline)` is what `parse_pipeline` reads."""

    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return ",".join(map(str, self.steps))


def parse_pipeline(text: str) -> Pipeline:
    """`canonicalize,tile{i=64 j=128}`, also inside `builtin.module(…)`. Names, options and values are checked."""
    body = text.strip()
    while wrapped := re.fullmatch(r"(?:builtin\.module|nd\.func|func\.func)\s*\((.*)\)", body, re.DOTALL):
        body = wrapped[1].strip()
    steps: list[Step] = []
    position = 0
    while position < len(body):
        found = re.compile(r"\s*([A-Za-z][\w.-]*)\s*(?:\{([^{}]*)\})?\s*(,|\Z)").match(body, position)
        if not found:
            raise IRError("pipeline", f"cannot read {body[position:]!r}", help="write pass,pass{option=value option=value},…")
        if found[3] == "," and found.end() == len(body):
            raise IRError("pipeline", f"{text!r} ends in a comma")
        if found[1] in ALIASES and found[2] is None:
            steps += parse_pipeline(ALIASES[found[1]]).steps
        else:
            steps.append(step(found[1], found[2] or ""))
        position = found.end()
    return Pipeline(tuple(steps))


def step(name: str, options: str = "") -> Step:
    known = PASSES.get(name)
    if known is None:
        raise IRError("pipeline", f"there is no pass {name!r}", help=did_you_mean(name, PASSES))
    read: dict[str, Any] = {}
    for word in options.replace(",", " ").split():
        key, equals, text = word.partition("=")
        parameter = known.options.get(key)
        if parameter is None and not (known.takes_axes and re.fullmatch(r"[A-Za-z_]\w*", key)):
            raise IRError("pipeline", f"pass {name} has no option {key!r}", help=did_you_mean(key, known.options))
        if key in read:
            raise IRError("pipeline", f"pass {name}: option {key} is given twice")
        annotation: Any = int if parameter is None else parameter.annotation
        if not equals and annotation is bool:
            text = "true"
        read[key] = read_option(name, key, text, annotation)
    return Step(name, read)


def read_option(name: str, key: str, text: str, annotation: Any) -> Any:
    try:
        if annotation is bool:
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        if annotation in (int, float, str):
            return annotation(text)
    except (ValueError, KeyError):
        pass
    wanted = getattr(annotation, "__name__", annotation)
    raise IRError("pipeline", f"pass {name}: option {key} must be {wanted}, got {text!r}")


def did_you_mean(word: str, known: Mapping[str, Any]) -> str:
    close = get_close_matches(word, known, 1)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(sorted(known)) or 'none'}"


@dataclass
class Result:
    """What a pipeline made: the function, every stage by name (`input`, `canonicalize`, `canonicalize#2`, …), remarks,
    seconds per stage, and the steps with their resolved options."""

    func: Func
    stages: dict[str, Func]
    remarks: list[Remark]
    seconds: dict[str, float]
    pipeline: Pipeline


def run_pipeline(
    func: Func,
    pipeline: Pipeline | str,
    *,
    verify_each: VerifyEach = True,
    before: Callable[[str, Func], None] | None = None,
    after: Callable[[str, Func], None] | None = None,
) -> Result:
    """Run the steps in order.

    verify_each: True checks the IR after each pass; "run" also executes a small instance of the function before and after
    each pass and names the pass that changed its meaning.
    """
    if isinstance(pipeline, str):
        pipeline = parse_pipeline(pipeline)
    if verify_each:
        verify(func)
    result = Result(func, {"input": func}, [], {}, Pipeline(()))
    twin = Twin.of(func, resolve(func, pipeline.steps), result.remarks) if verify_each == "run" else None
    for wanted in pipeline.steps:
        current = resolved(wanted, result.func)
        name = unused(current.name, result.stages)
        if before:
            before(name, result.func)
        start = time.perf_counter()
        with collect_remarks(current.name, result.remarks):
            new = apply(current, result.func)
        result.seconds[name] = time.perf_counter() - start
        if verify_each:
            check(current, result.func, new)
        if twin is not None:
            twin.step(current)
        result.func = result.stages[name] = new
        result.pipeline = Pipeline((*result.pipeline.steps, current))
        if after:
            after(name, new)
    return result


def resolved(step: Step, func: Func) -> Step:
    """The step with the options filled in that its pass derives from the function."""
    find = PASSES[step.name].resolve
    return step if step.options or find is None or func.level != "tensor" else Step(step.name, dict(find(func)))


def resolve(func: Func, steps: tuple[Step, ...]) -> list[Step]:
    """All steps with their options; the passes before the last one that has to be asked are run for that."""
    last = max((k for k, s in enumerate(steps) if not s.options and PASSES[s.name].resolve), default=-1)
    found = list(steps)
    for k, s in enumerate(steps[: last + 1]):
        found[k] = resolved(s, func)
        if k < last:
            with collect_remarks():
                func = apply(found[k], func)
    return found


def unused(name: str, stages: Mapping[str, Func]) -> str:
    count, unique = 1, name
    while unique in stages:
        count += 1
        unique = f"{name}#{count}"
    return unique


def apply(step: Step, func: Func) -> Func:
    p = PASSES[step.name]
    try:
        options = {k.replace("-", "_") if k in p.options else k: v for k, v in step.options.items()}
        new = cast(object, p.function(func, **options))
    except Error:
        raise
    except RecursionError:
        size = sum(1 for _ in func.walk())
        help = "split the function, or raise sys.setrecursionlimit"
        raise IRError(f"pass {step.name}", f"nests too deeply: a function of {size} ops", help=help) from None
    except Exception as e:
        where = traceback.extract_tb(e.__traceback__)[-1]
        loc = Loc(where.filename, where.lineno or 0)
        raise IRError(f"pass {step.name}", f"failed: {type(e).__name__}: {e}", loc=loc, notes=[reproduce(step)]) from e
    if not isinstance(new, Func):
        help = "a pass returns a Func; was the return forgotten?"
        raise IRError(f"pass {step.name}", f"returned {'nothing' if new is None else type(new).__name__}", help=help)
    return new


def reproduce(step: Step) -> str:
    return f"reproduce: print the IR before this pass and run attngen opt FILE.ir --pass-pipeline '{step}'"


def check(step: Step, old: Func, new: Func) -> None:
    """The IR is well formed, the signature is the same, and the pass keeps its promise."""
    try:
        verify(new)
    except IRError as e:
        notes = [*e.notes, reproduce(step)]
        raise IRError(
            f"pass {step.name}", f"made invalid IR: {e.message}", loc=e.loc, ir=e.ir, caret=e.caret, note=e.note, notes=notes
        ) from e
    signatures = [(f.name, f.params, [v.type for v in f.args], f.out_layouts, [v.type for v in f.outputs]) for f in (old, new)]
    if signatures[0] != signatures[1]:
        raise IRError(f"pass {step.name}", "changed the signature of the function", notes=[reproduce(step)])
    for op in new.walk():
        for prefix in PASSES[step.name].leaves_no:
            if op.name.startswith(prefix):
                left = sum(other.name == op.name for other in new.walk())
                raise IRError(
                    f"pass {step.name}",
                    f"must leave no {op.name}, but {left} remain{'s' if left == 1 else ''}",
                    loc=op.loc,
                    ir=repr(op)[1:-1],
                    notes=[reproduce(step)],
                )


@dataclass
class Twin:
    """A small instance of the function that goes through the same passes and is executed after each."""

    func: Func
    steps: Mapping[str, int]
    inputs: list[tuple[np.ndarray, ...]]
    expected: list[tuple[np.ndarray, ...]]

    @staticmethod
    def of(func: Func, steps: list[Step], remarks: list[Remark]) -> Twin | None:
        tiles = {k: v for s in steps if PASSES[s.name].takes_axes for k, v in s.options.items()}
        small: dict[str, int] = {}
        if func.level == "tensor" and all(isinstance(v.type, TensorType) for op in func.walk() for v in op.results):
            func, small = shrink(func, tiles)
        elif (work := sum(op.flops for op in func.body.ops)) > RUN_LIMIT:
            remarks.append(Remark("run", f"not executed between passes: {work} operations, more than {RUN_LIMIT}"))
            return None
        inputs = [example_inputs(func, seed) for seed in (0, 1)]
        return Twin(func, small, inputs, [Interpreter(wide=True).run(func, *x) for x in inputs])

    def step(self, step: Step) -> None:
        options = {k: self.steps.get(k, v) if PASSES[step.name].takes_axes else v for k, v in step.options.items()}
        with collect_remarks():
            self.func = apply(Step(step.name, options), self.func)
        for arrays, expected in zip(self.inputs, self.expected, strict=True):
            for k, (got, want) in enumerate(zip(Interpreter(wide=True).run(self.func, *arrays), expected, strict=True)):
                if problem := difference(got, want):
                    shapes = ", ".join(f"{p.name}{x.shape}" for p, x in zip(self.func.params, arrays, strict=True))
                    message = f"changed the meaning: output {k} of a small instance {problem}"
                    raise IRError(f"pass {step.name}", message, notes=[f"small instance: {shapes}", reproduce(step)])


def difference(got: np.ndarray, want: np.ndarray, tolerance: float = 1e-7) -> str:
    """How two results differ, or nothing: infinities and NaN must agree, numbers to `tolerance` of the largest."""
    if got.shape != want.shape:
        return f"has shape {got.shape}, expected {want.shape}"
    if not got.size:
        return ""
    if got.dtype.kind not in "fc":
        return "" if np.array_equal(got, want) else f"differs in {np.count_nonzero(got != want)} of {got.size} elements"
    finite = np.isfinite(want)
    same = np.array_equal(got[~finite], want[~finite], equal_nan=True) and bool(np.all(np.isfinite(got[finite])))
    if not same:
        return f"is not finite in {np.count_nonzero(~np.isfinite(got))} elements, expected {np.count_nonzero(~finite)}"
    error = float(np.max(np.abs(got[finite] - want[finite]), initial=0.0))
    size = max(1.0, float(np.max(np.abs(want[finite]), initial=0.0)))
    return "" if error <= tolerance * size else f"differs by {error:.2g} where values reach {size:.2g}"

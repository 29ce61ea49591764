"""From a traced program to a kernel: the common passes, the backend's passes, text, something callable."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from attngen.arrays import HOST
from attngen.backends import Arrays, Backend, OwnArrays, Parallel, Tiles, backend_names, built_in, get_backend
from attngen.cached_build import build
from attngen.derived import Derived
from attngen.ir.core import Block
from attngen.ir.diagnostics import Error
from attngen.ir.func import Func
from attngen.ir.passes import PIPELINE
from attngen.ir.pipeline import Pipeline, VerifyEach, parse_pipeline
from attngen.ir.rewrite import postorder
from attngen.kernel import Built, Kernel, Traced
from attngen.names import kind_of, suggest
from attngen.thread_count import get_num_threads

QUERY_BLOCK = 32
"""Queries that a thread works on at a time, about."""


def build_kernel(
    program: Callable[..., Any],
    traced: Traced,
    *,
    target: str = "cpu",
    pipeline: str | Pipeline | None = None,
    verify_each: VerifyEach = True,
) -> Kernel:
    """Run the pipeline (None: the common one), the backend's passes if it names none of them, emit and build; or find the
    result of that on disk.

    Where an extent is 0 nothing needs a loop: empty outputs are not computed, and what else there is the interpreter computes.
    """
    check_options(pipeline, verify_each)
    start = time.perf_counter()
    backend, variant = find_target(target)
    loaded = time.perf_counter() - start  # the first time, its modules are imported
    target = without_blanks(target)
    check_sizes(traced)
    steps = (
        parse_pipeline(PIPELINE) if pipeline is None else parse_pipeline(pipeline) if isinstance(pipeline, str) else pipeline
    )
    steps = with_own_passes(own_tiling(steps, backend, variant), backend, variant)
    live = tuple(k for k, v in enumerate(traced.func.outputs) if v.tensor.size)
    func, sources = with_outputs(traced, live)
    if not live or any(not v.tensor.size for op in func.body.ops for v in (*op.operands, *op.results)):
        return Kernel(program, traced, None, target=target, arrays=arrays_of(target))
    derived = Derived(func, steps, backend, variant, verify_each)
    derived.seconds["backend"] = loaded
    made = build(derived)
    built = Built(derived, made.executable, live, sources, made.seconds, made.origin)
    return Kernel(program, traced, built, target=target, arrays=arrays_of(target))


@lru_cache(64)
def arrays_of(target: str) -> Arrays:
    """What arrays kernels for a target take and make."""
    backend, variant = find_target(target)
    own = backend.arrays(variant) if isinstance(backend, OwnArrays) else None
    return HOST if own is None else own


def check_host(target: str, what: str) -> None:
    """For what prepares its arrays with NumPy."""
    if arrays_of(target) is not HOST:
        raise Error(
            f'target: {what} works on NumPy arrays, which kernels for {target} cannot read; use "cpu", or an emulated target'
        )


def parallelism(target: str, rows: int) -> tuple[int, int]:
    """How many queries are about one piece of work, and how many pieces run at the same time. rows: all that share keys."""
    backend, variant = find_target(target)
    return backend.parallelism(variant, rows) if isinstance(backend, Parallel) else (QUERY_BLOCK, get_num_threads())


def own_tiling(steps: Pipeline, backend: Backend, variant: str) -> Pipeline:
    """The pipeline with the backend's own way to cut axes where nothing is said about how."""
    if not isinstance(backend, Tiles):
        return steps
    own = parse_pipeline(backend.tiling(variant)).steps
    found = [own if step.name == "tile" and not step.options else (step,) for step in steps.steps]
    return Pipeline(tuple(step for several in found for step in several))


def with_own_passes(steps: Pipeline, backend: Backend, variant: str) -> Pipeline:
    """The pipeline followed by the backend's passes; as it is, if it names some of them."""
    own = parse_pipeline(backend.passes(variant)).steps
    named = {step.name for step in own} & {step.name for step in steps.steps}
    return steps if named else Pipeline((*steps.steps, *own))


def with_outputs(traced: Traced, live: tuple[int, ...]) -> tuple[Func, tuple[str, ...]]:
    """The function with some of its outputs and without parameters that are empty and not read; and the inputs it reads."""
    func = traced.func
    if len(live) == len(func.outputs) and all(v.tensor.size for v in func.args):
        return func, traced.sources
    outputs = tuple(func.outputs[k] for k in live)
    ops = tuple(postorder(outputs))
    read = {v for op in ops for v in op.operands} | set(outputs)
    kept = [k for k, v in enumerate(func.args) if v in read or v.tensor.size]
    body = Block(tuple(func.args[k] for k in kept), ops, outputs)
    pruned = Func(func.name, tuple(func.params[k] for k in kept), body, tuple(func.out_layouts[k] for k in live))
    return pruned, tuple(traced.sources[k] for k in kept)


def check_options(pipeline: object, verify_each: object) -> None:
    if not (isinstance(verify_each, bool) or isinstance(verify_each, str) and verify_each == "run"):
        raise Error(f'verify_each: expected True, False or "run", got {verify_each!r}')
    if not (pipeline is None or isinstance(pipeline, str | Pipeline)):
        raise Error(f"pipeline: expected passes as text, such as 'canonicalize,tile', got {kind_of(pipeline)}")


def check_sizes(traced: Traced) -> None:
    """No array that is read or written may be larger than an address can reach."""
    outputs = zip(traced.out_names, (v.tensor for v in traced.func.outputs), strict=True)
    for name, type in (*((name, type) for name, (_, type) in traced.inputs.items()), *outputs):
        if type.size * type.element.bytes >= 2**63:
            raise Error(f"{name}: no memory holds an array of {type}; give smaller extents")


def find_target(target: object) -> tuple[Backend, str]:
    """The backend, and what follows the colon: `cpu:x86-64-v3`, `cpu:x86-64-v3,vector_bits=512`."""
    if not isinstance(target, str):
        raise Error(f'target: expected a name such as "cpu", got {target!r}')
    name, _, variant = without_blanks(target).partition(":")
    if name not in built_in() and name not in backend_names():
        raise Error(f"target: there is no backend {name!r}; {meant(name)}")
    backend = get_backend(name)
    if variant.partition(",")[0] not in backend.targets():  # what follows a comma the backend checks
        if variant.isdecimal() and name == "cuda":
            raise Error(f"target: {target}: cuda is the current GPU; devices are chosen by the arrays")
        shown = ", ".join(f"{name}:{v}" if v else name for v in backend.targets())
        raise Error(f"target: {name} has no variant {variant!r}; known: {shown}")
    return backend, variant


def without_blanks(target: str) -> str:
    return "".join(target.split())


OTHER_NAMES = {"gpu": "cuda", "nvidia": "cuda"}


def meant(name: str) -> str:
    """What a name that is no backend's may stand for: one in capitals, a variant without its backend, options without one."""
    known = backend_names()
    first, comma, options = name.partition(",")
    guess = OTHER_NAMES.get(first.lower(), first.lower())
    if comma and guess in known:
        variant = "sm_90a" if guess == "cuda" else next(filter(None, get_backend(guess).targets()), "VARIANT")
        return f"options follow a variant: {guess}:{variant},{options}"
    if guess in known:
        return f"did you mean {guess}?"
    for other in sorted(built_in()):
        if first in get_backend(other).targets():
            return f"did you mean {other}:{name}?"
    return suggest(name, known)

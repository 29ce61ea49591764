"""A small instance of the same function, to execute: fewer trips, shorter axes, but loops still end in a remainder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from attngen.ir.core import Block, Op, Value, argument
from attngen.ir.func import Func
from attngen.ir.nd import looked_up
from attngen.ir.types import Extent, Layout, TensorType, UpTo, bound

SMALL_STEP = 3


def resize(func: Func, extents: Mapping[str, Extent]) -> Func:
    """The same tensor-level function with other extents; axes not named keep theirs."""

    def axis(name: str, extent: Extent) -> Extent:
        return extents.get(name, extent)

    def type_of(v: Value) -> TensorType:
        return TensorType(tuple((name, axis(name, extent)) for name, extent in v.tensor.axes), v.element)

    env = {v: argument(type_of(v), v.hint) for v in func.args}
    ops: list[Op] = []
    for op in func.body.ops:
        new = op.rebuild(lambda v: env[v], lambda b: b)
        changes: dict[str, Any] = {}
        if isinstance(op.attributes.get("axis"), str) and op.attributes.get("extent") is not None:
            changes["extent"] = axis(op.attributes["axis"], op.attributes["extent"])
        if op.attributes.get("axes"):
            changes["axes"] = tuple((name, axis(name, extent)) for name, extent in op.attributes["axes"])
        new = dataclasses.replace(new, **changes) if changes else new
        ops.append(new)
        env.update(zip(op.results, new.results, strict=True))
    body = Block(tuple(env[v] for v in func.args), tuple(ops), tuple(env[v] for v in func.outputs))
    return func.with_body(body)


def shrink(func: Func, steps: Mapping[str, int]) -> tuple[Func, dict[str, int]]:
    """A tensor-level function with a few elements per axis, and the steps that cut it as `steps` cut the original: loops of
    one, two and more trips stay such, and so does a ragged last trip."""
    small: dict[str, Extent] = {}
    small_steps: dict[str, int] = {}
    kept = looked_up(func.walk())
    for v in func.args:
        for name, extent in v.tensor.axes:
            if name in kept:
                small[name] = extent
                continue
            length, step = bound(extent), steps.get(name)
            if step is None or step < 1 or length <= step:
                short = min(length, 5 if step is None else SMALL_STEP)
                small_steps[name] = max(short, 1)
            else:
                small_steps[name] = min(step, SMALL_STEP)
                trips = min(-(-length // step), 4)
                ragged = length % step != 0 and small_steps[name] > 1
                short = trips * small_steps[name] - (1 if ragged else 0)
            small[name] = UpTo(short) if isinstance(extent, UpTo) else short
    for op in func.walk():
        for v in op.results:
            for name, extent in v.tensor.axes:
                small.setdefault(name, extent if bound(extent) <= 5 else 5)
    return resize(func, small), {name: small_steps.get(name, step) for name, step in steps.items()}


def example_inputs(func: Func, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Random arrays for a function's parameters; a runtime extent gets its bound, integers are small coordinates."""
    rng = np.random.default_rng(seed)

    def array(layout: Layout, type: TensorType) -> np.ndarray:
        shape = [int(np.prod([bound(type.extents[n]) for n in group])) for group in layout.groups]
        if type.element.is_float:
            return (rng.standard_normal(shape) * 2).astype(type.element.numpy)
        if type.element.is_integer:
            return rng.integers(0, 2, shape).astype(type.element.numpy)
        return rng.random(shape) < 0.7

    return tuple(array(p.layout, v.tensor) for p, v in zip(func.params, func.args, strict=True))

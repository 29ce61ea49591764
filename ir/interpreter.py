"""The meaning of the IR: a walk over it in NumPy, at every level. Every other backend is judged by this one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from attngen.ir.core import Arrays, Block, Env, Op, Value
from attngen.ir.diagnostics import Error
from attngen.ir.func import Func
from attngen.ir.nd import rounded
from attngen.ir.types import Layout, TensorType, bound

Observer = Callable[[Op, Arrays], None]


@dataclass
class Interpreter:
    """Executes functions.

    wide: compute in float64 whatever the types say; compares a program before and after a pass without rounding noise.
    observe: called with every op and its results.
    """

    wide: bool = False
    observe: Observer | None = None

    def run(self, func: Func, *arrays: Any) -> tuple[np.ndarray, ...]:
        """The outputs, laid out as the function says, from arrays laid out as its parameters say."""
        if len(arrays) != len(func.params):
            raise Error(f"@{func.name} takes {len(func.params)} arrays, got {len(arrays)}")
        extents: dict[str, int] = {}
        named: list[Any] = []
        for param, arg, array in zip(func.params, func.args, arrays, strict=True):
            named.append(to_axes(np.asarray(array), param.layout, arg.tensor, extents, param.name))
        env: dict[Value, Any] = {}
        context = Env(extents, lambda block, args: self.block(block, args, env, context), self.wide)
        named = [rounded(x, v.element, context) for x, v in zip(named, func.args, strict=True)]
        with np.errstate(all="ignore"):
            results = self.block(func.body, tuple(named), env, context)
        outs = zip(results, func.outputs, func.out_layouts, strict=True)
        return tuple(from_axes(x, v.tensor.names, layout) for x, v, layout in outs)

    def block(self, block: Block, args: Arrays, env: dict[Value, Any], context: Env) -> Arrays:
        env.update(zip(block.args, args, strict=True))
        for op in block.ops:
            results = self.op(op, env, context)
            if self.observe is not None:
                self.observe(op, results)
            env.update(zip(op.results, results, strict=True))
        return tuple(env[v] for v in block.yields)

    def op(self, op: Op, env: Mapping[Value, Any], context: Env) -> Arrays:
        args: list[Any] = []
        for name in op.fields.operands:
            given: Value | tuple[Value, ...] | None = getattr(op, name)
            if isinstance(given, tuple):
                args += [env[v] for v in given]
            else:
                args.append(None if given is None else env[given])
        result = op.evaluate(tuple(args), context)
        return tuple(result) if op.regions else (result,)


def to_axes(array: np.ndarray, layout: Layout, type: TensorType, extents: dict[str, int], name: str) -> np.ndarray:
    """A positional array as one whose axes are those of the type; runtime extents are read off its shape."""
    if array.ndim != len(layout.groups):
        raise Error(f"{name}: expected {len(layout.groups)} dimensions ({layout}), got shape {array.shape}")
    shape: list[int] = []
    for group, length in zip(layout.groups, array.shape, strict=True):
        known = prod(e for n in group if isinstance(e := type.extents[n], int))
        for axis in group:
            extent = type.extents[axis]
            if not isinstance(extent, int):
                here = length // known if known else 0
                if extents.setdefault(axis, here) != here or here > bound(extent):
                    raise Error(f"{name}: axis {axis} has extent {here}, expected {extents[axis]}, at most {bound(extent)}")
                extent = here
            shape.append(extent)
        if prod(shape[len(shape) - len(group) :]) != length:
            raise Error(f"{name}: dimension {group} has length {length}, expected {' x '.join(map(str, shape[-len(group) :]))}")
    return np.transpose(array.reshape(shape), [layout.names.index(n) for n in type.names])


def from_axes(array: np.ndarray, names: tuple[str, ...], layout: Layout) -> np.ndarray:
    """The positional array that a layout describes."""
    array = np.transpose(array, [names.index(n) for n in layout.names])
    lengths = dict(zip(layout.names, array.shape, strict=True))
    return array.reshape([prod(lengths[n] for n in group) for group in layout.groups])


def run(func: Func, *arrays: Any, wide: bool = False) -> tuple[np.ndarray, ...]:
    """Execute a function in NumPy: ``run(func, q, k, v)``."""
    return Interpreter(wide).run(func, *arrays)

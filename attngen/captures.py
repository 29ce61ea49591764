"""Arrays that a program reads without naming them as inputs: captured ones, indexed by traced values.

`table[q_idx]` becomes an input that the kernel gets on each call. Where the index is just the coordinate along an axis, the
array is read as a tensor with that axis; any other index is computed and looked up by `nd.gather`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from attngen.arithmetic import Operand
from attngen.ir import build
from attngen.ir.core import Value, constant_value
from attngen.ir.nd import Gather, Index
from attngen.ir.types import Axis, Layout, TensorType, bound
from attngen.names import kind_of
from attngen.specs import read_dtype, show_shape
from attngen.torch_arrays import shared
from attngen.tracing import Captured, Trace, current, user_error

Array = np.ndarray[Any, Any]
Group = tuple[str, ...]
"""Axes that share one dimension of an array."""


def read_table(array: Array, keys: Sequence[Operand], name: str = "captured") -> Value:
    """The element of an array at these coordinates, one per dimension."""
    trace = current()
    if len(keys) != array.ndim:
        raise user_error(
            f"{name} of shape {show_shape(array.shape)} is indexed by {len(keys)} traced coordinates",
            help=f"index all {array.ndim} dimensions at once: {name}[{', '.join('xyzuvw'[: array.ndim])}]",
        )
    selection: list[int | slice] = []
    groups: list[Group | None] = []
    at: list[Value] = []
    for d, (key, length) in enumerate(zip(keys, array.shape, strict=True)):
        number = constant_coordinate(key, f"{name}, dimension {d}")
        if isinstance(key, Value) and number is None:
            group = whole_axes(trace, key)
            if set(group) & {n for g in groups for n in g or ()}:
                group = ()
            extent = prod(length_of(trace, n) for n in group) if group else length
            if extent > length:
                raise user_error(
                    f"{name} of shape {show_shape(array.shape)} is too short: dimension {d} is indexed by a coordinate that "
                    f"goes up to {extent - 1}",
                    help=f"expected at least {extent} elements in this dimension",
                )
            selection.append(slice(0, extent))
            groups.append(group or None)
            if not group and trace.counted is not None and set(trace.counted.names) <= set(key.names):
                key = build.select(trace.counted, key, 0)
            at += [] if group else [key]
        elif number is None or not -length <= number < length:
            raise user_error(f"{name} of shape {show_shape(array.shape)} is indexed at {number} in dimension {d}")
        else:
            selection.append(number % length)
    table = _table(trace, array[(*selection, ...)], name, tuple(groups))
    over = tuple(n for n in table.names if n not in {n for g in groups for n in g or ()})
    return Gather(table=table, at=tuple(at), over=over).result if over else table


def _table(trace: Trace, view: Array, name: str, groups: tuple[Group | None, ...]) -> Value:
    """The parameter that reads a view, the same for all reads that call its axes alike; None: an axis that is looked up."""
    interface = view.__array_interface__
    identity = (interface["data"][0], view.shape, view.strides, view.dtype.str)
    if (identity, groups) not in trace.tables:
        name = name if name.isidentifier() and name.isascii() else "captured"
        named: list[Group] = []
        axes: list[Axis] = []
        for group, length in zip(groups, view.shape, strict=True):
            if group is None:
                group = (trace.fresh(name),)
                trace.extents[group[0]] = length
            named.append(group)
            axes += [(n, trace.extents[n]) for n in group]
        layout, type = Layout(tuple(named)), TensorType(tuple(axes), read_dtype(view.dtype, name))
        # One input per way to read it: whether two ways read equally much of an array is no part of the function.
        name = trace.unused(name)
        trace.captured[name] = Captured(view, layout, type)
        trace.tables[identity, groups] = trace.read(name, name, layout, type)
    return trace.tables[identity, groups]


def constant_coordinate(key: Operand, what: str) -> int | None:
    """The coordinate where it is known; an error where the key is no coordinate."""
    if isinstance(key, Value):
        if not key.element.is_integer:
            raise user_error(
                f"{what}: a coordinate must be a whole number, got {key.element}",
                help="for a condition, use attngen.where",
            )
        known = constant_value(key)
        return None if known is None or key.names else int(known)
    if isinstance(key, bool | float):
        raise user_error(f"{what}: a coordinate must be a whole number, got {key!r}")
    return key


def whole_axes(trace: Trace, key: Value) -> Group:
    """The axes that a value is the whole coordinate along: of an index its axis; none for a computed value."""
    names = trace.coordinates.get(key, ())
    if not names and isinstance(key.op, Index) and key.op.range is None:
        names = key.names
    return names if all(isinstance(trace.extents[n], int) or n in trace.lengths for n in names) else ()


def length_of(trace: Trace, axis: str) -> int:
    """How long a captured array is along an axis, in the call that is traced for."""
    return trace.lengths.get(axis, bound(trace.extents[axis]))


def as_array(x: Any, name: str) -> Array:
    """A captured NumPy array, or torch tensor in the memory of this machine, as a NumPy array on the same memory."""
    if isinstance(x, np.ndarray):
        return np.asarray(x)  # pyright: ignore[reportUnknownArgumentType]
    if not hasattr(x, "detach"):
        raise user_error(f"{name}: expected an array, got {kind_of(x)}", help="convert it by np.asarray")
    tensor = x.detach()
    if tensor.device.type != "cpu":
        raise user_error(f"{name}: a tensor on the device {tensor.device} cannot be read here", help=f"capture {name}.cpu()")
    return shared(tensor)

"""The same computation with its axes renamed: traced again, back to the arrays it reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from attngen.ir.core import Op, Value
from attngen.ir.types import AXIS_NAME
from attngen.tracing import Trace, current, user_error


def rename_axes(value: Value | float, names: Mapping[str, Any]) -> Value:
    """The value with axis a called names[a]; every array it depends on through a is read again under the new name."""
    if not isinstance(value, Value):
        raise user_error(f"rename: expected a traced value, got the number {value}")
    trace = current()
    if len(set(names.values())) != len(names):
        raise user_error("rename: two axes would get one name", help=f"given {dict(names)}")
    for old, new in names.items():
        if old not in value.names:
            raise user_error(f"rename: there is no axis {old} to rename", help=f"the value has {shown(value)}")
        if not isinstance(new, str) or not AXIS_NAME.match(new):
            raise user_error(f"rename: {new!r} is no axis name", help="use letters, digits and _")
        if new in value.names and new not in names:
            raise user_error(
                f"rename: {old} cannot become {new}, an axis that the value has already", help=f"it has {shown(value)}"
            )
        extent = value.tensor.extents[old]
        if trace.extents.setdefault(new, extent) != extent:
            raise user_error(
                f"rename: {old} has extent {extent}, but {new} has {trace.extents[new]} in this program",
                help="axes of one name have one extent; use another name",
            )
    return _renamed(trace, value, names)


def _renamed(trace: Trace, value: Value, names: Mapping[str, str]) -> Value:
    names = {old: new for old, new in names.items() if old in value.names and old != new}
    if not names:
        return value
    key = (value, frozenset(names.items()))
    found = trace.renamed.get(key)
    if found is None:
        op = value.op
        found = trace.reread(value, names) if op is None else _rebuild(trace, op, names).results[value.index]
        trace.renamed[key] = found
    return found


def _rebuild(trace: Trace, op: Op, names: Mapping[str, str]) -> Op:
    # A summed axis that has one of the new names already would be captured, so it gets a name of its own.
    names = dict(names)
    inner = {axis: extent for v in op.operands for axis, extent in v.tensor.axes if axis not in op.result.names}
    for axis, extent in inner.items():
        if axis in names.values():
            names[axis] = trace.fresh(axis)
            trace.extents[names[axis]] = extent

    def renamed(x: Any) -> Any:
        match x:
            case Value():
                return _renamed(trace, x, names)
            case str():
                return names.get(x, x)
            case tuple():
                return tuple(renamed(item) for item in x)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            case _:
                return x

    changes = {
        f: renamed(getattr(op, f))
        for f in (*op.fields.operands, *op.fields.attributes)
        if f in _HOLDS_AXES or f in op.fields.operands
    }
    return dataclasses.replace(op, **changes)


_HOLDS_AXES = ("over", "axis", "axes")
"""Attributes of ops that hold axis names."""


def shown(value: Value) -> str:
    return f"axes {', '.join(value.names)}" if value.names else "no axes"

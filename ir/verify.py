"""The verifier: what must hold of every function, as a list of named checks that reads as the contract of the IR."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import cast

from attngen.ir.core import Block, Op, Value, label
from attngen.ir.diagnostics import IRError
from attngen.ir.func import Func
from attngen.ir.loop import For, Parallel, Store
from attngen.ir.types import Axis, Extent, RangeType, TensorType, UpTo

Check = Callable[[Func], Iterable[IRError]]


def verify(func: Func) -> None:
    """Raise the first thing that is wrong with a function."""
    for check in CHECKS:
        for error in check(func):
            raise error


def single_definition(func: Func) -> Iterable[IRError]:
    """Every value is defined once."""
    seen: set[Value] = set()

    def define(values: Iterable[Value], op: Op | None) -> Iterable[IRError]:
        for v in values:
            if v in seen:
                yield complain(func, op, f"{label(v)} is defined twice", v)
            seen.add(v)

    def block(b: Block, owner: Op | None) -> Iterable[IRError]:
        yield from define(b.args, owner)
        for op in b.ops:
            yield from define(op.results, op)
            for region in op.regions:
                yield from block(region, op)

    yield from block(func.body, None)


def dominance(func: Func) -> Iterable[IRError]:
    """Every value is defined above its use, in the same block or one around it."""

    def block(b: Block, visible: frozenset[Value], owner: Op | None) -> Iterable[IRError]:
        here = set(visible) | set(b.args)
        for op in b.ops:
            for v in op.operands:
                if v not in here:
                    yield complain(func, op, f"{label(v)} is used where it is not defined", v)
            for region in op.regions:
                yield from block(region, frozenset(here), op)
            here.update(op.results)
        for v in b.yields:
            if v not in here:
                yield complain(func, owner or v.op, f"{label(v)} is handed on where it is not defined", v)

    yield from block(func.body, frozenset(), None)


def types_follow(func: Func) -> Iterable[IRError]:
    """Every result has the type that the op's rule gives."""
    for op in func.walk():
        want, got = op.infer(), tuple(v.type for v in op.results)
        if want != got:
            yield complain(func, op, f"has results {', '.join(map(str, got))}, its rule gives {', '.join(map(str, want))}")


def signature(func: Func) -> Iterable[IRError]:
    """Parameters and outputs are tensors whose layouts name exactly their axes."""
    if len(func.params) != len(func.args) or len(func.out_layouts) != len(func.outputs):
        yield complain(func, None, "the signature does not fit the body")
        return
    names = [p.name for p in func.params]
    for name in names:
        if names.count(name) > 1:
            yield complain(func, None, f"two parameters are named {name}")
    layouts = [(p.name, v, p.layout) for p, v in zip(func.params, func.args, strict=True)]
    layouts += [("an output", v, layout) for v, layout in zip(func.outputs, func.out_layouts, strict=True)]
    for name, v, layout in layouts:
        if not isinstance(v.type, TensorType):
            yield complain(func, v.op, f"{name} is no tensor but {v.type}")
        elif set(layout.names) != set(v.names):
            yield complain(func, v.op, f"{name} has the layout {str(layout)!r}, which does not fit {v.type}")


def one_extent_per_axis(func: Func) -> Iterable[IRError]:
    """Outside of loops an axis name has one extent in the whole function, which the loops cut; a parameter tells each
    runtime extent."""
    extents: dict[str, tuple[Extent, Value]] = {}
    for v in (*func.args, *(r for op in func.body.ops for r in op.results)):
        for name, extent in v.type.axes if isinstance(v.type, TensorType) else ():
            known, first = extents.setdefault(name, (extent, v))
            if known != extent:
                message = f"axis {name} has extent {known} in {label(first)} and {extent} in {label(v)}"
                yield complain(func, v.op, message, v, help="give one of the axes another name")
            if first is v and v.op is not None and isinstance(extent, UpTo):
                yield complain(func, v.op, f"no parameter tells how long axis {name} is", v)
    for op in func.walk():
        for name, extent in loop_axes(op):
            if name in extents and extents[name][0] != extent:
                yield complain(func, op, f"the loop runs over {name}={extent}, the axis has {extents[name][0]}")


def loop_axes(op: Op) -> tuple[Axis, ...]:
    if isinstance(op, Parallel):
        return tuple(zip(op.axes, op.extents, strict=True))
    return ((op.axis, op.extent),) if isinstance(op, For) else ()


def axes_named_once(func: Func) -> Iterable[IRError]:
    """No op reduces, looks up, cuts or selects along an axis twice."""
    for op in func.walk():
        over: object = op.attributes.get("over", ())
        if not isinstance(over, tuple):
            yield complain(func, op, f"over must be a tuple of axis names, not {over!r}")
            continue
        ranges: tuple[Value, ...] = getattr(op, "ranges", ()) if "ranges" in op.fields.operands else ()
        selected = [v.type.axis for v in ranges if isinstance(v.type, RangeType)]
        for names in (list(cast(tuple[str, ...], over)), selected, [name for name, _ in loop_axes(op)]):
            for name in names:
                if names.count(name) > 1:
                    yield complain(func, op, f"names axis {name} twice")


def parts_are_written(func: Func) -> Iterable[IRError]:
    """Each part of a parallel loop writes its own place in every result; nothing else is written to, or read there."""
    places: dict[Value, Op] = {}
    for op in func.walk():
        if isinstance(op, Parallel):
            ranges, outs = op.body.args[: len(op.axes)], op.body.args[len(op.axes) :]
            for out, written in zip(outs, op.body.yields, strict=True):
                store = written.op
                if not isinstance(store, Store) or store.target is not out or set(store.ranges) != set(ranges):
                    shown = ", ".join(map(label, (out, *ranges)))
                    yield complain(func, op, f"the body must yield, for {label(out)}, a tile.store to {shown}", written)
                else:
                    places[out] = store
    for op in func.walk():
        if isinstance(op, Store) and places.get(op.target) is not op:
            yield complain(func, op, f"{label(op.target)} is not the place of a result of the loop around it", op.target)
        for v in op.operands:
            if v in places and places[v] is not op:
                yield complain(func, op, f"{label(v)} is being written, and cannot be read", v)


CHECKS: tuple[Check, ...] = (
    single_definition,
    dominance,
    types_follow,
    signature,
    one_extent_per_axis,
    axes_named_once,
    parts_are_written,
)


def complain(func: Func, op: Op | None, message: str, at: Value | None = None, help: str = "") -> IRError:
    if op is None:
        return IRError("verify", f"@{func.name}: {message}", help=help)
    return op.error(message, at=at, help=help)

"""The verifier refuses wrong IR, each kind for its own reason."""

from __future__ import annotations

import dataclasses

import pytest

from attngen.ir.core import Block, Op, Value, argument
from attngen.ir.diagnostics import Error, IRError
from attngen.ir.elementwise import Add, Cast, Exp
from attngen.ir.func import Func, Param
from attngen.ir.loop import For, Load, Parallel, Store
from attngen.ir.nd import Constant, Contract, Expand, Gather, Index, Reduce
from attngen.ir.types import F32, Extent, Layout, RangeType, TensorType, UpTo
from attngen.ir.verify import verify


def tensor(name: str = "a", **axes: Extent) -> Value:
    return argument(TensorType(tuple(axes.items()), F32), name)


def func(args: tuple[Value, ...], ops: tuple[Op, ...], yields: tuple[Value, ...]) -> Func:
    def layout(v: Value) -> Layout:
        return Layout.parse(" ".join(v.names))

    params = tuple(Param(a.hint, layout(a)) for a in args)
    return Func("f", params, Block(args, ops, yields), tuple(map(layout, yields)))


def refused(f: Func, message: str) -> None:
    with pytest.raises(IRError, match=message):
        verify(f)


A = tensor(i=4)
E = Exp(value=A)


def test_definitions_and_uses() -> None:
    verify(func((A,), (E,), E.results))
    other, second = tensor("z", i=4), Exp(value=E.result)
    refused(func((A,), (Exp(value=other),), (A,)), "%z is used where it is not defined")
    refused(func((A,), (second, E), second.results), "%exp is used where it is not defined")
    refused(func((A,), (E, E), E.results), "%exp is defined twice")
    refused(func((A,), (), E.results), "%exp is handed on where it is not defined")


def test_the_signature() -> None:
    good = func((A,), (E,), E.results)
    refused(func((A, tensor(i=4)), (), (A,)), "two parameters are named a")
    refused(dataclasses.replace(good, params=(Param("a", Layout.parse("j")),)), "a has the layout 'j'")
    refused(dataclasses.replace(good, out_layouts=()), "signature does not fit")


def test_types_and_extents() -> None:
    op = Exp(value=A)
    op.result.type = TensorType((("j", 4),), F32)
    refused(func((A,), (op,), op.results), "its rule gives")
    refused(func((A, tensor("c", i=5)), (), (A,)), "axis i has extent 4 in %a and 5 in %c")
    index = Index(axis="q", extent=UpTo(5))
    cast = Cast(value=index.result, to=F32)
    refused(func((A,), (index, cast), cast.results), "no parameter tells how long axis q is")


def test_an_axis_is_named_once() -> None:
    a, b = tensor(i=4, d=3), tensor("b", j=4, d=3)
    contract = Contract(lhs=a, rhs=b, over=("d", "d"), acc=F32)
    refused(func((a, b), (contract,), contract.results), "names axis d twice")
    total = Reduce(value=a, kind="sum", over=("d", "d"), acc=F32)
    refused(func((a,), (total,), total.results), "names axis d twice")
    index = Index(axis="k", extent=3)
    gather = Gather(table=A, at=index.results * 2, over=("i", "i"))
    refused(func((A,), (index, gather), gather.results), "names axis i twice")
    text = Reduce(value=a, kind="sum", over="d", acc=F32)  # pyright: ignore[reportArgumentType]
    refused(func((a,), (text,), text.results), "over must be a tuple of axis names, not 'd'")


def nest(outs: int = 1) -> tuple[Value, list[Value], Load, Exp]:
    at = argument(RangeType("i", 2), "at")
    load = Load(source=A, ranges=(at,))
    return at, [tensor(f"out{k}", i=4) for k in range(outs)], load, Exp(value=load.result)


def parallel(at: Value, outs: list[Value], ops: tuple[Op, ...], yields: tuple[Value, ...], extent: int = 4) -> Func:
    op = Parallel(axes=("i",), extents=(extent,), steps=(2,), body=Block((at, *outs), ops, yields))
    return func((A,), (op,), op.results)


def test_every_part_writes_its_place() -> None:
    at, outs, load, e = nest(2)
    first, second = (Store(value=v.result, target=out, ranges=(at,)) for v, out in zip((load, e), outs, strict=True))
    ops = (load, e, first, second)
    verify(parallel(at, outs, ops, (first.result, second.result)))
    refused(parallel(at, outs, ops, (second.result, first.result)), "must yield, for %out0, a tile.store to %out0, %at")
    refused(parallel(at, outs, (), tuple(outs)), "must yield, for %out0")
    refused(parallel(at, outs, (), (A, A)), "must yield, for %out0")
    refused(parallel(at, outs, ops, (first.result, second.result), extent=2), "runs over i=2, the axis has 4")
    again = Store(value=e.result, target=outs[0], ranges=(at,))
    refused(parallel(at, outs, (*ops, again), (first.result, second.result)), "%out0 is not the place of a result")
    read = Load(source=outs[0], ranges=(at,))
    refused(parallel(at, outs, (*ops, read), (first.result, second.result)), "%out0 is being written, and cannot be read")


def test_parts_that_overwrite_each_other() -> None:
    at, _, load, _ = nest()
    out = tensor("out", j=8)
    row = Reduce(value=load.result, kind="sum", over=("i",), acc=F32)
    wide = Expand(value=row.result, axes=(("j", 8),))
    store = Store(value=wide.result, target=out, ranges=())
    op = Parallel(axes=("i",), extents=(4,), steps=(2,), body=Block((at, out), (load, row, wide, store), store.results))
    refused(func((A,), (op,), op.results), "a tile.store to %out, %at")


def test_loops_run_over_whole_axes_and_see_only_what_is_around_them() -> None:
    a = tensor(i=4, j=8)
    start = Constant(value=0.0, element=F32)
    init = Expand(value=start.result, axes=(("i", 4),))

    def loop(extent: Extent, merge: Block | None = None) -> For:
        part, carried = argument(RangeType("j", 2 if extent == 8 else UpTo(2)), "part"), tensor("sum", i=4)
        load = Load(source=a, ranges=(part,))
        partial = Reduce(value=load.result, kind="sum", over=("j",), acc=F32)
        new = Add(lhs=carried, rhs=partial.result)
        body = Block((part, carried), (load, partial, new), new.results)
        return For(inits=init.results, axis="j", extent=extent, step=2, body=body, merge=merge)

    good = loop(8)
    verify(func((a,), (start, init, good), good.results))
    long = loop(UpTo(9))
    refused(func((a,), (start, init, long), long.results), "runs over j=\\?<=9, the axis has 8")
    outside = loop(8, Block((tensor("x", i=4), tensor("y", i=4)), (), good.body.yields))
    refused(func((a,), (start, init, outside), outside.results), "handed on where it is not defined")
    twice = dataclasses.replace(good, inits=good.results)
    refused(func((a,), (start, init, good, twice), twice.results), "%part is defined twice")


def test_what_does_not_type_check_cannot_be_built() -> None:
    with pytest.raises(Error, match="appears twice"):
        Expand(value=A, axes=(("j", 3), ("j", 3)))

"""Sums and maxima of tiles: first in the registers of a thread, then among the lanes that share a row or a column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attngen.backends.cuda.tensor_cores.intrinsics.elementwise import FLOATS, TRUTHS, WHOLE, is_float, whole_type, widened
from attngen.backends.cuda.tensor_cores.intrinsics.emitter import I1, I32, I64, Emitter, intrinsic
from attngen.backends.cuda.tensor_cores.tiles import Carrier, Place, Tile

STEPS = {"sum": "nd.add", "max": "nd.max", "min": "nd.min"}
TRUTH_STEPS = {"max": "nd.or", "min": "nd.and"}


def combine(e: Emitter, kind: str, element: Carrier, a: Any, b: Any) -> Any:
    if element == "i1":
        return TRUTHS[TRUTH_STEPS[kind]](e, [a, b])
    return (FLOATS if is_float(element) else WHOLE)[STEPS[kind]](e, [a, b])


def tree(e: Emitter, kind: str, element: Carrier, values: Sequence[Any]) -> Any:
    """Pairs of pairs: short chains of dependent instructions."""
    values = list(values)
    while len(values) > 1:
        pairs = [combine(e, kind, element, a, b) for a, b in zip(values[::2], values[1::2], strict=False)]
        values = pairs + values[len(pairs) * 2 :]
    return values[0]


def exchanged(e: Emitter, x: Any, lanes: int) -> Any:
    """The value of the lane whose number differs in these bits."""
    if x.type == I64:
        low, high = e.b.trunc(x, I32), e.b.trunc(e.b.lshr(x, e.i64(32)), I32)
        low, high = exchanged(e, low, lanes), exchanged(e, high, lanes)
        return e.b.or_(e.b.zext(low, I64), e.b.shl(e.b.zext(high, I64), e.i64(32)))
    if x.type == I1:
        return e.b.icmp_unsigned("!=", exchanged(e, e.b.zext(x, I32), lanes), e.i32(0))
    return e.asm(f"shfl.sync.bfly.b32 $0, $1, {lanes}, 31, -1;", [x.type], [x], effect=True)


def among(e: Emitter, kind: str, element: Carrier, x: Any, lanes: Sequence[int]) -> Any:
    for bit in lanes:
        x = combine(e, kind, element, x, exchanged(e, x, bit))
    return x


def reduce(name: str, kind: str, operand: Tile, result: Tile) -> Any:
    """Over the columns: four neighbouring lanes hold a row."""

    def body(e: Emitter, value: Any) -> Any:
        rows: list[Any] = []
        for r in range(2 if result.layout == "row" else 1):
            columns = [e.get(value, operand, Place(n, r, c)) for n in range(operand.blocks) for c in range(2)]
            rows.append(among(e, kind, operand.element, tree(e, kind, operand.element, columns), (1, 2)))
        if result.element in ("i32", "i64"):
            rows = [widened(e, x, whole_type(result.element)) for x in rows]
        return e.tile(result, rows)

    return intrinsic(name, result, [operand], body)


def reduce_warp(name: str, kind: str, element: Carrier) -> Any:
    """One value of each lane, over the whole warp."""
    tile = Tile("one", element)

    def body(e: Emitter, x: Any) -> Any:
        return among(e, kind, element, x, (1, 2, 4, 8, 16))

    return intrinsic(name, tile, [tile], body)


def step(name: str, kind: str, element: Carrier) -> Any:
    """Two values combined."""
    tile = Tile("one", element)

    def body(e: Emitter, a: Any, b: Any) -> Any:
        return combine(e, kind, element, a, b)

    return intrinsic(name, tile, [tile, tile], body)

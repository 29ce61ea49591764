"""Which values are computed wherever they are read, and what has to be at hand for that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attngen.backends.cuda.scalar.ops import MOST_QUICK, QUICK
from attngen.backends.cuda.scalar.steps import Copy, Partial, Put, Slot, Space, Work
from attngen.ir import elementwise as ew
from attngen.ir.core import Op, Value, uses, walk
from attngen.ir.loop import Bound, For, If, Load, Parallel, Store
from attngen.ir.nd import Constant, Contract, Expand, Gather, Index, Reduce
from attngen.ir.types import Axis, Extent, TensorType


class Reads:
    """What is known of the values of one nest."""

    def __init__(self, nest: Parallel, arrays: Mapping[Value, str]) -> None:
        """arrays: those in global memory, and the axis that is likely to be contiguous in them."""
        self.nest, self.arrays = nest, arrays
        self.aliases: dict[Value, Value] = {}
        """Values that are others under another name."""
        self.slots: dict[Value, Slot] = {}
        self.orders: dict[Space, tuple[Axis, ...]] = {}
        self.cut = {*nest.axes, *(op.axis for op in walk(nest.body) if isinstance(op, For))}
        self.known: dict[Value, frozenset[Op]] = {}
        self.users: dict[Value, list[Op]] = {}
        for op in walk(nest.body):
            for value in op.operands:
                self.users.setdefault(value, []).append(op)

    def resolve(self, value: Value) -> Value:
        while value in self.aliases:
            value = self.aliases[value]
        return value

    def unit(self, axis: str, extent: Extent) -> bool:
        """Whether there is one coordinate: a part of a loop is never empty."""
        return extent == 1 or not isinstance(extent, int) and extent.bound == 1 and axis in self.cut

    def axes(self, value: Value) -> tuple[Axis, ...]:
        """The axes that count."""
        return tuple(axis for axis in value.tensor.axes if not self.unit(*axis))

    def space(self, value: Value) -> Space:
        return frozenset(self.axes(value))

    def ordered_axes(self, value: Value) -> tuple[Axis, ...]:
        """The axes in the order in which threads run over this space, the same one in all phases."""
        return self.orders.setdefault(self.space(value), self.axes(value))

    def virtual(self, value: Value) -> bool:
        """Whether a value is computed wherever it is read."""
        op = value.op
        if op is None or value in self.arrays:
            return False
        if not self.axes(value):
            return isinstance(op, Constant | Index | Expand | Bound)
        if isinstance(op, Load | Expand | Index):
            return True
        if isinstance(op, ew.Cast) and self.virtual(self.resolve(op.value)):
            return True
        return 0 < len(self.quick(value)) <= MOST_QUICK or self.follows(value)

    def follows(self, value: Value) -> bool:
        """Whether a value is one quick step from a tile that is stored anyway, since a reduction reads it. Then it is not.
        (Contractions read their operands too often for that.)"""
        op = value.op
        if not isinstance(op, QUICK):
            return False
        tiles = {x for x in map(self.resolve, op.operands) if isinstance(x.type, TensorType) and self.axes(x)}
        if len(tiles) != 1 or any(isinstance(user, Contract) for user in self.users.get(value, ())):
            return False
        (tile,) = tiles
        read = any(isinstance(user, Reduce | Contract) for user in self.users.get(tile, ()))
        return read and self.space(tile) == self.space(value) and not self.virtual(tile) and tile not in self.arrays

    def quick(self, value: Value) -> frozenset[Op]:
        """All ops that make a value of coordinates, constants and variables; none if it takes more than that."""
        value = self.resolve(value)
        if value not in self.known:
            self.known[value] = self.find_quick(value)
        return self.known[value]

    def find_quick(self, value: Value) -> frozenset[Op]:
        op = value.op
        if op is None or not isinstance(op, QUICK) or value in self.arrays:
            return frozenset()
        found = {op}
        for x in map(self.resolve, op.operands):
            if isinstance(x.type, TensorType) and self.axes(x):
                parts = self.quick(x)
                if not parts or len(found) + len(parts) > MOST_QUICK + 1:
                    return frozenset()
                found |= parts
        return frozenset(found)

    def sources(self, values: Iterable[Value], far: bool = False) -> dict[Value, bool]:
        """What has to be at hand where values are read, and whether also at other elements than the one that is computed."""
        found: dict[Value, bool] = {}
        for value in map(self.resolve, values):
            if not isinstance(value.type, TensorType) or value in self.arrays:
                continue
            below = {value: far}
            if self.virtual(value) and value.op is not None:
                below = self.sources(value.op.operands, far or isinstance(value.op, Load))
            for x, there in below.items():
                found[x] = there or found.get(x, False)
        return found

    def reads(self, work: Work) -> dict[Value, bool]:
        match work:
            case Put() | Copy():
                return self.sources((work.value,))
            case Partial():
                return self.sources(work.op.operands)
            case For():
                inner = uses(work) - set(work.inits) | set(work.limits)
                return self.sources(inner, True) | dict.fromkeys(work.body.args[1:], True)
            case If():
                return self.sources(uses(work), True)
            case Store():
                return self.sources((work.value,))
            case Gather():
                found = self.sources(work.at)
                return found | self.sources((work.table,), True)
            case _:
                return self.sources(work.operands)

    def made(self, work: Work) -> tuple[Value, ...]:
        match work:
            case Put():
                return () if work.starts is None else (work.starts,)
            case Store():
                return ()
            case Partial() | Copy():
                return (work.result,)
            case _:
                return work.results

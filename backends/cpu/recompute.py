"""Which values a chain computes for itself, element by element, instead of reading them from memory."""

from __future__ import annotations

from collections.abc import Iterable

from attngen.backends.cpu.counting import counted
from attngen.ir import elementwise as ew
from attngen.ir.core import Op, Value
from attngen.ir.nd import Constant, Expand, Index
from attngen.ir.types import Axis, TensorType

QUICK = (
    *(ew.Add, ew.Sub, ew.Mul, ew.Neg, ew.Abs, ew.Max, ew.Min),
    *(ew.Compare, ew.And, ew.Or, ew.Not, ew.Select, ew.Cast, Expand),
)
"""Ops of about one instruction."""
MOST = 16
"""How many ops a value may take that is computed again wherever it is read."""


class Recomputed:
    """Constants, coordinates, and the few quick ops that make masks and distances from them.

    Such a value is never stored for a chain: a load costs as much as computing it, and along the axes that it lacks the
    chain's registers hold it anyway. Integers and truth values may start from tiles in memory too; floats only from
    coordinates and from what is one number for the whole tile (a slope per head).
    """

    def __init__(self) -> None:
        self.known: dict[Op, frozenset[Op]] = {}

    def __contains__(self, value: Value) -> bool:
        return value.op is not None and bool(self.ops(value.op))

    def ops(self, op: Op) -> frozenset[Op]:
        """All that is to be computed for an op that is recomputed, itself included; nothing for any other op."""
        if op not in self.known:
            self.known[op] = frozenset(self.find(op))
        return self.known[op]

    def find(self, op: Op) -> set[Op]:
        if isinstance(op, Constant | Index):
            return {op}
        if not isinstance(op, QUICK) or counted(op):
            return set()
        values = [value for value in op.operands if isinstance(value.type, TensorType)]
        parts = [self.ops(value.op) if value.op is not None else frozenset[Op]() for value in values]
        if op.result.element.is_float:
            if isinstance(op, Expand) or not long_axes(op.result):
                return set()
            fits = all(part or not long_axes(value) for value, part in zip(values, parts, strict=True))
        else:
            fits = not any(value.element.is_float and not part for value, part in zip(values, parts, strict=True))
        found = {op}.union(*parts)
        return found if fits and len(found) <= MOST else set()

    def sources(self, values: Iterable[Value]) -> set[Value]:
        """What has to be at hand where the values are read: those that are recomputed are replaced by what they come from."""
        found, waiting, seen = set[Value](), list(values), set[Value]()
        while waiting:
            value = waiting.pop()
            if value in self and value.op is not None:
                waiting += [x for x in value.op.operands if x not in seen]
                seen.update(value.op.operands)
            else:
                found.add(value)
        return found


def long_axes(value: Value) -> frozenset[Axis]:
    """The axes of more than one element."""
    return frozenset(axis for axis in value.tensor.axes if axis[1] != 1)

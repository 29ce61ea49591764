"""Which coordinates fit 32 bits, the width that a GPU computes with: bounds of integer expressions."""

from __future__ import annotations

from collections.abc import Mapping

from attngen.backends.cuda.ops import Cut, Pad
from attngen.ir import elementwise as ew
from attngen.ir.core import Op, Value
from attngen.ir.loop import Bound, Load
from attngen.ir.nd import Constant, Expand, Index, Reduce
from attngen.ir.types import ElementType

Span = tuple[int, int]
WIDE = -(1 << 63), (1 << 63) - 1
NARROW = -(1 << 31), (1 << 31) - 1
TYPES: Mapping[ElementType, Span] = {
    ElementType.I8: (-128, 127),
    ElementType.I1: (0, 1),
    ElementType.I32: NARROW,
}


class Widths:
    """longest: the largest extent of each axis, what tiles are padded with included."""

    def __init__(self, longest: Mapping[str, int]) -> None:
        self.longest = longest
        self.memo: dict[Value, Span] = {}

    def narrow(self, x: Value) -> bool:
        """Whether every element of an index is known to fit 32 bits."""
        low, high = self.span(x)
        return NARROW[0] <= low and high <= NARROW[1]

    def span(self, x: Value) -> Span:
        if x not in self.memo:
            low, high = self.derive(x)
            self.memo[x] = max(low, WIDE[0]), min(high, WIDE[1])
        return self.memo[x]

    def derive(self, x: Value) -> Span:
        op = x.op
        if x.element in TYPES:
            return TYPES[x.element]
        if op is None or x.element.is_float or op.regions:
            return WIDE
        each = (
            [self.span(item) for item in op.operands if item.element.is_integer]
            if not isinstance(op, Index | Bound | Load)
            else []
        )
        return self.of(op, each)

    def of(self, op: Op, each: list[Span]) -> Span:
        match op:
            case Constant():
                return int(op.value), int(op.value)
            case Index():
                return 0, self.longest.get(op.axis or (op.range.range.axis if op.range else ""), WIDE[1])
            case Bound():
                return -1, self.longest.get(op.range.range.axis, WIDE[1])
            case Expand() | Pad() | Cut() | Reduce():
                low, high = each[0]
                return min(low, 0), max(high, 0)
            case ew.Cast() if op.value.element is not ElementType.I1:
                return each[0] if each else WIDE
            case ew.Cast():
                return 0, 1
            case ew.Add():
                return each[0][0] + each[1][0], each[0][1] + each[1][1]
            case ew.Sub():
                return each[0][0] - each[1][1], each[0][1] - each[1][0]
            case ew.Neg():
                return -each[0][1], -each[0][0]
            case ew.Abs():
                return 0, max(map(abs, each[0]))
            case ew.Mul():
                ends = [a * b for a in each[0] for b in each[1]]
                return min(ends), max(ends)
            case ew.FloorDiv() | ew.Mod():
                most = max(abs(end) for span in each for end in span)
                return -most, most
            case ew.Max() | ew.Min() | ew.Select():
                return min(s[0] for s in each), max(s[1] for s in each)
            case _:
                return WIDE

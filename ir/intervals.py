"""Bounds of values, from the facts of the ops they are made of."""

from __future__ import annotations

from attngen.ir.core import Value
from attngen.ir.facts import ANYTHING, Interval
from attngen.ir.rewrite import postorder


class Intervals:
    """Bounds of values; `known` gives those that the ops do not tell, such as of a loop's results."""

    def __init__(self, known: dict[Value, Interval] | None = None, inputs: Interval = ANYTHING) -> None:
        self.bounds: dict[Value, Interval] = dict(known or {})
        self.inputs = inputs

    def __call__(self, x: Value) -> Interval:
        for op in postorder((x,), stop=lambda op: all(r in self.bounds for r in op.results), regions=False):
            operands = tuple(self.bounds.get(v, self.inputs) for v in op.operands)
            for result in op.results:
                if op.regions or not op.operands and not op.attributes:
                    self.bounds.setdefault(result, ANYTHING)
                else:
                    self.bounds.setdefault(result, op.interval(operands))
        return self.bounds.get(x, self.inputs)

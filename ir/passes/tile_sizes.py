"""Which axes `tile` cuts when it is not told, how long the parts are, and why.

Attention's score matrix has a row axis and a reduced axis; the features of query and value are short and stay whole. What
tells them apart, for any program: the axes of a *computed* operand of a reduction, in particular after a non-linear step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod

from attngen.ir.core import Op, Value, constant_value
from attngen.ir.elementwise import Cast, Elementwise
from attngen.ir.func import Func
from attngen.ir.nd import Contract, Reduce, looked_up
from attngen.ir.rewrite import postorder
from attngen.ir.types import ElementType, TensorType, bound

ROWS, REDUCED = 64, 128
"""Rows of a part, and elements of a reduced axis per trip: the scores of one part fill 32 KB in f32."""
MASKED_ROWS, MASKED_REDUCED = 32, 64
"""The same where a mask lies over both: smaller parts leave out more. Half of it over short axes."""
LONGEST = 512
"""Elements of a reduced axis per trip where there are fewer rows: as many scores, up to so many keys; under a mask half."""
SHORT = 256
WHOLE = 512
"""An axis up to this length may stay whole."""
BUDGET = 1 << 16
"""The most elements that the part of any one value may have."""


def choose_steps(func: Func) -> dict[str, int]:
    """The length of a part for every axis that should be cut."""
    extents = all_extents(func)
    wanted = cut_axes(func, extents)
    masked = is_masked(func)
    steps, rows = row_steps(func, extents, wanted, MASKED_ROWS if masked else ROWS)
    for name in (n for n in extents if n in wanted and n not in steps):
        longest = REDUCED if not masked else MASKED_REDUCED if extents[name] > SHORT else MASKED_REDUCED // 2
        steps[name] = min(longest * rows, LONGEST // (1 + masked), max(extents[name], 1))
    whole = looked_up(func.body.ops)
    for type in dict.fromkeys(v.tensor for op in func.body.ops for v in (*op.operands, *op.results)):
        if not whole & set(type.names):
            fit(type, steps)
    return {n: steps[n] for n in extents if n in steps}


def row_steps(func: Func, extents: Mapping[str, int], wanted: Collection[str], rows: int) -> tuple[dict[str, int], int]:
    """Steps of batch axes, and of row axes so that a part has about so many rows; and how many times more rows would fit."""
    steps: dict[str, int] = {}
    for name in reversed([n for n in extents if n in wanted]):
        role = role_of(func, name)
        if role == "batch":
            steps[name] = 1
        elif role == "row":
            steps[name] = max(min(rows, extents[name]), 1)
            rows = max(rows // steps[name], 1)
    return steps, rows


def is_masked(func: Func) -> bool:
    """Whether a boolean varies along both rows and a reduced axis."""
    conditions = {v.names for op in func.body.ops for v in op.results if v.element is ElementType.I1}
    return any({"row", "reduced"} <= {role_of(func, n) for n in names} for names in conditions)


def fit(type: TensorType, steps: dict[str, int]) -> None:
    """Cut further axes, the outermost first, until the part of a value is within the budget."""
    for name, extent in type.axes:
        size = prod(min(steps.get(n, bound(e)), bound(e)) for n, e in type.axes)
        if size <= BUDGET:
            return
        if name not in steps:
            steps[name] = max(bound(extent) * BUDGET // size, 1)


def all_extents(func: Func) -> dict[str, int]:
    values = [*func.args, *(v for op in func.body.ops for v in op.results)]
    return {name: bound(extent) for v in values for name, extent in v.tensor.axes}


def cut_axes(func: Func, extents: dict[str, int]) -> set[str]:
    found: set[str] = set()
    for op in func.body.ops:
        if not isinstance(op, Contract | Reduce):
            continue
        for v in op.operands:
            if isinstance(op, Reduce) or nonlinear(v):
                found |= set(v.names)
            found |= {n for n in v.names if extents[n] > WHOLE}
        found |= {n for n in op.result.names if extents[n] > WHOLE}
    if not found:
        found = {n for v in func.outputs for n in v.names if extents[n] > WHOLE}
    return found


def nonlinear(x: Value) -> bool:
    """Whether elementwise steps other than casts, sums, and products with fewer axes lie between x and the reductions it is
    made of."""

    def other(op: Op) -> bool:
        return not isinstance(op, Elementwise)

    def bends(op: Op) -> bool:
        if op.facts.combination or isinstance(op, Cast):
            return False
        if len(op.facts.multilinear) == 2:
            return all(constant_value(v) is None and set(v.names) == set(op.results[0].names) for v in op.operands)
        return not op.facts.multilinear

    return any(bends(op) for op in postorder((x,), stop=other))


def role_of(func: Func, axis: str) -> str:
    """batch: in both operands of every product; reduced: some reduction runs over it; row: the rest."""
    ops = [op for op in func.body.ops if isinstance(op, Contract | Reduce)]
    if any(axis in op.over for op in ops):
        return "reduced"
    products = [op for op in ops if isinstance(op, Contract) and axis in op.result.names]
    if products and all(axis in op.lhs.names and axis in op.rhs.names for op in products):
        return "batch"
    return "row"


REASONS = {
    "batch": "nothing is shared between its parts, so one at a time",
    "reduced": "a loop runs over it, and no result is as long as it is",
    "row": "each part is worked on alone, and shares what it reads between its rows",
}


def reasons(func: Func, steps: Mapping[str, int]) -> dict[str, str]:
    """Why each axis is cut, and why into parts of this length."""
    chosen, extents, masked = choose_steps(func), all_extents(func), is_masked(func)

    def length(axis: str, role: str) -> str:
        if steps[axis] != chosen.get(axis):
            return "; as long as was asked for"
        if role == "batch":
            return ""
        if steps[axis] >= extents[axis]:
            return "; all of it, since it is short"
        if masked:
            return "; short ones, so that a mask leaves out more of them"
        return "; so long that what is computed of a part fits the first-level cache"

    roles = {axis: role_of(func, axis) for axis in steps}
    return {axis: REASONS[role] + length(axis, role) for axis, role in roles.items()}

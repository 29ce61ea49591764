"""What the threads of a block do together, step by step: phases, and the loops and branches around them.

A phase runs over the elements of one space, each of which belongs to one thread; a thread computes all values of the phase
for its element, and what nothing else reads stays in its registers. The axes of one element do not count: values without other
axes are variables that every thread has.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod

from attngen.ir.core import Op, Value, argument
from attngen.ir.loop import For, If
from attngen.ir.nd import Contract, Reduce
from attngen.ir.types import Axis, TensorType, bound

LANES = "_lanes"
"""The axis of partial results: which share of the elements to be reduced."""
Space = frozenset[Axis]


@dataclass(eq=False)
class Slot:
    """A tile that has a place in memory."""

    type: TensorType
    hint: str = ""


@dataclass(eq=False)
class Partial:
    """A reduction or contraction, each element of which `lanes` threads share: thread n takes every lanes-th coordinate along
    `axis`, from the n-th on."""

    op: Reduce | Contract
    axis: str
    lanes: int
    result: Value = field(init=False)

    def __post_init__(self) -> None:
        own = self.op.result.tensor
        self.result = argument(TensorType((*own.axes, (LANES, self.lanes)), own.element), "part")


@dataclass(eq=False)
class Copy:
    """A value once more, in a place of its own."""

    value: Value
    result: Value = field(init=False)

    def __post_init__(self) -> None:
        self.result = argument(self.value.type, self.value.hint)


@dataclass(eq=False)
class Put:
    """Stores a value in a slot. starts: the carried value whose first one it is; overwrites: the one whose next it is."""

    value: Value
    slot: Slot
    starts: Value | None = None
    overwrites: Value | None = None


Work = Op | Partial | Copy | Put


@dataclass(eq=False)
class Phase:
    """axes: the space, the fastest axis last; reads: the slots it reads, and whether only at the element that is computed;
    puts: what it stores, after all else."""

    axes: tuple[Axis, ...]
    work: list[Op | Partial | Copy]
    reads: dict[Slot, bool]
    puts: list[tuple[Value, Slot]]

    @property
    def size(self) -> int:
        return size(self.axes)


@dataclass(eq=False)
class Loop:
    op: For
    body: list[Step]


@dataclass(eq=False)
class Branch:
    op: If
    then: list[Step]
    otherwise: list[Step]


Step = Phase | Loop | Branch


def size(axes: Iterable[Axis]) -> int:
    return prod(bound(extent) for _, extent in axes)

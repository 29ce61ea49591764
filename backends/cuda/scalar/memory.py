"""Where tiles live: in shared memory as long as there is room, then in the block's part of a workspace in global memory.

Slots whose contents are not needed at the same time share their bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from attngen.backends.cuda.scalar.steps import Branch, Loop, Phase, Slot, Step
from attngen.ir.types import Axis, ElementType, bound

ALIGNED = 16


@dataclass(frozen=True)
class Place:
    """Bytes from `first` on, in shared memory or in the workspace. strides: elements from one coordinate to the next."""

    shared: bool
    first: int
    bytes: int
    element: ElementType
    strides: Mapping[str, int]

    def overlaps(self, other: Place) -> bool:
        return self.shared == other.shared and self.first < other.end and other.first < self.end

    @property
    def end(self) -> int:
        return self.first + self.bytes


@dataclass
class Life:
    """From the step that first writes a slot to the last one that needs it."""

    begin: int
    end: int


def lives(steps: Sequence[Step]) -> dict[Slot, Life]:
    """When each slot is needed. What was written before a loop and is used in it lasts as long as the loop."""
    found: dict[Slot, Life] = {}
    ends = dict[int, int]()

    def walk(steps: Iterable[Step], now: int, loops: tuple[int, ...]) -> int:
        for step in steps:
            match step:
                case Phase():
                    for slot in (*step.reads, *(slot for _, slot in step.puts)):
                        touched.setdefault(slot, []).append((now, loops))
                    now += 1
                case Loop():
                    begin = now
                    now = walk(step.body, now, (*loops, begin)) + 1
                    ends[begin] = now - 1
                case Branch():
                    now = walk(step.otherwise, walk(step.then, now, loops), loops)
        return now

    touched: dict[Slot, list[tuple[int, tuple[int, ...]]]] = {}
    walk(steps, 0, ())
    for slot, times in touched.items():
        begin, around = times[0]
        # The outermost loop of an access that the first one is not in lasts longest.
        last = [next((ends[loop] for loop in loops if loop not in around), now) for now, loops in times]
        found[slot] = Life(begin, max(last))
    return found


def place_slots(steps: Sequence[Step], axes: Mapping[Slot, tuple[Axis, ...]], shared_bytes: int) -> dict[Slot, Place]:
    """A place for each slot. axes: those that count, the fastest last."""
    times = lives(steps)
    shapes = {slot: shape(axes[slot]) for slot in times}
    sizes = {slot: -(-size * slot.type.element.bytes // ALIGNED) * ALIGNED for slot, (size, _) in shapes.items()}
    large_first = sorted(times, key=lambda slot: -sizes[slot])

    def pack(slots: Iterable[Slot], limit: int | None, taken: dict[Slot, int]) -> list[Slot]:
        """Places slots as low as they fit; returns those that do not."""
        left: list[Slot] = []
        for slot in slots:
            life = times[slot]
            others = [x for x in taken if times[x].begin <= life.end and life.begin <= times[x].end]
            ends = sorted({0, *(taken[x] + sizes[x] for x in others)})
            first = next(at for at in ends if all(at + sizes[slot] <= taken[x] or taken[x] + sizes[x] <= at for x in others))
            if limit is not None and first + sizes[slot] > limit:
                left.append(slot)
            else:
                taken[slot] = first
        return left

    shared, workspace = dict[Slot, int](), dict[Slot, int]()
    if pack(large_first, shared_bytes, shared):
        # Small slots are used more often for their size.
        shared.clear()
        pack(pack(reversed(large_first), shared_bytes, shared), None, workspace)
    return {
        slot: Place(slot in shared, {**workspace, **shared}[slot], sizes[slot], slot.type.element, shapes[slot][1])
        for slot in times
    }


def shape(axes: Sequence[Axis]) -> tuple[int, dict[str, int]]:
    """How many elements there is room for, and the strides. Rows get an odd length where threads would meet in one bank."""
    lengths = [max(bound(extent), 1) for _, extent in axes]
    if len(lengths) > 1 and lengths[-1] % 2 == 0:
        lengths[-1] += 1
    return prod(lengths), {name: prod(lengths[n + 1 :]) for n, (name, _) in enumerate(axes)}

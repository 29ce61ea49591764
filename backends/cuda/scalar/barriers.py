"""Where threads must wait for each other: before what reads elements that others wrote, or writes over what others read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attngen.backends.cuda.scalar.memory import Place
from attngen.backends.cuda.scalar.steps import Branch, Loop, Phase, Slot, Step


@dataclass(frozen=True)
class Access:
    """near: each thread touches only the elements that are its own."""

    slot: Slot
    writes: bool
    near: bool


State = frozenset[Access]
"""What threads may have done since the last barrier."""


class Barriers:
    """before: the phases that a barrier precedes."""

    def __init__(self, steps: Sequence[Step], places: Mapping[Slot, Place], repeated: bool) -> None:
        """repeated: the steps run again for another part."""
        self.places = places
        self.before: set[Phase] = set()
        if repeated:
            self.around(steps, frozenset())
        else:
            self.block(steps, frozenset())

    def block(self, steps: Sequence[Step], state: State) -> State:
        for step in steps:
            match step:
                case Phase():
                    new = {Access(slot, False, near) for slot, near in step.reads.items()}
                    new |= {Access(slot, True, True) for _, slot in step.puts}
                    self.before.discard(step)
                    if any(self.clash(x, y) for x in state for y in new):
                        self.before.add(step)
                        state = frozenset()
                    state |= new
                case Loop():
                    state |= self.around(step.body, state)
                case Branch():
                    state = self.block(step.then, state) | self.block(step.otherwise, state)
        return state

    def around(self, steps: Sequence[Step], state: State) -> State:
        """The same with what an earlier trip may have left."""
        while True:
            left = self.block(steps, state)
            if left <= state:
                return left
            state |= left

    def clash(self, x: Access, y: Access) -> bool:
        if not (x.writes or y.writes) or not self.places[x.slot].overlaps(self.places[y.slot]):
            return False
        return not (x.near and y.near and x.slot is y.slot)

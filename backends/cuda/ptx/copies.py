"""`cp.async` and its groups (PTX ISA, "Data Movement and Conversion Instructions: Non-bulk copy").

The data is taken from global memory at once, but lands in shared memory only when the thread waits for it; until then any
access to the place is reported.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attngen.backends.cuda.ptx.decode import Decoder, Effect
from attngen.backends.cuda.ptx.machine import Machine
from attngen.backends.cuda.ptx.moves import CACHE, state_space
from attngen.backends.cuda.ptx.syntax import Immediate
from attngen.backends.cuda.ptx.types import U32, Array


@dataclass(frozen=True)
class Copy:
    """What some lanes have under way: data (lanes, bytes) for offsets `at`; group: each lane's number of its group."""

    lanes: Array
    at: Array
    data: Array
    group: Array

    def part(self, chosen: Array) -> Copy:
        return Copy(self.lanes[chosen], self.at[chosen], self.data[chosen], self.group[chosen])


class Copies:
    """The copies under way, and how many groups each lane has committed."""

    def __init__(self, machine: Machine) -> None:
        self.m = machine
        self.under_way: list[Copy] = []
        self.committed = np.zeros(machine.layout.lanes, np.int64)

    def take(self, lanes: Array, before: Array) -> list[Copy]:
        """Remove and give the copies of these lanes (a mask) whose group is below `before`."""
        taken: list[Copy] = []
        left: list[Copy] = []
        for copy in self.under_way:
            ready = lanes[copy.lanes] & (copy.group < before[copy.lanes])
            if ready.any():
                taken.append(copy.part(ready))
            if not ready.all():
                left.append(copy.part(~ready))
        self.under_way = left
        return taken

    def land(self, copies: list[Copy], waited: bool) -> None:
        """Write the data; waited: the lanes waited for it themselves."""
        space = self.m.memories.spaces["shared"]
        for copy in copies:
            size = copy.data.shape[1]
            space.data[copy.at[:, None] + np.arange(size)] = copy.data
            if space.shadow is not None:
                space.shadow.end_copy(copy.at, size, copy.lanes, waited)


def start(d: Decoder) -> Effect:
    """`cp.async.ca|cg.shared.global [dst], [src], size{, source size}`: bytes beyond the source size are zero."""
    d.modifiers.drop("async", *CACHE)
    if state_space(d) != "shared" or state_space(d) != "global":
        raise d.modifiers.refused("the state spaces")
    size = d.operand(2)
    if not isinstance(size, Immediate) or size.value not in (4, 8, 16):
        raise d.modifiers.refused("the size")
    n, m = size.value, d.machine
    target, source = d.address(0, "shared"), d.address(1, "global")
    counted = len(d.operands) > 3 and "L2::cache_hint" not in d.i.modifiers or len(d.operands) > 4
    amount = d.read(3, U32) if counted else np.broadcast_to(np.uint32(n), (m.layout.lanes,))

    def effect() -> None:
        lanes, copies = m.lanes, m.copies
        space = m.memories.spaces["shared"]
        at = space.locate(m.layout, d.i, target()[lanes], lanes, n)
        wanted, addresses = np.minimum(amount[lanes], n), source()[lanes]
        data = np.zeros((lanes.size, n), np.uint8)
        for count in np.unique(wanted[wanted > 0]):
            chosen = wanted == count
            found = m.memories.spaces["global"].locate(m.layout, d.i, addresses[chosen], lanes[chosen], int(count), align=n)
            data[chosen, :count] = m.memories.spaces["global"].data[found[:, None] + np.arange(count)]
        if space.shadow is not None:
            space.shadow.start_copy(d.i, at, n, lanes)
        space.data[at[:, None] + np.arange(n)] = 0xCB
        copies.under_way.append(Copy(lanes, at, data, copies.committed[lanes]))

    return effect


def wait(d: Decoder) -> Effect:
    """`cp.async.wait_group n` leaves the n newest groups; `wait_all` none, uncommitted copies included."""
    d.modifiers.drop("async")
    everything = d.modifiers.choice("wait_group", "wait_all") == "wait_all"
    kept = d.operand(0) if not everything else Immediate(0)
    if not isinstance(kept, Immediate):
        raise d.modifiers.refused("the number of groups")
    m, left = d.machine, -1 if everything else kept.value

    def effect() -> None:
        m.copies.land(m.copies.take(m.active, m.copies.committed - left), waited=True)

    return effect


def commit(d: Decoder) -> Effect:
    """`cp.async.commit_group`."""
    d.modifiers.drop("async", "commit_group")
    m = d.machine

    def effect() -> None:
        m.copies.committed[m.lanes] += 1

    return effect

"""Instructions on mbarriers (PTX ISA: mbarrier.init, arrive, expect_tx, test_wait, try_wait, cp.async.mbarrier.arrive)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attngen.backends.cuda.ptx.copies import Copy
from attngen.backends.cuda.ptx.decode import Decoder, Effect, Taken, control, instruction
from attngen.backends.cuda.ptx.mbarriers import Key, Landing
from attngen.backends.cuda.ptx.memory import WINDOWS
from attngen.backends.cuda.ptx.moves import state_space
from attngen.backends.cuda.ptx.syntax import Memory
from attngen.backends.cuda.ptx.types import B64, PRED, U32, U64, Array

POLLS = 64
"""How often in a row `test_wait` says "not yet" before its thread is taken to do nothing else."""


def place(d: Decoder, operand: int) -> Callable[[], Array]:
    """Addresses of mbarriers in shared memory; generic ones are converted."""
    d.modifiers.drop("acquire", "release", "relaxed", "cta", "cluster")
    address = d.address(operand, state_space(d) or "shared")
    base = WINDOWS["shared"]

    def shared() -> Array:
        found = address()
        return np.where(found >= base, found - base, found)

    return shared


@instruction("mbarrier")
def mbarrier(d: Decoder) -> Effect:
    """`mbarrier.init`, `.inval`, `.arrive{.expect_tx}{_drop}`, `.expect_tx`."""
    m = d.machine
    d.modifiers.take(1)
    what = d.modifiers.choice("init", "inval", "arrive", "arrive_drop", "expect_tx")
    n = m.layout.lanes
    if what == "init":
        address, count = place(d, 0), d.read(1, U32)
        return lambda: m.mbarriers.init(d.i, m.lanes, address(), count)
    if what == "inval":
        address = place(d, 0)
        return lambda: m.mbarriers.invalidate(d.i, m.lanes, address())
    if what == "expect_tx":
        address, size = place(d, 0), d.read(1, U32)
        return lambda: m.mbarriers.expect(d.i, m.lanes, address(), size)
    if not what or d.modifiers.flag("noComplete"):
        raise d.modifiers.refused("the form")
    expects = d.modifiers.flag("expect_tx")
    # The result may be left away where the mbarrier is in the cluster.
    first = 0 if isinstance(d.operand(0), Memory) else 1
    store, address = (d.write(0, U64) if first else None), place(d, first)
    extra = d.read(first + 1, U32) if len(d.operands) > first + 1 else np.broadcast_to(np.uint32(1), (n,))
    one = np.broadcast_to(np.uint32(1), (n,))

    def effect() -> None:
        where = address()
        if expects:
            m.mbarriers.expect(d.i, m.lanes, where, extra)
        token = m.mbarriers.arrive(d.i, m.lanes, where, one if expects else extra, drop=what == "arrive_drop")
        if store is not None:
            store(token)

    return effect


@control("mbarrier.try_wait", "mbarrier.test_wait")
def wait(d: Decoder) -> Taken:
    """`mbarrier.try_wait|test_wait{.parity}.b64 p, [a], state|parity{, hint}`."""
    m = d.machine
    blocks = d.modifiers.choice("try_wait", "test_wait") == "try_wait"
    parity = d.modifiers.flag("parity")
    d.modifiers.take(1)
    store, address = d.write(0, PRED), place(d, 1)
    token = d.read(2, U32 if parity else B64)
    polled = np.zeros(m.layout.lanes, np.int64)
    patience = 1 if blocks else POLLS

    def taken(lanes: Array) -> None:
        who, where, objects = np.flatnonzero(lanes), address(), m.mbarriers
        passed = objects.test(d.i, who, where, token, parity)
        failed = lanes & ~passed
        polled[lanes] = np.where(failed, polled + 1, 0)[lanes]
        again = failed & (polled > patience)
        if not blocks and (failed & (polled > 1)).any():
            # The program polls: now the data may arrive.
            objects.progress({key for key, _ in objects.groups(np.flatnonzero(failed), where)})
        answered = lanes & ~again
        before = m.active
        m.activate(answered)
        store(passed)
        m.activate(before)
        if again.any():
            for key, group in objects.groups(np.flatnonzero(again), where):
                objects.asked |= dict.fromkeys(map(int, group), key)
            m.pc[again] = d.index
            m.block(again, d.index)

    return taken


def arrive_after_copies(d: Decoder) -> Effect:
    """`cp.async.mbarrier.arrive{.noinc}.b64 [a]`: an arrival once all earlier `cp.async` of the thread have landed."""
    m = d.machine
    d.modifiers.take(1)
    d.modifiers.drop("async", "mbarrier", "arrive")
    counted = d.modifiers.flag("noinc")
    address = place(d, 0)

    def effect() -> None:
        everything = np.full(m.layout.lanes, np.iinfo(np.int64).max)
        where = address()
        for key, group in m.mbarriers.groups(m.lanes, where):
            b = m.mbarriers.find(d.i, key, group)
            if not counted:
                b.pending += group.size
            mask = np.zeros(m.layout.lanes, bool)
            mask[group] = True
            copies = m.copies.take(mask, everything)
            if m.shadow is not None:
                column = m.shadow.column(*key)
                for copy in copies:
                    m.shadow.follow(copy.at, copy.data.shape[1], column, b.clock + 1)
            m.mbarriers.queue.append(Landing(key, landing(d, copies, key, group)))

    return effect


def landing(d: Decoder, copies: list[Copy], key: Key, lanes: Array) -> Callable[[], None]:
    known = d.machine.mbarriers.known_to(lanes)

    def complete() -> None:
        d.machine.copies.land(copies, waited=False)
        d.machine.mbarriers.arrive_later(d.i, key, lanes.size, int(lanes[0]), known)

    return complete

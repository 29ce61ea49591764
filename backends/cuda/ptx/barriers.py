"""Barriers of a block and fences (PTX ISA: bar, barrier, bar.warp.sync, membar, fence)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attngen.backends.cuda.ptx.decode import Decoder, Effect, Taken, control, instruction
from attngen.backends.cuda.ptx.layout import WARP
from attngen.backends.cuda.ptx.machine import Machine
from attngen.backends.cuda.ptx.shadow import joined
from attngen.backends.cuda.ptx.syntax import Instruction
from attngen.backends.cuda.ptx.types import PRED, TYPES, U32, Array
from attngen.backends.cuda.ptx.warp import bits_of

Finish = Callable[[Array], None]
"""What remains to be done for lanes (a mask) that a barrier lets go."""


@dataclass
class Barrier:
    """One numbered barrier of one block. expected: threads, or 0 for all; clocks: what arrivals have released."""

    arrived: int = 0
    expected: int | None = None
    waiting: Array | None = None
    finish: Finish | None = None
    clocks: Array | None = None


class Barriers:
    """The sixteen barriers of every block."""

    def __init__(self, machine: Machine) -> None:
        self.m = machine
        self.state: dict[tuple[int, int], Barrier] = {}
        machine.after_exit.append(self.release)

    def arrive(self, d: Decoder, lanes: Array, number: Array, expected: Array, waits: bool, finish: Finish | None) -> None:
        """Lanes come to a barrier; those that wait are blocked until it is full."""
        m = self.m
        for block in np.unique(m.owner[lanes]):
            inside = lanes & (m.owner == block)
            for one in np.unique(number[inside]):
                here = inside & (number == one)
                b = self.state.setdefault((int(block), int(one)), Barrier())
                first = int(np.flatnonzero(here)[0])
                threads = int(expected[first])
                if b.expected not in (None, threads) or (expected[here] != threads).any():
                    why = f"barrier {one} is used with different numbers of threads at once"
                    raise m.layout.defect("deadlock", why, d.i, first)
                b.expected = threads
                b.arrived += int(here.sum())
                if m.shadow is not None:
                    rows = m.shadow.release(np.flatnonzero(here))
                    b.clocks = rows if b.clocks is None else joined(b.clocks, rows)
                if waits:
                    b.waiting = here if b.waiting is None else b.waiting | here
                    b.finish = finish
                    m.block(here, d.index)
                self.check(d.i, int(block), b, first)
        self.release()

    def check(self, i: Instruction, block: int, b: Barrier, lane: int) -> None:
        if b.expected and b.arrived > b.expected:
            raise self.m.layout.defect("deadlock", f"{b.arrived} threads came to a barrier of {b.expected}", i, lane)

    def release(self) -> None:
        """Open every barrier that is full. Threads that have ended count where all threads are expected."""
        m = self.m
        exists = m.layout.exists()
        for key, b in list(self.state.items()):
            block = m.owner == key[0]
            needed = b.expected or int((block & exists & ~m.done).sum())
            if b.arrived < needed or not b.arrived:
                continue
            del self.state[key]
            if b.waiting is None:
                continue
            m.blocked &= ~b.waiting
            if m.shadow is not None and b.clocks is not None:
                m.shadow.acquire(np.flatnonzero(b.waiting), b.clocks)
            if b.finish is not None:
                b.finish(b.waiting)


@control("bar", "barrier")
def bar(d: Decoder) -> Taken:
    """`bar{.cta}.sync|arrive|red`, `barrier…`, and `bar.warp.sync`."""
    m = d.machine
    if d.modifiers.flag("warp"):
        d.modifiers.flag("sync")
        return of_warp(d)
    if "cluster" in d.modifiers.left:
        return cluster(d)
    aligned = d.modifiers.flag("aligned") or d.i.opcode == "bar"
    d.modifiers.drop("cta")
    what = d.modifiers.choice("sync", "arrive", "red")
    reduces = d.modifiers.choice("popc", "and", "or") if what == "red" else ""
    given = list(range(len(d.operands)))
    result = given.pop(0) if reduces else None
    asked = given.pop() if reduces else None
    number = d.read(given[0], U32)
    expected = d.read(given[1], U32) if len(given) > 1 else np.broadcast_to(np.uint32(0), (m.layout.lanes,))
    if what == "arrive" and len(given) < 2:
        raise d.modifiers.refused("the form without a number of threads")
    finish = None
    if reduces and result is not None and asked is not None:
        d.modifiers.drop("pred", "u32")
        finish = reduction(d, reduces, result, d.predicate(asked))

    def taken(lanes: Array) -> None:
        if aligned:
            before = m.active
            m.activate(lanes)
            m.converged(d.i)
            m.activate(before)
        m.barriers.arrive(d, lanes, number, expected, what != "arrive", finish)

    return taken


def of_warp(d: Decoder) -> Taken:
    """`bar.warp.sync mask`: lanes wait until all that the mask names are here."""
    m, mask = d.machine, d.read(0, U32)

    def taken(lanes: Array) -> None:
        named = bits_of(mask).reshape(-1, WARP, WARP)
        absent = m.done.reshape(-1, WARP)
        wrong = lanes.reshape(-1, WARP) & ((named & absent[:, None]).any(axis=2) | ~np.diagonal(named, axis1=1, axis2=2))
        if wrong.any():
            lane = int(np.flatnonzero(wrong)[0])
            why = f"the mask {int(mask[lane]):#x} names lanes that have left, or not the lane itself"
            raise m.layout.defect("divergence", why, d.i, lane)
        here = m.waiting_in_warp
        here[lanes] = True
        m.warp_masks[lanes] = mask[lanes]
        m.block(lanes, d.index)
        # A group is complete when each lane that it names waits with the same mask.
        warps = np.flatnonzero(lanes.reshape(-1, WARP).any(axis=1))
        masks = m.warp_masks.reshape(-1, WARP)[warps]
        same = here.reshape(-1, WARP)[warps][:, None] & (masks[:, None] == masks[:, :, None])
        complete = here.reshape(-1, WARP)[warps] & ~(bits_of(masks.reshape(-1)).reshape(-1, WARP, WARP) & ~same).any(axis=2)
        go = np.zeros_like(lanes)
        go.reshape(-1, WARP)[warps] = complete
        here[go] = False
        m.blocked[go] = False
        if m.shadow is not None:
            m.shadow.warp_sync(np.flatnonzero(go))

    return taken


def reduction(d: Decoder, name: str, result: int, asked: Callable[[], Array]) -> Finish:
    """`bar.red`: the result for all threads that the barrier lets go."""
    m = d.machine
    store = d.write(result, TYPES["u32"] if name == "popc" else PRED)

    def finish(lanes: Array) -> None:
        held = asked()[lanes]
        value = {"popc": held.sum(), "and": held.all(), "or": held.any()}[name]
        before = m.active
        m.activate(lanes)
        store(np.broadcast_to(np.asarray(value).astype(np.uint32 if name == "popc" else bool), lanes.shape))
        m.activate(before)

    return finish


def cluster(d: Decoder) -> Taken:
    """`barrier.cluster.arrive|wait`: a cluster is one block here, and its barrier is number 16 of that block."""
    m = d.machine
    d.modifiers.drop("cluster", "aligned", "acquire", "release", "relaxed")
    waits = d.modifiers.choice("arrive", "wait") == "wait"
    number = np.broadcast_to(np.uint32(16), (m.layout.lanes,))
    none = np.broadcast_to(np.uint32(0), (m.layout.lanes,))

    def taken(lanes: Array) -> None:
        # Arriving and waiting are one step here: a wait finds the others at their own wait.
        if waits:
            m.barriers.arrive(d, lanes, number, none, True, None)

    return taken


@instruction("membar", "fence")
def fence(d: Decoder) -> Effect:
    """Fences order memory. Only that between the proxies is checked for; see `shadow`."""
    m, proxy = d.machine, False
    d.modifiers.drop("cta", "gpu", "sys", "gl", "cluster", "sc", "acq_rel", "acquire", "release", "mbarrier_init")
    if d.modifiers.flag("proxy"):
        only_global = d.modifiers.flag("global")
        proxy = d.modifiers.flag("async", "async::generic") and not only_global
        d.modifiers.drop("alias", "shared::cta", "shared::cluster", "tensormap::generic")
        d.modifiers.drop("sync_restrict::shared::cta", "sync_restrict::shared::cluster")

    def effect() -> None:
        if proxy and m.shadow is not None:
            m.shadow.proxy_fence(m.lanes)

    return effect


@instruction("griddepcontrol")
def dependent_launch(d: Decoder) -> Effect:
    """`griddepcontrol.wait|launch_dependents`: grids run one after another here."""
    d.modifiers.drop("wait", "launch_dependents")
    return lambda: None

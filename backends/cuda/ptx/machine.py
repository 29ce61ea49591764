"""The state of a batch of blocks, and the order in which its lanes run.

The lanes at the lowest program counter run next, which brings lanes together again where their paths meet. Warps that spin
while others could run give way after a while. Asynchronous copies land as late as the program allows: only when nothing else
can run, or when a program polls for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from attngen.backends.cuda.ptx.errors import Defect
from attngen.backends.cuda.ptx.layout import WARP, Layout
from attngen.backends.cuda.ptx.memory import Memories
from attngen.backends.cuda.ptx.program import Program
from attngen.backends.cuda.ptx.shadow import Shadow
from attngen.backends.cuda.ptx.syntax import Instruction
from attngen.backends.cuda.ptx.types import UNSIGNED, Array

if TYPE_CHECKING:
    from attngen.backends.cuda.ptx.barriers import Barriers
    from attngen.backends.cuda.ptx.bulk import BulkStores
    from attngen.backends.cuda.ptx.copies import Copies
    from attngen.backends.cuda.ptx.flight import Flights
    from attngen.backends.cuda.ptx.mbarriers import Mbarriers

PATIENCE = 100
"""Basic blocks that run while other warps could, before those have their turn."""
FAR = 1 << 40


class Machine:
    """registers: name -> one element per lane. active: lanes that run now; where: the same for `numpy.copyto`.

    blocked: lanes that wait, at the instructions numbered in `waits`; carry: the condition code of `add.cc`.
    """

    def __init__(self, program: Program, layout: Layout, memories: Memories, addresses: dict[str, int]) -> None:
        self.program, self.layout, self.memories, self.addresses = program, layout, memories, addresses
        n = layout.lanes
        # Registers that were never written hold a pattern that no test passes with.
        self.registers: dict[str, Array] = {
            name: np.zeros(n, bool)
            if t.kind == "pred"
            else np.full(n, 0xDEADBEEFDEADBEEF & ((1 << t.bits) - 1), UNSIGNED[t.bits])
            for name, t in program.registers.items()
        }
        self.specials = layout.specials()
        self.specials["%dynamic_smem_size"] = np.full(n, memories.spaces["shared"].size - program.sizes["shared"])
        self.specials["%total_smem_size"] = np.full(n, memories.spaces["shared"].size)
        self.owner = layout.owner()
        self.everyone = np.arange(n)
        self.pc = np.zeros(n, np.int64)
        self.done = ~layout.exists()
        self.blocked = np.zeros(n, bool)
        self.waits = np.zeros(n, np.int64)
        self.carry = np.zeros(n, bool)
        # Lanes that wait in `bar.warp.sync`, and the mask that each gave.
        self.waiting_in_warp = np.zeros(n, bool)
        self.warp_masks = np.zeros(n, np.uint32)
        self.active, self.where, self.lanes = self.done, np.True_, self.everyone
        self.executed = 0
        self.barriers: Barriers
        self.bulk: BulkStores
        self.copies: Copies
        self.flights: Flights
        self.mbarriers: Mbarriers
        self.after_exit: list[Callable[[], None]] = []
        self.shadow: Shadow | None = memories.spaces["shared"].shadow

    def activate(self, mask: Array) -> None:
        """Make these lanes the ones that instructions act on. `lanes`: their numbers."""
        self.active = mask
        full = bool(mask.all())
        self.where = np.True_ if full else mask
        self.lanes = self.everyone if full else np.flatnonzero(mask)

    def warps(self) -> Array:
        """Numbers of the warps with an active lane."""
        return np.flatnonzero(self.active.reshape(-1, WARP).any(axis=1))

    def converged(self, i: Instruction, what: str = "all lanes of a warp must execute it together") -> None:
        """Refuse a warp-wide instruction in a warp some of whose lanes are elsewhere or have left."""
        rows = self.active.reshape(-1, WARP)
        exists = self.layout.exists().reshape(-1, WARP)
        bad = rows.any(axis=1) & (rows != exists).any(axis=1)
        if bad.any():
            warp = int(np.flatnonzero(bad)[0])
            lane = warp * WARP + int(np.flatnonzero(rows[warp] != exists[warp])[0])
            raise self.layout.defect("divergence", f"{what}, and this one does not", i, lane)

    def run(self, effects: list[Callable[[], None]], control: list[bool], limit: int | None = None) -> None:
        """Until every thread has ended; a `Defect` if none can go on, or if they do not end within `limit` instructions."""
        leaders = set(self.program.labels.values()) | {j + 1 for j, c in enumerate(control) if c}
        end, turn, waited = len(effects), -1, 0
        with np.errstate(all="ignore"):
            while True:
                ready = ~(self.done | self.blocked)
                if not ready.any():
                    if self.done.all():
                        return
                    if not self.mbarriers.progress():
                        raise self.deadlock()
                    continue
                lowest = np.where(ready, self.pc, FAR).reshape(-1, WARP).min(axis=1)
                first = int(lowest.min())
                waited = waited + 1 if (lowest[lowest < FAR] != first).any() else 0
                if waited > PATIENCE:
                    others = lowest[(lowest > turn) & (lowest < FAR)]
                    first = turn = int(others.min()) if others.size else first
                    waited = waited if waited < 2 * PATIENCE else 0
                chosen = ready & (self.pc == first) & np.repeat(lowest == first, WARP)
                if first >= end:
                    self.exit(chosen)
                    continue
                self.activate(chosen)
                at = first
                while True:
                    effects[at]()
                    at += 1
                    if at in leaders or at >= end:
                        break
                self.executed += at - first
                if limit is not None and self.executed > limit:
                    why = "the program has not ended within the limit of instructions"
                    raise self.layout.defect("deadlock", why, self.program.code[at - 1], int(self.lanes[0]))
                if not control[at - 1]:
                    self.pc[chosen] = at

    def exit(self, lanes: Array) -> None:
        self.done |= lanes
        for f in self.after_exit:
            f()

    def block(self, lanes: Array, at: int) -> None:
        """Stop these lanes, which wait in the instruction with this number."""
        self.blocked |= lanes
        self.waits[lanes] = at

    def deadlock(self) -> Defect:
        """Who waits, and where."""
        waiting = np.flatnonzero(self.blocked & ~self.done)
        code = self.program.code
        lines = sorted({code[int(j)].loc.line for j in np.unique(self.waits[waiting])})
        why = f"no thread can go on; threads wait at line{'s' if len(lines) > 1 else ''} {', '.join(map(str, lines))}"
        return self.layout.defect("deadlock", why, code[int(self.waits[waiting[0]])], int(waiting[0]))

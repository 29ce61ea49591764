"""`mov`, `ld`, `st` and their kin (PTX ISA, "Data Movement and Conversion Instructions")."""

from __future__ import annotations

import numpy as np

from attngen.backends.cuda.ptx.decode import Decoder, Effect, instruction
from attngen.backends.cuda.ptx.memory import WINDOW_SIZE, WINDOWS
from attngen.backends.cuda.ptx.syntax import Memory, Symbol, Vector
from attngen.backends.cuda.ptx.types import PRED, S64, TYPES, U64, UNSIGNED, Array, Type

STATE_SPACES = {
    "global": "global",
    "shared": "shared",
    "shared::cta": "shared",
    "shared::cluster": "shared",
    "local": "local",
    "const": "const",
    "param": "param",
    "param::entry": "param",
    "param::func": "param",
}
CACHE = (
    *("ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "unified"),
    *(f"L1::{word}" for word in ("evict_normal", "evict_unchanged", "evict_first", "evict_last", "no_allocate")),
    *(f"L2::{word}" for word in ("evict_last", "evict_normal", "evict_first", "64B", "128B", "256B", "cache_hint")),
)
"""Hints and cache operators: they change speed, not values."""


def state_space(d: Decoder) -> str:
    """The state space that an instruction names, or an empty text for generic addresses."""
    return STATE_SPACES.get(d.modifiers.choice(*STATE_SPACES), "")


@instruction("mov")
def mov(d: Decoder) -> Effect:
    """`mov.type d, a`; with a vector on one side it packs or unpacks."""
    t = d.modifiers.type()
    if isinstance(d.operand(1), Vector):
        parts = d.parts(1)
        part = TYPES[f"u{t.bits // len(parts)}"]
        sources, store = [d.read(o, part) for o in parts], d.write(0, t)
        return lambda: store(
            np.stack([np.broadcast_to(s, sources[0].shape) for s in sources], axis=1).reshape(-1).view(t.numpy)
        )
    if isinstance(d.operand(0), Vector):
        targets = d.parts(0)
        part = TYPES[f"u{t.bits // len(targets)}"]
        a, stores = d.read(1, t), [d.write(o, part) for o in targets]

        def unpack() -> None:
            held = a.copy().view(part.numpy).reshape(-1, len(stores))
            for j, store in enumerate(stores):
                store(held[:, j])

        return unpack
    a, store = d.read(1, t), d.write(0, t)
    return lambda: store(a)


def counted(d: Decoder) -> int:
    return int((d.modifiers.choice("v2", "v4", "v8") or "v1")[1:])


def is_strong(d: Decoder) -> bool:
    """Takes the words of the memory model; accesses with them do not race."""
    strong = d.modifiers.flag("volatile", "relaxed", "acquire", "release", "mmio")
    d.modifiers.drop("weak", "cta", "cluster", "gpu", "sys")
    return strong


def space_of(d: Decoder, space: str, operand: int) -> str:
    """`.param` variables of functions lie in local memory."""
    o = d.operand(operand)
    base = o.base if isinstance(o, Memory) else o
    if space == "param" and isinstance(base, Symbol):
        return d.machine.program.place(base.name, d.i.loc).space
    return space


@instruction("ld", "ldu")
def load(d: Decoder) -> Effect:
    """`ld{.space}{.cache}{.vec}.type d, [a]`."""
    t = d.modifiers.type()
    strong, count, space = is_strong(d), counted(d), state_space(d)
    d.modifiers.drop(*CACHE)
    space = space_of(d, space, 1)
    address, stores, m = d.address(1, space), d.writes(0, t), d.machine
    if len(stores) != count:
        raise d.modifiers.refused("the number of elements")

    def effect() -> None:
        lanes = m.lanes
        values = m.memories.load(d.i, space, address()[lanes], lanes, t.numpy, count, strong)
        for store, value in zip(stores, values, strict=True):
            store(spread(value, lanes, m.layout.lanes))

    return effect


def spread(values: Array, lanes: Array, n: int) -> Array:
    """Values of some lanes as an array over all n lanes."""
    if values.size == n:
        return values
    full = np.zeros(n, values.dtype)
    full[lanes] = values
    return full


@instruction("st")
def store(d: Decoder) -> Effect:
    """`st{.space}{.cache}{.vec}.type [a], b`."""
    t = d.modifiers.type()
    strong, count, space = is_strong(d), counted(d), state_space(d)
    d.modifiers.drop(*CACHE)
    space = space_of(d, space, 0)
    address, sources, m = d.address(0, space), d.reads(1, t), d.machine
    if len(sources) != count:
        raise d.modifiers.refused("the number of elements")

    def effect() -> None:
        lanes = m.lanes
        m.memories.store(d.i, space, address()[lanes], lanes, [s[lanes] for s in sources], strong)

    return effect


@instruction("prefetch", "prefetchu", "discard", "applypriority", "createpolicy")
def hint(d: Decoder) -> Effect:
    """Hints to caches: nothing happens to values. `createpolicy` gives some policy."""
    d.modifiers.drop(*d.modifiers.left)
    if d.i.opcode != "createpolicy":
        return lambda: None
    policy, put = np.zeros(d.machine.layout.lanes, np.uint64), d.write(0, U64)
    return lambda: put(policy)


@instruction("isspacep")
def isspacep(d: Decoder) -> Effect:
    """`isspacep.space p, a`: whether a generic address lies in a state space."""
    space = state_space(d)
    a, put = d.read(1, S64), d.write(0, PRED)
    low = WINDOWS.get(space, 0)
    high = low + WINDOW_SIZE if space in WINDOWS else WINDOWS["shared"]
    return lambda: put((a >= low) & (a < high))


@instruction("mapa", "getctarank")
def cluster(d: Decoder) -> Effect:
    """Addresses in a cluster of one block: `mapa` gives its own address back, `getctarank` gives 0."""
    t: Type = d.modifiers.type()
    d.modifiers.drop("shared::cluster")
    put = d.write(0, t)
    if d.i.opcode == "mapa":
        a = d.read(1, t)
        return lambda: put(a)
    zero = np.zeros(d.machine.layout.lanes, UNSIGNED[t.bits])
    return lambda: put(zero)

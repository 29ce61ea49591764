"""Exchange between the lanes of a warp (PTX ISA: shfl.sync, vote.sync, match.sync, activemask, redux.sync, elect.sync).

Every lane that the mask of members names must execute the instruction together with the others.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attngen.backends.cuda.ptx.decode import Decoder, Effect, instruction
from attngen.backends.cuda.ptx.layout import WARP
from attngen.backends.cuda.ptx.syntax import Pair, Sink
from attngen.backends.cuda.ptx.types import B32, PRED, U32, Array, Type


def members(d: Decoder, operand: int) -> Callable[[], Array]:
    """The mask of members as bools, shape (warps, 32), once it is checked for every active warp."""
    m, mask = d.machine, d.read(operand, U32)

    def check() -> Array:
        rows = m.active.reshape(-1, WARP)
        named = bits_of(mask).reshape(-1, WARP, WARP)
        wrong = rows & ((named & ~rows[:, None, :]).any(axis=2) | ~np.diagonal(named, axis1=1, axis2=2))
        if wrong.any():
            lane = int(np.flatnonzero(wrong)[0])
            other = named[lane // WARP, lane % WARP] ^ rows[lane // WARP]
            why = f"the lanes here are not those of the mask {int(mask[lane]):#x}; lane {int(np.flatnonzero(other)[0])} differs"
            raise m.layout.defect("divergence", why, d.i, lane)
        return rows

    return check


def bits_of(mask: Array) -> Array:
    """The 32 bits of each number as bools, the lowest first, shape (lanes, 32)."""
    return ((mask[:, None] >> np.arange(WARP, dtype=np.uint32)) & np.uint32(1)).astype(bool)


def ballot(held: Array) -> Array:
    """Bools of shape (warps, 32) as one number per lane."""
    numbers = (held.astype(np.uint32) << np.arange(WARP, dtype=np.uint32)).sum(axis=1, dtype=np.uint32)
    return np.repeat(numbers, WARP)


@instruction("shfl")
def shuffle(d: Decoder) -> Effect:
    """`shfl.sync.mode.b32 d{|p}, a, b, c, membermask`."""
    d.modifiers.flag("sync")
    d.modifiers.type()
    mode = d.modifiers.choice("up", "down", "bfly", "idx")
    target = d.operand(0)
    store = d.write(target.first if isinstance(target, Pair) else target, B32)
    inside = d.write(target.second, PRED) if isinstance(target, Pair) else None
    (a, b, c), check = (d.read(n, U32) for n in (1, 2, 3)), members(d, 4)
    m = d.machine
    lane = m.everyone % WARP
    start = m.everyone - lane

    def effect() -> None:
        check()
        by, clamp, segment = (
            (b & np.uint32(31)).astype(np.int64),
            (c & np.uint32(31)).astype(np.int64),
            (c >> np.uint32(8)) & np.uint32(31),
        )
        segment = segment.astype(np.int64)
        lowest = lane & segment
        highest = lowest | (clamp & ~segment)
        source = {"up": lane - by, "down": lane + by, "bfly": lane ^ by, "idx": lowest | (by & ~segment)}[mode]
        valid = source >= highest if mode == "up" else source <= highest
        source = start + np.where(valid, source, lane)
        lost = m.active & ~m.active[source]
        if lost.any():
            first = int(np.flatnonzero(lost)[0])
            why = f"lane {int(source[first]) % WARP}, whose value is asked for, does not take part"
            raise m.layout.defect("divergence", why, d.i, first)
        values = a[source]
        store(values)
        if inside is not None:
            inside(valid)

    return effect


@instruction("vote")
def vote(d: Decoder) -> Effect:
    """`vote.sync.all|any|uni.pred d, {!}a, membermask` and `vote.sync.ballot.b32`."""
    d.modifiers.flag("sync")
    t = d.modifiers.type()
    mode = d.modifiers.choice("all", "any", "uni", "ballot")
    store, a, check = d.write(0, t), d.predicate(1), members(d, 2)

    def effect() -> None:
        rows = check()
        held = a().reshape(-1, WARP)
        if mode == "ballot":
            store(ballot(held & rows))
            return
        every, some = (held | ~rows).all(axis=1), (held & rows).any(axis=1)
        result = {"all": every, "any": some, "uni": every | ~some}[mode]
        store(np.repeat(result, WARP))

    return effect


@instruction("match")
def match(d: Decoder) -> Effect:
    """`match.any|all.sync.type d{|p}, a, membermask`: which lanes hold the same value."""
    d.modifiers.flag("sync")
    t = d.modifiers.type()
    mode = d.modifiers.choice("any", "all")
    target = d.operand(0)
    store = d.write(target.first if isinstance(target, Pair) else target, B32)
    same = d.write(target.second, PRED) if isinstance(target, Pair) else None
    a, check = d.read(1, t), members(d, 2)

    def effect() -> None:
        rows = check()
        values = a.reshape(-1, WARP)
        equal = (values[:, :, None] == values[:, None, :]) & rows[:, None, :]
        if mode == "all":
            alike = (equal | ~rows[:, None, :]).all(axis=2)
            store(np.where(alike.reshape(-1), ballot(rows), np.uint32(0)))
            if same is not None:
                same(alike.reshape(-1))
            return
        weights = np.uint32(1) << np.arange(WARP, dtype=np.uint32)
        store((equal * weights).sum(axis=2, dtype=np.uint32).reshape(-1))

    return effect


@instruction("activemask")
def activemask(d: Decoder) -> Effect:
    """`activemask.b32 d`: the lanes that are here now."""
    d.modifiers.type()
    m, store = d.machine, d.write(0, B32)
    return lambda: store(ballot(m.active.reshape(-1, WARP)))


@instruction("redux")
def redux(d: Decoder) -> Effect:
    """`redux.sync.op.type d, a, membermask`: a reduction over the members."""
    d.modifiers.flag("sync")
    t = d.modifiers.type()
    name = d.modifiers.choice("add", "min", "max", "and", "or", "xor")
    if t.is_float:
        return redux_float(d, t, name)
    f = {
        "add": np.add,
        "min": np.minimum,
        "max": np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }[name]
    limits = np.iinfo(t.numpy)
    neutral = {"min": limits.max, "max": limits.min, "and": np.array(-1).astype(t.numpy)}.get(name, 0)
    a, store, check = d.read(1, t), d.write(0, t), members(d, 2)

    def effect() -> None:
        rows = check()
        held = np.where(rows, a.reshape(-1, WARP), np.array(neutral).astype(t.numpy))
        store(np.repeat(f.reduce(held, axis=1).astype(t.numpy), WARP))

    return effect


def redux_float(d: Decoder, t: Type, name: str) -> Effect:
    """`redux.sync.min|max{.abs}{.NaN}.f32`."""
    absolute, propagate = d.modifiers.flag("abs"), d.modifiers.flag("NaN")
    if t.bits != 32 or name not in ("min", "max"):
        raise d.modifiers.refused("the operation")
    pick = {("min", False): np.fmin, ("min", True): np.minimum, ("max", False): np.fmax, ("max", True): np.maximum}
    f, neutral = pick[name, propagate], np.float32(np.inf if name == "min" else -np.inf)
    a, store, check = d.read(1, t), d.write(0, t), members(d, 2)

    def effect() -> None:
        rows = check()
        held = np.where(rows, (np.abs(a) if absolute else a).reshape(-1, WARP), neutral)
        store(np.repeat(f.reduce(held, axis=1), WARP))

    return effect


@instruction("elect")
def elect(d: Decoder) -> Effect:
    """`elect.sync d|p, membermask`: p is true in the lowest member, d is its number."""
    d.modifiers.flag("sync")
    target = d.operand(0)
    if not isinstance(target, Pair):
        raise d.modifiers.refused("the form without d|p")
    store = None if isinstance(target.first, Sink) else d.write(target.first, B32)
    chosen, check = d.write(target.second, PRED), members(d, 1)

    def effect() -> None:
        leader = np.repeat(check().argmax(axis=1), WARP)
        chosen(leader == np.arange(leader.size) % WARP)
        if store is not None:
            store(leader.astype(np.uint32))

    return effect

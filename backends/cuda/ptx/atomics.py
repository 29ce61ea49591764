"""`atom` and `red` (PTX ISA, "Parallel Synchronization and Communication Instructions": atom, red).

Lanes that hit one address take turns, in the order of their numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attngen.backends.cuda.ptx.decode import Decoder, Effect, instruction
from attngen.backends.cuda.ptx.floats import PACKED
from attngen.backends.cuda.ptx.moves import CACHE, is_strong, spread, state_space
from attngen.backends.cuda.ptx.rounding import from_bf16, to_bf16
from attngen.backends.cuda.ptx.types import Array, Type

Update = Callable[[Array, Array, Array], Array]
"""From the old value, and one or two operands, to the new value."""


def inc(old: Array, b: Array, c: Array) -> Array:
    return np.where(old >= b, old - old, old + old.dtype.type(1))


def dec(old: Array, b: Array, c: Array) -> Array:
    return np.where((old == 0) | (old > b), b, old - old.dtype.type(1))


def cas(old: Array, b: Array, c: Array) -> Array:
    return np.where(old == b, c, old)


UPDATES: dict[str, Update] = {
    "add": lambda old, b, c: old + b,
    "min": lambda old, b, c: np.minimum(old, b),
    "max": lambda old, b, c: np.maximum(old, b),
    "and": lambda old, b, c: old & b,
    "or": lambda old, b, c: old | b,
    "xor": lambda old, b, c: old ^ b,
    "exch": lambda old, b, c: b,
    "cas": cas,
    "inc": inc,
    "dec": dec,
}


@instruction("atom", "red")
def atomic(d: Decoder) -> Effect:
    """`atom{.sem}{.scope}{.space}.op.type d, [a], b{, c}`; `red` is the same without d."""
    t = d.modifiers.type()
    is_strong(d)
    d.modifiers.drop("acq_rel", "noftz", *CACHE)
    space, name = state_space(d), d.modifiers.choice(*UPDATES)
    if not name:
        raise d.modifiers.refused("the operation")
    update = typed(UPDATES[name], t)
    first = 1 if d.i.opcode == "atom" else 0
    address, m = d.address(first, space), d.machine
    b = d.read(first + 1, t)
    c = d.read(first + 2, t) if name == "cas" else b
    store = d.write(0, t) if d.i.opcode == "atom" else None

    def effect() -> None:
        lanes = m.lanes
        old = np.zeros(lanes.size, t.numpy)
        for part, chosen, inner in m.memories.split(space, address()[lanes], d.i, lanes):
            picked = np.arange(lanes.size) if chosen is None else chosen
            at = part.locate(m.layout, d.i, inner, lanes[picked], t.bytes)
            if part.shadow is not None:
                part.shadow.update(d.i, at, t.bytes, lanes[picked])
            cells, where = part.view(t.numpy), at // t.bytes
            waiting = np.arange(where.size)
            while waiting.size:
                # One lane of each address at a time.
                _, turn = np.unique(where[waiting], return_index=True)
                now = waiting[turn]
                who = lanes[picked[now]]
                old[picked[now]] = cells[where[now]]
                cells[where[now]] = update(cells[where[now]], b[who], c[who])
                waiting = np.delete(waiting, turn)
        if store is not None:
            store(spread(old, lanes, m.layout.lanes))

    return effect


def typed(f: Update, t: Type) -> Update:
    """The update on values of type t, which may be packed halves."""
    if t.name == "bf16":
        return lambda old, b, c: to_bf16(f(from_bf16(old), from_bf16(b), from_bf16(c)))
    if t.name not in PACKED:
        return f
    inner, half = typed(f, PACKED[t.name]), PACKED[t.name].numpy

    def update(old: Array, b: Array, c: Array) -> Array:
        return inner(*(np.ascontiguousarray(x).view(half) for x in (old, b, c))).view(np.uint32)

    return update

"""Which lengths a kernel of attention is compiled for: exact ones first, then runtime extents that serve many lengths."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np

from attngen.arrays import Array
from attngen.ir.types import Extent, Layout, UpTo, bound
from attngen.mods import Mod
from attngen.sdpa_inputs import Extra
from attngen.sdpa_options import Options
from attngen.sdpa_shapes import Shape
from attngen.table import Table

LEAST_BOUND = 1024
ROOM = 4
"""How many times longer than the sequences it is compiled for those may be that a kernel serves."""


@dataclass(frozen=True)
class Form:
    """What a kernel is compiled for. offset: whether the place of query 0 among the keys is an input."""

    q_len: Extent
    kv_len: Extent
    offset: bool = False

    @property
    def extents(self) -> Mapping[str, Extent]:
        return {"i": self.q_len, "j": self.kv_len}

    def serves(self, q_len: int, kv_len: int) -> bool:
        return fits(q_len, self.q_len) and fits(kv_len, self.kv_len)


def fits(length: int, extent: Extent) -> bool:
    return length <= extent.bound if isinstance(extent, UpTo) else length == extent


def roomy(length: int) -> UpTo:
    """The least power of two that is at least LEAST_BOUND, and ROOM times the length."""
    return UpTo(1 << (max(LEAST_BOUND, ROOM * length) - 1).bit_length())


class Family:
    """Calls that differ in nothing but lengths (and in the offset), and the forms compiled for them."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.first: tuple[int, int, int] | None = None
        self.others: list[Form] = []

    def choose(self, q_len: int, kv_len: int, offset: int = 0) -> Form:
        """The first lengths are compiled as they are. A length that has not changed since stays exact in later forms too."""
        exact = Form(q_len, kv_len)
        with self.lock:
            if self.first is None and q_len and kv_len:
                self.first = q_len, kv_len, offset
            if self.first in (None, (q_len, kv_len, offset)):
                return exact
            found = [form for form in self.others if form.serves(q_len, kv_len)]
            if found:
                return min(found, key=lambda form: (bound(form.q_len), bound(form.kv_len)))
            if not q_len or not kv_len:
                return exact  # needs no loop, so nothing is compiled
            extents = (n if n == known else roomy(n) for n, known in zip((q_len, kv_len), self.first, strict=False))
            form = Form(*extents, offset=True)
            self.others.append(form)
            return form


FAMILIES: Table[Family] = Table(256)

if hasattr(os, "register_at_fork"):
    # Another thread of the parent may have held the lock of a family.
    os.register_at_fork(after_in_child=FAMILIES.reset)


def family_key(
    shape: Shape, arrays: Sequence[Array], options: Options, extras: Sequence[Extra], mods: Mapping[str, Mod], target: str
) -> Hashable:
    """All that calls of a family have in common. A single query is a family of its own: a step of decoding wants a kernel
    without blocks of queries. Modifications of the same code are taken as equal here, which only decides about extents."""
    others = tuple((x.name, x.layout, x.array.dtype, without_lengths(x.layout, x.array.shape)) for x in extras)
    code: tuple[tuple[str, Hashable], ...] = tuple((n, getattr(mod, "__code__", type(mod))) for n, mod in mods.items())
    widths = tuple((x.ndim, x.shape[-1], x.dtype) for x in arrays)
    heads = (shape.batch, shape.heads, shape.kv_heads, shape.q_len == 1)
    return heads, widths, dataclasses.replace(options, offset=min(options.offset, 1)), others, code, target


def without_lengths(layout: Layout, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for group, n in zip(layout.groups, shape, strict=True) if group[0] not in ("i", "j"))


def with_offset(shape: Shape, options: Options, extras: tuple[Extra, ...]) -> tuple[Options, tuple[Extra, ...]]:
    """Where query 0 stands among the keys as an input, if it is not 0 and anything depends on it."""
    by_name = {x.name: x for x in extras}
    known = "offset" in by_name or "row_place" in by_name
    if known or options.reach == (None, None) and "alibi_slopes" not in by_name:
        return options, extras
    used = by_name.get("seqused_k")
    if options.bottom_right:
        offset = offset_input((shape.kv_len if used is None else used.array) - shape.q_len, shape)
    elif options.offset:
        offset = offset_input(options.offset, shape)
    else:
        return options, extras
    return dataclasses.replace(options, offset=0), (*extras, offset)


def offset_input(offset: Any, shape: Shape) -> Extra:
    """One number, or one per batch entry."""
    array = np.asarray(offset, np.int64)
    return Extra("offset", array, Layout(tuple((axis,) for axis in shape.batch_axes) if array.ndim else ()))

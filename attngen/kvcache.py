"""Attention over keys and values that are kept in a cache between calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from attngen.arrays import HOST, Array, overlaps_itself
from attngen.backends import Arrays
from attngen.copies import copy, pages
from attngen.ir.diagnostics import Error
from attngen.lowering import arrays_of
from attngen.sdpa import find_kernel
from attngen.sdpa_inputs import read_extras
from attngen.sdpa_options import ALIGNMENTS, read_call
from attngen.sdpa_runtime import offset_input
from attngen.sdpa_shapes import Shape, check_inputs
from attngen.semantics import refuse_mean
from attngen.specs import read_dtype, show_shape
from attngen.torch_arrays import accepts_tensors


@accepts_tensors
def attention_with_kvcache(
    query: Any,
    key_cache: Any,
    value_cache: Any,
    key: Any = None,
    value: Any = None,
    *,
    cache_seqlens: Any = None,
    cache_batch_idx: Any = None,
    block_table: Any = None,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    score_mod: Any = None,
    mask_mod: Any = None,
    bias: Any = None,
    window: Any = None,
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    sinks: Any = None,
    causal_alignment: str | None = None,
    layout: Literal["BHSD", "BSHD"] = "BHSD",
    semantics: str | None = None,
    return_lse: bool = False,
    lse_base: Literal["e", "2"] = "e",
    deterministic: bool = False,
    num_splits: int | None = None,
    num_threads: int | None = None,
    out: Any = None,
    target: str = "cpu",
) -> Any:
    """Attention of query over the first cache_seqlens keys of a cache, to which key and value are appended before.

    query (batch, heads, q_len, d), key_cache (batch, kv_heads, cache_len, d), value_cache (batch, kv_heads, cache_len, d_v);
    with layout="BSHD" heads come after lengths. key (batch, kv_heads, new_len, d), value (…, d_v): written into the caches, in
    place, behind the keys that are there.

    cache_seqlens: how many keys are there before the call, a number or (batch,); None, without key: the whole cache.
    cache_batch_idx (batch,): which entry of a cache of more (or fewer) entries each query reads and writes; None: its own.
    block_table (batch, pages): the caches are (page, kv_heads, page_size, …), and the keys of an entry are on these pages, one
    after the other. Indices of pages behind the last key in use are not looked at.

    Queries stand at places offset + i for causal masks, windows and ALiBi. With new keys offset is the past length, else
    queries are the last of what is cached, and it is the length less q_len; causal_alignment "bottom_right" means the length
    with new keys less q_len, "top_left" 0. attn_mask, bias: over as many keys as the longest entry has, or the whole cache.
    The other arguments and the results are those of `scaled_dot_product_attention`.

    The kernel reads one array of keys. Entries that follow each other at an equal distance are read where they are; for pages
    and other selections of entries, each call copies the keys and values in use next to each other. On a GPU kernels copy them,
    and new keys into the caches; lengths and tables of pages are read here, for which this waits if they are there.

    Raises Error for whatever does not fit, without having changed the caches.
    """
    options = read_call(locals())
    refuse_mean(options.semantics, semantics, "caches")
    own = arrays_of(target)
    query, key_cache, value_cache = (
        own.read(name, x) for name, x in (("query", query), ("key_cache", key_cache), ("value_cache", value_cache))
    )
    key, value = (x if x is None else own.read(name, x) for name, x in (("key", key), ("value", value)))
    check_arrays(query, key_cache, value_cache, key, value, layout, own)
    table, rows = own.small(block_table), own.small(cache_batch_idx)
    cache = read_cache(query.shape[0], (key_cache, value_cache), layout, rows, table, target)
    new_len = 0 if key is None else key.shape[cache.axis]
    past = read_past(own.small(cache_seqlens), cache, new_len, key is not None)
    total = past + new_len
    cache.check_pages(past, total)
    kv_len = int(total.max(initial=0))

    q_len = query.shape[cache.axis]
    shape = dataclasses.replace(Shape.of(query, key_cache, layout), kv_len=kv_len)
    attn_mask, bias = (
        None if x is None else up_to(own.read(name, x), cache.capacity, kv_len)
        for name, x in (("attn_mask", attn_mask), ("bias", bias))
    )
    extras = read_extras(
        shape,
        read_dtype(query.dtype, "query").accumulator,
        arrays=own,
        attn_mask=attn_mask,
        bias=bias,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
        seqused_k=None if uniform(total) else total,
    )
    if options.reach != (None, None) or alibi_slopes is not None:
        alignment = None if causal_alignment is None else ALIGNMENTS[causal_alignment]
        offset = np.zeros_like(total) if alignment == "top_left" else total - q_len
        offset = past if alignment is None and key is not None else offset
        extras += (offset_input(offset.flat[:1].sum() if uniform(offset) else offset, shape),)
    # The offset is an input, so no convention about it is part of the kernel.
    options = dataclasses.replace(options, alignment="top_left")
    mods = {name: mod for name, mod in (("score_mod", score_mod), ("mask_mod", mask_mod)) if mod is not None}
    for array in out if isinstance(out, tuple | list) else (out,):  # pyright: ignore[reportUnknownVariableType]
        for name, x in (("key_cache", key_cache), ("value_cache", value_cache)):
            if array is not None and own.overlap(own.read("out", array), x):
                raise Error(f"out: shares memory with {name}; pass an array of its own")
    with appended(cache, (key, value), past):
        keys, values = (cache.read(x, total, kv_len) for x in cache.arrays)
        named = (("query", query), ("key", keys), ("value", values))
        return find_kernel(named, options, extras, mods, target)((out, None) if return_lse else out, num_threads)


@dataclass(frozen=True)
class Cache:
    """Both caches, and where the keys of each batch entry are.

    rows (batch, pages): indices into the first dimension of the caches, each with room for `size` keys. axis: of keys.
    """

    arrays: tuple[Array, Array]
    rows: Array
    size: int
    axis: int
    what: str
    target: str

    @property
    def capacity(self) -> int:
        """How many keys an entry has room for."""
        return self.rows.shape[1] * self.size

    def check_pages(self, past: Array, total: Array) -> None:
        """Pages in use are there, and nothing is written where another entry has keys."""
        count = self.arrays[0].shape[0]
        most: int = self.rows.shape[1]
        used: Array = np.arange(most) < -(-total // max(self.size, 1))[:, None]
        for b, p in np.argwhere(used & ((self.rows < 0) | (self.rows >= count)))[:1].tolist():
            raise Error(f"{self.what}[{b}, {p}] is {self.rows[b, p]}; expected an index from 0 to {count - 1} into the cache")
        if np.array_equal(past, total):
            return
        users = np.bincount(self.rows[used], minlength=count)
        for b, (start, end) in enumerate(zip(past.tolist(), total.tolist(), strict=True)):
            for row, slots, keys in self.segments(b, start, end):
                shared = np.argwhere(used & (self.rows == row)).tolist() if users[row] > 1 else []
                for other, p in shared:
                    if (other, p) != (b, keys.start // self.size) and total[other] - p * self.size > slots.start:
                        raise Error(
                            f"{self.what}: new keys of entry {b} would be written where keys of entry {other} are; "
                            "give each its own"
                        )

    def segments(self, entry: int, start: int, end: int) -> Iterator[tuple[int, slice, slice]]:
        """Where keys start to end of an entry are: an index into the caches, places there, and which keys these are."""
        while start < end:
            page, slot = divmod(start, self.size)
            stop = min(end, start + self.size - slot)
            yield int(self.rows[entry, page]), slice(slot, slot + stop - start), slice(start, stop)
            start = stop

    def moves(self, past: Array, new_len: int) -> Iterator[tuple[slice, slice, slice, slice]]:
        """Where new keys go, indices into the caches and places there, and whose and which they are: entry by entry, but all at
        once where every entry has them at the same place of rows at equal distances."""
        if not new_len or not len(past):
            return
        page, slot = divmod(int(past[0]), self.size)
        run = run_of(self.rows[:, page])
        if run is not None and uniform(past) and slot + new_len <= self.size:
            yield run, slice(slot, slot + new_len), slice(None), slice(None)
            return
        for b, start in enumerate(past.tolist()):
            for row, slots, keys in self.segments(b, start, start + new_len):
                yield slice(row, row + 1), slots, slice(b, b + 1), slice(keys.start - start, keys.stop - start)

    def part(self, x: Array, entries: slice, places: slice) -> Array:
        """Of those entries, those keys."""
        return x[(entries, *(slice(None),) * (self.axis - 1), places)]

    def read(self, x: Array, total: Array, kv_len: int) -> Array:
        """The first kv_len keys of each entry as one array: a view if rows follow each other, else a copy of what is used."""
        everything, used, host = slice(None), slice(0, kv_len), arrays_of(self.target) is HOST
        if self.rows.shape[1] == 1:
            if (run := run_of(self.rows[:, 0])) is not None:
                return self.part(x, run, used)
            if host and (self.rows == self.rows[0]).all():
                return self.part(np.broadcast_to(x[int(self.rows[0, 0])], (len(self.rows), *x.shape[1:])), everything, used)
        if not host:
            count = -(-kv_len // max(self.size, 1))
            # Pages that no key is on may have any number.
            rows = np.where(np.arange(count) < -(-total // max(self.size, 1))[:, None], self.rows[:, :count], 0)
            return self.part(pages(x, rows, "BHSD" if self.axis == 2 else "BSHD", self.target), everything, used)
        shape = list(x.shape)
        shape[0], shape[self.axis] = len(self.rows), kv_len
        made = np.zeros(shape, x.dtype)
        for b, end in enumerate(total.tolist()):
            for row, slots, keys in self.segments(b, 0, end):
                self.part(made, slice(b, b + 1), keys)[...] = self.part(x, slice(row, row + 1), slots)
        return made


def run_of(rows: Array) -> slice | None:
    """Indices as a slice, if they have equal distances that are not 0."""
    if not len(rows):
        return slice(0, 0)
    first, step = int(rows[0]), int(rows[1] - rows[0]) if len(rows) > 1 else 1
    if not step or not np.array_equal(rows, first + step * np.arange(len(rows))):
        return None
    end = first + step * len(rows)
    return slice(first, end if end >= 0 else None, step)


@contextmanager
def appended(cache: Cache, new: Sequence[Any], past: Array) -> Generator[None, None, None]:
    """New keys and values are in the caches; if the block fails, what was there before is back."""
    replaced: list[tuple[Array, Array]] = []
    own = arrays_of(cache.target)
    try:
        for x, more in zip(cache.arrays, new, strict=True):
            if more is None:
                continue
            for rows, slots, entries, keys in cache.moves(past, more.shape[cache.axis]):
                place = cache.part(x, rows, slots)
                before = own.empty(place.shape, place.dtype, [place])
                copy(before, place, cache.target)
                replaced.append((place, before))
                copy(place, cache.part(more, entries, keys), cache.target)
        yield
    except BaseException:
        for place, before in reversed(replaced):
            copy(place, before, cache.target)
        raise


# ---------------------------------------------------------------- checks


def check_arrays(query: Any, key_cache: Any, value_cache: Any, key: Any, value: Any, layout: str, own: Arrays) -> None:
    caches = {"key_cache": key_cache, "value_cache": value_cache}
    for name, x in {"query": query, **caches}.items():
        if x.ndim != 4:
            raise Error(f"{name}: expected 4 dimensions (batch, heads, length, features), got shape {show_shape(x.shape)}")
    check_inputs(query, key_cache, value_cache, layout, names=("query", "key_cache", "value_cache"), batch=False)
    if key_cache.shape[0] != value_cache.shape[0]:
        shapes = f"{show_shape(value_cache.shape)} and {show_shape(key_cache.shape)}"
        raise Error(f"value_cache: expected as many entries as key_cache has, got shapes {shapes}")
    if key is None and value is None:
        return
    if key is None or value is None:
        raise Error(f"{'key' if key is None else 'value'}: is missing; give new keys and values together")
    axis = 2 if layout == "BHSD" else 1
    for name, x in (("key", key), ("value", value)):
        cache = caches[f"{name}_cache"]
        wanted = [query.shape[0], *cache.shape[1:]]
        wanted[axis] = key.shape[axis] if key.ndim == 4 else 1
        if x.dtype != cache.dtype or x.shape != tuple(wanted):
            shown = [str(n) for n in wanted]
            shown[axis] = "new_len" if name == "key" else shown[axis]
            raise Error(
                f"{name}: expected shape ({', '.join(shown)}) of {cache.dtype.name}, as query and {name}_cache have, got "
                f"{show_shape(x.shape)} of {x.dtype.name}"
            )
    for name, x in caches.items():
        if not own.writeable(x):
            raise Error(f"{name}: the array is read-only, but new keys and values are written into it; pass a writable one")
        if overlaps_itself(x):
            raise Error(f"{name}: elements share memory (strides {x.strides}), but new keys and values are written into it")
        for other, y in (("query", query), ("key", key), ("value", value), ("key_cache", key_cache)):
            if other != name and own.overlap(x, y):
                raise Error(f"{name}: shares memory with {other}, but new keys and values are written into it; pass a copy")


def read_cache(
    batch: int, arrays: tuple[Array, Array], layout: str, cache_batch_idx: Any, block_table: Any, target: str
) -> Cache:
    axis = 2 if layout == "BHSD" else 1
    count, size = arrays[0].shape[0], arrays[0].shape[axis]
    if block_table is not None:
        if cache_batch_idx is not None:
            raise Error("cache_batch_idx: leave it away; block_table says which pages each batch entry has")
        rows = whole_numbers("block_table", block_table)
        if rows.ndim != 2 or rows.shape[0] != batch:
            raise Error(f"block_table: expected shape ({batch}, pages), one row per batch entry, got {show_shape(rows.shape)}")
        if not size:
            raise Error(f"key_cache: pages have no room for keys in shape {show_shape(arrays[0].shape)}")
        return Cache(arrays, rows, size, axis, "block_table", target)
    if cache_batch_idx is None:
        if count != batch:
            raise Error(
                f"key_cache: has {count} entries in shape {show_shape(arrays[0].shape)}, but query has batch {batch}; "
                "say by cache_batch_idx which ones to use"
            )
        return Cache(arrays, np.arange(batch)[:, None], size, axis, "cache_batch_idx", target)
    rows = whole_numbers("cache_batch_idx", cache_batch_idx)
    if rows.shape != (batch,):
        raise Error(f"cache_batch_idx: expected shape ({batch},), one index per batch entry, got {show_shape(rows.shape)}")
    for b in np.flatnonzero((rows < 0) | (rows >= count))[:1]:
        raise Error(f"cache_batch_idx[{b}] is {rows[b]}; expected an index from 0 to {count - 1} into the cache")
    return Cache(arrays, rows[:, None], size, axis, "cache_batch_idx", target)


def read_past(cache_seqlens: Any, cache: Cache, new_len: int, appends: bool) -> Array:
    """How many keys each entry has before the call; all of them must have room, with the new ones."""
    batch, room = len(cache.rows), cache.capacity
    if cache_seqlens is None:
        if appends:
            raise Error("cache_seqlens: is missing; new keys and values are written behind as many as it says")
        return np.full(batch, room)
    past = whole_numbers("cache_seqlens", cache_seqlens)
    if past.ndim and past.shape != (batch,):
        raise Error(f"cache_seqlens: expected a number or shape ({batch},), got shape {show_shape(past.shape)}")
    single = not past.ndim
    past = np.broadcast_to(past, (batch,))
    for b in np.flatnonzero((past < 0) | (past > room - new_len))[:1]:
        at = "" if single else f"[{b}]"
        more = f" with {new_len} new keys" if new_len else ""
        raise Error(f"cache_seqlens{at} is {past[b]}{more}; the cache has room for lengths from 0 to {room}")
    return past


def whole_numbers(name: str, x: Any) -> Array:
    array = np.asarray(x)
    if array.dtype.kind not in "iu":
        raise Error(f"{name}: expected whole numbers, got {array.dtype.name}")
    return array.astype(np.int64)


def uniform(x: Array) -> bool:
    return bool((x == x[:1]).all())


def up_to(x: Any, capacity: int, kv_len: int) -> Any:
    """What is given over the whole cache, over the keys in use."""
    shape: tuple[int, ...] = getattr(x, "shape", ())
    return x[..., :kv_len] if shape and shape[-1] == capacity != 1 else x

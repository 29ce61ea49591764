"""Sequences of different lengths one after the other in one array: `cu_seqlens_q`, `cu_seqlens_k`.

Each query row gets the range of keys of its own sequence, and its place among them: three short arrays, in place of padding.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attngen.arrays import Array
from attngen.ir.diagnostics import Error
from attngen.ir.types import Layout
from attngen.sdpa_inputs import Extra
from attngen.sdpa_options import Options
from attngen.sdpa_shapes import Shape
from attngen.specs import show_shape

ROW = Layout((("i",),))


def packed_rows(
    shape: Shape, options: Options, cu_seqlens_q: Any, cu_seqlens_k: Any, seqused_k: Any, modified: bool
) -> tuple[Extra, ...]:
    """What each row of the queries must know. Rows behind the last sequence see no key.

    row_first, row_end: its keys. row_place: where it stands among all keys, for causal masks, windows and ALiBi. row_sequence,
    row_start, for modifications: the number of its sequence, and that one's first row.
    """
    if shape.batch or shape.heads is None:
        name = "cu_seqlens_k" if cu_seqlens_q is None else "cu_seqlens_q"
        raise Error(f"{name}: expected packed arrays (total, heads, features), of 3 dimensions")
    starts_q = boundaries("cu_seqlens_q", cu_seqlens_q, shape.q_len, "rows of query")
    starts_k = boundaries("cu_seqlens_k", cu_seqlens_k, shape.kv_len, "rows of key")
    if starts_q.shape != starts_k.shape:
        raise Error(
            f"cu_seqlens_k: expected {len(starts_q) - 1} sequences as cu_seqlens_q has, got {len(starts_k) - 1}: "
            f"shapes {show_shape(starts_q.shape)} and {show_shape(starts_k.shape)}"
        )
    lengths_k = used_lengths(seqused_k, np.diff(starts_k))
    offset = lengths_k - np.diff(starts_q) if options.bottom_right else np.zeros_like(lengths_k)
    row = np.arange(shape.q_len)
    inside = row < starts_q[-1]
    # The sequence that a row belongs to is the last one that starts at or before it; empty ones have no row.
    sequence = np.minimum(np.searchsorted(starts_q, row, side="right") - 1, max(len(starts_q) - 2, 0))
    first = np.where(inside, take(starts_k, sequence), 0)
    end = np.where(inside, first + take(lengths_k, sequence), 0)
    start = take(starts_q, sequence)
    found = {"row_first": first, "row_end": end, "row_place": first + row - start + take(offset, sequence)}
    if modified:
        # Rows behind the last sequence are the first one of the first: whatever is looked up by it is there.
        found |= {"row_sequence": np.where(inside, sequence, 0), "row_start": np.where(inside, start, row)}
    return tuple(Extra(name, x.astype(np.int64), ROW) for name, x in found.items())


def take(x: Array, at: Array) -> Array:
    return x[at] if x.size else np.zeros(at.shape, np.int64)


def boundaries(name: str, x: Any, total: int, what: str) -> Array:
    """Where each sequence starts, and where the last one ends."""
    if x is None:
        raise Error(f"{name}: is missing; packed arrays need cu_seqlens_q and cu_seqlens_k")
    array = np.asarray(x)
    if array.dtype.kind not in "iu" or array.ndim != 1 or not array.size:
        raise Error(
            f"{name}: expected a vector of whole numbers, one more than sequences, got {array.dtype.name} of shape "
            f"{show_shape(array.shape)}"
        )
    array = array.astype(np.int64)
    if array[0] != 0:
        raise Error(f"{name}[0] is {array[0]}; expected 0, where the first sequence starts")
    for k in np.flatnonzero(np.diff(array) < 0)[:1]:
        raise Error(
            f"{name}[{k + 1}] is {array[k + 1]}, less than {name}[{k}], which is {array[k]}; sequences follow each other"
        )
    if array[-1] > total:
        raise Error(f"{name}[{len(array) - 1}] is {array[-1]}; there are only {total} {what}")
    return array


def used_lengths(seqused_k: Any, lengths: Array) -> Array:
    """How many keys of each sequence count."""
    if seqused_k is None:
        return lengths
    used = np.asarray(seqused_k)
    if used.dtype.kind not in "iu" or used.shape != lengths.shape:
        raise Error(f"seqused_k: expected {len(lengths)} whole numbers, one per sequence, got shape {show_shape(used.shape)}")
    for k in np.flatnonzero((used < 0) | (used > lengths))[:1]:
        raise Error(f"seqused_k[{k}] is {used[k]}; expected a length from 0 to {lengths[k]}, that of the sequence")
    return used.astype(np.int64)

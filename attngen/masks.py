"""Masks by name, as functions `mask_mod(b, h, q_idx, kv_idx)`, to be combined by `and_masks`, `or_masks` and `not_mask`:

    mask_mod=masks.and_masks(masks.causal(), masks.document(ids))

None of them allocates anything of size q_len · kv_len.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attngen.ir.diagnostics import Error
from attngen.mods import Mod, and_masks, not_mask, or_masks
from attngen.names import kind_of
from attngen.sdpa_options import is_whole
from attngen.specs import show_shape

__all__ = [
    "and_masks",
    "block_causal",
    "causal",
    "dilated",
    "document",
    "not_mask",
    "or_masks",
    "padding",
    "prefix_lm",
    "window",
]


def causal(offset: int = 0) -> Mod:
    """Keys up to the query's own place. offset: how many keys come before the first query (kv_len - q_len aligns the last
    query with the last key)."""
    shift = _whole(offset, "causal: offset")

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return kv_idx <= q_idx + shift

    return mask_mod


def window(left: int | None = None, right: int | None = None, offset: int = 0) -> Mod:
    """Up to `left` keys before the query's own place and `right` behind it, the own one not counted; None is open."""
    shift = _whole(offset, "window: offset")
    sides = [None if x is None else _natural(x, "window") for x in (left, right)]

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        keep: Any = None
        if sides[0] is not None:
            keep = kv_idx >= q_idx + (shift - sides[0])
        if sides[1] is not None:
            near = kv_idx <= q_idx + (shift + sides[1])
            keep = near if keep is None else keep & near
        return kv_idx >= 0 if keep is None else keep

    return mask_mod


def prefix_lm(length: Any, offset: int = 0) -> Mod:
    """The first `length` keys for all queries, the others causally. length: a number, or one per batch entry."""
    lengths = length if isinstance(length, int) else _integers(length, "prefix_lm: length", 1)
    before = causal(offset)

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (kv_idx < (lengths if isinstance(lengths, int) else lengths[b])) | before(b, h, q_idx, kv_idx)

    return mask_mod


def block_causal(size: int) -> Mod:
    """Keys of the query's own block of this size, and of the blocks before it."""
    size = _positive(size, "block_causal: size")

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return kv_idx // size <= q_idx // size

    return mask_mod


def dilated(step: int, offset: int = 0) -> Mod:
    """Every step-th key, counted from the query's own place in both directions."""
    step, shift = _positive(step, "dilated: step"), _whole(offset, "dilated: offset")

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (q_idx + shift - kv_idx) % step == 0

    return mask_mod


def document(ids: Any, kv_ids: Any = None) -> Mod:
    """Keys of the query's own document. ids: the document of each place, (length,) or (batch, length); kv_ids: that of keys,
    where it differs from that of queries."""
    ids = _integers(ids, "document: ids", 1, 2)
    kv_ids = ids if kv_ids is None else _integers(kv_ids, "document: kv_ids", 1, 2)

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        mine = ids[q_idx] if ids.ndim == 1 else ids[b, q_idx]
        return mine == (kv_ids[kv_idx] if kv_ids.ndim == 1 else kv_ids[b, kv_idx])

    return mask_mod


def padding(lengths: Any) -> Mod:
    """The first keys of each batch entry. lengths: how many, (batch,)."""
    counts = _integers(lengths, "padding: lengths", 1)

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return kv_idx < counts[b]

    return mask_mod


def _integers(x: Any, what: str, *ranks: int) -> Any:
    """An array of whole numbers; torch tensors stay as they are, others become NumPy arrays."""
    if hasattr(x, "detach"):
        return x
    array = np.asarray(x)
    if array.dtype.kind not in "iu":
        raise Error(f"{what}: expected whole numbers, got {array.dtype.name}")
    if array.ndim not in ranks:
        wanted = " or ".join(map(str, ranks))
        raise Error(f"{what}: expected {wanted} dimensions, got shape {show_shape(array.shape)}")
    return array if array.dtype.name in ("int64", "int32", "int8") else array.astype(np.int64)


def _whole(x: Any, what: str) -> int:
    if not is_whole(x):
        raise Error(f"{what}: expected a whole number, got {x if isinstance(x, float) else kind_of(x)}")
    return int(x)


def _natural(x: Any, what: str) -> int:
    if _whole(x, what) < 0:
        raise Error(f"{what}: expected a whole number of at least 0, or None for open, got {x}")
    return int(x)


def _positive(x: Any, what: str) -> int:
    if _whole(x, what) < 1:
        raise Error(f"{what}: expected a whole number of at least 1, got {x}")
    return int(x)

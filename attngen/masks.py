"""Masks by name, as functions `mask_mod(b, h, q_idx, kv_idx)`, to be combined by `and_masks`, `or_masks` and `not_mask`:

    mask_mod=masks.and_masks(masks.causal(), masks.document(ids))

None of them allocates anything of size q_len · kv_len, nor does `tile_map`, which says how much work a mask leaves:

    print(masks.tile_map(masks.causal(), 4096, 4096))
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from attngen import functions
from attngen.ir.diagnostics import Error, collect_remarks
from attngen.ir.passes.tile import tile
from attngen.ir.passes.tile_sizes import MASKED_REDUCED, MASKED_ROWS
from attngen.ir.types import F32, TensorType
from attngen.mods import Mod, and_masks, check_mod, coordinate, masked, not_mask, or_masks
from attngen.names import kind_of
from attngen.programs import program
from attngen.sdpa_options import is_whole
from attngen.specs import show_shape
from attngen.tensor import Tensor
from attngen.tile_map import TileMap, tile_maps
from attngen.tracing import current

__all__ = [
    "TileMap",
    "and_masks",
    "block_causal",
    "causal",
    "dilated",
    "document",
    "not_mask",
    "or_masks",
    "padding",
    "prefix_lm",
    "tile_map",
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


MOST_TILES = 10_000_000
"""Along one axis: more would take minutes to look at."""


def tile_map(
    mask_mod: Mod,
    q_len: int,
    kv_len: int,
    *,
    batch: int = 1,
    heads: int = 1,
    rows: int = MASKED_ROWS,
    keys: int = MASKED_REDUCED,
) -> TileMap:
    """Which tiles of rows × keys are empty, full or mixed, by what a kernel knows of the mask: empty ones are not computed, in
    full ones nothing is masked. rows, keys: the lengths of a tile; those that kernels of masked attention have by default.

    Raises Error if nothing is known of the mask over a tile: it compares floats, or looks coordinates up in a table.
    """
    check_mod("mask_mod", mask_mod)
    sizes = {"b": (batch, 1), "h": (heads, 1), "i": (q_len, rows), "j": (kv_len, keys)}
    names = {"b": "batch", "h": "heads", "i": "q_len", "j": "kv_len"}
    for axis, (extent, _) in sizes.items():
        _positive(extent, f"tile_map: {names[axis]}")

    @program(q="b h i", k="b h j", out="b h i")
    def highest(q: Tensor, k: Tensor) -> Tensor:
        trace = current()
        keep = masked(mask_mod, [coordinate(trace, (axis,)) for axis in "bhij"])
        always = isinstance(keep, bool)
        condition = functions.index("j") >= (0 if keep else kv_len) if always else Tensor(keep, trace)
        return functions.reduce_max(functions.where(condition, q + k, -math.inf), over="j")

    types = {x: TensorType(tuple((axis, sizes[axis][0]) for axis in axes), F32) for x, axes in (("q", "bhi"), ("k", "bhj"))}
    traced = highest.bind(types)
    steps = {axis: _positive(step, "tile_map: rows and keys") for axis, (_, step) in sizes.items()}
    for axis, (extent, step) in sizes.items():
        if extent // step > MOST_TILES:
            raise Error(f"tile_map: {names[axis]} {extent} has more than {MOST_TILES} tiles of {step}; give longer ones")
    arrays = {
        param.name: traced.captured[x].array
        for param, x in zip(traced.func.params, traced.sources, strict=True)
        if x in traced.captured
    }
    func = tile(traced.func, **steps)
    with collect_remarks() as remarks:
        found = [tiles for _, tiles in tile_maps(func, arrays)]
    if len(found) != 1 or not isinstance(found[0], TileMap):
        reason = "; ".join(str(r.message) for r in remarks) or "it does not depend on kv_idx"
        raise Error(f"tile_map: tiles of this mask cannot be told apart: {reason}")
    return found[0]


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

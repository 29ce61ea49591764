"""The arrays that attention takes besides query, key and value: masks, biases, slopes, sinks and lengths.

Each becomes an input of the kernel as it is: an array that broadcasts is read without the axes along which it has extent 1, so
nothing of size q_len · kv_len is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attngen.arrays import HOST, Array, show_dtype
from attngen.backends import Arrays
from attngen.ir.diagnostics import Error
from attngen.ir.types import ElementType, Layout
from attngen.sdpa_shapes import FLOATS, Shape
from attngen.specs import array_dtype, read_dtype, show_shape

Dimension = tuple[tuple[str, ...], int]


@dataclass(frozen=True)
class Extra:
    """An array beside query, key and value, as the kernel reads it."""

    name: str
    array: Array
    layout: Layout

    @property
    def key(self) -> tuple[str, Layout, tuple[int, ...], Any]:
        return self.name, self.layout, self.array.shape, self.array.dtype


def read_extras(
    shape: Shape,
    accumulator: ElementType,
    *,
    arrays: Arrays = HOST,
    attn_mask: Any = None,
    bias: Any = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    seqused_k: Any = None,
) -> tuple[Extra, ...]:
    """Those that are given, checked, in the order of the arguments. The small ones are read here, and copied to the kernel."""
    found: list[Extra] = []
    for name, x in (("attn_mask", attn_mask), ("bias", bias)):
        if x is not None:
            array = arrays.read(name, x)
            check_element(name, array, accumulator)
            found.append(broadcast(name, array, shape.scores))
    heads: Sequence[Dimension] = () if shape.heads is None else ((shape.head_axes, shape.heads),)
    batch = shape.scores[: len(shape.batch)]
    if alibi_slopes is not None:
        found.append(small("alibi_slopes", arrays.small(alibi_slopes), accumulator, heads, (*batch, *heads)))
    if sinks is not None:
        found.append(small("sinks", arrays.small(sinks), accumulator, heads))
    if seqused_k is not None:
        found.append(lengths("seqused_k", arrays.small(seqused_k), batch, shape.kv_len))
    return tuple(found)


def check_element(name: str, x: Array, accumulator: ElementType) -> None:
    """A boolean mask, or floats that the accumulator holds exactly."""
    if x.dtype.name == "bool":
        if name != "attn_mask":
            raise Error(f"{name}: expected floats, got bool; a boolean mask is attn_mask={name}")
        return
    if x.dtype.name not in FLOATS:
        if name == "attn_mask":
            wanted, to = "bool (True keeps a key) or floats (added to the scores)", "bool"
        else:
            wanted, to = "floats", "np.float32"
        raise Error(f"{name}: expected {wanted}, got {x.dtype.name}; use {name}.astype({to})")
    if not x.dtype.isnative:
        raise Error(f"{name}: {show_dtype(x.dtype)} is not supported; use {name}.astype({name}.dtype.newbyteorder('='))")
    if read_dtype(x.dtype, name).bytes > accumulator.bytes:
        wanted = array_dtype(accumulator).name
        raise Error(f"{name}: has dtype {x.dtype.name}, but scores are computed in {wanted}; use {name}.astype(np.{wanted})")


def broadcast(name: str, x: Array, dimensions: Sequence[Dimension]) -> Extra:
    """The array without the dimensions in which it has extent 1."""
    extents = tuple(extent for _, extent in dimensions)
    if x.ndim > len(dimensions):
        raise Error(
            f"{name}: {x.ndim} dimensions in shape {show_shape(x.shape)} are more than scores have: {show_shape(extents)}"
        )
    groups: list[tuple[str, ...]] = []
    for d, (length, (axes, extent)) in enumerate(zip(x.shape, dimensions[len(dimensions) - x.ndim :], strict=True)):
        if length == 1:
            continue
        if length != extent:
            what = {"i": "q_len", "j": "kv_len", "h": "heads", "g": "heads"}.get(axes[0], "batch")
            raise Error(
                f"{name}: shape {show_shape(x.shape)} does not broadcast to the scores' {show_shape(extents)}: "
                f"dimension {d} is {length}, expected 1 or {extent} ({what})"
            )
        groups.append(axes)
    return Extra(name, x[(*(0 if length == 1 else slice(None) for length in x.shape), ...)], Layout(tuple(groups)))


def small(name: str, x: Any, accumulator: ElementType, *wanted: Sequence[Dimension]) -> Extra:
    """A few numbers, of one of the given shapes, in the precision of the scores."""
    try:
        array: Array = np.asarray(x)
    except (TypeError, ValueError):
        raise Error(f"{name}: expected an array of floats, got {x!r}") from None
    if array.dtype.kind not in "fiu" and array.dtype.name != "bfloat16":
        raise Error(f"{name}: expected an array of floats, got {array.dtype.name}")
    for dimensions in wanted:
        shape = tuple(extent for _, extent in dimensions) or (1,)
        if array.shape == shape or not dimensions and array.shape == ():
            groups = tuple(axes for axes, _ in dimensions)
            with np.errstate(over="ignore"):
                array = array.astype(accumulator.numpy)
            # A sink of -inf is none.
            wrong: Array = ~np.isfinite(array) & ~(np.isneginf(array) & (name == "sinks"))
            for at in np.argwhere(wrong)[:1].tolist():
                raise Error(f"{place(name, at)} is {array[tuple(at)]} in {array.dtype.name}; expected a finite number")
            return Extra(name, array if groups else array.reshape(()), Layout(groups))
    shapes = " or ".join(show_shape(tuple(extent for _, extent in dimensions) or (1,)) for dimensions in dict.fromkeys(wanted))
    names = "one slope per head (and batch entry)" if name == "alibi_slopes" else "one per head"
    raise Error(f"{name}: expected shape {shapes}, {names}, got {show_shape(array.shape)}")


def lengths(name: str, x: Any, batch: Sequence[Dimension], limit: int) -> Extra:
    """A number of keys per batch entry."""
    array = np.asarray(x)
    if array.dtype.kind not in "iu":
        raise Error(f"{name}: expected whole numbers, got {array.dtype.name}")
    shape = tuple(extent for _, extent in batch)
    if array.shape != shape and not (not shape and array.shape == (1,)):
        raise Error(f"{name}: expected shape {show_shape(shape)}, one length per batch entry, got {show_shape(array.shape)}")
    for at in np.argwhere((array < 0) | (array > limit))[:1].tolist():
        raise Error(f"{place(name, at)} is {array[tuple(at)]}; expected a length from 0 to kv_len = {limit}")
    return Extra(name, array.astype(np.int64).reshape(shape), Layout(tuple(axes for axes, _ in batch)))


def place(name: str, at: Sequence[int]) -> str:
    """One element of an array, in an error."""
    return name + "".join(f"[{k}]" for k in at)

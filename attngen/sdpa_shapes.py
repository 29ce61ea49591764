"""The shapes of query, key and value: what must agree, and which axes they have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attngen.arrays import Array, show_dtype
from attngen.ir.diagnostics import Error
from attngen.specs import show_shape

FLOATS = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class Shape:
    """What the three arrays have in common: extents, and the names of their axes.

    Grouped queries: r queries of a group read the key head g, both in one dimension of the query.
    """

    batch: tuple[int, ...]
    heads: int | None
    kv_heads: int | None
    q_len: int
    kv_len: int

    @staticmethod
    def of(query: Array, key: Array, layout: str) -> Shape:
        """Of arrays that `check_inputs` has found right."""
        if query.ndim == 2:
            return Shape((), None, None, query.shape[0], key.shape[0])
        heads, length = (-3, -2) if layout == "BHSD" else (-2, -3)
        return Shape(query.shape[:-3], query.shape[heads], key.shape[heads], query.shape[length], key.shape[length])

    @property
    def batch_axes(self) -> tuple[str, ...]:
        return tuple(f"b{k}" for k in range(len(self.batch)))

    @property
    def head_axes(self) -> tuple[str, ...]:
        return () if self.heads is None else ("h",) if self.heads == self.kv_heads else ("g", "r")

    @property
    def kv_head_axes(self) -> tuple[str, ...]:
        return self.head_axes[:1]

    @property
    def scores(self) -> tuple[tuple[tuple[str, ...], int], ...]:
        """The dimensions of (…, heads, q_len, kv_len): the axes and the extent of each."""
        batch = tuple(((axis,), extent) for axis, extent in zip(self.batch_axes, self.batch, strict=True))
        heads = () if self.heads is None else ((self.head_axes, self.heads),)
        return (*batch, *heads, (("i",), self.q_len), (("j",), self.kv_len))

    @property
    def score_axes(self) -> tuple[str, ...]:
        return tuple(axis for axes, _ in self.scores for axis in axes)


def check_inputs(
    query: Array, key: Array, value: Array, layout: str, names: Sequence[str] = ("query", "key", "value"), batch: bool = True
) -> None:
    """Everything that must agree between the three arrays (batch: also the batch); errors name the argument, what it has, and
    what was expected."""
    key_name, value_name = names[1:]
    arrays = dict(zip(names, (query, key, value), strict=True))
    for name, x in arrays.items():
        if not x.dtype.isnative:
            raise Error(f"{name}: {show_dtype(x.dtype)} is not supported; use {name}.astype({name}.dtype.newbyteorder('='))")
        if x.dtype.name not in FLOATS:
            raise Error(
                f"{name}: expected a float dtype ({', '.join(FLOATS)}), got {x.dtype.name}; use {name}.astype(np.float32)"
            )
    for name, x in arrays.items():
        if x.dtype != query.dtype:
            raise Error(f"{name}: has dtype {x.dtype.name}, but query has {query.dtype.name}; use {name}.astype(query.dtype)")
    for name, x in arrays.items():
        if x.ndim < 2:
            raise Error(f"{name}: expected at least 2 dimensions (length, features), got shape {show_shape(x.shape)}")
        if x.ndim != query.ndim:
            raise Error(
                f"{name}: has {x.ndim} dimensions {show_shape(x.shape)}, but query has {query.ndim} {show_shape(query.shape)}"
            )
    heads, length = (-3, -2) if layout == "BHSD" else (-2, -3)
    if query.ndim == 2:
        heads, length = None, -2
    q, k, v = query.shape, key.shape, value.shape

    def differ(
        name: str, shape: tuple[int, ...], other: str, other_shape: tuple[int, ...], what: str, a: object, b: object
    ) -> Error:
        return Error(f"{name}: {what} {a} in shape {show_shape(shape)}, but {other} has {b} in shape {show_shape(other_shape)}")

    if q[-1] == 0:
        raise Error(f"query: d is 0 in shape {show_shape(q)}; expected at least one feature to compare by")
    if k[-1] != q[-1]:
        raise differ(key_name, k, "query", q, "has d", k[-1], q[-1])
    if v[length] != k[length]:
        raise differ(value_name, v, key_name, k, "has kv_len", v[length], k[length])
    if heads is None:
        return
    for name, shape in ((key_name, k), (value_name, v)):
        if batch and shape[:-3] != q[:-3]:
            raise differ(name, shape, "query", q, "has batch", show_shape(shape[:-3]), show_shape(q[:-3]))
    if v[heads] != k[heads]:
        raise differ(value_name, v, key_name, k, "has kv_heads", v[heads], k[heads])
    if q[heads] != k[heads] and (k[heads] == 0 or q[heads] % k[heads]):
        raise Error(
            f"query: {q[heads]} heads in shape {show_shape(q)} are no multiple of the {k[heads]} heads of {key_name} "
            f"{show_shape(k)}; expected heads = kv_heads · n"
        )

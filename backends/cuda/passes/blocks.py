"""tile-blocks, tile-small-blocks, tile-warpgroups: how the axes of a function are cut for blocks of threads, and why."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import prod

from attngen.ir.core import Value
from attngen.ir.elementwise import Cast
from attngen.ir.func import Func
from attngen.ir.nd import Contract, looked_up
from attngen.ir.passes.tile import cut
from attngen.ir.passes.tile_sizes import REASONS, all_extents, cut_axes, fit, role_of, row_steps
from attngen.ir.pipeline import register_pass
from attngen.ir.types import ElementType, bound

HALF_BYTES = 2


@dataclass(frozen=True)
class Shape:
    """rows: of a block; reduced: elements of a reduced axis per trip; even: the same where it divides the axis, if that is
    better. No elements have to be left out then, which takes registers."""

    rows: int
    reduced: int
    even: int = 0


SCALAR = Shape(32, 64)
"""Each element is one thread's work, and tiles lie in shared memory."""


def by_warps(width: int, busy: bool) -> Shape:
    """For products of warps (mma.sync). width: of the widest tile beside the scores; busy: whether more than products varies
    along rows and the reduced axis. Accumulators of 16 rows per warp, scores and operands stay in 255 registers; two buffers
    for operands in 163 KB of shared memory."""
    if width <= 128:
        return Shape(128, 64)
    return Shape(128, 32) if width <= 192 else Shape(64, 32)


def by_few_warps(width: int, busy: bool) -> Shape:
    """The same in 99 KB of shared memory."""
    if width <= 96:
        return Shape(128, 64)
    return Shape(128, 32) if width <= 128 else Shape(64, 32)


def by_warpgroups(width: int, busy: bool) -> Shape:
    """For products of warpgroups (wgmma): two of them with 64 rows each, 227 KB of shared memory. Accumulators and two tiles of
    scores, one of them under way, stay in 240 registers."""
    if width <= 64:
        return Shape(128, 128 if width <= 48 else 112, even=128)
    if width <= 128:
        return Shape(128, 112 if width <= 96 and not busy else 96, even=0 if busy else 128)
    return Shape(128, 48, even=64)


def operand(x: Value) -> Value:
    """What a product reads, without a cast to a wider float."""
    return x.op.value if isinstance(x.op, Cast) and x.op.value.element.is_float else x


def halves(func: Func) -> list[Contract]:
    """The products that have an operand of 16-bit floats."""
    products = [op for op in func.walk() if isinstance(op, Contract)]
    return [
        op
        for op in products
        if any(operand(item).element.is_float and operand(item).element.bytes == HALF_BYTES for item in (op.lhs, op.rhs))
    ]


def is_busy(func: Func, cut: Collection[str]) -> bool:
    """Whether a mask or an array varies along both rows and a reduced axis that is cut."""
    conditions = [item for op in func.body.ops for item in op.results if item.element is ElementType.I1]
    return any({"row", "reduced"} <= {role_of(func, n) for n in item.names if n in cut} for item in (*conditions, *func.args))


def choose(func: Func, by: Callable[[int, bool], Shape]) -> dict[str, int]:
    """The length of a part for every axis that should be cut."""
    extents = all_extents(func)
    wanted = cut_axes(func, extents)
    products = halves(func)
    widths = [bound(extents[n]) for op in products for item in (op.lhs, op.rhs) for n in item.names if n not in wanted]
    width = max(widths, default=0)
    shape = by(width, is_busy(func, wanted)) if products else SCALAR
    steps, _ = row_steps(func, extents, wanted, shape.rows)
    height = prod(steps[name] for name in steps if role_of(func, name) == "row")
    # One warp alone multiplies slowly: small tiles leave room for more blocks beside it.
    reduced = min(shape.reduced, 64 if width <= 64 else 32) if products and height <= 16 else shape.reduced
    known = {name: extent for value in func.args for name, extent in value.tensor.axes if isinstance(extent, int)}
    for name in (n for n in extents if n in wanted and n not in steps):
        fits = shape.even and height > 16 and known.get(name, 1) % shape.even == 0
        steps[name] = max(min(shape.even if fits else reduced, extents[name]), 1)
    whole = looked_up(func.body.ops)
    if not products:
        for type in dict.fromkeys(item.tensor for op in func.body.ops for item in (*op.operands, *op.results)):
            if not whole & set(type.names):
                fit(type, steps)
    return {n: steps[n] for n in extents if n in steps}


def reasons(func: Func, steps: Mapping[str, int], by: Callable[[int, bool], Shape]) -> dict[str, str]:
    """Why each axis is cut, and why into parts of this length."""
    chosen, extents = choose(func, by), all_extents(func)
    where = "registers and shared memory of a block hold" if halves(func) else "threads that work on single elements share"

    def length(axis: str, role: str) -> str:
        if steps[axis] != chosen.get(axis):
            return "; as long as was asked for"
        if role == "batch":
            return ""
        return "; all of it, since it is short" if steps[axis] >= extents[axis] else f"; as much of it as {where}"

    roles = {axis: role_of(func, axis) for axis in steps if axis in extents}
    return {axis: REASONS[role] + length(axis, role) for axis, role in roles.items()}


@register_pass("tile-blocks", resolve=lambda func: choose(func, by_warps))
def tile_blocks(func: Func, /, **steps: int) -> Func:
    """`tile` with parts for blocks of threads: as many rows as 4 or 8 warps multiply at a time, and as many elements of the
    reduced axis as leave room in registers and shared memory.

    before: %m = nd.reduce %x kind max over [j] : tensor<i=1000, f32>
    after:  %m = loop.parallel %i: i = 0 to 1000 step 128 out (%dst) { %r = loop.for %j: j = 0 to 500 step 64 … }
    """
    return cut(func, steps, lambda func, steps: reasons(func, steps, by_warps))


@register_pass("tile-small-blocks", resolve=lambda func: choose(func, by_few_warps))
def tile_small_blocks(func: Func, /, **steps: int) -> Func:
    """`tile` with parts for blocks of threads that have less shared memory.

    before: %m = nd.reduce %x kind max over [j] : tensor<i=1000, f32>
    after:  %m = loop.parallel %i: i = 0 to 1000 step 128 out (%dst) { %r = loop.for %j: j = 0 to 500 step 32 … }
    """
    return cut(func, steps, lambda func, steps: reasons(func, steps, by_few_warps))


@register_pass("tile-warpgroups", resolve=lambda func: choose(func, by_warpgroups))
def tile_warpgroups(func: Func, /, **steps: int) -> Func:
    """`tile` with parts for warpgroups, each of which multiplies 64 rows at a time.

    before: %m = nd.reduce %x kind max over [j] : tensor<i=1000, f32>
    after:  %m = loop.parallel %i: i = 0 to 1000 step 128 out (%dst) { %r = loop.for %j: j = 0 to 500 step 128 … }
    """
    return cut(func, steps, lambda func, steps: reasons(func, steps, by_warpgroups))

"""split-reduction: the parts of one loop run side by side, and a second nest merges their results.

Flash-decoding (Dao, Haziza, Massa and Sizov 2023) for any loop that knows how two of its results merge.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from attngen.ir.build import add, constant, expand, maximum, minimum, mul
from attngen.ir.core import Value, argument, at
from attngen.ir.diagnostics import remark
from attngen.ir.func import Func
from attngen.ir.loop import Bound, For, Load, Parallel, Store, trips
from attngen.ir.nd import Reduce
from attngen.ir.pipeline import register_pass
from attngen.ir.rewrite import clone, place, rewrite, substitute, unplaced
from attngen.ir.types import INDEX, Extent, RangeType, TensorType, tile_extent


@register_pass("split-reduction")
def split_reduction(func: Func, *, into: int = 1) -> Func:
    """Cut the loop of a nest into so many loops that can run at the same time.

    before: loop.parallel %i { %m = loop.for %j: j = 0 to 4096 step 128 carry … { … } merge { … };  … %m … }
    after:  %p = loop.parallel %i, %s { %m = loop.for %j: … from 1024 · %s until 1024 · %s + 1024 …;  tile.store %m }
            loop.parallel %i { %m = loop.for %s { … tile.load %p, %s … merged … };  … %m … }
    """
    if into <= 1:
        return func
    func = rewrite(func, lambda op: Split(op, into).run() if isinstance(op, Parallel) else None)
    return func.with_body(place(func.args, func.outputs))


class Split:
    """One nest of parallel loops."""

    def __init__(self, parallel: Parallel, into: int) -> None:
        self.parallel, self.into = parallel, into
        n = len(parallel.axes)
        self.ranges, self.outs = parallel.body.args[:n], parallel.body.args[n:]
        self.extents: Mapping[str, Extent] = dict(zip(parallel.axes, parallel.extents, strict=True))
        self.axes, self.steps = parallel.axes, parallel.steps

    def run(self) -> tuple[Value, ...] | None:
        found = [op for op in self.parallel.body.ops if isinstance(op, For)]
        if not found:
            return None
        why = self.obstacle(found)
        if why:
            remark(f"the loop over {found[0].axis} is not split: {why}", found[0].loc)
            return None
        (loop,) = found
        each = -(-trips(loop.extent, loop.step) // self.into)
        parts = -(-trips(loop.extent, loop.step) // each)  # none of them empty at the largest extent
        with at(loop.loc):
            whole = self.merged(loop, self.parts(loop, parts, each * loop.step), parts)
        remark(f"{parts} parts of the loop over {loop.axis} run side by side; a second nest merges them", loop.loc)
        yields = substitute(self.parallel.body.yields, dict(zip(loop.results, whole, strict=True)))
        body = clone(unplaced(self.parallel.body.args, yields))
        return dataclasses.replace(self.parallel, body=body).results

    def obstacle(self, loops: list[For]) -> str:
        if len(loops) > 1:
            return "the nest has several loops"
        if loops[0].merge is None:
            return "it does not say how two of its results merge"
        if trips(loops[0].extent, loops[0].step) == 1:
            return "it runs once"
        cut = [axis for (axis, extent), step in zip(self.extents.items(), self.steps, strict=True) if trips(extent, step) > 1]
        lacking = {axis for axis in cut for v in loops[0].results if axis not in v.names}
        return f"it carries values without {', '.join(sorted(lacking))}" if lacking else ""

    def parts(self, loop: For, parts: int, length: int) -> tuple[Value, ...]:
        """The nest that runs the parts: for each carried value a tensor with one more axis."""
        part = part_of(loop, parts)
        axis = part.range.axis
        first = mul(Bound(range=part, end="first").result, constant(length, INDEX))
        end = add(first, length)
        limited = dataclasses.replace(
            loop,
            first=first if loop.first is None else maximum(loop.first, first),
            end=end if loop.end is None else minimum(loop.end, end),
            merge=None,
            body=clone(loop.body),
        )
        outs: list[Value] = []
        yields: list[Value] = []
        for v in limited.results:
            axes = tuple((n, self.extents.get(n, extent)) for n, extent in v.tensor.axes)
            outs.append(argument(TensorType(((axis, parts), *axes), v.element), v.hint))
            tile = expand(v, (part,), ())
            yields.append(Store(value=tile, target=outs[-1], ranges=(*self.along(v), part)).result)
        body = clone(unplaced((*self.ranges, part, *outs), tuple(yields)))
        axes, extents, steps = (*self.axes, axis), (*self.extents.values(), parts), (*self.steps, 1)
        return Parallel(axes=axes, extents=extents, steps=steps, body=body).results

    def along(self, v: Value) -> tuple[Value, ...]:
        """The ranges along the axes that a tile has."""
        return tuple(r for r in self.ranges if r.range.axis in v.names)

    def merged(self, loop: For, stored: tuple[Value, ...], parts: int) -> tuple[Value, ...]:
        """The loop over the parts that merges them, in the nest that had the loop."""
        assert loop.merge is not None
        part = part_of(loop, parts)
        axis = part.range.axis
        carried = tuple(argument(v.type, v.hint) for v in loop.results)
        loaded = [
            Reduce(value=Load(source=x, ranges=(*self.along(v), part)).result, kind="max", over=(axis,), acc=v.element).result
            for v, x in zip(loop.results, stored, strict=True)
        ]
        yields = substitute(loop.merge.yields, dict(zip(loop.merge.args, (*carried, *loaded), strict=True)))
        body = unplaced((part, *carried), yields)
        return For(inits=loop.inits, axis=axis, extent=parts, step=1, body=body).results


def part_of(loop: For, parts: int) -> Value:
    """The range of one part, along an axis of them."""
    axis = f"{loop.axis}_part"
    return argument(RangeType(axis, tile_extent(parts, 1)), axis)

"""A function as kernels: one for each nest of loops, in order."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial

from attngen.backends.cuda.ops import Grid
from attngen.backends.cuda.program import Entry, Program
from attngen.backends.cuda.scalar import needed, number_arrays, write
from attngen.backends.cuda.target import Target
from attngen.backends.cuda.tile_source import TileWriter
from attngen.backends.cuda.warpgroup_source import WarpgroupWriter
from attngen.ir.core import Op, Value
from attngen.ir.func import Func
from attngen.ir.loop import Parallel
from attngen.ir.rewrite import rewrite


def program(func: Func, target: Target) -> Program:
    """Grids by tensor cores, other nests element by element."""
    arrays, temporaries = number_arrays(func)
    nests = [op for op in func.body.ops if isinstance(op, Parallel)]
    entries: list[Entry] = []
    for k, nest in enumerate(nests):
        name = func.name if len(nests) == 1 else f"{func.name}_{k}"
        entries.append(
            grid_entry(func, nest, target, arrays, name) if isinstance(nest, Grid) else write(func, nest, target, arrays, name)
        )
    maps = any(isinstance(nest, Grid) and nest.engine == "wgmma" for nest in nests)
    return Program(func, target, tuple(entries), temporaries, partial(program, by_warps(func), target) if maps else None)


def by_warps(func: Func) -> Func:
    """The function without products of warpgroups, which need tensor maps."""

    def rule(op: Op) -> tuple[Value, ...] | None:
        return dataclasses.replace(op, engine="mma").results if isinstance(op, Grid) else None

    return rewrite(func, rule)


def grid_entry(func: Func, grid: Grid, target: Target, arrays: Mapping[Value, int], name: str) -> Entry:
    words = {k: p.name for k, p in enumerate(func.params)}
    outs = zip(grid.body.args[len(grid.axes) :], (arrays[v] for v in grid.results), strict=True)
    numbers = {**arrays, **dict(outs)}
    for number in numbers.values():
        words.setdefault(number, f"out{number - len(func.params)}")
    writer = WarpgroupWriter if grid.engine == "wgmma" else TileWriter
    return writer(name, grid, numbers, words, needed(grid, func.body.ops), target).entry()

"""A function as kernels: one for each nest of loops, in order."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from functools import partial

from attngen.backends.cuda.ops import Grid
from attngen.backends.cuda.program import Entry, Program
from attngen.backends.cuda.scalar.source import TAKEN
from attngen.backends.cuda.scalar.writer import needed, number_arrays, write
from attngen.backends.cuda.target import Target
from attngen.backends.cuda.tensor_cores.tile_source import TileWriter
from attngen.backends.cuda.tensor_cores.tile_text import RESERVED
from attngen.backends.cuda.tensor_cores.warpgroup_source import WarpgroupWriter
from attngen.ir.core import Op, Value
from attngen.ir.func import Func
from attngen.ir.loop import Parallel
from attngen.ir.rewrite import rewrite

WARP_SIZE = "WARP_SZ"
"""The only word that PTX keeps for itself."""


def program(func: Func, target: Target) -> Program:
    """Grids by tensor cores, other nests element by element."""
    arrays, temporaries = number_arrays(func)
    nests = [op for op in func.body.ops if isinstance(op, Parallel)]
    entries: list[Entry] = []
    for n, nest in enumerate(nests):
        name = identifier(func.name if len(nests) == 1 else f"{func.name}_{n}", "kernel", (*RESERVED, *TAKEN, WARP_SIZE))
        entries.append(
            grid_entry(func, nest, target, arrays, name) if isinstance(nest, Grid) else write(func, nest, target, arrays, name)
        )
    maps = any(isinstance(nest, Grid) and nest.engine == "wgmma" for nest in nests)
    return Program(func, target, tuple(entries), temporaries, partial(program, by_warps(func), target) if maps else None)


def identifier(name: str, prefix: str, taken: Collection[str] = ()) -> str:
    """A name that Python and PTX take as it is. prefix: goes before a name that needs one."""
    word = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return word if word[:1].isalpha() and word not in taken else f"{prefix}_{word}"


def by_warps(func: Func) -> Func:
    """The function without products of warpgroups, which need tensor maps."""

    def rule(op: Op) -> tuple[Value, ...] | None:
        return dataclasses.replace(op, engine="mma").results if isinstance(op, Grid) else None

    return rewrite(func, rule)


def grid_entry(func: Func, grid: Grid, target: Target, arrays: Mapping[Value, int], name: str) -> Entry:
    outs = zip(grid.body.args[len(grid.axes) :], (arrays[made] for made in grid.results), strict=True)
    numbers = {**arrays, **dict(outs)}
    words = dict[int, str]()
    for number in dict.fromkeys((*range(len(func.params)), *numbers.values())):
        inner = number - len(func.params)
        word = f"out{inner}" if inner >= 0 else identifier(func.params[number].name, "array")
        words[number] = word if word not in words.values() else f"{word}_{number}"
    writer = WarpgroupWriter if grid.engine == "wgmma" else TileWriter
    return writer(name, grid, numbers, words, needed(grid, func.body.ops), target).entry()

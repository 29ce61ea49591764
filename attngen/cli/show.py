"""`attngen show --mask`: which tiles of a mask are empty, full or mixed, as text or as a picture."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from typing import IO, Any, NamedTuple

import click
import numpy as np

from attngen import masks
from attngen.cli.files import load_module, write_text
from attngen.cli.run import read_shape, read_tiles
from attngen.ir.diagnostics import Error
from attngen.mods import Mod
from attngen.names import suggest
from attngen.tile_map import EMPTY, FULL, KINDS, MIXED, TileMap
from attngen.written import write

MARKS = {EMPTY: "·", FULL: "█", MIXED: "▒"}
COLOURS = {EMPTY: "#eeeeec", FULL: "#3465a4", MIXED: "#f57900"}
WIDTH, HEIGHT = 88, 48
"""The most characters and lines of a map."""
CELLS = 256
"""The most cells of a picture along a side."""


class Sizes(NamedTuple):
    batch: int
    heads: int
    q_len: int
    kv_len: int


Numbers = Sequence[int]


class Kind(NamedTuple):
    """A mask that has a name: what follows the colon, and how it is made."""

    arguments: str
    least: int
    most: int
    make: Callable[[Numbers, Sizes], Mod]


def alone(make: Callable[..., Mod]) -> Callable[[Numbers, Sizes], Mod]:
    """A mask of numbers, whatever the sizes."""

    def made(numbers: Numbers, sizes: Sizes) -> Mod:
        return make(*numbers)

    return made


def window(left: int, right: int, offset: int = 0) -> Mod:
    return masks.window(None if left == -1 else left, None if right == -1 else right, offset)


def documents(numbers: Numbers, sizes: Sizes) -> Mod:
    """N documents of equal length, or documents of these lengths; what is left over is one more."""
    length = max(sizes.q_len, sizes.kv_len)
    if len(numbers) == 1:
        numbers = [-(-length // max(numbers[0], 1))] * numbers[0]
    elif sum(numbers) > length:
        raise Error(f"--mask document: the lengths add up to {sum(numbers):,}, more than the {length:,} of --shape")
    if min(numbers, default=0) < 1:
        raise Error("--mask document: expected numbers of at least 1")
    return masks.document(np.searchsorted(np.cumsum(numbers), np.arange(length), side="right"))


def padding(numbers: Numbers, sizes: Sizes) -> Mod:
    if len(numbers) != sizes.batch:
        raise Error(f"--mask padding: expected {sizes.batch} numbers, one for each batch entry, got {len(numbers)}")
    return masks.padding(np.array(numbers))


NAMED: Mapping[str, Kind] = {
    "causal": Kind("[offset]", 0, 1, alone(masks.causal)),
    "window": Kind("left,right[,offset], -1 is open", 2, 3, alone(window)),
    "prefix": Kind("length[,offset]", 1, 2, alone(masks.prefix_lm)),
    "block": Kind("size", 1, 1, alone(masks.block_causal)),
    "dilated": Kind("step[,offset]", 1, 2, alone(masks.dilated)),
    "document": Kind("count, or the length of each", 1, 10**6, documents),
    "padding": Kind("how many keys, for each batch entry", 1, 10**6, padding),
}


@click.command(name="show")
@click.option("--mask", "texts", multiple=True, required=True, metavar="MASK", help="A mask by name, or FILE.py:NAME.")
@click.option("--shape", "shape", default="4096,4096", show_default=True, metavar="SHAPE", help="q,kv or b,h,q,kv,d.")
@click.option("--tile", "tiles", multiple=True, metavar="AXIS=N", help="Length of a tile along i or j, such as i=64.")
@click.option("--out", metavar="FILE", help="Draw into a .svg or .png file instead.")
def command(texts: tuple[str, ...], shape: str, tiles: tuple[str, ...], out: str | None) -> int:
    """Draw which tiles of a mask are empty, full or mixed: a kernel leaves out the empty ones, and masks nothing in the full
    ones. Several masks, after commas or in several options, all apply.

    \b
    attngen show --mask causal --shape 4096,4096
    attngen show --mask window:255,0 --shape 1,8,8192,8192,64 --out window.svg
    attngen show --mask causal,document:1000,3000,96          documents of these lengths
    attngen show --mask document:16 --tile i=64 --tile j=128  16 documents of equal length
    attngen show --mask mine.py:mask_mod                      def mask_mod(b, h, q_idx, kv_idx)
    """
    if out is not None:
        check_out(out)
    sizes = read_sizes(shape)
    steps = read_tiles(tiles) if tiles else {}
    for axis in steps:
        if axis not in ("i", "j"):
            raise click.UsageError(f"--tile {axis}=…: the axes are i, of queries, and j, of keys")
    mask_mod = masks.and_masks(*(mask for text in texts for mask in read_masks(text, sizes)))
    given = {name: steps[axis] for axis, name in (("i", "rows"), ("j", "keys")) if axis in steps}
    found = masks.tile_map(mask_mod, sizes.q_len, sizes.kv_len, batch=sizes.batch, heads=sizes.heads, **given)
    title = f"{','.join(texts)}: q_len {sizes.q_len:,}, kv_len {sizes.kv_len:,}"
    click.echo(title)
    click.echo(fill(str(found), 100))
    if out is None:
        click.echo(drawn(found))
    elif Path(out).suffix.lower() == ".svg":
        write_text(out, svg(found, title))
    else:
        png(found, title, out)
    return 0


def read_sizes(text: str) -> Sizes:
    numbers = read_shape(text)
    if len(numbers) not in (2, 5, 6) or 0 in numbers:
        raise Error(f"--shape: expected q,kv or b,h,q,kv,d, none of them 0, got {text}")
    return Sizes(1, 1, *numbers) if len(numbers) == 2 else Sizes(*numbers[:4])


# ---------------------------------------------------------------- masks


def read_masks(text: str, sizes: Sizes) -> Iterator[Mod]:
    """`causal,window:255,0`: a comma begins the next mask where no number follows."""
    for part in re.split(r",(?!\s*-?\d)", text):
        name, colon, rest = part.strip().partition(":")
        if name.endswith(".py"):
            mask = getattr(load_module(name), rest, None)
            if mask is None:
                raise Error(f"--mask {part}: {name} has no {rest!r}")
            yield mask
            continue
        kind = NAMED.get(name)
        if kind is None:
            raise Error(f"--mask: there is no mask {name!r}; {suggest(name, NAMED)}")
        words = [word.strip() for word in rest.split(",")] if colon else []
        if not all(re.fullmatch(r"-?\d{1,18}", word) for word in words) or not kind.least <= len(words) <= kind.most:
            raise Error(f"--mask {part}: expected {name}:{kind.arguments}")
        yield kind.make([int(word) for word in words], sizes)


# ---------------------------------------------------------------- pictures


def drawn(found: TileMap) -> str:
    """The map in characters, about as high as wide for as many queries as keys."""
    rows, keys = found.axes[-2:]
    repeat = min(max(1, round(2 * keys.step / rows.step)), WIDTH)
    cells, n = found.picture(max(WIDTH // repeat, 1), HEIGHT)
    lines = [f"{k * n * rows.step:>9,}  {''.join(MARKS[int(c)] * repeat for c in row)}" for k, row in enumerate(cells)]
    legend = "   ".join(f"{MARKS[kind]} {KINDS[kind]}" for kind in MARKS)
    size = "a tile" if n == 1 else f"{n} x {n} tiles, mixed unless all are alike"
    return "\n".join([*lines, f"{legend}   {MARKS[FULL] * repeat} is {size}"])


def svg(found: TileMap, title: str) -> str:
    """One rectangle per run of equal cells, in the proportions of the axes."""
    cells, n = found.picture(CELLS, CELLS)
    height, width = cells.shape
    rows, keys = found.axes[-2:]
    scale_x = 512 / width
    scale_y = min(max(scale_x * rows.step / keys.step, 1.0), 64.0)
    shapes: list[str] = []
    for k, row in enumerate(cells):
        cuts = [0, *(np.flatnonzero(row[1:] != row[:-1]) + 1).tolist(), width]
        for a, b in pairwise(cuts):
            place = f'x="{a * scale_x:g}" y="{k * scale_y:g}" width="{(b - a) * scale_x:g}" height="{scale_y:g}"'
            shapes.append(f'<rect {place} fill="{COLOURS[int(row[a])]}"/>')
    bottom = height * scale_y
    texts = [title, str(found), *([f"a cell is {n} x {n} tiles"] if n > 1 else [])]
    for k, kind in enumerate(KINDS):
        shapes.append(f'<rect x="{k * 90}" y="{bottom + 12:g}" width="14" height="14" fill="{COLOURS[k]}"/>')
        shapes.append(f'<text x="{k * 90 + 20}" y="{bottom + 24:g}">{kind}</text>')
    shapes += [f'<text x="0" y="{bottom + 46 + 18 * k:g}">{escaped(text)}</text>' for k, text in enumerate(texts)]
    size = f'viewBox="-10 -10 {max(width * scale_x, 760) + 20:g} {bottom + 50 + 18 * len(texts):g}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13">'
    return "\n".join([head, f"<title>{escaped(title)}</title>", *shapes, "</svg>"]) + "\n"


def escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


def check_out(file: str) -> None:
    """Raise Error before anything is done if a picture could not be drawn."""
    if Path(file).suffix.lower() not in (".svg", ".png"):
        raise Error(f"--out {file}: expected a name that ends in .svg or .png")
    if file.lower().endswith(".png") and importlib.util.find_spec("matplotlib") is None:
        raise Error("--out: a .png needs matplotlib, which is not installed: pip install 'attngen[plot]'; .svg needs nothing")


def png(found: TileMap, title: str, file: str) -> None:
    figures: Any = import_module("matplotlib.figure")
    colours: Any = import_module("matplotlib.colors")
    patches: Any = import_module("matplotlib.patches")
    cells, n = found.picture(CELLS, CELLS)
    figure = figures.Figure(figsize=(6.4, 6.4), layout="constrained")
    axes = figure.add_subplot()
    height, width = (n * length * axis.step for length, axis in zip(cells.shape, found.axes[-2:], strict=True))
    palette = colours.ListedColormap([COLOURS[k] for k in range(len(KINDS))])
    axes.imshow(cells, cmap=palette, vmin=0, vmax=len(KINDS) - 1, extent=(0, width, height, 0), aspect="auto")
    axes.set(xlabel="keys", ylabel="queries")
    axes.set_title(title, fontsize=10)
    names = [patches.Patch(color=COLOURS[k], label=kind) for k, kind in enumerate(KINDS)]
    figure.legend(handles=names, frameon=False, ncols=len(names), loc="outside lower center")

    def save(out: IO[bytes]) -> None:
        figure.savefig(out, format="png", dpi=150)

    write(file, save)

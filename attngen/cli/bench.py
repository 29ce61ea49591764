"""`attngen bench`: attngen beside other libraries, in one run."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext

import click
from rich.console import Console

from attngen.bench import SHAPES, Shape, find_shape
from attngen.bench_peers import OURS, check_name, installed
from attngen.bench_rounds import Bench, Timing
from attngen.cli.bench_report import check_plot, document, heading, plot, results_table
from attngen.cli.files import write_text
from attngen.cli.run import read_shape
from attngen.cli.tables import table
from attngen.ir.diagnostics import Error

DEFAULT = ("bert",)
TYPES = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}


@click.command(name="bench")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--shape", "shapes", multiple=True, metavar="SHAPE", help="b,h,q,kv,d[,dv]; may be given several times.")
@click.option("--heads-kv", type=click.IntRange(1), metavar="N", help="Heads of key and value for --shape, if fewer.")
@click.option("--dtype", type=click.Choice(list(TYPES)), help="Element type for --shape (float32).")
@click.option("--causal", is_flag=True, help="For --shape: query i sees the keys up to i.")
@click.option(
    "--against",
    multiple=True,
    metavar="NAME",
    help="Time only these beside attngen, the first as the baseline: torch-sdpa, numpy, or module:function.",
)
@click.option("--threads", type=click.IntRange(1, 256), default=1, show_default=True, help="Threads of each implementation.")
@click.option("--rounds", type=click.IntRange(2, 1000), default=4, show_default=True, help="Turns that each gets on a shape.")
@click.option(
    "--seconds", type=click.FloatRange(0), default=1.0, show_default=True, help="Of timed calls, per implementation and shape."
)
@click.option("--json", "json_file", metavar="FILE", help="Where to write all times and figures; - is standard output.")
@click.option("--plot", "plot_file", metavar="FILE", help="Where to draw GFLOP/s: FILE.png or FILE.svg; needs matplotlib.")
@click.option("--list", "listing", is_flag=True, help="Show the names of shapes and stop.")
def command(
    names: tuple[str, ...],
    shapes: tuple[str, ...],
    heads_kv: int | None,
    dtype: str | None,
    causal: bool,
    against: tuple[str, ...],
    threads: int,
    rounds: int,
    seconds: float,
    json_file: str | None,
    plot_file: str | None,
    listing: bool,
) -> int:
    """Time attention of attngen beside the libraries that are installed, on the processor, on named shapes or your own.
    (On a GPU examples/cuda_beside_torch.py does.)

    Each implementation has a process of its own and takes its turn in every round; its result is compared with float64
    before it is timed. The first peer is the baseline, timed twice: how far that is from itself is the noise of the run.
    ratio: how many times as fast as the baseline. % FMA, % read: share of what this machine does in registers, and when it
    only reads as many bytes (% DRAM: when it reads from memory), measured in the same run.
    Exit code 1 if attngen is wrong or refuses a shape.

    \b
    attngen bench                                         bert: b=8 h=12 q=128 kv=128 d=64
    attngen bench self-512 decode-gqa --json out.json --plot out.svg
    attngen bench --shape 1,32,1,4096,128 --heads-kv 8
    attngen bench --list
    """
    if listing:
        click.echo(table(("name", "shape"), [(name, str(shape)) for name, shape in SHAPES.items()]))
        return 0
    if not shapes and (heads_kv is not None or dtype is not None or causal):
        raise click.UsageError("--heads-kv, --dtype and --causal are for --shape")
    wanted = [find_shape(name) for name in names] + [own_shape(text, heads_kv, dtype or "float32", causal) for text in shapes]
    for name in against:
        check_name(name)
    if plot_file is not None:
        check_plot(plot_file)
    peers = against or [name for name in installed() if name != OURS]
    implementations = [OURS, *(name for name in peers if name != OURS)]
    timings: list[Timing] = []
    # Standard output is for JSON alone, if it goes there.
    to_stderr = json_file == "-"
    status = Console(stderr=True).status("starting")
    moving = sys.stderr.isatty()

    def progress(text: str) -> None:
        if moving:
            status.update(text)
        else:
            click.echo(text, err=True)

    with status if moving else nullcontext(), Bench(implementations, threads, rounds, seconds, progress) as bench:
        for shape in wanted or map(find_shape, DEFAULT):
            timing = bench.run(shape)
            click.echo(f"{heading(timing)}\n\n{results_table(timing)}\n", err=to_stderr)
            timings.append(timing)
    settings = {"threads": threads, "rounds": rounds, "seconds": seconds, "implementations": implementations}
    if json_file is not None:
        write_text(json_file, json.dumps(document(timings, settings), indent=1) + "\n")
    if plot_file is not None:
        plot(timings, plot_file)
    return 0 if all(r.timed for t in timings for r in t.results if r.implementation == OURS) else 1


def own_shape(text: str, heads_kv: int | None, dtype: str, causal: bool) -> Shape:
    numbers = read_shape(text)
    if len(numbers) not in (5, 6) or 0 in numbers:
        raise Error(f"--shape: expected b,h,q,kv,d or b,h,q,kv,d,dv, none of them 0, got {text}")
    b, h, q, kv, d, *rest = numbers
    heads_kv = heads_kv or h
    if h % heads_kv:
        raise Error(f"--heads-kv {heads_kv}: the {h} heads of --shape {text} are no multiple of it")
    if causal and q != kv:
        raise Error(f"--causal: expected as many queries as keys, got {q} and {kv} in --shape {text}")
    return Shape(text, b, h, heads_kv, q, kv, d, rest[0] if rest else 0, TYPES[dtype], causal)

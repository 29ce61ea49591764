"""`attngen compile`: kernels as files for programs without Python."""

from __future__ import annotations

from pathlib import PurePath

import click

from attngen import export_cuda
from attngen.cli.run import read_job, read_tiles, waiting, with_tiles
from attngen.export import SUFFIXES
from attngen.ir.passes import PIPELINE
from attngen.ir.pipeline import parse_pipeline
from attngen.lowering import build_kernel, find_target, own_tiling
from attngen.specs import DTYPES


@click.command(name="compile")
@click.argument("what", required=False, metavar="[PROGRAM.py:NAME | FILE.ir]")
@click.option("--out", "-o", "outs", multiple=True, required=True, metavar="FILE", help="What to write, by suffix; repeatable.")
@click.option(
    "--shape", "shapes", multiple=True, metavar="SHAPE", help="b,h,q,kv,d[,dv]; for a program, name=b,h,i,d per input."
)
@click.option("--heads-kv", type=click.IntRange(1), metavar="N", help="Heads of key and value, if fewer than query heads.")
@click.option("--dtype", type=click.Choice(list(DTYPES)), help="Element type of the inputs (float32).")
@click.option("--causal", is_flag=True, help="Query i sees the keys up to i; for the built-in attention.")
@click.option(
    "--target", "targets", multiple=True, metavar="NAME", help="See attngen list targets. Several, best first: one .so for all."
)
@click.option("--name", default="", help="Of the function in C; the program's name if not given.")
@click.option("--cc", default="", metavar="COMMAND", help="C compiler that links a .so, with its flags.")
@click.option("-p", "--pass-pipeline", metavar="TEXT", help="Passes in place of the common ones.")
@click.option("--tile", "tiles", multiple=True, metavar="AXIS=N", help="Length of the parts of an axis, such as i=64.")
def command(
    what: str | None,
    outs: tuple[str, ...],
    shapes: tuple[str, ...],
    heads_kv: int | None,
    dtype: str | None,
    causal: bool,
    targets: tuple[str, ...],
    name: str,
    cc: str,
    pass_pipeline: str | None,
    tiles: tuple[str, ...],
) -> None:
    """Compile attention, or a program of your own, to files that need no Python.

    The suffix says what is written:

    \b
    .so  a shared library that C can call: the kernel, checks, threads, a self test
    .h   its header, which says what the functions expect
    .py  a module that calls lib<name>.so beside it and needs nothing but NumPy
    .o   object code, and .c what goes around it, for linking elsewhere
    .ll  the kernel as LLVM's text, .s as assembly
    .ptx, .cubin  a kernel for GPUs; beside it .json, which says how to launch it

    \b
    attngen compile --shape 1,8,512,512,64 -o libattention.so -o attention.h -o attention.py
    attngen compile mine.py:causal --shape q=1,8,512,64 --shape k=… --shape v=… -o causal.so
    attngen compile --target cpu:x86-64-v4 --target cpu:x86-64-v2 -o attention.so
    attngen compile --target cpu:neoverse-n1 -o attention.o -o attention.c -o attention.h
    attngen compile --target cuda:sm_90a -o attention.cubin      no GPU is needed for it

    With several targets the library runs the first one that the processor can run. From C:

    \b
    #include "attention.h"
    attention_args args;
    attention_init(&args);                 extents, strides without gaps, one thread
    args.query = query; args.key = key; args.value = value; args.out = out;
    int code = attention(&args);           attention_message(code) puts it in words

    \b
    cc main.c -L. -lattention -Wl,-rpath,. -o main          with libattention.so
    cc main.c attention.c attention.o -pthread -lm -o main  with the object code
    """
    for out in outs:
        if PurePath(out).suffix not in SUFFIXES:
            raise click.UsageError(f"--out {out}: the suffix says what to write: {' '.join(SUFFIXES)}")
        for target in targets or ("cpu",):
            export_cuda.check(out, target, len(targets), name)
    found = {target: find_target(target) for target in targets or ("cpu",)}  # so that passes and ops of backends are known
    job = read_job(what, shapes, heads_kv, dtype, None, 0, causal)
    common = parse_pipeline(PIPELINE if pass_pipeline is None else pass_pipeline)
    pipelines = {target: own_tiling(common, *each) for target, each in found.items()}
    if tiles:
        pipelines = {target: with_tiles(job, each, read_tiles(tiles)) for target, each in pipelines.items()}
    with waiting("compiling"):
        first, *others = [build_kernel(job.program, job.traced, target=t, pipeline=pipelines[t]) for t in targets or ("cpu",)]
        for out in outs:
            unnamed = "attention" if what is None and PurePath(out).suffix not in export_cuda.SUFFIXES else ""
            first.export(out, name=name or unnamed, cc=cc, versions=others)
    click.echo("\n".join(f"{out}: {SUFFIXES[PurePath(out).suffix]}" for out in outs))

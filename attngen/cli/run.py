"""`attngen run`: compile, run, verify and time."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from os.path import realpath
from typing import Any

import click
import numpy as np
from rich.console import Console

import attngen
from attngen.cli.files import write_arrays
from attngen.cli.job import DEFAULT_SHAPE, Job, attention_from, attention_job, ir_job, program_job
from attngen.cli.tables import fields, paragraph
from attngen.ir.diagnostics import Error
from attngen.ir.func import Func
from attngen.ir.passes import PIPELINE
from attngen.ir.pipeline import PASSES, Pipeline, Step, VerifyEach, parse_pipeline, run_pipeline
from attngen.kernel import Kernel
from attngen.lowering import arrays_of, build_kernel, find_target, own_tiling, with_own_passes
from attngen.report import NOT_MEASURED, Loop, Report, made_in
from attngen.specs import DTYPES, show_shape
from attngen.thread_count import get_num_threads

SECONDS = 0.5
"""How long calls are repeated for a time."""


@click.command(name="run")
@click.argument("what", required=False, metavar="[PROGRAM.py:NAME | FILE.ir]")
@click.option(
    "--shape", "shapes", multiple=True, metavar="SHAPE", help="b,h,q,kv,d[,dv]; for a program, name=b,h,i,d per input."
)
@click.option("--heads-kv", type=click.IntRange(1), metavar="N", help="Heads of key and value, if fewer than query heads.")
@click.option("--dtype", type=click.Choice(list(DTYPES)), help="Element type of random inputs (float32).")
@click.option("--causal", is_flag=True, help="Query i sees the keys up to i; for the built-in attention.")
@click.option("--inputs", metavar="FILE.npz", help="Arrays named as the inputs; for attention also scale, expected.")
@click.option("--out", metavar="FILE.npz", help="Where to write the output, once it is verified.")
@click.option("--target", default="cpu", show_default=True, help="What to compile for; see attngen list targets.")
@click.option("-p", "--pass-pipeline", metavar="TEXT", help="Passes in place of the common ones.")
@click.option("--tile", "tiles", multiple=True, metavar="AXIS=N", help="Length of the parts of an axis, such as i=64.")
@click.option("--verify-each/--no-verify-each", default=True, help="Check the IR after each pass (on).")
@click.option("--run-each", is_flag=True, help="Also execute a small instance before and after each pass.")
@click.option("--print-ir-after-all", is_flag=True, help="Print the IR after each pass, to standard error.")
@click.option("--stage", metavar="NAME", help="Print one stage and stop; 'all' prints their names.")
@click.option("--remarks", is_flag=True, help="Print what passes did or declined, and why.")
@click.option("--seed", default=0, type=click.IntRange(0), help="Of the random inputs.")
def command(
    what: str | None,
    shapes: tuple[str, ...],
    heads_kv: int | None,
    dtype: str | None,
    causal: bool,
    inputs: str | None,
    out: str | None,
    target: str,
    pass_pipeline: str | None,
    tiles: tuple[str, ...],
    verify_each: bool,
    run_each: bool,
    print_ir_after_all: bool,
    stage: str | None,
    remarks: bool,
    seed: int,
) -> int:
    """Compile attention, or a program of your own, and verify it against float64 before timing it.

    Without arguments: scaled dot-product attention on random arrays, b=1 h=8 q=512 kv=512 d=64. With PROGRAM.py:NAME, a
    function decorated with @attngen.program; with FILE.ir, a function as text. Exit code 1 if the output is wrong.

    \b
    attngen run
    attngen run --shape 2,32,1,4096,128 --heads-kv 8          one query, grouped heads
    attngen run --inputs layer.npz --out result.npz
    attngen run mine.py:attention --shape q=1,8,512,64 --shape k=1,8,512,64 --shape v=1,8,512,64
    attngen run --stage python                                the generated source
    attngen run --tile i=32 --tile j=256 --print-ir-after-all
    attngen run --shape 1,2,150,200,64 --dtype bfloat16 --target cuda:sm_90a,emulated    without a GPU
    """
    if out is not None and inputs is not None and realpath(out) == realpath(inputs):
        raise click.UsageError(f"--out {out} would overwrite --inputs")
    found = find_target(target)  # so that the passes and ops of its backend are known
    job = read_job(what, shapes, heads_kv, dtype, inputs, seed, causal)
    pipeline = own_tiling(parse_pipeline(PIPELINE if pass_pipeline is None else pass_pipeline), *found)
    checks: VerifyEach = "run" if run_each else verify_each
    if tiles:
        pipeline = with_tiles(job, pipeline, read_tiles(tiles))
    if print_ir_after_all:
        show_stages(job, pipeline, target, checks)
    with waiting("compiling"):
        start = time.perf_counter()
        kernel = build_kernel(job.program, job.traced, target=target, pipeline=pipeline, verify_each=checks)
        compiled = time.perf_counter() - start
    if stage is not None:
        return show_stage(kernel, stage)
    return report(job, kernel, compiled, out, remarks)


def read_job(
    what: str | None,
    shapes: tuple[str, ...],
    heads_kv: int | None,
    dtype: str | None,
    inputs: str | None,
    seed: int,
    causal: bool = False,
) -> Job:
    if what is None:
        if inputs is not None:
            if shapes or heads_kv is not None:
                raise click.UsageError("the shape is that of --inputs; leave --shape and --heads-kv away")
            return attention_from(inputs, dtype, causal)
        if len(shapes) > 1:
            raise click.UsageError("--shape b,h,q,kv,d[,dv] may be given once")
        shape = read_shape(shapes[0]) if shapes else DEFAULT_SHAPE
        return attention_job(shape, heads_kv, dtype or "float32", seed, causal)
    if heads_kv is not None:
        raise click.UsageError("--heads-kv belongs to the built-in attention; give the shapes of the program's inputs")
    if causal:
        raise click.UsageError("--causal belongs to the built-in attention; write the mask in the program")
    named: dict[str, tuple[int, ...]] = {}
    for text in shapes:
        name, equals, numbers = text.partition("=")
        if not equals:
            raise click.UsageError(f"--shape {text}: for a program, write name=1,8,512,64, once for each input")
        if name in named:
            raise click.UsageError(f"--shape {name}=… is given twice")
        named[name] = read_shape(numbers)
    if inputs is not None and named:
        raise click.UsageError("the shapes are those of --inputs; leave --shape away")
    if what.endswith(".ir") or what == "-":
        if dtype is not None:
            raise click.UsageError("--dtype: the element types are those of the .ir file")
        return ir_job(what, named, inputs, seed)
    if ".py" not in what:
        raise click.UsageError(f"{what}: expected PROGRAM.py:name or FILE.ir")
    return program_job(what, named, inputs, dtype or "float32", seed)


def read_shape(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+(,\d+)*", text.strip()):
        raise click.UsageError(f"--shape {text!r}: expected whole numbers with commas, such as 1,8,512,512,64")
    return tuple(map(int, text.split(",")))


def read_tiles(texts: tuple[str, ...]) -> dict[str, int]:
    tiles: dict[str, int] = {}
    for text in ",".join(texts).replace(" ", ",").split(","):
        if not (found := re.fullmatch(r"(\w+)=(\d+)", text)):
            raise click.UsageError(f"--tile {text!r}: expected AXIS=N, such as i=64")
        if found[1] in tiles:
            raise click.UsageError(f"--tile {found[1]}=… is given twice")
        tiles[found[1]] = int(found[2])
    return tiles


def with_tiles(job: Job, pipeline: Pipeline, tiles: Mapping[str, int]) -> Pipeline:
    """The pipeline with these lengths; axes that are not named keep those that would have been chosen."""
    if not any(PASSES[s.name].takes_axes for s in pipeline.steps):
        raise click.UsageError("--tile: no pass of the pipeline takes axes")
    if job.traced.func.level == "loop":
        raise click.UsageError(f"--tile: @{job.traced.func.name} is already cut into loops; leave --tile away")
    chosen = run_pipeline(job.traced.func, pipeline, verify_each=False).pipeline
    return Pipeline(tuple(Step(s.name, {**s.options, **tiles}) if PASSES[s.name].takes_axes else s for s in chosen.steps))


def show_stages(job: Job, pipeline: Pipeline, target: str, checks: VerifyEach) -> None:
    """Each stage as soon as it is made, so that the last one before an error is seen too."""

    def show(stage: str, func: Func) -> None:
        click.echo(f"// -----// IR Dump After {stage} //----- //\n{func}", err=True)

    show("input", job.traced.func)
    steps = with_own_passes(pipeline, *find_target(target))
    run_pipeline(job.traced.func, steps, verify_each=checks, after=show)


def show_stage(kernel: Kernel, stage: str) -> int:
    if stage == "all":
        click.echo("\n".join(kernel.stages))
    elif stage in kernel.stages:
        click.echo(kernel.stages[stage].rstrip())
    else:
        raise Error(f"--stage: there is no stage {stage!r}; known: {', '.join(kernel.stages)}")
    return 0


def report(job: Job, kernel: Kernel, compiled: float, out: str | None, remarks: bool) -> int:
    own = arrays_of(kernel.target)
    arrays = [own.upload(x, ()) for x in job.inputs.values()]
    result: Any = kernel(*arrays)
    made: list[Any] = list(result) if job.traced.several else [result]
    outputs: list[np.ndarray] = [own.download(own.read("output", x)) for x in made]
    with waiting("verifying"):
        judgements = job.judge(outputs)
    passed = all(j.passed for j in judgements)
    costs = kernel.report()
    rows = [
        ("attngen", f"{attngen.__version__}, @{kernel.func.name} for {kernel.target}, {outputs[0].dtype}"),
        ("shapes", "  ".join(f"{name} {show_shape(x.shape)}" for name, x in job.inputs.items())),
        ("passes", kernel.pipeline.replace(",", ", ") or "none"),
        ("tiles", "  ".join(f"{t.axis}={t.step}" for t in costs.tiles) or "none"),
        ("loops", nests(costs.loops)),
    ]
    rows += [
        ("error", f"{j.error:.2e}, {'allowed' if j.passed else 'MORE THAN THE ALLOWED'} {j.allowed:.1e}: {j.against}")
        for j in judgements
    ]
    if not judgements:
        rows.append(("error", "not checked: the program as written needs too much memory to be interpreted"))
    rows.append(("compile", made_in(compiled, kernel.seconds, kernel.origin)))
    if passed and costs.emulated:
        rows.append(("time", NOT_MEASURED))
    elif passed:
        seconds, calls = measure(kernel, arrays, result, lambda: own.wait(arrays))
        how = "each waited for" if costs.launches else f"threads at most {get_num_threads()}"
        rows += [
            ("time", f"{1e3 * seconds:.3f} ms, the median of {calls} calls, {how}"),
            ("speed", f"{costs.needed / seconds / 1e9:.1f} GFLOP/s ({costs.needed:,} operations)"),
        ]
    rows += [memory(costs)]
    if passed and out is not None:
        write_arrays(out, {"output": outputs[0]} if len(outputs) == 1 else {f"output{k}": x for k, x in enumerate(outputs)})
        rows.append(("written", out))
    click.echo(fields(rows))
    if remarks:
        click.echo("\n".join(paragraph(f"remark: {r}") for r in kernel.remarks))
    if not passed:
        kept = "" if out is None else f"; {out} was not written"
        click.echo(f"error: the output is wrong{kept}. Find the pass with --run-each", err=True)
    return 0 if passed else 1


def memory(costs: Report) -> tuple[str, str]:
    """What working takes besides the arrays."""
    between = f"{costs.temporary_bytes:,} bytes between loop nests"
    if costs.launches:
        return "kernels", "\n".join((*costs.launches, between))
    return "scratch", f"{costs.scratch_bytes:,} bytes per thread, {between}"


def measure(kernel: Kernel, arrays: list[Any], out: Any, wait: Callable[[], None]) -> tuple[float, int]:
    """Median seconds of a call that writes into existing arrays, until it is done."""
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(times) < 3 or time.perf_counter() < end and len(times) < 1000:
        start = time.perf_counter()
        kernel(*arrays, out=out)
        wait()
        times.append(time.perf_counter() - start)
    return float(np.median(times)), len(times)


def nests(loops: Sequence[Loop]) -> str:
    """`parallel b, h, i; for j`, one nest per line."""
    lines: list[str] = []
    for k, loop in enumerate(loops):
        if k and loops[k - 1].depth < loop.depth:
            same = loops[k - 1].kind == loop.kind
            lines[-1] += f", {loop.axis}" if same else f"; {loop.kind} {loop.axis}"
        else:
            lines.append(f"{loop.kind} {loop.axis}")
    return "\n".join(lines) or "none"


def waiting(what: str) -> AbstractContextManager[object]:
    """A sign of life on a terminal, nothing elsewhere."""
    return Console(stderr=True).status(what) if sys.stderr.isatty() else nullcontext()

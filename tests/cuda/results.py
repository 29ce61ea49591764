"""The table of `backends/cuda/RESULTS.md`: every configuration of attention compiled, assembled, and run in the interpreter of
PTX. `python -m tests.cuda.results --jobs 2 --write`; the exit code is 1 if anything is not as it has to be."""

from __future__ import annotations

import os
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import date
from itertools import product
from multiprocessing import get_context

import click
from rich.console import Console
from rich.progress import Progress

import attngen as ag
from attngen.backends.cuda.toolchain import kept
from tests.cuda.configurations import ARCHITECTURES, DTYPES, MASKS, WIDTHS, Configuration, Found, examine
from tests.hygiene.tree import ROOT

FILE = ROOT / "backends" / "cuda" / "RESULTS.md"
COMMAND = "python -m tests.cuda.results"

ABOUT = """\
# What becomes of attention on NVIDIA GPUs

Every configuration is compiled for its architecture, assembled to machine code, and the same PTX is run in the interpreter of
PTX and compared with float64. None of it needs a GPU, and nothing here is a measurement of time.

The program has two outputs, the weighted values and the log-sum-exp; batch 2, 4 heads of queries, 2 of keys, 150 rows of
queries, 200 keys (456 for sm_90a, whose parts are longer), so that rows and keys end in ragged parts and loops reach their
steady state. Masks: `none`; `causal`, row i keeps keys up to i - 9, so that the first rows keep none; `lengths`, an array of
how many keys count in each batch entry, 0 and 133. D is the width of queries, keys and values.

Tensor cores multiply 16 elements at a time: D = 40 is padded to 48 in registers and shared memory with zeros that are never
stored, all other widths are used as they are. Panels of 64 columns in shared memory (sm_90a) are filled up with zeros.

- part: rows of queries of a block × keys of a trip, and which instruction multiplies: mma.sync or wgmma.
- threads, shared memory (KB) of a block; registers of a thread as ptxas allots them (sm_90a: at entry; those that multiply then
  take 240). spills: bytes stored and loaded.
- tensor: instructions of tensor cores (HMMA, HGMMA) in the machine code / as many as the products of the IR need.
- slow: lines of PTX with `.local`, `.f64`, `call`, and warnings of ptxas on performance.
- error: the largest of the output, and in brackets what two roundings to 16 bits explain; of the log-sum-exp, 1e-5 is allowed.
"""

GPU = """\
## On a GPU

Not measured: no figure here or elsewhere in this repository comes from a GPU.
"""

COLUMNS = ("D", "dtype", "mask", "part", "threads", "shared", "registers", "spills", "tensor", "slow", "error", "lse error")

Outcome = Found | str
"""What was found, or why there is nothing."""


def attempt(configuration: Configuration) -> Outcome:
    try:
        return examine(configuration)
    except ag.Error as e:
        return str(e)
    except Exception:
        return traceback.format_exc()


def outcomes(configurations: Sequence[Configuration], jobs: int) -> dict[Configuration, Outcome]:
    found: dict[Configuration, Outcome] = {}
    console = Console(stderr=True)
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool, Progress(console=console) as progress:
        task = progress.add_task("configurations", total=len(configurations))
        waiting = {pool.submit(attempt, c): c for c in configurations}
        for future in as_completed(waiting):
            c = waiting[future]
            found[c] = future.result()
            for fault in faults(found[c]):
                console.print(f"{c}: {fault}", markup=False)
            progress.advance(task)
    return {c: found[c] for c in configurations}


def faults(outcome: Outcome) -> list[str]:
    return [outcome.strip()] if isinstance(outcome, str) else list(outcome.faults())


def row(c: Configuration, outcome: Outcome) -> tuple[str, ...]:
    start = (str(c.width), {"float16": "f16", "bfloat16": "bf16"}[c.dtype], c.mask)
    if isinstance(outcome, str):
        return (*start, outcome.strip().splitlines()[-1], *("" for _ in COLUMNS[4:]))
    f, words = outcome, Counter(line.split(": ")[1] for line in outcome.forbidden)
    return (
        *start,
        f"{f.rows} × {f.reduced} {f.engine}",
        str(f.threads),
        f"{f.shared_bytes / 1024:.0f}",
        str(f.usage.registers),
        f"{f.usage.spill_stores} {f.usage.spill_loads}",
        f"{f.products} / {f.expected}",
        " ".join(str(n) for n in (words["local"], words["f64"], words["call"], len(f.complaints))),
        f"{f.error:.1e} ({f.limit:.1e})",
        f"{f.lse_error:.0e}",
    )


def page(found: dict[Configuration, Outcome], command: str) -> str:
    packages = {name: version for name, version in kept.versions().items() if version != "none"}
    wrong = [f"- {c}: {fault.splitlines()[-1]}" for c, outcome in found.items() for fault in faults(outcome)]
    said = f"{len(found)} configurations, {len({line.partition(':')[0] for line in wrong})} with faults."
    versions = ", ".join(f"{name} {version}" for name, version in packages.items())
    parts = [ABOUT, f"`{command}`, {date.today()}: attngen {ag.__version__}, {versions}.\n", said + "\n"]
    parts += ["\n".join((*wrong, ""))] if wrong else []
    for architecture in dict.fromkeys(c.architecture for c in found):
        rows = [row(c, outcome) for c, outcome in found.items() if c.architecture == architecture]
        parts.append(f"## {architecture}\n\n" + "\n".join(markdown(rows)) + "\n")
    return "\n".join((*parts, GPU))


def markdown(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    yield "| " + " | ".join(COLUMNS) + " |"
    yield "|" + "---|" * len(COLUMNS)
    for each in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in each) + " |"


@click.command(help=__doc__)
@click.option("--arch", multiple=True, type=click.Choice(ARCHITECTURES), help="Only these architectures.")
@click.option("--width", multiple=True, type=click.Choice([str(n) for n in WIDTHS]), help="Only these widths.")
@click.option("--jobs", default=2, show_default=True, help="Processes at a time.")
@click.option("--write", is_flag=True, help=f"Write {FILE.relative_to(ROOT)} in place of printing.")
def main(arch: Sequence[str], width: Sequence[str], jobs: int, write: bool) -> None:
    # Compiled anew, whatever was kept on disk.
    os.environ["ATTNGEN_CACHE"] = "0"
    widths = [int(n) for n in width] or WIDTHS
    each = product(arch or ARCHITECTURES, widths, DTYPES, MASKS)
    found = outcomes([Configuration(*chosen) for chosen in each], jobs)
    words = [*(f"--arch {a}" for a in arch), *(f"--width {n}" for n in width), *(["--write"] if write else [])]
    text = page(found, " ".join((COMMAND, *words)))
    if write:
        FILE.write_text(text)
    else:
        click.echo(text)
    sys.exit(any(faults(outcome) for outcome in found.values()))


if __name__ == "__main__":
    main()

"""`attngen ptx`: run, check and count PTX without a GPU."""

from __future__ import annotations

import re
from typing import Any

import click
import numpy as np

from attngen.backends.cuda import ptx
from attngen.backends.cuda.ptx.program import find_entry
from attngen.cli.files import read_arrays, read_text, write_arrays
from attngen.cli.tables import fields, table
from attngen.ir.diagnostics import Error


@click.group(name="ptx")
def command() -> None:
    """An interpreter of PTX: runs kernels on NumPy arrays, exactly as their text says, and checks them while they run.

    \b
    attngen ptx run kernel.ptx --grid 4,2 --block 128 --arg x.npy --arg zeros:float32:8,64 --out r.npz
    attngen ptx lint kernel.ptx     unknown instructions, f64, local memory, what each entry declares
    attngen ptx stats kernel.ptx    how many instructions of each class
    """


@command.command(name="run")
@click.argument("file")
@click.option("--entry", metavar="NAME", help="The kernel, or a part of its name, if the file has several.")
@click.option("--grid", required=True, metavar="X[,Y[,Z]]", help="Blocks.")
@click.option("--block", required=True, metavar="X[,Y[,Z]]", help="Threads of a block.")
@click.option("--arg", "args", multiple=True, metavar="[NAME=]VALUE", help="One per parameter; see above.")
@click.option("--shared", "shared_bytes", default=0, type=click.IntRange(0), help="Bytes of dynamic shared memory (0).")
@click.option("--checks/--no-checks", default=True, help="Look for races and unfinished copies too (on).")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Give up after so many instructions.")
@click.option("--out", metavar="FILE.npz", help="Where to write the arrays after the run, named as the parameters.")
def run(
    file: str,
    entry: str | None,
    grid: str,
    block: str,
    args: tuple[str, ...],
    shared_bytes: int,
    checks: bool,
    limit: int | None,
    out: str | None,
) -> None:
    """Run a kernel of FILE (standard input for -) on arrays.

    An argument is a number, an array FILE.npy or FILE.npz:NAME, or a new array zeros:DTYPE:SHAPE such as
    zeros:float32:8,64. map:BOX:SWIZZLE:ARRAY is a tensor map of one of these arrays, such as map:64,64:128:x.npy. Arguments
    are given in the order of the parameters, or all as NAME=VALUE. Arrays keep their element type; bfloat16 is given as
    uint16. Exit code 1 with the line, the thread and the address if a check fails.
    """
    text, name = read_text(file)
    kernel = find_entry(ptx.parse(text, name), entry)
    given = [read_argument(a, [v.name for v in kernel.params]) for a in args]
    names = [n for n, _ in given]
    values: Any = [v for _, v in given] if None in names else dict(given)
    if None in names and any(n is not None for n in names):
        raise click.UsageError("--arg: give a name to every argument, or to none")
    extents = numbers("--grid", grid), numbers("--block", block)
    done = ptx.run(text, kernel.name, *extents, values, shared_bytes, checks, name, limit)
    order = [v.name for v in kernel.params]
    arrays: dict[str, Any] = dict(zip(order, values, strict=True)) if None in names else values
    arrays = {n: a.array if isinstance(a, ptx.TensorMap) else a for n, a in arrays.items()}
    held: dict[str, np.ndarray] = {n: a for n, a in arrays.items() if isinstance(a, np.ndarray)}
    if out is not None:
        write_arrays(out, held)
    rows = [("kernel", done.entry), ("blocks", str(done.blocks)), ("instructions", f"{done.instructions:,}")]
    rows.append(("checks", "all passed" if checks else "bounds, alignment, divergence and deadlock passed"))
    click.echo(fields(rows + ([("written", f"{out}: {', '.join(held)}")] if out is not None else [])))


@command.command(name="lint")
@click.argument("file")
@click.option("--allow", multiple=True, type=click.Choice(["f64", "local"]), help="A rule to leave away.")
def lint(file: str, allow: tuple[str, ...]) -> int:
    """Check FILE without running it: unknown instructions, double precision, local memory. Exit code 1 if any is found."""
    text, name = read_text(file)
    found, facts = ptx.lint(text, name)
    found = [f for f in found if f.rule not in allow]
    for finding in found:
        click.echo(str(finding))
    rows = [
        (
            f.entry,
            str(f.instructions),
            ", ".join(f"{n} of {bits} bits" if bits > 1 else f"{n} predicates" for bits, n in f.registers.items()),
            str(f.shared),
            str(f.local),
        )
        for f in facts
    ]
    click.echo(table(("kernel", "instructions", "virtual registers", "static shared", "local"), rows))
    return 1 if found else 0


@command.command(name="stats")
@click.argument("file")
def stats(file: str) -> None:
    """Count the instructions of FILE by class; the body of a loop counts once."""
    text, name = read_text(file)
    rows = [
        (kernel if k == 0 else "", kind, str(n))
        for kernel, counts in ptx.statistics(text, name).items()
        for k, (kind, n) in enumerate(counts.items())
    ]
    click.echo(table(("kernel", "class", "instructions"), rows))


def numbers(option: str, text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*){0,2}", text.strip()):
        raise click.UsageError(f"{option} {text!r}: expected one to three positive numbers with commas, such as 4,2")
    return tuple(map(int, text.split(",")))


def read_argument(text: str, parameters: list[str]) -> tuple[str | None, Any]:
    """The name, if one is given, and the number or the array."""
    head, equals, tail = text.partition("=")
    name, value = (head, tail) if equals else (None, text)
    if name is not None and name not in parameters:
        raise click.UsageError(f"--arg {text}: there is no parameter {name}; there are {', '.join(parameters)}")
    try:
        return name, int(value, 0)
    except ValueError:
        pass
    try:
        return name, float(value)
    except ValueError:
        pass
    if not value.startswith("map:"):
        return name, read_array(value)
    _, box, swizzle, array = (*value.split(":", 3), "", "", "")[:4]
    if not re.fullmatch(r"\d+(,\d+)*", box) or not swizzle.isdigit():
        raise click.UsageError(f"--arg {text}: expected map:BOX:SWIZZLE:ARRAY, such as map:64,64:128:x.npy")
    return name, ptx.TensorMap(read_array(array), tuple(map(int, box.split(","))), int(swizzle))


def read_array(text: str) -> np.ndarray:
    if text.startswith("zeros:"):
        _, dtype, shape = (*text.split(":"), "", "")[:3]
        try:
            return np.zeros(tuple(map(int, shape.split(","))), dtype)
        except (TypeError, ValueError):
            raise click.UsageError(f"--arg {text}: expected zeros:DTYPE:SHAPE, such as zeros:float32:8,64") from None
    file, _, name = text.partition(":")
    if file.endswith(".npz"):
        arrays = read_arrays(file)
        if name not in arrays:
            raise Error(f"--arg {text}: {file} holds {', '.join(arrays)}; write {file}:NAME")
        return np.ascontiguousarray(arrays[name])
    try:
        loaded: Any = np.load(text, allow_pickle=False)
    except OSError as e:
        raise Error(f"--arg {text}: {e.strerror or 'is no .npy file'}; expected a number, FILE.npy or FILE.npz:NAME") from None
    except (ValueError, EOFError):
        raise Error(f"--arg {text}: is no .npy file; write one with numpy.save") from None
    return np.ascontiguousarray(loaded)

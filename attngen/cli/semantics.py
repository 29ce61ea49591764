"""`attngen semantics`: the conventions of libraries, and where two of them disagree."""

from __future__ import annotations

from dataclasses import fields

import click

from attngen.cli.run import read_shape
from attngen.cli.tables import table
from attngen.ir.diagnostics import Error
from attngen.semantics import PRESETS, QUESTIONS, Semantics, answer, differences, preset

SHOWN = 12
"""The most queries that are listed one by one."""


@click.command("semantics")
@click.option("--diff", "pair", nargs=2, metavar="ONE OTHER", help="Only where these two disagree.")
@click.option("--shape", "shape", default="1,1,5,2,64", metavar="SHAPE", show_default=True, help="b,h,q,kv,d for --diff.")
def command(pair: tuple[str, str] | None, shape: str) -> None:
    """Show what libraries mean by the same arguments.

    \b
    attngen semantics
    attngen semantics --diff torch flash_attn --shape 1,8,5,2,64
    """
    if not pair:
        names = [field.name for field in fields(Semantics)]
        rows = [(QUESTIONS[name], *(answer(preset(p), name) for p in PRESETS)) for name in names]
        click.echo(table(("question", *PRESETS), rows))
        return
    lengths = read_shape(shape)
    if len(lengths) not in (5, 6):
        raise Error(f"--shape: expected b,h,q,kv,d or b,h,q,kv,d,dv, got {shape}")
    one, other = pair
    rows = list(differences(one, other, lengths[2], lengths[3]))
    if not rows:
        click.echo(f"{one} and {other} agree on {shape}")
        return
    more = len(rows) - SHOWN
    click.echo(table(("question", one, other), rows[:SHOWN]))
    if more > 0:
        click.echo(f"and {more} more queries")

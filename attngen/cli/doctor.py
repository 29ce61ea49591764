"""`attngen doctor`: what attngen found on this machine, and what to do about what is missing."""

from __future__ import annotations

import json
from collections.abc import Mapping

import click

from attngen.cli.findings import Findings, find_all
from attngen.cli.tables import fields


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print all of it as JSON.")
def command(as_json: bool) -> int:
    """Show what attngen found here: versions, the processor, the cache of kernels, threads, compilers.

    At the end, what is missing and the command that adds it. Most of it is needed for some uses only; each line says
    for which. Exit code 1 if kernels cannot be compiled at all.

    \b
    attngen doctor
    attngen doctor --json > report.json        to send along with a bug report
    """
    found = find_all()
    click.echo(json.dumps(found.json(), indent=2) if as_json else text(found))
    return 1 if any(m.required for m in found.missing) else 0


def text(found: Findings) -> str:
    blocks = [f"{title}\n{block(rows)}" for title, rows in found.sections.items()]
    missing = [(m.what, f"{m.why}\n{m.command}") for m in found.missing]
    blocks.append(f"missing\n{block(dict(missing))}" if missing else "nothing is missing")
    return "\n\n".join(blocks)


def block(rows: Mapping[str, str]) -> str:
    return fields((f"  {name}", value) for name, value in rows.items())

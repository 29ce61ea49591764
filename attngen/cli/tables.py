"""Tables and lines for the terminal: at most 100 columns, colour only on a terminal."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Sequence
from io import StringIO

from rich import box
from rich.console import Console
from rich.table import Table

WIDTH = 100


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns under a head; the last one wraps."""
    made = Table(*head, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for column in made.columns[:-1]:
        column.no_wrap = True
    return render(made, rows)


def fields(rows: Iterable[Sequence[str]]) -> str:
    """`name  value` lines."""
    made = Table.grid("name", "value", padding=(0, 2))
    made.columns[0].style = "bold"
    made.columns[0].no_wrap = True
    return render(made, rows)


def render(made: Table, rows: Iterable[Sequence[str]]) -> str:
    for row in rows:
        made.add_row(*map(escape, row))
    out = Console()
    width = min(shutil.get_terminal_size((WIDTH, 24)).columns, WIDTH)
    colour = out.is_terminal
    console = Console(file=StringIO(), width=max(width, 40), force_terminal=colour, no_color=not colour, highlight=False)
    console.print(made)
    text = console.file.getvalue() if isinstance(console.file, StringIO) else ""
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines())


def paragraph(text: str) -> str:
    """One text, further lines indented."""
    return textwrap.fill(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def escape(text: str) -> str:
    """Brackets in IR text are no markup."""
    return text.replace("[", "\\[")

"""`attngen cache`: look at the kernels that are kept on disk, check them, remove them."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Generator
from contextlib import contextmanager

import click

from attngen.cache import FOLDER, SIZE, cache_limit, cache_path, read_size
from attngen.cache_file import Damaged, Entry, unpack
from attngen.cache_folder import SUFFIX, TEMPORARY, Folder, Item
from attngen.cli.tables import WIDTH
from attngen.ir.diagnostics import Error

DAY = 86400.0
KEY = 12
"""Digits of a key that are shown."""


@click.group("cache", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Look at the kernels that are kept on disk, check them, remove them.

    What a kernel was compiled from is its key: the program, the shapes, the passes, the target and this machine's
    processor, and the sources of attngen. A process that asks for the same again reads object code in milliseconds,
    without Numba. Nothing has to be tidied up by hand: a damaged file is compiled again and replaced, and beyond the
    limit those not used for longest are removed.

    \b
    ATTNGEN_CACHE_DIR=FOLDER   where kernels are kept: a folder of yours that only you can write
    ATTNGEN_CACHE_SIZE=512M    how much they may take in all
    ATTNGEN_CACHE=0            neither keep nor use any

    \b
    attngen cache ls           what is kept
    attngen cache verify       read and check every file
    attngen doctor             whether the folder can be used, and what to do if not
    """


@command.command("ls")
def list_kernels() -> None:
    """List the kernels: the one used last comes first. Keys begin as the file names do."""
    with opened() as folder:
        items = sorted(folder.files(), key=lambda item: item.used, reverse=True)
        for item in items:
            show(folder, item)
        click.echo(f"{total(items)} in {folder.path}, which may hold {show_bytes(cache_limit())}")


@command.command()
def verify() -> int:
    """Read every file and compare it with its checksum. Exit code 1 if one is damaged; `attngen cache gc` removes it."""
    with opened() as folder:
        items = list(folder.files())
        bad = [(item, why) for item in items if (why := damage(folder, item))]
        for item, why in bad:
            click.echo(f"{item.name[:KEY]}  damaged: {why}")
        click.echo(f"{total(items)} in {folder.path}, {len(bad)} damaged")
        return 1 if bad else 0


@command.command()
@click.option("--size", metavar="BYTES", help=f"Keep at most so much, such as 100M ({SIZE}, or its default).")
@click.option("--unused-for", type=click.FloatRange(0), metavar="DAYS", help="Also remove what was not used for so long.")
def gc(size: str | None, unused_for: float | None) -> None:
    """Remove damaged files, what was left unfinished, and the kernels not used for longest until the rest fits.

    \b
    attngen cache gc --size 100M
    attngen cache gc --unused-for 30
    """
    try:
        limit = cache_limit() if size is None else read_size(size)
    except ValueError:
        raise click.UsageError(f"--size {size}: expected a number of bytes such as 100M or 2G") from None
    with opened() as folder:
        old = float("-inf") if unused_for is None else time.time() - unused_for * DAY
        chosen = [item for item in folder.files() if item.used < old or damage(folder, item)]
        removed = [item for item in chosen if folder.remove(item.name)] + folder.sweep(limit)
        click.echo(f"removed {total(removed)}; {total(list(folder.files()))} left in {folder.path}")


@command.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
def clear(yes: bool) -> None:
    """Remove every kernel. The next call of each compiles it again."""
    with opened() as folder:
        items = [*folder.files(), *folder.files(TEMPORARY)]
        if items and not yes:
            click.confirm(f"Remove {total(items)} in {folder.path}?", abort=True)
        removed = [item for item in items if folder.remove(item.name)]
        click.echo(f"removed {total(removed)} in {folder.path}")
        if len(removed) < len(items):
            raise Error(f"{len(items) - len(removed)} files could not be removed; attngen doctor tells more")


@contextmanager
def opened() -> Generator[Folder]:
    """The folder; where there is none yet, the answer is that there are no kernels."""
    path = cache_path()
    try:
        folder = Folder(path)
    except FileNotFoundError:
        click.echo(f"no kernels: there is no folder {path} ({FOLDER} chooses another)")
        raise click.exceptions.Exit(0) from None
    except OSError as e:
        raise Error(f"{path}: {e.strerror or e}") from None
    with folder:
        yield folder


def show(folder: Folder, item: Item) -> None:
    entry = read(folder, item)
    if isinstance(entry, str):
        click.echo(f"{item.name[:KEY]}  {show_bytes(item.size):>8}  damaged: {entry}")
        return
    about = entry.about
    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(item.used))
    click.echo(
        f"{item.name[:KEY]}  {show_bytes(item.size):>8}  used {used}  "
        f"@{about.get('name', '?')} for {about.get('target', '?')}, attngen {about.get('attngen', '?')}"
    )
    pad = " " * (KEY + 2)
    click.echo(textwrap.fill(about.get("arrays", ""), WIDTH, initial_indent=pad, subsequent_indent=pad))


def read(folder: Folder, item: Item) -> Entry | str:
    """The kernel in a file, or what is wrong with it. Does not count as a use."""
    try:
        return unpack(folder.read(item.name, use=False), item.name.removesuffix(SUFFIX))
    except (Damaged, OSError) as e:
        return str(e)


def damage(folder: Folder, item: Item) -> str:
    found = read(folder, item)
    return found if isinstance(found, str) else ""


def total(items: list[Item]) -> str:
    number = len(items)
    return f"{number} file{'' if number == 1 else 's'}, {show_bytes(sum(item.size for item in items))}"


def show_bytes(size: int) -> str:
    """`512 B`, `11.2 K`, `512 M`: as `ATTNGEN_CACHE_SIZE` is written."""
    amount, unit = float(size), "B"
    for unit in "BKMG":
        if amount < 1024 or unit == "G":
            break
        amount /= 1024
    return f"{amount:.1f} {unit}" if amount % 1 and amount < 100 else f"{amount:.0f} {unit}"

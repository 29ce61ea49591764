"""The command `attngen`. Each subcommand is a module here, loaded when it is called."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

import click

import attngen
from attngen.ir.diagnostics import Error

COMMANDS = {
    "run": ("attngen.cli.run", "Compile, run, verify and time a kernel: the main job."),
    "compile": ("attngen.cli.compile", "Compile a kernel to a shared library, object code, C or assembly."),
    "opt": ("attngen.cli.opt", "Run passes on IR text, in the manner of mlir-opt."),
    "semantics": ("attngen.cli.semantics", "Show the conventions of libraries, and where two disagree."),
    "bench": ("attngen.cli.bench", "Time attention beside other libraries, each checked, in one run."),
    "show": ("attngen.cli.show", "Draw which tiles of a mask are empty, full or mixed."),
    "ptx": ("attngen.cli.ptx", "Run, check and count PTX on the CPU, without a GPU."),
    "cache": ("attngen.cli.cache", "List, check and remove the kernels that are kept on disk."),
    "doctor": ("attngen.cli.doctor", "Show what was found on this machine, and what is missing."),
    "list": ("attngen.cli.listing", "Show passes, ops, backends and targets."),
}


class Commands(click.Group):
    """Subcommands by name; their modules are imported only when needed, so that --help is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(COMMANDS[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


def show_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        click.echo(f"attngen {attngen.__version__}")
        ctx.exit()


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=show_version, help="Show the version and exit."
)
def cli() -> None:
    """A compiler for attention: derives a fused kernel from its four steps, and shows every stage.

    \b
    attngen run                                   compile, verify and time a default shape
    attngen run --shape 1,8,2048,2048,128         your own shape
    attngen run PROGRAM.py:name --shape q=1,8,512,64 --shape k=… --shape v=…
    attngen run --print-ir-after-all              every stage of the derivation
    attngen compile -o libattention.so -o attention.h    a library for C, its header
    attngen opt FILE.ir -p canonicalize,tile      passes on IR text
    attngen bench                                 time a shape beside the libraries that are installed
    attngen semantics --diff torch flash_attn     where two libraries mean different things
    attngen show --mask causal,window:255,0       which tiles of a mask are computed
    attngen doctor                                what was found here, and what is missing
    attngen list passes                           what passes there are, and their options
    """


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code: 0 done, 1 an error in the input or a failed check, 2 a usage error."""
    try:
        code: object = cli.main(args, prog_name="attngen", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.ClickException as e:
        e.show()
        return e.exit_code
    except Error as e:
        text = str(e)
        click.echo(text if text.startswith("error") else f"error: {text}", err=True)
        return 1
    except MemoryError as e:
        click.echo(f"error: not enough memory: {str(e) or 'give smaller extents'}", err=True)
        return 1
    except BrokenPipeError:
        # The reader has seen enough. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return 1
    except Exception:
        traceback.print_exc()
        click.echo("\nThis is a bug in attngen, not in your input. Please report it with the lines above.", err=True)
        return 1

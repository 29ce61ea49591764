"""`attngen opt`: mlir-opt's habits and option names, for pass experimenters and for FileCheck tests."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import click

from attngen.cli.backends import loaded_backends
from attngen.cli.expected import Report, check_expected
from attngen.cli.files import load_module, read_text, write_text
from attngen.cli.tables import table
from attngen.ir.diagnostics import IRError, Remark
from attngen.ir.func import Func
from attngen.ir.generic import print_generic
from attngen.ir.parser import parse_module
from attngen.ir.passes import PIPELINE
from attngen.ir.pipeline import PASSES, Pipeline, parse_pipeline, run_pipeline
from attngen.ir.printer import print_func
from attngen.ir.verify import verify
from attngen.lowering import find_target, own_tiling, with_own_passes

SEPARATOR = "// -----"


@dataclass
class Options:
    pipeline: Pipeline
    verify_each: bool | Literal["run"]
    before: frozenset[str]
    after: frozenset[str]
    after_change: bool
    generic: bool
    locations: bool
    remarks: bool
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    def timed(self, what: str, start: float) -> None:
        self.seconds[what] = self.seconds.get(what, 0.0) + time.perf_counter() - start

    def show(self, funcs: Iterable[Func]) -> str:
        if self.generic:
            return print_generic(*funcs, locations=self.locations)
        return "\n".join(print_func(f, locations=self.locations) for f in funcs)


class OptCommand(click.Command):
    """Accepts what mlir-opt accepts: `--mlir-print-…`, one dash for long options, and passes as options in order."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        known = {name for p in self.params for name in (*p.opts, *p.secondary_opts)}
        for plugin in plugins(args):
            load_module(plugin)
        kept: list[str] = []
        steps: list[str] = []
        for k, arg in enumerate(args):
            if arg == "--":
                kept += args[k:]
                break
            head, equals, tail = arg.partition("=")
            found = re.fullmatch(r"--?(?:mlir-)?([a-z][\w-]+)", head)
            if found and found[1] == "verify-each" and not equals:
                kept.append("--verify-each=true")
            elif found and f"--{found[1]}" in known:
                kept.append(f"--{found[1]}{equals}{tail}")
            elif found and is_pass(found[1]):
                steps.append(f"{found[1]}{{{tail}}}" if equals else found[1])
            else:
                kept.append(arg)
        if steps:
            # Under another name, so that a --pass-pipeline beside it is noticed.
            kept = ["--passes-as-options", ",".join(steps), *kept]
        return super().parse_args(ctx, kept)


def is_pass(name: str) -> bool:
    """Whether there is a pass of this name; backends, which have passes of their own, are loaded only if it is not common."""
    if name not in PASSES:
        loaded_backends()
    return name in PASSES


def plugins(args: list[str]) -> list[str]:
    """Files named by --load-pass-plugin. They are run first, since their passes may be options too."""
    found: list[str] = []
    for arg, following in zip(args, (*args, "")[1:], strict=True):
        if matched := re.fullmatch(r"--?load-pass-plugin(?:=(.*))?", arg, re.DOTALL):
            found.append(following if matched[1] is None else matched[1])
    return found


def names(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> frozenset[str]:
    chosen = frozenset(name for text in value for name in text.split(",") if name)
    for name in sorted(name for name in chosen if not is_pass(name)):
        raise click.BadParameter(f"there is no pass {name!r}; known: {', '.join(sorted(PASSES))}")
    return chosen


@click.command(cls=OptCommand, name="opt")
@click.argument("file", default="-")
@click.option("-p", "--pass-pipeline", metavar="TEXT", help="Passes to run, such as 'canonicalize,tile{i=64 j=128}'.")
@click.option("--passes-as-options", hidden=True)
@click.option("--target", metavar="NAME", help="Go on with its own passes, as a compilation for it would.")
@click.option("--load-pass-plugin", multiple=True, metavar="FILE.py", help="Run a Python file that registers passes or ops.")
@click.option("--print-ir-before", multiple=True, metavar="PASS[,…]", callback=names, help="Print the IR before these passes.")
@click.option("--print-ir-before-all", is_flag=True, help="Print the IR before each pass.")
@click.option("--print-ir-after", multiple=True, metavar="PASS[,…]", callback=names, help="Print the IR after these passes.")
@click.option("--print-ir-after-all", is_flag=True, help="Print the IR after each pass.")
@click.option("--print-ir-after-change", is_flag=True, help="Print the IR only after passes that changed it.")
@click.option("--verify-each", default="true", metavar="BOOL", help="Check the IR after each pass (on).")
@click.option("--no-verify-each", is_flag=True, help="Do not check between passes.")
@click.option("--run-each", is_flag=True, help="Also execute a small instance before and after each pass.")
@click.option("--print-op-generic", is_flag=True, help="Print MLIR's generic form.")
@click.option("--print-debuginfo", is_flag=True, help="Print where each op came from.")
@click.option("--timing", is_flag=True, help="Print how long each pass took.")
@click.option("--split-input-file", is_flag=True, help=f"Treat the parts between '{SEPARATOR}' lines as files of their own.")
@click.option("--verify-diagnostics", is_flag=True, help="Compare errors and remarks with 'expected-error@+1 {{…}}' comments.")
@click.option("--remarks/--no-remarks", default=True, help="Print what passes did or declined, and why (on).")
@click.option("-o", "output", default="-", metavar="FILE", help="Where to write; standard output if not given.")
def command(
    file: str,
    pass_pipeline: str | None,
    passes_as_options: str | None,
    target: str | None,
    load_pass_plugin: tuple[str, ...],
    print_ir_before: frozenset[str],
    print_ir_before_all: bool,
    print_ir_after: frozenset[str],
    print_ir_after_all: bool,
    print_ir_after_change: bool,
    verify_each: str,
    no_verify_each: bool,
    run_each: bool,
    print_op_generic: bool,
    print_debuginfo: bool,
    timing: bool,
    split_input_file: bool,
    verify_diagnostics: bool,
    remarks: bool,
    output: str,
) -> int:
    """Read IR text from FILE (standard input if not given), run passes, and print the result.

    Options are those of mlir-opt, each also with the prefix --mlir-. A pass can be written as an option of its own. The IR
    dumps, remarks and times go to standard error, the result to standard output.

    \b
    attngen opt f.ir -p canonicalize,fold-scale        run two passes
    attngen opt f.ir --canonicalize --tile="i=64 j=8"  the same habit as in mlir-opt
    attngen opt f.ir -p default                        the whole derivation
    attngen opt f.ir -p default --target cuda:sm_90a   also what follows for this target
    attngen opt f.ir -p default --print-ir-after-change --run-each
    attngen opt f.ir --load-pass-plugin=mine.py --my-pass
    attngen opt f.ir --print-op-generic | mlir-opt --allow-unregistered-dialect
    """
    if pass_pipeline is not None and passes_as_options is not None:
        raise click.UsageError("give passes either by --pass-pipeline or as options, not both")
    if verify_each.lower() not in ("true", "1", "false", "0", "run"):
        raise click.UsageError(f"--verify-each must be true, false or run, not {verify_each!r}")
    check = not no_verify_each and verify_each.lower() not in ("false", "0")
    text, name = read_text(file)
    pipeline = pass_pipeline or passes_as_options or ""
    found = None if target is None else find_target(target)  # so that the passes and ops of its backend are known
    for step in re.sub(r"\{.*?\}", "", pipeline).split(","):
        is_pass(step.strip())  # brings in the backends if one of their passes is meant
    steps = parse_pipeline(PIPELINE if pipeline == "default" else pipeline)
    options = Options(
        pipeline=with_own_passes(own_tiling(steps, *found), *found) if found and steps.steps else steps,
        verify_each="run" if run_each or verify_each.lower() == "run" else check,
        before=frozenset(PASSES) if print_ir_before_all else print_ir_before,
        after=frozenset(PASSES) if print_ir_after_all else print_ir_after,
        after_change=print_ir_after_change,
        generic=print_op_generic,
        locations=print_debuginfo,
        remarks=remarks and not verify_diagnostics,
    )
    start = time.perf_counter()
    outputs: list[str] = []
    problems: list[str] = []
    for part in parts(text) if split_input_file else [text]:
        report = Report()
        try:
            outputs.append(process(part, name, options, report))
        except IRError as e:
            if not verify_diagnostics and not split_input_file:
                raise
            report.errors.append(e)
            problems += [] if verify_diagnostics else [str(e)]
        if verify_diagnostics:
            problems += check_expected(part, name, report)
    if timing:
        click.echo(times(options.seconds, time.perf_counter() - start), err=True)
    for problem in problems:
        click.echo(problem, err=True)
    if outputs and not (problems and output != "-"):
        write_text(output, f"\n{SEPARATOR}\n\n".join(outputs))
    return 1 if problems else 0


def parts(text: str) -> list[str]:
    """The parts of a split file, each with the empty lines that give its lines their numbers in the whole."""
    found: list[list[str]] = [[]]
    for number, line in enumerate(text.splitlines(keepends=True)):
        if line.rstrip() == SEPARATOR:
            found.append(["\n"] * (number + 1))
        else:
            found[-1].append(line)
    return ["".join(part) for part in found]


def process(text: str, file: str, options: Options, report: Report) -> str:
    """One module through the pipeline; what it printed on the way has gone to standard error."""
    start = time.perf_counter()
    funcs = parse_module(text, file)
    for func in funcs:
        verify(func)
    options.timed("parse", start)
    done = [transform(func, options, report) for func in funcs]
    start = time.perf_counter()
    shown = options.show(done)
    options.timed("print", start)
    return shown


def transform(func: Func, options: Options, report: Report) -> Func:
    last = func

    def before(stage: str, f: Func) -> None:
        nonlocal last
        last = f
        if stage.partition("#")[0] in options.before:
            dump(f"Before {stage}", f, options)

    def after(stage: str, f: Func) -> None:
        changed = f != last
        if stage.partition("#")[0] in options.after and (changed or not options.after_change):
            dump(f"After {stage}", f, options)
        elif options.after_change and changed and not options.after:
            dump(f"After {stage}", f, options)

    result = run_pipeline(func, options.pipeline, verify_each=options.verify_each, before=before, after=after)
    for stage, seconds in result.seconds.items():
        options.seconds[stage] = options.seconds.get(stage, 0.0) + seconds
    report.remarks += result.remarks
    if options.remarks:
        show_remarks(result.remarks)
    return result.func


def dump(when: str, func: Func, options: Options) -> None:
    click.echo(f"// -----// IR Dump {when} //----- //\n{options.show([func])}", err=True)


def show_remarks(remarks: Iterable[Remark]) -> None:
    for remark in remarks:
        click.echo(f"remark: {remark}", err=True)


def times(seconds: dict[str, float], total: float) -> str:
    rows = [(f"{1e3 * s:.2f} ms", f"{100 * s / total:.1f}%", name) for name, s in (*seconds.items(), ("total", total))]
    return table(("time", "share", "step"), rows)

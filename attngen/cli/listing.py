"""`attngen list`: what there is, from the code itself: summaries are first lines of docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import click

from attngen.cli.backends import loaded_backends
from attngen.cli.tables import paragraph, table
from attngen.ir import attn, elementwise, loop, nd
from attngen.ir.core import REGISTRY
from attngen.ir.passes import PIPELINE
from attngen.ir.pipeline import PASSES, Pass, parse_pipeline
from attngen.lowering import find_target, own_tiling, with_own_passes

OPTIONS = paragraph(
    "Options follow after a comma: cuda:sm_90a,emulated runs kernels in an interpreter of PTX, which needs no GPU; "
    "cpu:x86-64-v4,vector_bits=256 uses shorter vectors."
)

PIPELINES_OF = ("cuda:sm_80", "cuda:sm_90a")
"""Targets that cut axes in their own way."""

LANGUAGE = (attn, nd, elementwise, loop)
"""The modules that declare ops."""


def passes() -> str:
    rows = [(name, "\n".join((p.summary, *options(p)))) for name, p in sorted(PASSES.items())]
    shown = [table(("pass", "what it does, and its options"), rows), f"default pipeline:\n{steps(PIPELINE)}"]
    for target in PIPELINES_OF:
        whole = with_own_passes(own_tiling(parse_pipeline(PIPELINE), *find_target(target)), *find_target(target))
        shown.append(f"pipeline for {target}:\n{steps(str(whole))}")
    return "\n\n".join(shown)


def steps(pipeline: str) -> str:
    return paragraph(f"  {pipeline}".replace(",", ", "))


def options(p: Pass) -> list[str]:
    lines = [
        f"  {name}: {getattr(o.annotation, '__name__', o.annotation)}" + ("" if o.default is o.empty else f" = {o.default}")
        for name, o in p.options.items()
    ]
    return lines + (["  AXIS: int, for any axis of the function"] if p.takes_axes else [])


def ops() -> str:
    rows = [(name, first_line(cls.__doc__)) for name, cls in sorted(REGISTRY.items())]
    return table(("op", "example and meaning"), rows)


def backends() -> str:
    rows = [
        (
            name,
            f"cannot be loaded: {b}" if isinstance(b, ImportError) else first_line(inspect.getdoc(inspect.getmodule(type(b)))),
        )
        for name, b in loaded_backends().items()
    ]
    return table(("backend", "what it is"), rows)


def targets() -> str:
    rows: list[tuple[str, str]] = []
    for name, backend in loaded_backends().items():
        known = {"": f"cannot be loaded: {backend}"} if isinstance(backend, ImportError) else backend.targets()
        rows += [(f"{name}:{target}".rstrip(":"), meaning) for target, meaning in known.items()]
    return f"{table(('target', 'what it compiles for'), rows)}\n\n{OPTIONS}"


def first_line(doc: str | None) -> str:
    return inspect.cleandoc(doc or "").partition("\n\n")[0].replace("\n", " ")


SECTIONS: dict[str, Callable[[], str]] = {"passes": passes, "ops": ops, "backends": backends, "targets": targets}


@click.command(name="list")
@click.argument("what", type=click.Choice(list(SECTIONS)), required=False)
def command(what: str | None) -> None:
    """Show passes with their options, ops with an example each, backends and targets; all of them if WHAT is not given.

    \b
    attngen list passes
    attngen list ops | grep contract
    """
    loaded_backends()  # so that their passes and ops are listed
    click.echo("\n\n".join(SECTIONS[name]() for name in ([what] if what else SECTIONS)))

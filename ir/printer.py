"""Functions as text, for people: MLIR-like. (The generic form, for MLIR's tools, is in `generic.py`.)"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING

from attngen.ir.core import WORD, Block, Op, Value, quote
from attngen.ir.diagnostics import UNKNOWN, Loc
from attngen.ir.loop import For, Parallel

if TYPE_CHECKING:
    from attngen.ir.func import Func

WIDTH = 100
UNBROKEN = re.compile(r" (?!\w+ \([%)]|: \()(?!(?<=, )(?:%|tensor<|range<))")
"""A space at which the head of a loop or of a region is not broken."""


class Names:
    """Gives each value a name: its hint, with a number where that is taken; a number alone where it has no hint."""

    def __init__(self) -> None:
        self.names: dict[Value, str] = {}
        self.taken: set[str] = set()
        self.counts: dict[str, int] = {}

    def define(self, values: Iterable[Value], hints: Iterable[str] = ()) -> list[str]:
        given = list(values)
        for v, hint in zip(given, list(hints) or [v.hint for v in given], strict=True):
            hint = re.sub(r"\W", "_", hint, flags=re.ASCII)
            name = f"_{hint}" if hint[:1].isdigit() else hint
            base = re.sub(r"(_\d+)+$", "", name)
            if name != base:  # one number at most: of x_1_2, xDSL would make x_1, which may be another value
                name = f"{base}_{name.rpartition('_')[2]}"
            while not name or name in self.taken:
                count = self.counts.get(base, 1 if base else 0)
                name, self.counts[base] = (f"{base}_{count}" if base else str(count)), count + 1
            self.taken.add(name)
            self.names[v] = f"%{name}"
        return [self.names[v] for v in given]

    def __call__(self, v: Value) -> str:
        return self.names.get(v, "%undefined")


class Printer:
    def __init__(self, locations: bool = False) -> None:
        self.names, self.locations, self.lines = Names(), locations, list[str]()

    def func(self, func: Func) -> str:
        params: list[str] = []
        names = self.names.define(func.args, [p.name for p in func.params])
        for name, v, p in zip(names, func.args, func.params, strict=True):
            known = "" if name[1:] == p.name else f" {quote(p.name)}"  # a name that is no identifier, or is taken
            params.append(f"{name}{known}: {v.type} {quote(str(p.layout))}")
        symbol = f"@{func.name if WORD.fullmatch(func.name) else quote(func.name)}"
        head = f"func {symbol}({', '.join(params)})"
        if len(head) > WIDTH:
            head = f"func {symbol}(\n    " + ",\n    ".join(params) + ")"
        outs = ", ".join(f"{v.type} {quote(str(layout))}" for v, layout in zip(func.outputs, func.out_layouts, strict=True))
        result = f"-> ({outs}) {{"
        fits = len(f"{head} {result}".rpartition("\n")[2]) <= WIDTH
        self.lines += [f"{head} {result}"] if fits else [head, f"    {result}"]
        self.block(func.body, 1, "return")
        self.lines.append("}")
        return "\n".join(self.lines) + "\n"

    def block(self, block: Block, depth: int, terminator: str) -> None:
        for op in block.ops:
            self.op(op, depth)
        self.lines.append(f"{'  ' * depth}{terminator} {', '.join(map(self.names, block.yields))}".rstrip())

    def op(self, op: Op, depth: int) -> None:
        pad, names = "  " * depth, self.names
        where = f" loc({show_loc(op.loc)})" if self.locations else ""
        types = ", ".join(str(v.type) for v in op.results)
        text, at = op.line(names), len(self.lines)
        match op:
            case For():
                range, *carried = names.define(op.body.args)
                carry = ", ".join(f"{c} = {names(v)}" for c, v in zip(carried, op.inits, strict=True))
                limits = "".join(f" {word} {names(v)}" for word, v in (("from", op.first), ("until", op.end)) if v is not None)
                head = f"loop.for {range}: {op.axis} = 0 to {op.extent} step {op.step}{limits} carry ({carry}) : ({types}) {{"
                self.block(op.body, depth + 1, "loop.yield")
                if op.merge is not None:
                    self.lines.append(broken(f"{pad}}} merge {self.args(op.merge)}"))
                    self.block(op.merge, depth + 1, "loop.yield")
                tail = "}"
            case Parallel() if type(op) is Parallel:
                args = names.define(op.body.args)
                each = zip(args, op.axes, op.extents, op.steps, strict=False)
                grid = ", ".join(f"{a}: {axis} = 0 to {extent} step {step}" for a, axis, extent, step in each)
                head = f"loop.parallel {grid + ' ' if grid else ''}out ({', '.join(args[len(op.axes) :])}) : ({types}) {{"
                self.block(op.body, depth + 1, "loop.yield")
                tail = "}"
            case _:
                head, tail = text, f" : {types or '()'}"
                for region in op.fields.regions:
                    block: Block | None = getattr(op, region)
                    if block is not None:
                        opening = f"{region} {self.args(block)}"
                        if len(self.lines) == at:
                            head += f" {opening}"
                        else:
                            self.lines.append(broken(f"{pad}}} {opening}"))
                        self.block(block, depth + 1, "loop.yield")
                        tail = f"}} : {types or '()'}"
        results = ", ".join(names.define(op.results))
        head = f"{pad}{results} = {head}" if results else f"{pad}{head}"
        if len(self.lines) == at:
            self.lines.append(f"{head}{tail}{where}")
        else:
            self.lines.insert(at, broken(head))
            self.lines.append(broken(f"{pad}{tail}{where}"))

    def args(self, block: Block) -> str:
        """`(%a: tensor<f32>) {`"""
        names = zip(self.names.define(block.args), block.args, strict=True)
        return f"({', '.join(f'{name}: {v.type}' for name, v in names)}) {{"


def broken(line: str) -> str:
    """In several lines what is too long for one; strings stay whole."""
    if len(line) <= WIDTH or '"' in line:
        return line
    text = UNBROKEN.sub("\xa0", line.lstrip())
    pad = " " * (len(line) - len(text))
    lines = textwrap.wrap(
        text, WIDTH, initial_indent=pad, subsequent_indent=f"{pad}    ", break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines).replace("\xa0", " ")


def show_loc(loc: Loc) -> str:
    """`file:line:column`; the file in quotes where it would be misread."""
    if loc == UNKNOWN:
        return "unknown"
    plain = loc.file != "unknown" and re.fullmatch(r'[^\s:()"\\]+', loc.file)
    where = f"{loc.file if plain else quote(loc.file)}:{loc.line}"
    return f"{where}:{loc.column}" if loc.column else where


def print_func(func: Func, *, locations: bool = False) -> str:
    """The function in the pretty form; `parse` reads it back. `locations` adds where each op came from."""
    return Printer(locations).func(func)

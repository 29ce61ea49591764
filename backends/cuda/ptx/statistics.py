"""How many instructions of each class an entry holds, as text: a loop's body counts once."""

from __future__ import annotations

from collections import Counter

from attngen.backends.cuda.ptx.parser import parse
from attngen.backends.cuda.ptx.program import link
from attngen.backends.cuda.ptx.syntax import Instruction

CLASSES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("mma", ("mma",)),
    ("wgmma", ("wgmma.mma_async",)),
    ("wgmma synchronisation", ("wgmma",)),
    ("ldmatrix", ("ldmatrix",)),
    ("stmatrix", ("stmatrix",)),
    ("bulk copy", ("cp.async.bulk", "cp.reduce.async.bulk")),
    ("cp.async", ("cp.async.ca", "cp.async.cg")),
    ("cp.async groups", ("cp.async",)),
    ("mbarrier", ("mbarrier",)),
    ("barrier", ("bar", "barrier")),
    ("fence", ("membar", "fence")),
    ("warp exchange", ("shfl", "vote", "match", "redux", "activemask", "elect")),
    ("atomic", ("atom", "red")),
    ("special function", ("ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh", "div")),
    ("conversion", ("cvt", "cvta")),
    ("branch", ("bra", "brx", "ret", "exit", "call")),
    ("move", ("mov", "selp", "slct", "prmt")),
    ("comparison", ("setp", "set")),
)
"""Class, and the beginnings of the names that belong to it; the first that fits counts."""

FLOATS = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f32x2", "f64")
MEMORY = ("global", "shared", "local", "param", "const")


def classify(i: Instruction) -> str:
    """The class of an instruction: one of CLASSES, a load or store by its space, or arithmetic by its kind."""
    words = (i.opcode, *i.modifiers)
    is_float = words[-1] in FLOATS
    for name, beginnings in CLASSES:
        if name == "special function" and not is_float:
            continue
        if any(words[: len(b.split("."))] == tuple(b.split(".")) for b in beginnings):
            return name
    if i.opcode in ("ld", "ldu", "st"):
        spaces = [m.partition("::")[0] for m in i.modifiers if m.partition("::")[0] in MEMORY]
        return f"{'store' if i.opcode == 'st' else 'load'}, {(spaces or ['generic'])[0]}"
    return f"{words[-1]} arithmetic" if is_float else "integer arithmetic"


def statistics(ptx: str, file: str = "<ptx>") -> dict[str, dict[str, int]]:
    """Entry name -> class -> how many instructions, the most frequent class first."""
    module = parse(ptx, file)
    programs = {entry.name: link(module, entry.name) for entry in module.entries()}
    return {name: dict(Counter(map(classify, p.code)).most_common()) for name, p in programs.items()}

"""Random cascades: reductions over j that read each other, as attention's do, and in ways that cannot be fused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from attngen.ir.build import add, compare, contract, div, exp, maximum, mul, reduce, select, sub, unary
from attngen.ir.core import Value, argument
from attngen.ir.elementwise import Abs, Tanh
from attngen.ir.func import Func, Param
from attngen.ir.rewrite import place
from attngen.ir.types import F32, Layout, TensorType

J = ("j",)
FUSABLE = (
    "shift-by-maximum",
    "shift-by-scaled-maximum",
    "masked-shift",
    "tame",
    "sum",
    "maximum",
    "weigh",
    "scale",
    "normalise",
)
"""Steps that the rules know how to fuse, in whatever order."""
OTHERS = ("add", "subtract", "multiply", "select", "foreign-shift", "squash", "use-result")


@dataclass
class Cascade:
    func: Func
    arrays: tuple[np.ndarray, ...]
    steps: tuple[str, ...]
    tiles: tuple[int, int]

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(f"{self.steps} on {self.arrays[0].shape} in tiles of {self.tiles}:\n{self.func}")


def make(steps: Sequence[tuple[str, int, int]], ni: int, nj: int, tiles: tuple[int, int], seed: int) -> Cascade:
    x, y = (argument(TensorType((("i", ni), ("j", nj)), F32), n) for n in ("x", "y"))
    u = argument(TensorType((("i", ni),), F32), "u")
    wide: list[Value] = [x, y]  # values with j that do not depend on a reduction
    tamed: list[Value] = []  # weights: non-negative, relative to a running maximum
    narrow: list[Value] = [u]  # values without j

    def tops(v: Value) -> Value:
        return maximum(reduce("max", v, J), v.element.lowest)

    for step, a, b in steps:
        w, n = wide[a % len(wide)], narrow[b % len(narrow)]
        p = tamed[b % len(tamed)] if tamed else exp(sub(w, tops(w)))
        match step:
            case "shift-by-maximum":
                tamed.append(exp(sub(w, tops(w))))
            case "shift-by-scaled-maximum":
                z = mul(w, 0.5 + a % 3)
                tamed.append(exp(sub(z, tops(z))))
            case "masked-shift":
                z = select(compare("le", y, w), w, -np.inf)
                tamed.append(exp(sub(z, tops(z))))
            case "tame":
                wide.append(unary(Tanh, w))
            case "sum":
                narrow.append(reduce("sum", p, J))
            case "maximum":
                narrow.append(reduce("max", w if a % 2 else p, J))
            case "weigh":
                narrow.append(contract(p, wide[(a + 1) % len(wide)], J))
            case "scale":
                tamed.append(mul(p, 0.25 + b % 4))
            case "normalise":
                narrow.append(contract(div(p, maximum(reduce("sum", p, J), p.element.tiny)), w, J))
            case "add":
                wide.append(add(w, p))
            case "subtract":
                wide.append(sub(w, n))
            case "multiply":
                wide.append(mul(w, wide[b % len(wide)]))
            case "select":
                wide.append(select(compare("le", w, y), w, 0.0))
            case "foreign-shift":
                tamed.append(exp(sub(w, tops(select(compare("le", y, 0.0), wide[b % len(wide)], -np.inf)))))
            case "squash":
                wide.append(div(w, add(unary(Abs, n), 1.0)))
            case _:
                wide.append(unary(Tanh, mul(w, n)))
    last = tamed[-1] if tamed else wide[-1]
    outputs = (reduce("sum", last, J), *narrow[1:])[:4]
    layouts = (Layout.parse("i j"), Layout.parse("i j"), Layout.parse("i"))
    params = tuple(Param(name, layout) for name, layout in zip("xyu", layouts, strict=True))
    func = Func("cascade", params, place((x, y, u), outputs), (Layout.parse("i"),) * len(outputs))
    rng = np.random.default_rng(seed)
    arrays: tuple[Any, ...] = (rng.standard_normal((ni, nj)), rng.standard_normal((ni, nj)), rng.standard_normal(ni))
    return Cascade(func, arrays, tuple(s for s, _, _ in steps), tiles)


@st.composite
def cascades(draw: st.DrawFn, fusable_only: bool = False) -> Cascade:
    kinds = st.sampled_from(FUSABLE if fusable_only else FUSABLE + OTHERS)
    steps = draw(st.lists(st.tuples(kinds, st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=9))
    extent, tile = st.integers(1, 9), st.integers(1, 5)
    return make(steps, draw(extent), draw(extent), (draw(tile), draw(tile)), draw(st.integers(0, 999)))

"""Kernels of attention for GPUs in every configuration that matters, and what becomes of each: its machine code, and what it
computes in the interpreter of PTX, against float64."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import ml_dtypes
import numpy as np

import attngen as ag
from attngen.backends.cuda.build import Built
from attngen.backends.cuda.ops import Grid, Mma
from attngen.backends.cuda.passes.distribute import Roles
from attngen.backends.cuda.target import find
from attngen.backends.cuda.toolchain import reports
from attngen.ir.core import walk
from attngen.ir.func import Func
from attngen.ir.loop import For
from attngen.ir.types import ElementType, bound

Mask = Literal["none", "causal", "lengths"]

ARCHITECTURES = ("sm_80", "sm_90", "sm_90a", "sm_100")
WIDTHS = (32, 40, 64, 80, 96, 128, 192, 256)
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-9}
"""The largest relative error of one rounding."""
DTYPES = tuple(ROUNDING)
MASKS: tuple[Mask, ...] = ("none", "causal", "lengths")

BATCH, HEADS, PER_KEY, ROWS = 2, 2, 2, 150
KEYS = {"mma": 200, "wgmma": 456}
"""Enough for four trips or more of a loop, the last of them ragged."""
EMPTY_ROWS = 9
"""Causal: the first key that row i keeps is i - 9, so that the first rows keep none."""
LENGTHS = (0, 133)
"""Of the keys of each batch entry."""

HEADROOM = 1e-5
"""What sums in f32 may differ by; all that a log-sum-exp may."""


@dataclass(frozen=True)
class Configuration:
    """grouped: two query heads to each head of keys; lse: whether the log-sum-exp is a second output."""

    architecture: str
    width: int
    dtype: str
    mask: Mask
    grouped: bool = True
    lse: bool = True

    def __str__(self) -> str:
        extras = [word for word, given in (("grouped", self.grouped), ("lse", self.lse)) if given]
        return "-".join((self.architecture, str(self.width), self.dtype, self.mask, *extras))

    def program(self) -> Any:
        heads = "(g r)" if self.grouped else "g"
        out = f"b {heads} i e"
        layouts = {"q": f"b {heads} i d", "k": "b g j d", "v": "b g j e"}
        if self.mask == "lengths":
            layouts["n"] = "b"

        def attention(q: Any, k: Any, v: Any, n: Any = None) -> Any:
            i, j = ag.index("i"), ag.index("j")
            s = ag.contract(q, k, over="d") / math.sqrt(q.extent("d"))
            if self.mask == "causal":
                s = ag.where(j <= i - EMPTY_ROWS, s, -math.inf)
            if self.mask == "lengths":
                s = ag.where(j < n, s, -math.inf)
            o = ag.contract(ag.softmax(s, over="j"), v, over="j")
            return (o, ag.logsumexp(s, over="j")) if self.lse else o

        made = ag.program(**layouts, out=(out, out[:-2]) if self.lse else out)(attention)
        return replace(made, out_elements=(None, ElementType.F32)) if self.lse else made

    @property
    def engine(self) -> str:
        return "wgmma" if find(self.architecture).warpgroups else "mma"

    def inputs(self) -> dict[str, np.ndarray]:
        random = np.random.default_rng(0)
        queries = HEADS * (PER_KEY if self.grouped else 1)
        shapes = {"q": (queries, ROWS), "k": (HEADS, KEYS[self.engine]), "v": (HEADS, KEYS[self.engine])}
        element = np.dtype(ml_dtypes.bfloat16 if self.dtype == "bfloat16" else self.dtype)
        made = {n: random.standard_normal((BATCH, *s, self.width), np.float32).astype(element) for n, s in shapes.items()}
        return made | ({"n": np.array(LENGTHS, np.int32)} if self.mask == "lengths" else {})


@dataclass(frozen=True)
class Found:
    """error: the largest of the output, and limit: what rounding to 16 bits explains; products: of tensor cores, found in the
    machine code and expected from the IR; forbidden: lines of PTX that make kernels slow."""

    configuration: Configuration
    engine: str
    rows: int
    reduced: int
    threads: int
    shared_bytes: int
    usage: reports.Usage
    products: int
    expected: int
    forbidden: tuple[str, ...]
    complaints: tuple[str, ...]
    error: float
    limit: float
    lse_error: float

    def faults(self) -> Iterator[str]:
        """What must not be."""
        if self.usage.stack or self.usage.spill_stores or self.usage.spill_loads:
            yield f"spills: {self.usage}"
        if self.engine != self.configuration.engine:
            yield f"{self.engine} multiplies, not {self.configuration.engine}"
        if self.products != self.expected or not self.expected:
            yield f"{self.products} products of tensor cores, {self.expected} expected"
        yield from (*self.forbidden, *self.complaints)
        if not self.error <= self.limit:
            yield f"error {self.error:.2e} above {self.limit:.2e}"
        if not self.lse_error <= HEADROOM:
            yield f"error of the log-sum-exp {self.lse_error:.2e}"


def examine(configuration: Configuration) -> Found:
    c, inputs = configuration, configuration.inputs()
    given: dict[str, Any] = {name: ag.Spec(x.shape, str(x.dtype)) for name, x in inputs.items()}
    kernel = ag.compile(c.program(), **given, target=f"cuda:{c.architecture},emulated")
    assert kernel._built is not None
    executable = kernel._built.executable
    assert isinstance(executable, Built)
    text, entry = executable.kernels.ptx, executable.kernels.program.entries
    assembled = reports.assembled(text, replace(executable.target, emulated=False))
    outputs = kernel(*inputs.values())
    out, lse = outputs if c.lse else (outputs, None)
    grid, *_ = (op for op in kernel.func.body.ops if isinstance(op, Grid))
    loops = [op.step for op in walk(grid.body) if isinstance(op, For)]
    expected, expected_lse = reference(c, inputs)
    largest = float(np.abs(inputs["v"].astype(np.float64)).max())
    instruction = {"mma": "HMMA", "wgmma": "HGMMA"}[grid.engine]
    return Found(
        c,
        grid.engine,
        Roles(grid).height,
        max(loops),
        entry[0].threads,
        entry[0].shared_bytes,
        assembled.usage[entry[0].name],
        sum(counts[instruction] for counts in reports.instructions(assembled.cubin).values()),
        products(kernel.func),
        tuple(reports.forbidden("\n".join(text))),
        assembled.complaints,
        largest_difference(out.astype(np.float64), expected),
        # Weights are rounded once, and sums of them once more.
        largest * (2 * ROUNDING[c.dtype] + HEADROOM),
        0.0 if lse is None else largest_difference(lse, expected_lse),
    )


def products(func: Func) -> int:
    """How many instructions of tensor cores the products need: of warps, 16 rows by 8 columns by 16, of which the assembler
    leaves out those that compute padding alone; of warpgroups, all columns by 16. A product with a mask does without. One that
    is begun ahead of its trip is begun before the loop too."""
    count, extents = 0, {name: bound(extent) for v in func.args for name, extent in v.tensor.axes}
    for grid in (op for op in func.body.ops if isinstance(op, Grid)):
        roles = Roles(grid)
        for op in walk(grid.body):
            if isinstance(op, Mma) and op.where is None:
                (column,) = roles.columns(op.result.tensor)
                columns = min(bound(op.result.tensor.extents[column]), -(-extents[column] // 8) * 8)
                steps = math.prod(bound(op.lhs.tensor.extents[n]) for n in op.over) // 16
                count += steps * (columns // 8 if grid.engine == "mma" else 1) * (2 if op.ahead else 1)
    return count


def reference(c: Configuration, inputs: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The output and the log-sum-exp in float64. A row without keys is 0, and -inf."""
    q, k, v = (inputs[name].astype(np.float64) for name in ("q", "k", "v"))
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    s = q @ k.swapaxes(2, 3) / math.sqrt(c.width)
    i, j = np.indices(s.shape[2:])
    if c.mask == "causal":
        s = np.where(j <= i - EMPTY_ROWS, s, -np.inf)
    if c.mask == "lengths":
        s = np.where(j < np.reshape(LENGTHS, (-1, 1, 1, 1)), s, -np.inf)
    m = np.maximum(s.max(axis=3, keepdims=True), np.finfo(np.float32).min)
    p = np.exp(s - m)
    total = p.sum(axis=3, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(total > 0, p @ v / total, 0.0), np.where(total > 0, m + np.log(total), -np.inf)[..., 0]


def largest_difference(got: np.ndarray, expected: np.ndarray) -> float:
    """Equal infinities differ by 0; NaN by infinity."""
    with np.errstate(invalid="ignore"):
        difference = np.where(got == expected, 0.0, np.abs(got - expected))
    return float(np.where(np.isnan(difference), np.inf, difference).max())

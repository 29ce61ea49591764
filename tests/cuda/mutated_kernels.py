"""Kernels to plant defects in, ours and Triton's, on inputs that make them reuse every buffer, with the result to expect."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, cast

import ml_dtypes
import numpy as np

import attngen
from attngen.backends.cuda import ptx
from attngen.backends.cuda.build import Built
from attngen.backends.cuda.runtime.kernels import Kernels
from tests.cuda.mutations import Mutant, mutants
from tests.cuda.ptx.kernels import attend, triton

Array = np.ndarray[Any, Any]


def causal(offset: int) -> Callable[..., Any]:
    """Rows see `offset` columns more than in a square."""

    @attngen.program(q="b h i d", k="b h j d", v="b h j e", out="b h i e")
    def program(q: Any, k: Any, v: Any) -> Any:
        s = attngen.contract(q, k, over="d") / math.sqrt(q.extent("d"))
        s = attngen.where(attngen.index("j") <= attngen.index("i") + offset, s, -math.inf)
        return attngen.contract(attngen.softmax(s, over="j"), v, over="j")

    return program


@attngen.program(q="b h i d", k="b h j d", v="b h j e", kept="i j", out="b h i e")
def masked(q: Any, k: Any, v: Any, kept: Any) -> Any:
    s = attngen.where(kept, attngen.contract(q, k, over="d") / math.sqrt(q.extent("d")), -math.inf)
    return attngen.contract(attngen.softmax(s, over="j"), v, over="j", where=kept)


@attngen.program(q="b h i d", k="b h j d", v="b h j e", out="b h i e")
def twice(q: Any, k: Any, v: Any) -> Any:
    """The second softmax needs the first one finished: two loops."""
    s = attngen.softmax(attngen.contract(q, k, over="d") / math.sqrt(q.extent("d")), over="j")
    return attngen.contract(attngen.softmax(3 * s, over="j"), v, over="j")


@dataclass(frozen=True)
class Ours:
    """attention of q_len rows and kv_len columns of `width`; expected: of the scores, in float64, the weights."""

    program: Any
    shape: tuple[int, int, int]
    target: str
    weights: Callable[[Array, Array], Array]
    dtype: str = "bfloat16"
    inputs: Sequence[str] = ("q", "k", "v")
    longest: int = 0
    """If not 0, the number of columns is known only when the kernel runs, and at most this."""

    @cached_property
    def arrays(self) -> dict[str, Array]:
        rows, columns, width = self.shape
        generate = np.random.default_rng(rows)
        dtype = np.dtype(ml_dtypes.bfloat16 if self.dtype == "bfloat16" else self.dtype)
        made = {n: generate.standard_normal((1, 1, rows if n == "q" else columns, width)).astype(dtype) for n in "qkv"}
        if "kept" in self.inputs:
            kept = generate.random((rows, columns)) < 0.7
            # Nobody keeps these keys, so their values are in no product.
            kept[:, 100::300] = False
            made["v"][..., 100::300, 3] = np.nan
            made["kept"] = kept
        return made

    @cached_property
    def expected(self) -> Array:
        q, k, v = (np.nan_to_num(self.arrays[n].astype(np.float64)) for n in "qkv")
        return self.weights(q @ k.swapaxes(-1, -2) / math.sqrt(self.shape[2]), self.arrays.get("kept", np.array(True))) @ v

    @cached_property
    def kernels(self) -> Kernels:
        rows, columns, width = self.shape
        if self.longest:
            columns = attngen.upto(self.longest)
        specs: dict[str, Any] = {n: attngen.Spec((1, 1, columns, width), self.dtype) for n in "kv"}
        specs["q"] = attngen.Spec((1, 1, rows, width), self.dtype)
        if "kept" in self.inputs:
            specs["kept"] = attngen.Spec((rows, columns), "bool")
        kernel = attngen.compile(self.program, **specs, target=self.target)
        return cast(Any, kernel)._built.executable.kernels

    @cached_property
    def text(self) -> str:
        (text,) = self.kernels.ptx
        return text

    def error(self, text: str) -> float:
        """Of the kernel with this text, in units of the result's precision."""
        program = self.kernels.program
        changed = Built(Kernels(program, lambda: program, (text,), b""))
        out = np.full(self.expected.shape, 7, self.arrays["v"].dtype)
        changed([self.arrays[p.name] for p in program.func.params], [out])
        precision = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-20}[self.dtype]
        return float(np.abs(out.astype(np.float64) - self.expected).max() / (precision * max(1, np.abs(self.expected).max())))


def softmax(s: Array) -> Array:
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def below(offset: int) -> Callable[[Array, Array], Array]:
    def weights(s: Array, kept: Array) -> Array:
        i, j = np.ogrid[: s.shape[-2], : s.shape[-1]]
        return softmax(np.where(j <= i + offset, s, -np.inf))

    return weights


def kept_only(s: Array, kept: Array) -> Array:
    return softmax(np.where(kept, s, -np.inf))


AMPERE, HOPPER = "cuda:sm_80,emulated", "cuda:sm_90a,emulated"
OURS: Mapping[str, Ours] = {
    "mma, D=64, causal": Ours(causal(250), (140, 380, 64), AMPERE, below(250)),
    "mma, D=80": Ours(attngen.attention, (140, 380, 80), AMPERE, kept_only),
    "mma, D=128": Ours(attngen.attention, (140, 180, 128), AMPERE, kept_only, dtype="float16"),
    "mma, D=256": Ours(attngen.attention, (70, 180, 256), AMPERE, kept_only),
    "mma, D=64, masked": Ours(masked, (140, 380, 64), AMPERE, kept_only, inputs=("q", "k", "v", "kept")),
    "wgmma, D=128, causal": Ours(causal(560), (140, 700, 128), HOPPER, below(560)),
    "wgmma, D=64": Ours(attngen.attention, (140, 700, 64), HOPPER, kept_only, dtype="float16", longest=1000),
    "wgmma, D=64, masked": Ours(masked, (140, 700, 64), HOPPER, kept_only, inputs=("q", "k", "v", "kept"), longest=1000),
    "scalar": Ours(attngen.attention, (40, 180, 32), AMPERE, kept_only, dtype="float32"),
    "two loops": Ours(twice, (140, 380, 64), AMPERE, lambda s, kept: softmax(3 * softmax(s))),
}


@dataclass(frozen=True)
class Triton:
    """One of Triton's kernels, on so many rows and columns. dead: by rule, the numbers of places that do nothing, or None for
    all."""

    name: str
    rows: int
    columns: int
    dead: Mapping[str, Sequence[int] | None] = field(default_factory=dict[str, "Sequence[int] | None"])

    @property
    def text(self) -> str:
        return triton(self.name)[0]

    def error(self, text: str) -> float:
        error, lse = attend(text, triton(self.name)[1], 1, self.rows, self.columns)
        return max(error, lse * 1e5)


DEAD: Mapping[str, Sequence[int] | None] = {
    # Both groups of warps compute all rows, and the second stores them last: wrong products of the first do not show.
    "turn wgmma a": None,
    "turn wgmma b": None,
    # Nobody waits for these mbarriers.
    "expected arrivals +1": (5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 22, 24),
    # For a group of warps that the kernel is not launched with.
    "delete barrier.sync": (6,),
}
TRITON: Mapping[str, Triton] = {
    "Triton, sm_80": Triton("attend_sm80_f16_d64", 70, 380),
    "Triton, sm_90": Triton("attend_sm90_f16_d64", 70, 380),
    "Triton, tensor maps": Triton("attend_sm90_bf16_d128_tma", 70, 380),
    "Triton, tensor maps, causal": Triton("attend_sm90_f16_d64_tma_causal", 380, 380),
    "Triton, roles": Triton("attend_sm90_bf16_d64_tma_roles", 70, 380, DEAD),
}
KERNELS: Mapping[str, Ours | Triton] = {**OURS, **TRITON}


@cache
def original(kernel: str) -> float:
    """The error of the kernel as it is."""
    return KERNELS[kernel].error(KERNELS[kernel].text)


@cache
def planted(kernel: str) -> list[Mutant]:
    """All mutants of a kernel."""
    k = KERNELS[kernel]
    dead = k.dead if isinstance(k, Triton) else {}
    nowhere: Sequence[int] = ()
    return [m for m in mutants(k.text) if (spared := dead.get(m.rule, nowhere)) is not None and m.number not in spared]


def verdict(kernel: str, text: str) -> str:
    """What finds a mutant out: the kind of defect, `wrong` for a result that is, or nothing."""
    try:
        error = KERNELS[kernel].error(text)
    except ptx.Defect as defect:
        return defect.kind
    return "" if error < 1.5 else "wrong"

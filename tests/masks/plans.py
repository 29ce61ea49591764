"""Random calls of `scaled_dot_product_attention`: which arguments are combined, and arrays for them.

A plan says everything that a kernel is compiled for, and comes from a seed alone; values, strides and masks vary under it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from tests.masks import oracle

Array = np.ndarray[Any, Any]
Rng = np.random.Generator

LONGEST = 80
BY_PLACE = np.linspace(-1, 1, LONGEST).astype(np.float32)
BY_ENTRY = np.linspace(0, 1, 8).astype(np.float32)
BY_PAIR = np.sin(np.arange(LONGEST**2)).reshape(LONGEST, LONGEST).astype(np.float32)
DOCUMENTS = np.arange(LONGEST) // 5
STARTS = np.array([0, 3, 4, 9, 20, 41])

SCORE_MODS: Sequence[Callable[..., Any]] = (
    lambda s, b, h, i, j: s * (1 + h) + BY_PLACE[j],
    lambda s, b, h, i, j: np.where(i >= j, s, -np.inf),
    lambda s, b, h, i, j: np.tanh(s) - 0.1 * np.abs(i - j) + 0.3 * b,
    lambda s, b, h, i, j: s + BY_PAIR[i, j] * BY_ENTRY[b],
    lambda s, b, h, i, j: np.where(DOCUMENTS[i] == DOCUMENTS[j], s, s - BY_PLACE[np.minimum(np.abs(i - j), LONGEST - 1)]),
)
MASK_MODS: Sequence[Callable[..., Any]] = (
    lambda b, h, i, j: (i + j) % 2 == b % 2,
    lambda b, h, i, j: (DOCUMENTS[i] == DOCUMENTS[j]) | (j < 2),
    lambda b, h, i, j: (i // 4 >= j // 4) & (h != 1),
    lambda b, h, i, j: np.logical_not(i - j > STARTS[b] + 2),
)
"""Functions that only know NumPy and Python operators, so that the oracle can call them as well."""


@dataclass(frozen=True)
class Plan:
    """batch, heads and kv_heads of 2-dimensional arrays are empty and 1. sequences: of packed arrays, else 0. given: the
    other arguments; of arrays what is needed to make them."""

    seed: int
    dtype: str
    batch: tuple[int, ...]
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    d: int
    d_v: int
    rank: int
    sequences: int
    given: Mapping[str, Any]

    @property
    def scores(self) -> tuple[int, ...]:
        heads = () if self.rank == 2 else (self.heads,)
        return (*self.batch, *heads, self.q_len, self.kv_len)

    def without(self, name: str) -> Plan:
        return replace(self, given={n: x for n, x in self.given.items() if n != name})


def draw_plan(seed: int) -> Plan:
    """Every argument takes part in about every third plan."""
    rng = np.random.default_rng([seed, 77])

    def one(*choices: Any) -> Any:
        return choices[rng.integers(len(choices))]

    rank = one(2, 3, 4, 4, 4, 5, "packed")
    sequences, rank = (3, 3) if rank == "packed" else (0, rank)
    batch = tuple(int(n) for n in rng.integers(1, 3, max(rank - 3, 0)))
    heads, kv_heads = (1, 1) if rank == 2 else one((4, 2), (3, 3), (2, 1), (1, 1))
    q_len, kv_len = one((1, 13), (7, 11), (9, 9), (6, 70), (70, 5), (5, 1))
    dtype = one("float32", "float32", "float32", "float64", "float16", "bfloat16")
    d, d_v = one(1, 4, 8), one(3, 8)
    plan = Plan(seed, dtype, batch, heads, kv_heads, q_len, kv_len, d, d_v, rank, sequences, {})

    def shape() -> tuple[int, ...]:
        """One that broadcasts to the scores'."""
        extents = [n if rng.random() < 0.6 else 1 for n in plan.scores]
        return tuple(extents[rng.integers(len(extents) + 1) :])

    many = () if rank == 2 else (plan.heads,)
    choices: dict[str, Callable[[], Any]] = {
        "attn_mask": lambda: (one("bool", "float"), shape()),
        "bias": shape,
        "is_causal": lambda: True,
        "causal_alignment": lambda: one("top_left", "upper_left", "bottom_right", "lower_right"),
        "window": lambda: (one(None, -1, 0, 3, 40), one(None, -1, 0, 2)),
        "softcap": lambda: one(0.5, 3.0),
        "score_mod": lambda: one(*SCORE_MODS),
        "mask_mod": lambda: one(*MASK_MODS),
        "alibi_slopes": lambda: one((*plan.batch, *many), many) or (1,),
        "sinks": lambda: many or (1,),
        "seqused_k": lambda: (plan.sequences,) if plan.sequences else plan.batch,
        "scale": lambda: one(0.0, -0.5, 0.25, 3),
        "layout": lambda: one("BHSD", "BSHD"),
        "semantics": lambda: one("torch", "onnx", "flash_attn", *([] if plan.sequences else ["jax"])),
        "lse_base": lambda: "2",
        "return_lse": lambda: False,
        "enable_gqa": lambda: True,
        "deterministic": lambda: True,
        "num_threads": lambda: one(1, 2),
        "num_splits": lambda: one(1, 2, 3),
        "out": lambda: True,
    }
    given = {name: make() for name, make in choices.items() if rng.random() < 0.35}
    if given.get("is_causal"):
        given.setdefault("causal_alignment", one("top_left", "bottom_right"))  # without one there is a warning
    if sequences and given.get("layout") == "BHSD":
        del given["layout"]
    return replace(plan, given=given)


@dataclass(frozen=True)
class Call:
    """Arrays for a plan: what the product is called with, and the judge's answer. rows: what each element of the results may
    be off by, and out, lse."""

    args: tuple[Array, ...]
    given: Mapping[str, Any]
    want: tuple[Array, Array]
    tolerance: tuple[Array, Array]


def strided(rng: Rng, shape: Sequence[int], kind: int, dtype: Any = np.float32) -> Array:
    """Random numbers in memory as it comes: dense, transposed, spaced, backwards, every row the same, heads inside."""
    if not shape:
        return np.asarray(rng.standard_normal()).astype(dtype)
    if kind == 1 and len(shape) > 1:
        return rng.standard_normal((*shape[:-2], shape[-1], shape[-2])).astype(dtype).swapaxes(-1, -2)
    if kind == 4 and len(shape) > 1:
        return np.broadcast_to(rng.standard_normal((*shape[:-2], 1, shape[-1])).astype(dtype), shape)
    if kind == 5 and len(shape) > 2:
        return strided(rng, (*shape[:-3], shape[-2], shape[-3], shape[-1]), 0, dtype).swapaxes(-2, -3)
    x = rng.standard_normal((*shape[:-1], 2 * shape[-1])).astype(dtype)
    return x[..., ::2] if kind == 2 else x[..., ::-2] if kind == 3 else np.ascontiguousarray(x[..., ::2])


KINDS = 6


def dtype_of(plan: Plan) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16 if plan.dtype == "bfloat16" else plan.dtype)


def make_call(plan: Plan, seed: int, kinds: Sequence[int], density: float, size: float, poison: bool) -> Call:
    """kinds: of strides, of query, key, value, masks and out. density: of masks. size: of queries. poison: put NaN and
    infinity wherever they must not count."""
    rng = np.random.default_rng(seed)
    dtype = dtype_of(plan)
    wide = np.dtype(np.float64 if plan.dtype == "float64" else np.float32)
    heads, kv_heads = (() if plan.rank == 2 else (n,) for n in (plan.heads, plan.kv_heads))
    q = (strided(rng, (*plan.batch, *heads, plan.q_len, plan.d), kinds[0], wide) * size).astype(dtype)
    k = strided(rng, (*plan.batch, *kv_heads, plan.kv_len, plan.d), kinds[1], dtype)
    v = strided(rng, (*plan.batch, *kv_heads, plan.kv_len, plan.d_v), kinds[2], dtype)
    if poison:
        k, v = k.copy(order="K"), v.copy(order="K")

    given = dict(plan.given)
    for name in ("attn_mask", "bias"):
        if name in given:
            element, shape = given[name] if name == "attn_mask" else ("float", given[name])
            x = strided(rng, shape, kinds[3], wide if rng.random() < 0.5 else np.float16)
            keep = np.asarray(rng.random(shape)) < (density if name == "attn_mask" else 0.9)
            given[name] = np.asarray(keep) if element == "bool" else np.where(keep, x, np.asarray(-np.inf, x.dtype))
            if kinds[3] == 4 and shape and element == "bool":
                given[name] = np.broadcast_to(keep[..., :1], shape)
    if "alibi_slopes" in given:
        given["alibi_slopes"] = rng.random(given["alibi_slopes"])
    if "sinks" in given:
        given["sinks"] = np.where(rng.random(given["sinks"]) < 0.8, rng.standard_normal(given["sinks"]), -np.inf)
    if plan.sequences:
        for name, total in (("cu_seqlens_q", plan.q_len), ("cu_seqlens_k", plan.kv_len)):
            given[name] = np.array([0, *np.sort(rng.integers(0, total + 1, plan.sequences))], rng.choice(["i4", "i8"]))
    if "seqused_k" in given:
        most = np.diff(given["cu_seqlens_k"]) if plan.sequences else np.full(given["seqused_k"], plan.kv_len)
        given["seqused_k"] = rng.integers(0, most + 1)
    want = judged(plan, (q, k, v), given, poison)
    tolerance = tolerances(plan, (q, k, v), given, want)
    args = (q, k, v)
    if plan.sequences or given.get("layout") == "BSHD" and plan.rank > 2:
        args = tuple(x.swapaxes(-2, -3) for x in args)
    if "out" in given:
        shape = (*args[0].shape[:-1], plan.d_v)
        kind = kinds[4] if kinds[4] != 4 else 0
        given["out"] = strided(rng, shape, kind, dtype)
        given["out"][...] = np.nan
    return Call(args, given, want, tolerance)


# ---------------------------------------------------------------- what is right


def judged(plan: Plan, arrays: tuple[Array, ...], given: Mapping[str, Any], poison: bool) -> tuple[Array, Array]:
    """The oracle's (out, lse), in the shape of results with heads before lengths; poison is put into the arrays."""
    q, k, v = arrays
    preset = given.get("semantics")
    passed = {name: given[name] for name in ORACLE if name in given}
    passed.setdefault("causal_alignment", "bottom_right" if preset == "flash_attn" else "top_left")
    passed["empty_row"] = "mean" if preset == "jax" else "zero"
    if plan.sequences:
        starts = given["cu_seqlens_q"], given["cu_seqlens_k"]
        turned = [x.swapaxes(0, 1) for x in arrays]
        if poison:
            used = passed.get("seqused_k", np.diff(starts[1]))
            seen = [slice(at, at + n) for at, n in zip(starts[1], used, strict=False)]
            spoil(k, v, ~np.isin(np.arange(plan.kv_len), [j for part in seen for j in range(part.start, part.stop)]))
            q[:, starts[0][-1] :] = np.nan
        out, lse = oracle.packed(turned[0], turned[1], turned[2], *starts, **passed)
        out = out.swapaxes(0, 1)
    else:
        heads = 1 if plan.rank == 2 else plan.heads
        count = prod(plan.batch)
        flat = [x.reshape(count, -1, *x.shape[-2:]) for x in arrays]
        for name in ("attn_mask", "bias"):
            if name in passed:
                passed[name] = np.broadcast_to(passed[name], plan.scores).reshape(count, heads, plan.q_len, plan.kv_len)
        if "alibi_slopes" in passed and passed["alibi_slopes"].ndim > 1:
            passed["alibi_slopes"] = passed["alibi_slopes"].reshape(count, heads)
        judge = oracle.Judge(flat[0], flat[1], flat[2], **passed)
        if poison and preset != "jax":
            unseen = ~judge.keep.reshape(count, k.shape[-3] if plan.rank > 2 else 1, -1, plan.kv_len).any(2)
            spoil(k, v, unseen.reshape(k.shape[:-1]))
            q[~judge.keep.any(-1).reshape(q.shape[:-1])] = np.nan
        out, lse = judge.results()
        out, lse = out.reshape(*q.shape[:-1], plan.d_v), lse.reshape(q.shape[:-1])
    return out, np.where(np.isneginf(lse), np.inf, lse) if preset == "flash_attn" else lse


ORACLE = (
    *("attn_mask", "bias", "is_causal", "causal_alignment", "window", "softcap", "score_mod", "mask_mod", "alibi_slopes"),
    *("sinks", "seqused_k", "scale", "lse_base"),
)


def spoil(k: Array, v: Array, where: Array) -> None:
    """Keys that nobody sees, and their values: NaN and infinity."""
    k[..., where, :] = np.nan
    v[..., where, :] = np.inf


def tolerances(
    plan: Plan, arrays: tuple[Array, ...], given: Mapping[str, Any], want: tuple[Array, Array]
) -> tuple[Array, Array]:
    """How far rounding may lead: an error of a score is a relative error of its weight."""

    def largest(x: Any) -> float:
        x = np.abs(np.asarray(x, np.float64))
        return float(np.max(x, initial=0, where=np.isfinite(x)))

    q, k, v = map(largest, arrays)
    eps = 2.0**-53 if plan.dtype == "float64" else 2.0**-24
    score = q * k * plan.d * abs(given.get("scale", plan.d**-0.5))
    score = score * (1 + plan.heads) + 10 if "score_mod" in given else score
    score += largest(given.get("bias", 0)) + largest(given.get("attn_mask", 0)) + 1
    score += largest(given.get("alibi_slopes", 0)) * (plan.q_len + plan.kv_len)
    error = eps * (plan.d + 16) * score
    out, lse = want
    rounded = {"float16": 2.0**-11, "bfloat16": 2.0**-8}.get(plan.dtype, eps)
    return (2 * error + plan.kv_len * eps) * v + rounded * (np.abs(out) + 1e-4), 2 * error + 4 * eps * np.abs(lse)

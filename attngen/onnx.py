"""The Attention operator of ONNX (opsets 23 to 25), and its preview FlexAttention, on NumPy arrays.

It has layouts of rank 3 and 4, past keys and values, padding lengths, windows, a soft cap, the precision of softmax, and can
return one of four matrices besides. Importing this needs no package of ONNX.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attngen import functions
from attngen.arithmetic import join
from attngen.arrays import Array, check_array
from attngen.ir.diagnostics import Error
from attngen.ir.types import Layout
from attngen.lowering import build_kernel, check_host
from attngen.names import kind_of
from attngen.programs import Program
from attngen.sdpa import find_kernel
from attngen.sdpa_inputs import Extra, lengths, read_extras
from attngen.sdpa_options import Options, check_flags, check_names, is_whole, read_options
from attngen.sdpa_program import Attention
from attngen.sdpa_shapes import Shape, check_inputs
from attngen.specs import array_dtype, input_types, read_dtype, read_input, show_shape
from attngen.table import KERNELS
from attngen.tensor import Tensor

I, J, D, E = ("i",), ("j",), ("d",), ("e",)

Modifier = Callable[[Array], Any]
"""Scores, or weights, (batch, heads, q_len, kv_len) to others."""


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    attn_mask: Any = None,
    is_causal: bool = False,
    scale: float | None = None,
    softcap: float = 0.0,
    past_key: Any = None,
    past_value: Any = None,
    nonpad_kv_seqlen: Any = None,
    left_window_size: int = -1,
    right_window_size: int = -1,
    q_num_heads: int | None = None,
    kv_num_heads: int | None = None,
    qk_matmul_output_mode: int | None = None,
    softmax_precision: Any = None,
    score_mod: Modifier | None = None,
    prob_mod: Modifier | None = None,
    sinks: Any = None,
    target: str = "cpu",
) -> tuple[Any, Any, Any, Any]:
    """(Y, present_key, present_value, qk_matmul_output); the last is None without qk_matmul_output_mode.

    q (batch, q_heads, q_len, d), k and v (batch, kv_heads, kv_len, …), or all of rank 3, (batch, length, heads·d), with
    q_num_heads and kv_num_heads. Past keys and values come before k and v; causal masks and windows count queries from there,
    or from nonpad_kv_seqlen - q_len. A mask that is shorter than the keys drops the others. qk_matmul_output_mode: 0 the scaled
    scores, 1 after the soft cap, 2 the final scores, 3 the weights.

    score_mod and prob_mod are functions of arrays, not of traced values: with them the steps run one by one. Arrays are
    NumPy's: of the targets for GPUs only emulated ones work, such as "cuda:sm_90a,emulated". Raises Error for what does not
    fit.
    """
    check_flags(is_causal=is_causal)
    check_names(target=target)
    check_host(target, "attngen.onnx.attention")
    for name, mod in (("score_mod", score_mod), ("prob_mod", prob_mod)):
        if mod is not None and not callable(mod):
            raise Error(f"{name}: expected a function of an array, got {kind_of(mod)}")
    sides: dict[str, Any] = {"left_window_size": left_window_size, "right_window_size": right_window_size}
    for name, side in sides.items():
        if side is not None and (not is_whole(side) or side < -1):
            raise Error(f"{name}: expected a whole number of at least 0, or -1 for open, got {side!r}")
    arrays = {"q": q, "k": k, "v": v, "past_key": past_key, "past_value": past_value}
    for name, x in arrays.items():
        if x is not None or name in "qkv":
            check_array(name, x)
    if q.ndim == 3:
        q, k, v = (split_heads(n, arrays[n], c) for n, c in (("q", q_num_heads), ("k", kv_num_heads), ("v", kv_num_heads)))
    elif q_num_heads is not None or kv_num_heads is not None:
        raise Error(f"q_num_heads and kv_num_heads are for arrays of rank 3, got q of shape {show_shape(q.shape)}")
    if (past_key is None) != (past_value is None):
        raise Error("past_key and past_value: give both or none")
    past = 0
    if past_key is not None:
        past = past_key.shape[2]
        k, v = joined("past_key", past_key, k), joined("past_value", past_value, v)
    given: dict[str, Any] = {"attn_mask": attn_mask, "sinks": sinks, "seqused_k": nonpad_kv_seqlen}
    if attn_mask is not None:
        given["attn_mask"] = whole_mask(attn_mask, k.shape[2])
    element = read_dtype(q.dtype, "q")
    options = read_options(
        scale=scale,
        is_causal=is_causal,
        softcap=softcap,
        window=(left_window_size, right_window_size),
        causal_alignment="top_left" if nonpad_kv_seqlen is None else "bottom_right",
    )
    precision = None if softmax_precision is None else read_dtype(softmax_precision, "softmax_precision")
    options = dataclasses.replace(
        options,
        offset=past,
        precision=precision if precision is not None and precision.bytes > element.accumulator.bytes else None,
        tap=read_mode(qk_matmul_output_mode),
    )
    call = Call(options, given, score_mod, prob_mod, target, q.dtype)
    y, matrix = call(*alike(q, k, v))
    y, matrix = y.astype(q.dtype, copy=False), None if matrix is None else matrix.astype(q.dtype, copy=False)
    if arrays["q"].ndim == 3:
        y = y.swapaxes(1, 2).reshape(*arrays["q"].shape[:2], -1)
    return y, k, v, matrix


def alike(*arrays: Array) -> Sequence[Array]:
    """The arrays in one element type: f16 and bf16 together are f32."""
    elements = [read_dtype(x.dtype, name) for name, x in zip("qkv", arrays, strict=True)]
    return arrays if len({*elements}) == 1 else [x.astype(array_dtype(join(elements)), copy=False) for x in arrays]


def read_mode(mode: Any) -> int | None:
    if mode is not None and (not is_whole(mode) or not 0 <= mode <= 3):
        raise Error(f"qk_matmul_output_mode: expected 0, 1, 2 or 3, got {mode!r}")
    return None if mode is None else int(mode)


def split_heads(name: str, x: Array, heads: Any) -> Array:
    """(batch, length, heads·d) as (batch, heads, length, d), on the same memory where possible."""
    which = "q_num_heads" if name == "q" else "kv_num_heads"
    if x.ndim != 3:
        raise Error(f"{name}: expected 3 dimensions as q has, got shape {show_shape(x.shape)}")
    if not is_whole(heads) or heads < 1 or x.shape[2] % heads:
        raise Error(f"{which}: expected a number of heads that divides the {x.shape[2]} features of {name}, got {heads!r}")
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads).swapaxes(1, 2)


def joined(name: str, past: Array, new: Array) -> Array:
    wanted = (*new.shape[:2], past.shape[2] if past.ndim == 4 else "past", new.shape[3])
    if past.shape != wanted or past.dtype != new.dtype:
        found = f"{show_shape(past.shape)} of {past.dtype.name}"
        raise Error(f"{name}: expected shape {show_shape(wanted)} of {new.dtype.name}, got {found}")
    return np.concatenate([past, new], axis=2)


def whole_mask(mask: Any, kv_len: int) -> Array:
    """A mask over all keys: those beyond its end are dropped."""
    check_array("attn_mask", mask)
    if not mask.ndim or mask.shape[-1] == 1 or mask.shape[-1] >= kv_len:
        return mask
    missing = [(0, 0)] * (mask.ndim - 1) + [(0, kv_len - mask.shape[-1])]
    return np.pad(mask, missing, constant_values=False if mask.dtype == bool else -np.inf)


@dataclasses.dataclass
class Call:
    """One call on arrays (batch, heads, length, features) of one element type."""

    options: Options
    given: Mapping[str, Any]
    score_mod: Modifier | None
    prob_mod: Modifier | None
    target: str
    dtype: Any
    """Of q as it was given."""

    def __call__(self, query: Array, key: Array, value: Array) -> tuple[Array, Array | None]:
        check_inputs(query, key, value, "BHSD")
        shape = Shape.of(query, key, "BHSD")
        if self.given["seqused_k"] is not None:
            lengths("nonpad_kv_seqlen", self.given["seqused_k"], shape.scores[:1], shape.kv_len)
        extras = read_extras(shape, read_dtype(query.dtype, "q").accumulator, **self.given)
        named = (("query", query), ("key", key), ("value", value))
        if self.score_mod is not None or self.prob_mod is not None:
            return self.by_steps(shape, dict(named), extras)
        result = find_kernel(named, self.options, extras, {}, self.target)()
        return result if self.options.tap is not None else (result, None)

    def by_steps(self, shape: Shape, named: dict[str, Array], extras: tuple[Extra, ...]) -> tuple[Array, Array | None]:
        """Scores, the modification, weights, the modification, the sum of values: one kernel for each step of ours."""
        batch, many, one = (shape.batch_axes[0],), shape.head_axes, shape.kv_head_axes
        scores = Layout(tuple(axes for axes, _ in shape.scores))
        query, key, value = (Layout((batch, *rest)) for rest in ((many, I, D), (one, J, D), (one, J, E)))

        def steps(extra: Mapping[str, Tensor]) -> Attention:
            return Attention(shape, self.options, element.accumulator, extra, None, None)

        def score(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
            scaled = steps({}).scaled(query, key)
            return scaled, steps({}).capped(scaled)

        def weights(capped: Tensor, **extra: Tensor) -> tuple[Tensor, Tensor]:
            s, _ = steps(extra).final(capped)
            return s, steps(extra).softmax(s)[0]

        def weighed(weights: Tensor, value: Tensor) -> Tensor:
            return functions.weigh(weights, value, over="j", where=weights != 0)

        element = read_dtype(named["query"].dtype, "q")
        wide = (element.accumulator, element.accumulator)
        program = Program(score, {"query": query, "key": key}, (scores, scores), True, wide)
        scaled, capped = self.run(program, {"query": named["query"], "key": named["key"]})
        capped = self.modified("score_mod", self.score_mod, capped)
        # Without an input that has fewer heads, query heads are told apart by dimensions of their own.
        count, fewer = (named[name].shape[1] for name in ("query", "key"))
        heads = (count,) if len(many) == 1 else (fewer, count // fewer)
        capped = capped.reshape(*capped.shape[:1], *heads, *capped.shape[2:])
        apart = Layout(tuple((axis,) for axis in shape.score_axes))
        program = Program(weights, {"capped": apart, **{x.name: x.layout for x in extras}}, (scores, scores), True, wide)
        final, weight = self.run(program, {"capped": capped, **{x.name: x.array for x in extras}})
        weight = self.modified("prob_mod", self.prob_mod, weight)
        program = Program(weighed, {"weights": scores, "value": value}, (Layout((batch, many, I, E)),))
        y = self.run(program, {"weights": weight, "value": named["value"]})
        tap = self.options.tap
        return y, None if tap is None else (scaled, capped, final, weight)[tap]

    def run(self, program: Program, arrays: Mapping[str, Array]) -> Any:
        specs = {name: read_input(x, None, name) for name, x in arrays.items()}
        traced = program.bind(input_types(program.layouts, specs))
        kernel = KERNELS.get(("onnx", traced.func, self.target), lambda: build_kernel(program, traced, target=self.target))
        return kernel(*arrays.values())

    def modified(self, name: str, mod: Modifier | None, x: Array) -> Array:
        """What a modification makes of scores or weights, which it gets in the element type of q."""
        if mod is None:
            return x
        new: Any = np.asarray(mod(x.astype(self.dtype, copy=False)))
        if new.shape != x.shape:
            raise Error(f"{name}: expected scores of shape {show_shape(x.shape)}, got {show_shape(new.shape)}")
        return new.astype(x.dtype, copy=False)

"""Attention in one call that compiles a kernel for the arrays it is given."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from attngen.arrays import Array
from attngen.ir.types import Extent
from attngen.kernel import Kernel, Traced
from attngen.lowering import arrays_of, build_kernel
from attngen.mods import Mod, check_mod
from attngen.programs import Program
from attngen.sdpa_inputs import Extra, read_extras
from attngen.sdpa_options import Options, check_scale, read_call
from attngen.sdpa_packed import packed_rows
from attngen.sdpa_program import sdpa_program
from attngen.sdpa_runtime import FAMILIES, Family, Form, family_key, with_offset
from attngen.sdpa_shapes import Shape, check_inputs
from attngen.sdpa_splits import split_pipeline
from attngen.semantics import refuse_mean
from attngen.specs import Spec, array_dtype_name, input_types, read_dtype
from attngen.table import KERNELS
from attngen.torch_arrays import accepts_tensors

Named = Sequence[tuple[str, Array]]


@accepts_tensors
def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    score_mod: Any = None,
    mask_mod: Any = None,
    bias: Any = None,
    window: Any = None,
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    sinks: Any = None,
    causal_alignment: str | None = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    seqused_k: Any = None,
    layout: Literal["BHSD", "BSHD"] = "BHSD",
    semantics: str | None = None,
    return_lse: bool = False,
    lse_base: Literal["e", "2"] = "e",
    deterministic: bool = False,
    num_splits: int | None = None,
    num_threads: int | None = None,
    out: Any = None,
    target: str = "cpu",
) -> Any:
    """softmax(query·keyᵀ·scale)·value, by a kernel compiled for these shapes and kept for the next call.

    Calls that differ from an earlier one in nothing but q_len and kv_len share a kernel with runtime extents, which serves all
    lengths up to a bound of at least 1,024 and at least four times as long.

    query (…, heads, q_len, d), key (…, kv_heads, kv_len, d), value (…, kv_heads, kv_len, d_v): NumPy arrays, or torch tensors
    on the CPU; with target="cuda" tensors of torch, arrays of CuPy or any others on a GPU, whose stream the kernel follows. Of
    one float dtype, any strides; two dimensions are one head; `layout="BSHD"` puts heads after lengths. heads a
    multiple of kv_heads: query head h reads key head h // (heads // kv_heads), whatever enable_gqa says.

    Scores are changed in this order; query i stands at place p = i + offset among the keys:

    scale             None means 1/√d
    softcap           c·tanh(s/c); 0 is off
    score_mod         score_mod(score, b, h, q_idx, kv_idx), traced; so is mask_mod(b, h, q_idx, kv_idx), True keeps
    alibi_slopes      (heads,) or (batch, heads): -slope·|p - j|
    bias, attn_mask   added, if floats; of any shape that broadcasts to (…, heads, q_len, kv_len), read as it is
    attn_mask         if boolean: True keeps a key
    seqused_k         (batch,): only so many keys
    is_causal         keys j ≤ p. causal_alignment: "top_left" has offset 0 (None means this, with a warning where q_len and
                      kv_len differ), "bottom_right" kv_len - q_len, or seqused_k - q_len
    window            (left, right): keys from p - left to p + right, None or -1 is open
    sinks             (heads,): one more logit per head, with no value

    cu_seqlens_q, cu_seqlens_k (sequences + 1,): query (total, heads, d), key and value (total, kv_heads, …) hold sequences one
    after the other, which start at these rows; a query sees keys of its own sequence only, and offset, q_idx and kv_idx count
    inside of it. The output is packed likewise, the log-sum-exp (heads, total).

    A key that is masked (also by -inf added to its score) never reaches the output, even if it holds NaN. A row without any key
    is 0, its log-sum-exp -inf. semantics: "torch", "onnx", "flash_attn" or "jax" for their conventions, where they differ.

    return_lse: also the log-sum-exp of the final scores, (…, heads, q_len), natural or to base 2 by lse_base. out: written in
    place. num_threads: at most so many; None asks `get_num_threads`. num_splits: in how many parts the keys are read side by
    side, then merged (flash-decoding); None: in several where there are fewer rows of queries than threads, unless
    deterministic. Raises Error for whatever does not fit.
    """
    options = read_call(locals())
    own = arrays_of(target)
    arrays = tuple((name, own.read(name, x)) for name, x in (("query", query), ("key", key), ("value", value)))
    (_, query), (_, key), (_, value) = arrays
    given = {"attn_mask": attn_mask, "bias": bias, "alibi_slopes": alibi_slopes, "sinks": sinks, "seqused_k": seqused_k}
    extras: tuple[Extra, ...] = ()
    mods = {name: mod for name, mod in (("score_mod", score_mod), ("mask_mod", mask_mod)) if mod is not None}
    packed = cu_seqlens_q is not None or cu_seqlens_k is not None
    if packed:
        refuse_mean(options.semantics, semantics, "packed arrays")
    if packed or any(x is not None for x in given.values()):
        if packed and layout == "BHSD" and query.ndim == 3:
            options = dataclasses.replace(options, layout="BSHD")
        check_inputs(query, key, value, options.layout)
        shape = Shape.of(query, key, options.layout)
        if packed:
            used = given.pop("seqused_k")
            starts = own.small(cu_seqlens_q), own.small(cu_seqlens_k)
            extras = packed_rows(shape, options, *starts, own.small(used), bool(mods))
        extras += read_extras(shape, read_dtype(query.dtype, "query").accumulator, arrays=own, **given)
    made = find_kernel(arrays, options, extras, mods, target)
    if options.is_causal and options.alignment is None and not packed:
        shape = Shape.of(query, key, options.layout)
        options.warn(shape.q_len, shape.kv_len)
    return made((out, None) if return_lse else out, num_threads)


@dataclasses.dataclass(frozen=True)
class Call:
    """A kernel and the arrays that it is to be called with."""

    kernel: Kernel
    arrays: Named
    extras: tuple[Extra, ...]

    def __call__(self, out: Any = None, num_threads: int | None = None) -> Any:
        arrays = [x for _, x in self.arrays]
        if self.extras:
            # What was made here of what was given goes where the other arrays are.
            own = arrays_of(self.kernel.target)
            made: list[Any] = [x.array for x in self.extras]
            arrays += [own.upload(x, arrays) if isinstance(x, np.ndarray) else x for x in made]
        return self.kernel(*arrays, out=out, num_threads=num_threads)


def find_kernel(arrays: Named, options: Options, extras: tuple[Extra, ...], mods: dict[str, Mod], target: str) -> Call:
    """The kernel for arrays like these, compiled if there is none yet: for exactly their lengths if these are the first ones
    of otherwise equal calls, else with runtime extents."""
    (_, query), (_, key), (_, value) = arrays
    kinds = query.shape, query.dtype, key.shape, key.dtype, value.shape, value.dtype
    exact = (kinds, options, tuple([extra.key for extra in extras]), target)
    if not mods:
        kernel = KERNELS.find(("sdpa", exact))
        if kernel is not None:
            return Call(kernel, arrays, extras)
    for name, mod in mods.items():
        check_mod(name, mod)
    check_inputs(query, key, value, options.layout)
    shape = Shape.of(query, key, options.layout)
    family = family_key(shape, (query, key, value), options, extras, mods, target)
    form = FAMILIES.get(family, Family).choose(shape.q_len, shape.kv_len, options.offset)
    if mods:
        return modified_kernel(arrays, options, extras, mods, target, form)
    if form.offset:
        options, extras = with_offset(shape, options, extras)
    made = (family, form) if form.offset else exact
    return Call(KERNELS.get(("sdpa", made), lambda: make_kernel(arrays, options, extras, target, form)), arrays, extras)


def make_kernel(arrays: Named, options: Options, extras: tuple[Extra, ...], target: str, form: Form) -> Kernel:
    made, traced = trace(arrays, options, extras, {}, form)
    return build_kernel(
        made,
        traced,
        target=target,
        pipeline=split_pipeline(Shape.of(arrays[0][1], arrays[1][1], options.layout), options, form, target),
    )


def modified_kernel(
    arrays: Named, options: Options, extras: tuple[Extra, ...], mods: dict[str, Mod], target: str, form: Form
) -> Call:
    """Traced on every call, so that captured numbers and arrays are those of now; compiled once per distinct function.
    A captured array that is read along the queries or keys is bound to each call at its lengths.
    """
    (_, query), (_, key), _ = arrays
    shape = Shape.of(query, key, options.layout)
    if form.offset:
        options, extras = with_offset(shape, options, extras)
    _, traced = trace(arrays, options, extras, mods, form)
    made = sdpa_program(shape, options, read_dtype(query.dtype, "query").accumulator, extras)
    # What is kept must not keep alive what the modifications have captured.
    bare = dataclasses.replace(traced, captured={})
    pipeline = split_pipeline(shape, options, form, target)
    kernel = KERNELS.get(
        ("sdpa", traced.func, target, pipeline), lambda: build_kernel(made, bare, target=target, pipeline=pipeline)
    )
    return Call(kernel.with_captured(traced.captured), arrays, extras)


def trace(
    arrays: Named, options: Options, extras: tuple[Extra, ...], mods: dict[str, Mod], form: Form | None = None
) -> tuple[Program, Traced]:
    """The program, and what it is on arrays like these, with the extents of the form."""
    (_, query), (_, key), _ = arrays
    accumulator = read_dtype(query.dtype, "query").accumulator
    check_scale(options.scale, accumulator)
    check_scale(options.softcap, accumulator, "softcap")
    shape = Shape.of(query, key, options.layout)
    made = sdpa_program(shape, options, accumulator, extras, **mods)
    named = (*arrays, *((extra.name, extra.array) for extra in extras))
    extents: Mapping[str, Extent] = form.extents if form else {}

    def spec(name: str, x: Array) -> Spec:
        groups = made.layouts[name].groups
        shape = tuple(extents.get(group[0], int(n)) for group, n in zip(groups, x.shape, strict=True))
        return Spec(shape, array_dtype_name(read_dtype(x.dtype, name)))

    types = input_types(made.layouts, {name: spec(name, x) for name, x in named})
    return made, made.bind(types, {"i": shape.q_len, "j": shape.kv_len})

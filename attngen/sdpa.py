"""Attention, built in: the program of four steps, and one call that compiles it for the arrays it is given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import isfinite
from typing import Any, Literal

from attngen import functions
from attngen.arrays import Array, check_array, show_dtype
from attngen.ir.diagnostics import Error
from attngen.ir.elementwise import LOG2E
from attngen.ir.types import ElementType
from attngen.kernel import Kernel
from attngen.lowering import build_kernel
from attngen.names import kind_of
from attngen.programs import Program, make_program, program
from attngen.sdpa_options import check_flags, check_names, is_number, refuse_options
from attngen.specs import input_types, read_dtype, read_input, show_shape
from attngen.table import KERNELS
from attngen.tensor import Tensor

FLOATS = ("float16", "bfloat16", "float32", "float64")


@program(q="b h i d", k="b h j d", v="b h j e", out="b h i e")
def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q·kᵀ / √d)·v (Vaswani et al. 2017), in four steps: score, scale, softmax, weigh."""
    s = functions.score(q, k, over="d")
    s = functions.scale(s, 1 / math.sqrt(q.extent("d")))
    a = functions.softmax(s, over="j")
    return functions.weigh(a, v, over="j")


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

    query (…, heads, q_len, d), key (…, kv_heads, kv_len, d), value (…, kv_heads, kv_len, d_v): NumPy arrays of one float
    dtype, any strides; two dimensions are one head; `layout="BSHD"` puts heads after lengths. heads a multiple of kv_heads:
    query head h reads key head h // (heads // kv_heads), whatever enable_gqa says.

    scale: None means 1/√d. return_lse: also the log-sum-exp of the scaled scores, (…, heads, q_len), natural or to base 2 by
    lse_base. out: written in place. Without any key a row is 0, its log-sum-exp -inf.

    The other arguments are refused by name unless they are left at their default. Raises Error for whatever does not fit.
    """
    check_flags(enable_gqa=enable_gqa, is_causal=is_causal, return_lse=return_lse, deterministic=deterministic)
    refuse_options(
        attn_mask=attn_mask,
        dropout_p=dropout_p,
        is_causal=is_causal,
        score_mod=score_mod,
        mask_mod=mask_mod,
        bias=bias,
        window=window,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
        causal_alignment=causal_alignment,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        seqused_k=seqused_k,
        semantics=semantics,
        num_splits=num_splits,
        num_threads=num_threads,
    )
    arrays = (("query", query), ("key", key), ("value", value))
    shape_of: list[Any] = []
    for name, x in arrays:
        check_array(name, x)
        shape_of += (x.shape, x.dtype)
    check_names(layout=layout, lse_base=lse_base, target=target)
    factor = read_scale(scale)
    found = (*shape_of, factor, layout, bool(return_lse), lse_base, target)
    kernel = KERNELS.find(("sdpa", found))
    if kernel is None:
        check_inputs(query, key, value, layout)
        if lse_base not in ("e", "2"):
            raise Error(f'lse_base: expected "e" or "2", got {lse_base!r}')
        kernel = KERNELS.get(("sdpa", found), lambda: make_kernel(arrays, factor, layout, bool(return_lse), lse_base, target))
    if not return_lse:
        return kernel(query, key, value, out=out)
    return kernel(query, key, value, out=(out, None))


def read_scale(scale: Any) -> float | None:
    """None, or the scale as a finite number."""
    if scale is None:
        return None
    if not is_number(scale):
        raise Error(f"scale: expected a number or None (1/sqrt(d)), got {kind_of(scale)}")
    try:
        number = float(scale)
    except OverflowError:
        number = math.inf
    if not isfinite(number):
        raise Error(f"scale: expected a finite number or None (1/sqrt(d)), got {scale}")
    return number


def check_scale(factor: float | None, accumulator: ElementType) -> None:
    if factor is not None and abs(factor) > -accumulator.lowest:
        raise Error(f"scale: {factor} is not finite in {accumulator}, in which scores are computed; use float64 arrays")


def check_inputs(query: Array, key: Array, value: Array, layout: str) -> None:
    """Everything that must agree between the three arrays; errors name the argument, what it has, and what was expected."""
    if layout not in ("BHSD", "BSHD"):
        raise Error(f'layout: expected "BHSD" or "BSHD", got {layout!r}')
    arrays = {"query": query, "key": key, "value": value}
    for name, x in arrays.items():
        if not x.dtype.isnative:
            raise Error(f"{name}: {show_dtype(x.dtype)} is not supported; use {name}.astype({name}.dtype.newbyteorder('='))")
        if x.dtype.name not in FLOATS:
            raise Error(
                f"{name}: expected a float dtype ({', '.join(FLOATS)}), got {x.dtype.name}; use {name}.astype(np.float32)"
            )
    for name, x in arrays.items():
        if x.dtype != query.dtype:
            raise Error(f"{name}: has dtype {x.dtype.name}, but query has {query.dtype.name}; use {name}.astype(query.dtype)")
    for name, x in arrays.items():
        if x.ndim < 2:
            raise Error(f"{name}: expected at least 2 dimensions (length, features), got shape {show_shape(x.shape)}")
        if x.ndim != query.ndim:
            raise Error(
                f"{name}: has {x.ndim} dimensions {show_shape(x.shape)}, but query has {query.ndim} {show_shape(query.shape)}"
            )
    heads, length = (-3, -2) if layout == "BHSD" else (-2, -3)
    if query.ndim == 2:
        heads, length = None, -2
    q, k, v = query.shape, key.shape, value.shape

    def differ(
        name: str, shape: tuple[int, ...], other: str, other_shape: tuple[int, ...], what: str, a: object, b: object
    ) -> Error:
        return Error(f"{name}: {what} {a} in shape {show_shape(shape)}, but {other} has {b} in shape {show_shape(other_shape)}")

    if q[-1] == 0:
        raise Error(f"query: d is 0 in shape {show_shape(q)}; expected at least one feature to compare by")
    if k[-1] != q[-1]:
        raise differ("key", k, "query", q, "has d", k[-1], q[-1])
    if v[length] != k[length]:
        raise differ("value", v, "key", k, "has kv_len", v[length], k[length])
    if heads is None:
        return
    for name, shape in (("key", k), ("value", v)):
        if shape[:-3] != q[:-3]:
            raise differ(name, shape, "query", q, "has batch", show_shape(shape[:-3]), show_shape(q[:-3]))
    if v[heads] != k[heads]:
        raise differ("value", v, "key", k, "has kv_heads", v[heads], k[heads])
    if q[heads] != k[heads] and (k[heads] == 0 or q[heads] % k[heads]):
        raise Error(
            f"query: {q[heads]} heads in shape {show_shape(q)} are no multiple of the {k[heads]} heads of key "
            f"{show_shape(k)}; expected heads = kv_heads · n"
        )


def make_kernel(
    arrays: Sequence[tuple[str, Array]], factor: float | None, layout: str, return_lse: bool, lse_base: str, target: str
) -> Kernel:
    (_, query), (_, key), _ = arrays
    heads = None if query.ndim == 2 else -3 if layout == "BHSD" else -2
    grouped = heads is not None and query.shape[heads] != key.shape[heads]
    accumulator = read_dtype(query.dtype, "query").accumulator
    check_scale(factor, accumulator)
    made = sdpa_program(query.ndim, grouped, factor, layout, return_lse, lse_base, accumulator)
    specs = {name: read_input(x, None, name) for name, x in arrays}
    return build_kernel(made, made.bind(input_types(made.layouts, specs)), target=target)


def sdpa_program(
    rank: int, grouped: bool, factor: float | None, layout: str, return_lse: bool, lse_base: str, accumulator: ElementType
) -> Program:
    """Attention on arrays of this rank. Grouped: r queries of a group read the key head g."""

    def scaled_dot_product(query: Tensor, key: Tensor, value: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        s = functions.score(query, key, over="d")
        s = functions.scale(s, 1 / math.sqrt(query.extent("d")) if factor is None else factor)
        o = functions.weigh(functions.softmax(s, over="j"), value, over="j")
        if not return_lse:
            return o
        lse = functions.logsumexp(s, over="j")
        return o, lse * LOG2E if lse_base == "2" else lse

    batch = " ".join(f"b{k}" for k in range(rank - 3))
    many, one = ("(g r)", "g") if grouped else ("h", "h")
    if rank == 2:
        many = one = ""

    def axes(heads: str, length: str, features: str) -> str:
        inner = f"{heads} {length}" if layout == "BHSD" else f"{length} {heads}"
        return " ".join(f"{batch} {inner} {features}".split())

    out = axes(many, "i", "e")
    lse = " ".join(f"{batch} {many} i".split())
    return make_program(
        scaled_dot_product,
        {"query": axes(many, "i", "d"), "key": axes(one, "j", "d"), "value": axes(one, "j", "e")},
        out=(out, lse) if return_lse else out,
        out_elements=(None, accumulator) if return_lse else (),
        out_names=("out", "lse") if return_lse else (),
    )

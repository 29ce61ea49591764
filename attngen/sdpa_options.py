"""Arguments of `scaled_dot_product_attention` that have no kernel yet: each is refused by name, with what works instead."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from attngen.ir.diagnostics import Error

_OWN = "write a program of your own (@attngen.program) "

INSTEAD: Mapping[str, str] = {
    "attn_mask": _OWN + "with the mask as an input: s = attngen.where(keep, s, -math.inf), or s + bias for a float mask",
    "is_causal": _OWN + 'with s = attngen.where(attngen.index("j") <= attngen.index("i"), s, -math.inf)',
    "score_mod": _OWN + "that changes the scores s between attngen.contract and attngen.softmax",
    "mask_mod": _OWN + "with s = attngen.where(keep, s, -math.inf), where keep compares attngen.index of the axes",
    "bias": _OWN + "with the bias as an input, added to the scores",
    "window": _OWN + 'with a condition on attngen.index("i") - attngen.index("j")',
    "softcap": _OWN + "with s = c * attngen.tanh(s / c)",
    "alibi_slopes": _OWN + 'with the slopes as an input: s - slope * attngen.abs(attngen.index("i") - attngen.index("j"))',
    "sinks": _OWN + "with the sinks as an input that joins the maximum and the denominator",
    "causal_alignment": "leave it away: without a causal mask it has no effect",
    "cu_seqlens_q": "call once per sequence",
    "cu_seqlens_k": "call once per sequence",
    "seqused_k": "cut key and value to their lengths and call once per batch entry",
    "semantics": "leave it away: the semantics are those of torch",
    "num_splits": "leave it away, or give 1: the keys are read in one part",
    "num_threads": "leave it away, or give 1: a call runs on one thread",
}


def refuse_options(
    *, dropout_p: Any, is_causal: Any, window: Any, softcap: Any, num_splits: Any, num_threads: Any, **others: Any
) -> None:
    """Raise Error for the first argument that asks for something not built yet, or that is malformed."""
    if not is_number(dropout_p) or dropout_p != 0:
        raise Error(f"dropout_p: expected 0, got {dropout_p!r}; dropout is for training and is never applied or ignored here")
    if is_causal:
        raise refused("is_causal")
    if not is_number(softcap) or not 0 <= softcap < math.inf:
        raise Error(f"softcap: expected a finite number of at least 0 (0 is off), got {softcap!r}")
    if softcap != 0:
        raise refused("softcap")
    if window is not None:
        check_window(window)
    for name, count in (("num_splits", num_splits), ("num_threads", num_threads)):
        if count is None:
            continue
        if not is_whole(count) or count < 1:
            raise Error(f"{name}: expected a whole number of at least 1 or None, got {count!r}")
        if count > 1:
            raise refused(name)
    for name, value in others.items():
        if value is not None:
            raise refused(name)


def check_window(window: Any) -> None:
    """(left, right), None or -1 for an open side; open on both sides is no window."""
    if not isinstance(window, tuple | list) or len(window) != 2:  # pyright: ignore[reportUnknownArgumentType]
        raise Error(f"window: expected (left, right), got {window!r}")
    sides: list[Any] = list(window)  # pyright: ignore[reportUnknownArgumentType]
    for side in sides:
        if side is not None and (not is_whole(side) or side < -1):
            raise Error(f"window: each side is a whole number of at least 0, or None or -1 for open, got {window!r}")
    if any(side is not None and side != -1 for side in sides):
        raise refused("window")


def check_flags(**flags: Any) -> None:
    for name, flag in flags.items():
        if not isinstance(flag, bool | np.bool_):
            raise Error(f"{name}: expected True or False, got {flag!r}")


def check_names(**names: Any) -> None:
    for name, text in names.items():
        if not isinstance(text, str):
            raise Error(f"{name}: expected a name, got {text!r}")


def is_whole(x: Any) -> bool:
    return isinstance(x, int | np.integer) and not isinstance(x, bool)


def is_number(x: Any) -> bool:
    return isinstance(x, int | float | np.integer | np.floating) and not isinstance(x, bool)


def refused(name: str) -> Error:
    return Error(f"{name} is not supported yet; {INSTEAD[name]}")

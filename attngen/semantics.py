"""Conventions that libraries of attention differ in, by name: `semantics="flash_attn"`.

Sources: the documentation of torch.nn.functional.scaled_dot_product_attention (upper-left causal masks), the operator text of
ONNX Attention 23 to 25, the interface of flash-attn 2 (masks aligned to the bottom right, +inf as the log-sum-exp of an empty
row), and jax.nn.dot_product_attention (a finite huge number in place of -inf: an empty row is the
mean of all values, and NaN in a masked value counts, times 0).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

from attngen.ir.diagnostics import Error
from attngen.names import suggest


@dataclass(frozen=True)
class Semantics:
    """alignment: top_left or bottom_right, where no causal_alignment is given. window_number: whether window=w is short for
    (w, w). empty_row: "zero", or "mean" of all values. empty_lse: the log-sum-exp of an empty row that is zero. lse_base: "e"
    or "2"."""

    alignment: str = "top_left"
    window_number: bool = False
    empty_row: str = "zero"
    empty_lse: float = -math.inf
    lse_base: str = "e"


PRESETS: Mapping[str, Semantics] = {
    "torch": Semantics(),
    "onnx": Semantics(),
    "flash_attn": Semantics(alignment="bottom_right", empty_lse=math.inf),
    "jax": Semantics(window_number=True, empty_row="mean"),
}

QUESTIONS: Mapping[str, str] = {
    "alignment": "aligned to",
    "window_number": "window=w is (w, w)",
    "empty_row": "a row without keys",
    "empty_lse": "its log-sum-exp",
    "lse_base": "base of log-sum-exp",
}
"""What each convention decides."""


def preset(name: object) -> Semantics:
    """The conventions of a library; None: attngen's own."""
    if name is None:
        return Semantics()
    if not isinstance(name, str) or name not in PRESETS:
        hint = suggest(name, PRESETS) if isinstance(name, str) else f"known: {', '.join(PRESETS)}"
        raise Error(f"semantics: there are no conventions named {name!r}; {hint}")
    return PRESETS[name]


def refuse_mean(conventions: Semantics, name: object, what: str) -> None:
    """Raise Error if a row without keys is the mean of all values, where there is no such set of values."""
    if conventions.empty_row == "mean":
        raise Error(f"semantics: {name!r} is the mean of all values in a row without keys, which {what} do not have")


def answer(conventions: Semantics, name: str) -> str:
    """A convention in words."""
    value = getattr(conventions, name)
    if name == "empty_lse" and conventions.empty_row == "mean":
        return "the lowest float"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def offset(alignment: str, q_len: int, kv_len: int) -> int:
    """What is added to a query's index before it is compared with a key's."""
    return 0 if alignment == "top_left" else kv_len - q_len


def differences(one: str, other: str, q_len: int, kv_len: int) -> Iterator[tuple[str, str, str]]:
    """(question, answer of the one, answer of the other) wherever they disagree for these lengths."""
    a, b = preset(one), preset(other)
    for field in fields(Semantics):
        x, y = answer(a, field.name), answer(b, field.name)
        if x != y:
            yield QUESTIONS[field.name], x, y
    for i in range(q_len):
        x, y = (causal_keys(offset(s.alignment, q_len, kv_len), i, kv_len) for s in (a, b))
        if x != y:
            yield f"causal: query {i} of {q_len} sees of {kv_len} keys", x, y


def causal_keys(shift: int, i: int, kv_len: int) -> str:
    last = min(i + shift, kv_len - 1)
    return "none" if last < 0 else "0" if last == 0 else f"0 to {last}"

"""The arguments of `scaled_dot_product_attention` that are no arrays: what they may be, and what they mean together."""

from __future__ import annotations

import inspect
import math
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from math import isfinite
from typing import Any

import numpy as np

from attngen.ir.diagnostics import Error
from attngen.ir.types import ElementType
from attngen.names import kind_of
from attngen.semantics import Semantics, preset
from attngen.thread_count import read_count

ALIGNMENTS = {
    "top_left": "top_left",
    "upper_left": "top_left",
    "bottom_right": "bottom_right",
    "lower_right": "bottom_right",
}

LONGEST = 1 << 60
"""More keys than there can be: a window of more is open."""

# Made once: a union takes longer to make than to check.
FLAG = bool | np.bool_
NUMBER = int | float | np.integer | np.floating

Window = tuple[int | None, int | None]


@dataclass(frozen=True)
class Options:
    """One way to compute attention, apart from the arrays.

    alignment: None where nobody has chosen. offset: how many keys come before query 0, with top_left. precision: what softmax
    is computed in, if wider than scores are. tap: which matrix is returned besides: the scaled scores (0), those after the
    soft cap (1), the final ones (2), the weights (3). splits: in how many parts the keys are read side by side; 0: as many as
    give each thread work.
    """

    scale: float | None
    layout: str
    is_causal: bool
    alignment: str | None
    window: Window
    softcap: float
    return_lse: bool
    lse_base: str
    semantics: Semantics
    offset: int = 0
    precision: ElementType | None = None
    tap: int | None = None
    splits: int = 0

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # Every call looks for its kernel by these, several times.
        return hash(tuple(getattr(self, f.name) for f in fields(self)))

    @property
    def bottom_right(self) -> bool:
        return (self.alignment or self.semantics.alignment) == "bottom_right"

    @property
    def reach(self) -> Window:
        """The window, closed to the right by a causal mask."""
        left, right = self.window
        return left, (0 if right is None else min(right, 0)) if self.is_causal else right

    def warn(self, q_len: int, kv_len: int) -> None:
        """Libraries differ in what a causal mask means when the lengths do, so a choice is asked for."""
        if self.is_causal and self.alignment is None and q_len != kv_len:
            warnings.warn(
                f"is_causal with q_len={q_len} and kv_len={kv_len}: query 0 is aligned with key 0, as in torch; say "
                'causal_alignment="top_left" or "bottom_right" (the last query sees all keys)',
                stacklevel=_user_level(),
            )


def read_options(
    *,
    scale: Any = None,
    layout: Any = "BHSD",
    is_causal: Any = False,
    causal_alignment: Any = None,
    window: Any = None,
    softcap: Any = 0,
    return_lse: Any = False,
    lse_base: Any = "e",
    semantics: Any = None,
) -> Options:
    """The arguments, checked."""
    given = scale, layout, is_causal, causal_alignment, window, softcap, return_lse, lse_base, semantics
    # A pair's numbers may be equal and of different types, which the memory of checked arguments would not see.
    if window is not None:
        return _check_options(*given)
    try:
        return _known_options(*given)
    except TypeError:  # not hashable, so wrong
        return _check_options(*given)


def _check_options(
    scale: Any,
    layout: Any,
    is_causal: Any,
    causal_alignment: Any,
    window: Any,
    softcap: Any,
    return_lse: Any,
    lse_base: Any,
    semantics: Any,
) -> Options:
    check_flags(is_causal=is_causal, return_lse=return_lse)
    check_layout(layout)
    check_lse_base(lse_base)
    if causal_alignment is not None and (not isinstance(causal_alignment, str) or causal_alignment not in ALIGNMENTS):
        raise Error(f"causal_alignment: expected {' or '.join(map(repr, ALIGNMENTS))}, or None, got {causal_alignment!r}")
    conventions = preset(semantics)
    chosen = None if semantics is None else conventions.alignment
    chosen = chosen if causal_alignment is None else ALIGNMENTS[causal_alignment]
    return Options(
        scale=read_scale(scale),
        layout=layout,
        is_causal=bool(is_causal),
        alignment=chosen,
        window=read_window(window, conventions),
        softcap=read_softcap(softcap),
        return_lse=bool(return_lse),
        lse_base=lse_base,
        semantics=conventions,
    )


_known_options = lru_cache(maxsize=256, typed=True)(_check_options)


def check_layout(layout: Any) -> None:
    check_names(layout=layout)
    if layout not in ("BHSD", "BSHD"):
        raise Error(f'layout: expected "BHSD" or "BSHD", got {layout!r}')


def check_lse_base(lse_base: Any) -> None:
    check_names(lse_base=lse_base)
    if lse_base not in ("e", "2"):
        raise Error(f'lse_base: expected "e" or "2", got {lse_base!r}')


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


def check_scale(number: float | None, accumulator: ElementType, name: str = "scale") -> None:
    if number is not None and abs(number) > -accumulator.lowest:
        raise Error(f"{name}: {number} is not finite in {accumulator}, in which scores are computed; use float64 arrays")
    if name == "softcap" and number and not accumulator.numpy.type(number):
        raise Error(f"softcap: {number} is 0 in {accumulator}, in which scores are computed; give 0 for none")


def read_softcap(softcap: Any) -> float:
    if not is_number(softcap) or not 0 <= softcap < math.inf:
        raise Error(f"softcap: expected a finite number of at least 0 (0 is off), got {softcap!r}")
    return float(softcap)


def read_window(window: Any, conventions: Semantics) -> Window:
    """(left, right), None where a side is open."""
    if window is None:
        return None, None
    if conventions.window_number and is_whole(window):
        window = (window, window)
    if not isinstance(window, tuple | list) or len(window) != 2:  # pyright: ignore[reportUnknownArgumentType]
        raise Error(f"window: expected (left, right), got {window!r}")
    sides: list[Any] = list(window)  # pyright: ignore[reportUnknownArgumentType]
    for side in sides:
        if side is not None and (not is_whole(side) or side < -1):
            raise Error(f"window: each side is a whole number of at least 0, or None or -1 for open, got {window!r}")
    left, right = (None if side is None or side == -1 or side > LONGEST else int(side) for side in sides)
    return left, right


READ = tuple(inspect.signature(read_options).parameters)


def read_call(given: Mapping[str, Any]) -> Options:
    """The arguments by name of a call, those checked that are no arrays.

    In how many parts the keys are read changes the last bits of results, so a deterministic call reads them in one part unless
    it says otherwise.
    """
    check_flags(enable_gqa=given["enable_gqa"], deterministic=given["deterministic"])
    dropout_p = given["dropout_p"]
    if not is_number(dropout_p) or dropout_p != 0:
        raise Error(f"dropout_p: expected 0, got {dropout_p!r}; it is refused, not ignored: for training only; pass 0.0")
    read_count("num_threads", given["num_threads"])
    check_names(target=given["target"])
    options = read_options(**{name: given[name] for name in READ})
    parts = read_count("num_splits", given["num_splits"]) or (1 if given["deterministic"] else 0)
    return replace(options, splits=parts) if parts else options


def check_flags(**flags: Any) -> None:
    for name, flag in flags.items():
        if not isinstance(flag, FLAG):
            raise Error(f"{name}: expected True or False, got {flag!r}")


def check_names(**names: Any) -> None:
    for name, text in names.items():
        if not isinstance(text, str):
            raise Error(f"{name}: expected a name, got {text!r}")


def is_whole(x: Any) -> bool:
    return isinstance(x, int | np.integer) and not isinstance(x, bool)


def is_number(x: Any) -> bool:
    return isinstance(x, NUMBER) and not isinstance(x, bool)


def _user_level() -> int:
    """How many frames above the caller's the first one outside of attngen is."""
    level, frame = 1, sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == "attngen":
        level, frame = level + 1, frame.f_back
    return level

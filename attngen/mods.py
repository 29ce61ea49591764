"""Modifications of attention: Python functions on scores and coordinates, with the signatures of FlexAttention.

`score_mod(score, b, h, q_idx, kv_idx)` and `mask_mod(b, h, q_idx, kv_idx)` run once, on traced values that stand for all
elements at the same time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from attngen.closures import with_tables
from attngen.ir import build
from attngen.ir.core import Value
from attngen.ir.diagnostics import Error, Loc
from attngen.ir.nd import Index
from attngen.ir.types import I1, INDEX, bound
from attngen.names import kind_of
from attngen.tensor import Tensor, unwrap
from attngen.tracing import Trace, user_error

Mod = Callable[..., Any]

SIGNATURES = {
    "score_mod": ("score", "b", "h", "q_idx", "kv_idx"),
    "mask_mod": ("b", "h", "q_idx", "kv_idx"),
}


def check_mod(name: str, mod: Any) -> None:
    """A function that can be called with as many values as its kind of modification gets."""
    wanted = SIGNATURES[name]
    if not callable(mod):
        raise Error(f"{name}: expected a function {name}({', '.join(wanted)}), got {kind_of(mod)}")
    try:
        inspect.signature(mod).bind(*wanted)
    except TypeError:
        raise Error(f"{name}: expected a function {name}({', '.join(wanted)}), got one of {inspect.signature(mod)}") from None
    except ValueError:
        pass  # a function in C tells nothing of its parameters


def coordinate(trace: Trace, axes: Sequence[str]) -> Tensor:
    """The coordinate along axes that share one dimension of an array, outer ones first; without axes 0."""
    total: Value = build.constant(0, INDEX)
    for k, axis in enumerate(axes):
        here = Index(axis=axis, extent=trace.extents[axis]).result
        total = here if not k else build.add(build.mul(total, bound(trace.extents[axis])), here)
    trace.coordinates[total] = tuple(axes)
    return Tensor(total, trace)


def modified(mod: Mod, score: Tensor, coordinates: Sequence[Tensor], axes: Sequence[str]) -> Value:
    """The modified scores, with all of these axes."""
    result = with_tables(mod)(score, *coordinates)
    value = returned("score_mod", mod, result)
    if isinstance(value, bool) or isinstance(value, Value) and value.element is I1:
        raise user_error(
            "score_mod returned a condition, expected scores", help="conditions belong into mask_mod", loc=loc_of(mod)
        )
    old = unwrap(score)
    assert isinstance(old, Value)
    new = build.cast(value, old.element) if isinstance(value, Value) else build.constant(value, old.element)
    missing = tuple(axis for axis in old.tensor.axes if axis[0] in axes and axis[0] not in new.names)
    return build.expand(new, axes=missing) if missing else new


def masked(mod: Mod, coordinates: Sequence[Tensor]) -> Value | bool:
    """The condition under which a key counts."""
    value = returned("mask_mod", mod, with_tables(mod)(*coordinates))
    if isinstance(value, bool) or isinstance(value, Value) and value.element is I1:
        return value
    raise user_error("mask_mod returned numbers, expected a condition", help="compare: q_idx >= kv_idx", loc=loc_of(mod))


def returned(name: str, mod: Mod, result: Any) -> Any:
    if not isinstance(result, Tensor | bool | int | float):
        raise user_error(f"{name} returned a {kind_of(result)}, expected a traced value; is there a return?", loc=loc_of(mod))
    return unwrap(result)


def loc_of(mod: Mod) -> Loc | None:
    code = getattr(mod, "__code__", None)
    return Loc(code.co_filename, code.co_firstlineno) if code else None


def and_masks(*mask_mods: Mod) -> Mod:
    """The mask_mod that keeps what all of these keep."""
    return _joined("and_masks", lambda a, b: a & b, mask_mods)


def or_masks(*mask_mods: Mod) -> Mod:
    """The mask_mod that keeps what any of these keeps."""
    return _joined("or_masks", lambda a, b: a | b, mask_mods)


def not_mask(mask_mod: Mod) -> Mod:
    """The mask_mod that keeps what this one drops."""
    check_mod("mask_mod", mask_mod)

    def negated(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        keep = mask_mod(b, h, q_idx, kv_idx)
        return not keep if isinstance(keep, bool) else ~keep

    return negated


def _joined(name: str, join: Callable[[Any, Any], Any], mask_mods: tuple[Mod, ...]) -> Mod:
    if not mask_mods:
        raise Error(f"{name}: expected at least one mask_mod")
    for mod in mask_mods:
        check_mod("mask_mod", mod)

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return reduce(join, [mod(b, h, q_idx, kv_idx) for mod in mask_mods])

    return mask_mod

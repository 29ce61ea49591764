"""Fundamental types of PTX and the NumPy types that hold them (PTX ISA, "Types")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]

Kind = Literal["u", "s", "b", "f", "bf", "pred"]


@dataclass(frozen=True)
class Type:
    """kind: unsigned, signed, untyped bits, float, bfloat, predicate. numpy: what holds one; bf16 is held as its 16 bits."""

    name: str
    kind: Kind
    bits: int
    numpy: np.dtype[Any]

    @property
    def bytes(self) -> int:
        return max(1, self.bits // 8)

    @property
    def is_float(self) -> bool:
        return self.kind in ("f", "bf")


UNSIGNED: dict[int, np.dtype[Any]] = {n: np.dtype(f"u{n // 8}") for n in (8, 16, 32, 64)}
SIGNED: dict[int, np.dtype[Any]] = {n: np.dtype(f"i{n // 8}") for n in (8, 16, 32, 64)}


def _fundamental() -> dict[str, Type]:
    found = {"pred": Type("pred", "pred", 1, np.dtype(bool))}
    for n in (8, 16, 32, 64):
        found[f"u{n}"] = Type(f"u{n}", "u", n, UNSIGNED[n])
        found[f"b{n}"] = Type(f"b{n}", "b", n, UNSIGNED[n])
        found[f"s{n}"] = Type(f"s{n}", "s", n, SIGNED[n])
    for n in (16, 32, 64):
        found[f"f{n}"] = Type(f"f{n}", "f", n, np.dtype(f"f{n // 8}"))
    found["bf16"] = Type("bf16", "bf", 16, UNSIGNED[16])
    # Packed pairs are handled as the bits that hold them.
    found["f32x2"] = Type("f32x2", "b", 64, UNSIGNED[64])
    found["f16x2"] = Type("f16x2", "b", 32, UNSIGNED[32])
    found["bf16x2"] = Type("bf16x2", "b", 32, UNSIGNED[32])
    return found


TYPES = _fundamental()
U16, U32, U64, S32, S64, PRED = (TYPES[n] for n in ("u16", "u32", "u64", "s32", "s64", "pred"))
B16, B32, B64, F32, F64 = (TYPES[n] for n in ("b16", "b32", "b64", "f32", "f64"))

"""Accumulators of matrix products in registers: f32, s32, or f16 with two elements to a register (PTX ISA, "mma", "wgmma")."""

from __future__ import annotations

import numpy as np

from attngen.backends.cuda.ptx.decode import Decoder
from attngen.backends.cuda.ptx.types import B32, F32, TYPES, Array

RESULTS = {"f16": ("f32", "f16"), "bf16": ("f32",), "tf32": ("f32",), "s8": ("s32",), "u8": ("s32",)}
"""What products of an element type may be added up in."""


class Accumulators:
    """The registers of operand `result`, and those of `added`, to which products are added.

    kind: f32, s32 or f16; saturates: s32 keeps within its limits in place of wrapping around.
    """

    def __init__(self, d: Decoder, kind: str, result: int, added: int, saturates: bool = False) -> None:
        self.kind, self.saturates = kind, saturates
        t = {"f32": F32, "s32": TYPES["s32"], "f16": B32}[kind]
        self.sources, self.stores = d.reads(added, t), d.writes(result, t)

    @property
    def elements(self) -> int:
        """How many each lane holds."""
        return len(self.stores) * (2 if self.kind == "f16" else 1)

    def read(self) -> Array:
        """(elements, lanes), float32, or int64 for s32."""
        held = np.stack(self.sources)
        if self.kind == "f16":
            halves = held.view(np.float16).reshape(*held.shape, 2).transpose(0, 2, 1)
            return halves.reshape(-1, held.shape[1]).astype(np.float32)
        return held.astype(np.int64) if self.kind == "s32" else held

    def write(self, values: Array) -> None:
        """The reverse."""
        if self.kind == "f16":
            halves = values.astype(np.float16).reshape(len(self.stores), 2, -1).transpose(0, 2, 1)
            values = np.ascontiguousarray(halves).view(np.uint32)[..., 0]
        elif self.kind == "s32":
            values = (np.clip(values, -(2**31), 2**31 - 1) if self.saturates else values).astype(np.int32)
        for store, one in zip(self.stores, values, strict=True):
            store(one)

"""Functions: what passes take and return."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from attngen.ir.core import Block, Op, Value, block_key, walk
from attngen.ir.printer import print_func
from attngen.ir.types import Layout


@dataclass(frozen=True)
class Param:
    """An array a function takes: its name and how its dimensions map to the axes of its type."""

    name: str
    layout: Layout


@dataclass(frozen=True, eq=False)
class Func:
    """A function from arrays to arrays. Two functions are equal if they are the same but for the names of values and
    for locations; parameter names and layouts count."""

    name: str
    params: tuple[Param, ...]
    body: Block
    out_layouts: tuple[Layout, ...]

    def __eq__(self, other: object) -> bool:
        return self is other or isinstance(other, Func) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """The function as nested tuples, values numbered in order of appearance."""
        return (self.name, self.params, self.out_layouts, block_key(self.body, {}))

    @property
    def args(self) -> tuple[Value, ...]:
        return self.body.args

    @property
    def outputs(self) -> tuple[Value, ...]:
        return self.body.yields

    @property
    def level(self) -> str:
        """`loop` once tile has made loops, else `tensor`."""
        return "loop" if any(op.level == "loop" for op in self.walk()) else "tensor"

    def walk(self) -> Iterator[Op]:
        """Every op, an op before those in its regions."""
        return walk(self.body)

    def with_body(self, body: Block) -> Func:
        return dataclasses.replace(self, body=body)

    def __str__(self) -> str:
        return print_func(self)

"""Intrinsics by description: which function of `intrinsics` makes one, and from what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Call:
    """name: in the kernel's text; maker: the function in `intrinsics`; given: its arguments after the name."""

    name: str
    maker: str
    given: tuple[Any, ...]


class Calls:
    """The intrinsics a kernel uses; one that is used twice has one name. taken: names of all kinds in the text, which grows."""

    def __init__(self, taken: set[str]) -> None:
        self.made: dict[tuple[str, tuple[Any, ...]], Call] = {}
        self.taken = taken

    def name(self, wish: str, maker: str, *given: Any) -> str:
        key = maker, given
        if key not in self.made:
            name, count = wish, 1
            while name in self.taken:
                count += 1
                name = f"{wish}_{count}"
            self.taken.add(name)
            self.made[key] = Call(name, maker, given)
        return self.made[key].name

    @property
    def all(self) -> tuple[Call, ...]:
        return tuple(self.made.values())

"""Intrinsics by description: which function of `intrinsics` makes one, and from what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Call:
    """name: in the kernel's text; maker: the function in `intrinsics`; given: its arguments after the name."""

    name: str
    maker: str
    given: tuple[Any, ...]


class Calls:
    """The intrinsics a kernel uses; one that is used twice has one name. fresh: makes names
    that nothing else in the text has."""

    def __init__(self, fresh: Callable[[str], str]) -> None:
        self.made: dict[tuple[str, tuple[Any, ...]], Call] = {}
        self.fresh = fresh

    def name(self, wish: str, maker: str, *given: Any) -> str:
        key = maker, given
        if key not in self.made:
            self.made[key] = Call(self.fresh(wish), maker, given)
        return self.made[key].name

    @property
    def all(self) -> tuple[Call, ...]:
        return tuple(self.made.values())

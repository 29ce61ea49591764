"""The parameters of a kernel, entered when the text first uses them."""

from __future__ import annotations

from collections.abc import Mapping

from attngen.backends.cuda.program import Address, Copyable, Length, Map, Parameter, Stride


class Parameters:
    """words: a short name for each array, by its number."""

    def __init__(self, words: Mapping[int, str]) -> None:
        self.words = words
        self.found: dict[Parameter, str] = {}

    def name(self, parameter: Parameter, wish: str) -> str:
        if parameter not in self.found:
            self.found[parameter] = wish
        return self.found[parameter]

    def address(self, array: int) -> str:
        return self.name(Address(array), f"{self.words[array]}_address")

    def stride(self, array: int, axis: str) -> str:
        return self.name(Stride(array, axis), f"{self.words[array]}_by_{axis}")

    def length(self, axis: str) -> str:
        return self.name(Length(axis), f"length_{axis}")

    def copyable(self, array: int, axis: str) -> str:
        return self.name(Copyable(array, axis), f"{self.words[array]}_copyable_{axis}")

    def map(self, parameter: Map) -> str:
        return self.name(parameter, f"{self.words[parameter.array]}_map")

    @property
    def names(self) -> list[str]:
        return list(self.found.values())

    @property
    def all(self) -> list[Parameter]:
        return list(self.found)

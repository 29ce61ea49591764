"""The words after an opcode. What a decoder did not take is refused, so that no modifier is ignored unknowingly."""

from __future__ import annotations

from attngen.backends.cuda.ptx.errors import Unsupported, shorten
from attngen.backends.cuda.ptx.syntax import Instruction
from attngen.backends.cuda.ptx.types import TYPES, Type


class Modifiers:
    def __init__(self, i: Instruction) -> None:
        self.i = i
        self.left = list(i.modifiers)

    def flag(self, *names: str) -> bool:
        """Whether one of these words is there; it is taken."""
        return bool(self.choice(*names))

    def choice(self, *names: str) -> str:
        """The first of these words that is there, or an empty text."""
        for name in self.left:
            if name in names:
                self.left.remove(name)
                return name
        return ""

    def drop(self, *names: str) -> None:
        """Take words that change nothing here, such as cache hints."""
        self.left = [name for name in self.left if name not in names]

    def type(self) -> Type:
        """The last word, as a type."""
        if not self.left or self.left[-1] not in TYPES:
            raise self.refused("the type")
        return TYPES[self.left.pop()]

    def take(self, count: int) -> list[str]:
        """The last `count` words."""
        if len(self.left) < count:
            raise self.refused("the form")
        self.left, taken = self.left[: len(self.left) - count], self.left[len(self.left) - count :]
        return taken

    def end(self) -> None:
        if self.left:
            raise self.refused(f".{self.left[0]}")

    def refused(self, what: str) -> Unsupported:
        return Unsupported(f"{self.i.name}: the interpreter does not know {what}\n  in `{shorten(self.i.text)}`", self.i.loc)

"""A position in a list of words, and the scopes of names: what the parsers share."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field

from attngen.backends.cuda.ptx.errors import PtxError
from attngen.backends.cuda.ptx.lexer import Token, tokens
from attngen.backends.cuda.ptx.syntax import Immediate
from attngen.ir.diagnostics import Loc


class Cursor:
    """Reads words one after another; errors name the file, the line, and the word that was not understood."""

    def __init__(self, text: str, file: str) -> None:
        self.text, self.file = text, file
        self.words = tokens(text, file)
        self.at = 0

    @property
    def word(self) -> Token:
        return self.words[self.at]

    @property
    def loc(self) -> Loc:
        return Loc(self.file, self.word.line)

    def error(self, expected: str) -> PtxError:
        return PtxError(f"expected {expected}, found {self.word.text!r}", self.loc)

    def next(self) -> Token:
        word = self.words[self.at]
        if word.kind == "end":
            raise self.error("more text")
        self.at += 1
        return word

    def is_dotted(self) -> bool:
        return self.words[self.at].kind == "dotted"

    def accept(self, *texts: str) -> bool:
        """Step over the next word if it is one of these."""
        word = self.words[self.at]
        if word.text not in texts or word.kind == "string":
            return False
        self.at += 1
        return True

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.error(repr(text))

    def name(self) -> str:
        if self.word.kind != "name":
            raise self.error("a name")
        return self.next().text

    def integer(self) -> int:
        sign = -1 if self.accept("-") else 1
        if self.word.kind != "integer":
            raise self.error("a whole number")
        return sign * to_integer(self.next().text)

    def constant(self) -> Immediate:
        """A number, with signs, `~`, or in parentheses (PTX ISA, "Constants")."""
        if self.accept("-"):
            inner = self.constant()
            if inner.float_bits:
                return Immediate(inner.value ^ (1 << (inner.float_bits - 1)), inner.float_bits)
            return Immediate(-inner.value)
        if self.accept("+"):
            return self.constant()
        if self.accept("~"):
            return Immediate(~self.constant().value)
        if self.accept("("):
            inner = self.constant()
            self.expect(")")
            return inner
        if self.word.kind == "integer":
            return Immediate(to_integer(self.next().text))
        if self.word.kind == "float":
            text = self.next().text
            if re.match("0[fF]", text):
                return Immediate(int(text[2:], 16), 32)
            if re.match("0[dD]", text):
                return Immediate(int(text[2:], 16), 64)
            return Immediate(struct.unpack("<Q", struct.pack("<d", float(text)))[0], 64)
        raise self.error("a constant")

    def between(self, start: Token) -> str:
        """The text from a word up to the word read last."""
        return self.text[start.start : self.words[self.at - 1].end]

    def skip_to(self, text: str) -> None:
        while not self.accept(text):
            self.next()

    def skip_braces(self) -> None:
        """Step over `{ … }`, nested ones included."""
        self.expect("{")
        depth = 1
        while depth:
            word = self.next().text
            depth += (word == "{") - (word == "}")


def to_integer(text: str) -> int:
    text = text.rstrip("U")
    if re.fullmatch("0[0-7]+", text):
        return int(text, 8)
    return int(text, 0)


@dataclass
class Scope:
    """Names visible inside `{ … }`. Registers and variables map to unique names; labels may be used before they appear."""

    suffix: str = ""
    parent: Scope | None = None
    registers: dict[str, str] = field(default_factory=dict[str, str])
    variables: dict[str, str] = field(default_factory=dict[str, str])
    labels: dict[str, str] = field(default_factory=dict[str, str])

    def register(self, name: str) -> str | None:
        return self.registers.get(name) or (self.parent.register(name) if self.parent else None)

    def variable(self, name: str) -> str | None:
        return self.variables.get(name) or (self.parent.variable(name) if self.parent else None)

    def label(self, name: str) -> str | None:
        return self.labels.get(name) or (self.parent.label(name) if self.parent else None)

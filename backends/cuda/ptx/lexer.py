"""Words of PTX text (PTX ISA, "Syntax": comments, identifiers, constants)."""

from __future__ import annotations

import re
from typing import NamedTuple

from attngen.backends.cuda.ptx.errors import PtxError
from attngen.ir.diagnostics import Loc

PATTERN = re.compile(
    r"""
      (?P<space>[ \t\r\f\v]+|//[^\n]*)
    | (?P<newline>\n)
    | (?P<comment>/\*.*?\*/)
    | (?P<string>"[^"\n]*")
    | (?P<float>0[fF][0-9a-fA-F]{8}(?!\w)|0[dD][0-9a-fA-F]{16}(?!\w)|\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+(?!\w))
    | (?P<integer>0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+U?(?!\w))
    | (?P<dotted>\.[A-Za-z0-9_]+(?:::[A-Za-z0-9_]+)*)
    | (?P<name>[A-Za-z_$%][\w$]*)
    | (?P<mark><<|>>|[{}()\[\],;:=|@!+\-*~<>&^/?])
    """,
    re.VERBOSE | re.DOTALL,
)


class Token(NamedTuple):
    """kind: string, float, integer, dotted (`.b32`), name, mark, or end; start and end: where in the text."""

    kind: str
    text: str
    line: int
    start: int = 0
    end: int = 0


def tokens(text: str, file: str) -> list[Token]:
    """All words of the text, without blanks and comments, and an `end` after them."""
    found: list[Token] = []
    line, at = 1, 0
    for match in PATTERN.finditer(text):
        start, end = match.span()
        if start != at:
            break
        kind, at = match.lastgroup or "", end
        if kind == "newline":
            line += 1
        elif kind == "comment":
            line += match[0].count("\n")
        elif kind != "space":
            found.append(Token(kind, match[0], line, start, end))
    if at < len(text):
        unread = text[at : at + 20].split("\n")[0]
        raise PtxError(f"cannot read {unread!r}: no word of PTX starts so", Loc(file, line))
    return [*found, Token("end", "the end of the text", line, at, at)]

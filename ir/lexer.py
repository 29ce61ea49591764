"""Text to tokens, and a cursor over them: what both readers of text stand on."""

from __future__ import annotations

import linecache
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any, NamedTuple, TypeVar

from attngen.ir.diagnostics import Error, IRError, Loc

TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*)
    |(?P<loc>\bloc\(\s*(?P<file>"(?:[^"\\\n]|\\.)*"|[^\s:()"]+)(?::(?P<line>\d+))?(?::(?P<column>\d+))?\s*\))
    |(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<number>-?(?:0[xX][0-9a-fA-F]+|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)|-(?:inf|nan)\b)
    |(?P<value>%(?:\d+|[A-Za-z$._-][\w$.-]*)(?:\#\d+)?)
    |(?P<symbol>@(?:[A-Za-z_][\w$.]*|"(?:[^"\\\n]|\\.)*"))
    |(?P<word>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)
    |(?P<type>![A-Za-z_][\w.]*)
    |(?P<block>\^[\w$.-]+)
    |(?P<punctuation>->|\?<=|[()\[\]{}<>,:=])""",
    re.VERBOSE | re.ASCII,
)


class Token(NamedTuple):
    kind: str
    text: str
    start: int

    @property
    def shown(self) -> str:
        if self.kind in ("end", "string", "symbol"):
            return self.text
        return f"'{self.text if len(self.text) <= 40 else self.text[:37] + '...'}'"


T = TypeVar("T")


def unquote(text: str) -> str:
    r"""What a quoted string says: \n \t \\ \" and \XX, one byte of UTF-8."""
    named = {b"n": b"\n", b"t": b"\t", b"\\": b"\\", b'"': b'"'}

    def replace(match: re.Match[bytes]) -> bytes:
        return named[match[2]] if match[2] else bytes([int(match[1], 16)])

    raw = text[1:-1].encode("utf-8", "surrogatepass")
    if re.sub(rb'\\(?:[0-9a-fA-F]{2}|[nt\\"])', b"", raw).find(b"\\") >= 0:
        raise Error('a backslash in the string starts no escape; write \\\\ for one, or \\n, \\t, \\", \\XX (hexadecimal)')
    try:
        return re.sub(rb'\\(?:([0-9a-fA-F]{2})|([nt\\"]))', replace, raw).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise Error("the bytes of the string are no UTF-8") from None


def plural(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    close = get_close_matches(word[:80], list(known), n=1)
    return f"did you mean {close[0]}?" if close else otherwise


class Cursor:
    """A place in a list of tokens, and errors that say where it is."""

    def __init__(self, text: str, file: str) -> None:
        self.text, self.file = text, file
        self.starts = [0, *(m.end() for m in re.finditer("\n", text))]
        self.tokens = self.lex(0, len(text), "the end of the text")
        self.position: int = 0

    # ---------------------------------------------------------------- tokens and errors

    def lex(self, start: int, stop: int, end: str) -> list[Token]:
        tokens: list[Token] = []
        while start < stop:
            match = TOKEN.match(self.text, start, stop)
            if match is None or match.lastgroup is None:
                c = self.text[start]
                problem = "the string is not closed" if c == '"' else f"unexpected character {c!r}"
                raise self.error(problem, Token("bad", c, start), 'write "…" on one line' if c == '"' else "")
            kind = "loc" if match["loc"] else match.lastgroup
            if kind != "space":
                tokens.append(Token(kind, match[0], start))
            start = match.end()
        return [*tokens, Token("end", end, stop)]

    def place(self, token: Token) -> Loc:
        line = bisect_right(self.starts, token.start)
        return Loc(self.file, line, token.start - self.starts[line - 1] + 1)

    def error(self, message: str, token: Token | None = None, help: str = "") -> IRError:
        """An error at a token. Where the file cannot be read again, the line is shown as IR."""
        token = token or self.token
        loc = self.place(token)
        line, caret = "", ""
        if not linecache.getline(self.file, loc.line):
            line = self.text[self.starts[loc.line - 1] :].partition("\n")[0]
            caret = token.text if line.find(token.text) == loc.column - 1 else ""
            line = line.strip() if len(line) <= 200 else ""
        return IRError("parse", message, loc=loc, ir=line, caret=caret, help=help)

    def expected(self, what: str, help: str = "", token: Token | None = None) -> IRError:
        token = token or self.token
        return self.error(f"expected {what}, found {token.shown}", token, help)

    def checked(self, token: Token, build: Callable[..., T], *args: Any) -> T:
        """The result of `build`; its complaint becomes one about the token."""
        try:
            return build(*args)
        except IRError:
            raise
        except Error as e:
            raise self.error(str(e), token) from None

    @property
    def token(self) -> Token:
        return self.tokens[self.position]

    def next(self) -> Token:
        token = self.token
        self.position += token.kind != "end"
        return token

    def take(self, text: str) -> bool:
        if self.token.text == text and self.token.kind in ("punctuation", "word"):
            self.position += 1
            return True
        return False

    def expect(self, text: str, help: str = "") -> None:
        if not self.take(text):
            raise self.expected(f"'{text}'", help)

    def of_kind(self, kind: str, what: str, help: str = "") -> Token:
        if self.token.kind != kind:
            raise self.expected(what, help)
        return self.next()

    def string_of(self, token: Token) -> str:
        return self.checked(token, unquote, token.text)

    def list_of(self, item: Callable[[], T], close: str) -> list[T]:
        """Items separated by commas, up to and with the closing bracket."""
        items: list[T] = []
        if self.take(close):
            return items
        while True:
            items.append(item())
            if self.take(close):
                return items
            if not self.take(","):
                raise self.expected(f"',' or '{close}'")

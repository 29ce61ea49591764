"""Errors that show two places: the user's line, and the IR around the op."""

from __future__ import annotations

import linecache
from collections.abc import Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Loc:
    """A place in a source file: of the user's program, or of the .ir file that was parsed."""

    file: str = "<unknown>"
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}:{self.column}" if self.column else where


UNKNOWN = Loc()


class Error(ValueError):
    """The base of every error attngen raises on purpose. Its text says what was wrong, and what to do."""


class IRError(Error):
    """An error in a program or in IR.

    code: who complains, e.g. ``nd.contract`` or ``pass tile``.
    ir: one line of IR; caret: the part of it to underline, with `note` beside the caret.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        loc: Loc = UNKNOWN,
        ir: str = "",
        caret: str = "",
        note: str = "",
        help: str = "",
        notes: Iterable[str] = (),
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.loc = code, message, loc
        self.ir, self.caret, self.note, self.help, self.notes = ir, caret, note, help, tuple(notes)

    def __reduce__(self) -> tuple[object, ...]:
        given = (self.code, self.message, self.loc, self.ir, self.caret, self.note, self.help, self.notes)
        return (_rebuild, (type(self), *given))

    def __str__(self) -> str:
        lines = [f"error[{self.code}]: {self.message}"]
        number = str(self.loc.line) if self.loc.line else ""
        gutter = " " * max(len(number), 2)
        if self.loc.line:
            lines.append(f"{gutter[:-1]}--> {self.loc}")
            source = linecache.getline(self.loc.file, self.loc.line).rstrip()
            if source:
                lines += [f"{gutter} |", f"{number:>2} | {source}"]
                if self.loc.column:
                    lines.append(f"{gutter} | {' ' * (self.loc.column - 1)}^")
            lines.append(f"{gutter} |")
        if self.ir:
            lines.append(f"{'ir':>{len(gutter)}} |   {self.ir}")
            if self.caret and self.caret in self.ir:
                at = self.ir.index(self.caret)
                lines.append(f"{gutter} |   {' ' * at}{'^' * len(self.caret)} {self.note}".rstrip())
        lines += [f"{gutter} = {note}" for note in self.notes]
        if self.help:
            lines.append(f"{gutter} = help: {self.help}")
        return "\n".join(lines)


def _rebuild(
    cls: type[IRError], code: str, message: str, loc: Loc, ir: str, caret: str, note: str, help: str, notes: tuple[str, ...]
) -> IRError:
    return cls(code, message, loc=loc, ir=ir, caret=caret, note=note, help=help, notes=notes)


@dataclass(frozen=True)
class Remark:
    """What a pass did, or declined to do, and why."""

    origin: str
    message: str
    loc: Loc = UNKNOWN

    def __str__(self) -> str:
        where = f" ({self.loc})" if self.loc.line else ""
        return f"{self.origin}: {self.message}{where}"


_remarks: ContextVar[list[Remark] | None] = ContextVar("attngen_remarks", default=None)
_origin: ContextVar[str] = ContextVar("attngen_origin", default="")


@contextmanager
def collect_remarks(origin: str = "", into: list[Remark] | None = None):
    """Gather the remarks made inside the block: ``with collect_remarks("tile") as remarks: …``."""
    remarks: list[Remark] = [] if into is None else into
    tokens = _remarks.set(remarks), _origin.set(origin)
    try:
        yield remarks
    finally:
        _remarks.reset(tokens[0])
        _origin.reset(tokens[1])


def remark(message: str, loc: Loc = UNKNOWN) -> None:
    """Tell the user what a pass did or declined. Said twice, it is kept once; with no collector it is dropped."""
    remarks = _remarks.get()
    new = Remark(_origin.get(), message, loc)
    if remarks is not None and new not in remarks:
        remarks.append(new)


def has_remarked(origin: str) -> bool:
    """Whether a pass has said something so far."""
    return any(r.origin == origin for r in _remarks.get() or ())

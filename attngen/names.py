"""What to say about a name that is not known, and about a thing of the wrong kind."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def suggest(word: str, known: Iterable[str], others: str = "known:") -> str:
    """`did you mean key?`, else all that is known."""
    names = list(known)
    close = get_close_matches(word, names, 1)
    return f"did you mean {close[0]}?" if close else f"{others} {', '.join(names) or '(none)'}"


def kind_of(x: object) -> str:
    """The type of a value as a user knows it."""
    return f"{type(x).__module__}.{type(x).__qualname__}".removeprefix("builtins.")

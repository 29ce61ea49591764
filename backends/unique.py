"""Names for generated text."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable


class Unique:
    """Names that are free: the wished one, or with a number behind it."""

    def __init__(self, taken: Iterable[str]) -> None:
        self.taken = set(taken)

    def __call__(self, wish: str) -> str:
        wish = re.sub(r"\W", "_", wish, flags=re.ASCII)
        if keyword.iskeyword(wish) or not wish or wish[0].isdigit():
            wish = f"_{wish}"
        name, count = wish, 1
        while name in self.taken:
            count += 1
            name = f"{wish}_{count}"
        self.taken.add(name)
        return name

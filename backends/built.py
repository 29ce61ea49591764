"""What a backend does with its executables, where one class makes, saves and restores them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attngen.backends import Emitted, Executable, Saved
from attngen.ir.func import Func


class ByBuilt:
    """The steps of `Backend` and `KeepsCode` that concern executables."""

    def built(self) -> Any:
        """The class. Importing it takes time that a kernel from disk may not need before."""
        raise TypeError(f"{type(self).__name__} does not define built()")

    def build(self, emitted: Emitted) -> Executable:
        return self.built().compiled(emitted)

    def save(self, executable: Executable) -> Saved:
        made: Any = executable
        assert isinstance(made, self.built())
        return made.saved()

    def restore(self, func: Func, target: str, saved: Saved, emit: Callable[[], Emitted]) -> Executable:
        return self.built().restored(func, target, saved, emit)

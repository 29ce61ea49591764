"""Which sources a process runs: a digest of them, as long as they are still the ones on disk."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import attngen
import attngen.backends
import attngen.ir


class NotKept(Exception):
    """A kernel cannot be kept on disk; the message says why."""


def own_roots() -> tuple[str, ...]:
    """The folders of attngen. Two of them may lie elsewhere, behind links."""
    return (attngen.__path__[0], attngen.ir.__path__[0], attngen.backends.__path__[0])


@cache
def own_sources() -> str:
    """A digest of attngen's sources. Raises NotKept if they are not those that this process has loaded."""
    found = digest(own_roots())
    check_unchanged()
    return found


def check_unchanged() -> None:
    """Raises NotKept if a source file was written after this process had begun to load attngen: which of both texts is in
    memory is not known then."""
    for path in source_files(own_roots()):
        try:
            # Not the time of modification, which tools that copy files set back.
            changed = os.stat(path).st_ctime > attngen.LOADED_AT
        except OSError:
            changed = True
        if changed:
            raise NotKept(f"{path} was changed after this process had loaded attngen")


def package_sources(name: str) -> str:
    """A digest of the package that a module of this name is in."""
    module = sys.modules.get(name.partition(".")[0])
    roots: list[str] = list(getattr(module, "__path__", ())) or [getattr(module, "__file__", None) or ""]
    return digest(roots)


def digest(roots: Sequence[str]) -> str:
    """Of the names and contents of source files; some 150 files take 4 ms. Raises NotKept if there are none to read."""
    made = hashlib.sha256()
    files = source_files(roots)
    if not files:
        raise NotKept(f"there are no source files in {', '.join(roots)} to tell one version from another")
    for path, name in files.items():
        try:
            data = Path(path).read_bytes()
        except OSError as e:
            raise NotKept(f"the source file {path} cannot be read: {e.strerror}") from None
        made.update(f"{name} {len(data)}\n".encode("utf-8", "surrogateescape") + data)
    return made.hexdigest()


def source_files(roots: Sequence[str]) -> dict[str, str]:
    """Python files in and below folders, each once, in a fixed order, with names that do not say where the folders lie. Links
    to folders are not followed; a root that is a file is itself."""
    found: dict[str, str] = {}
    for number, root in enumerate(roots):
        if os.path.isfile(root):
            found.setdefault(root, str(number))
        for folder, folders, names in os.walk(root):
            folders[:] = sorted(name for name in folders if name != "__pycache__")
            for path in (os.path.join(folder, name) for name in sorted(names) if name.endswith(".py")):
                found.setdefault(path, f"{number} {path[len(root) :]}")
    return found

"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from attngen.ir.diagnostics import Error


def write(file: str, content: Callable[[IO[bytes]], object]) -> None:
    """Write a file whole or not at all: under another name beside it, then renamed.

    A link stays, and what it leads to is replaced. A device or pipe has no name to rename to; it is written to.
    """
    path = Path(os.path.realpath(file))
    if not file or path.is_dir():
        raise Error(f"cannot write {file!r}: {'it is a directory' if file else 'the name is empty'}; give the name of a file")
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as out:
                content(out)
            return
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as out:
                content(out)
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(temporary, 0o666 & ~mask)  # mkstemp makes it private
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as e:
        raise Error(f"cannot write {file}: {e.strerror}") from None

"""A folder of files that belong to one user: opened once, checked, and then used by its handle, so that nobody can put another
folder in its place in between."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

SUFFIX, TEMPORARY = ".kernel", ".tmp"
ABANDONED = 3600.0
"""Seconds after which an unfinished file can only be that of a process that is no more."""

OTHERS = stat.S_IWGRP | stat.S_IWOTH


class Refused(OSError):
    """A folder or file that other users could have written. advice: what to do about it."""

    def __init__(self, message: str, advice: str) -> None:
        super().__init__(message)
        self.advice = advice


@dataclass(frozen=True)
class Item:
    """A file of the folder. used: when it was last read or written, in seconds since 1970."""

    name: str
    size: int
    used: float


class Folder:
    """`with Folder(path) as folder:` gives access to the files. Raises FileNotFoundError where there is none (create: makes
    it), Refused where it is not this user's alone, any other OSError where it cannot be opened."""

    def __init__(self, path: Path, create: bool = False) -> None:
        self.path = path
        if create and not path.exists():
            make_folder(path)
        self.handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            check(
                os.fstat(self.handle),
                f"the folder {path}",
                "choose a folder of your own: export ATTNGEN_CACHE_DIR=…",
                f"chmod go-w {path}",
            )
        except Refused:
            os.close(self.handle)
            raise

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self.handle)

    def read(self, name: str, use: bool = True) -> bytes:
        """The file. use: it counts as used now. Raises Refused, FileNotFoundError or another OSError."""
        # Not waiting for a writer, in case that somebody put a pipe here.
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self.handle)
        with open(handle, "rb", closefd=True) as file:
            path = self.path / name
            check(os.fstat(handle), f"the file {path}", f"rm {path}", f"rm {path}")
            data = file.read()
        if use:
            # Where nothing can be written, the time of use stays unknown.
            with suppress(OSError):
                os.utime(name, dir_fd=self.handle)
        return data

    def write(self, name: str, data: bytes) -> None:
        """Put a whole file in place, for readers and after a crash too: written beside it, flushed, renamed. Raises OSError."""
        temporary = f".{name}.{os.getpid()}.{os.urandom(6).hex()}{TEMPORARY}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(temporary, flags, 0o600, dir_fd=self.handle)
        try:
            try:
                left = memoryview(data)
                while left:
                    left = left[os.write(handle, left) :]
                os.fsync(handle)
            finally:
                os.close(handle)
            os.rename(temporary, name, src_dir_fd=self.handle, dst_dir_fd=self.handle)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=self.handle)
            raise

    def remove(self, name: str) -> bool:
        """Whether it could be removed; another process may have done so."""
        try:
            os.unlink(name, dir_fd=self.handle)
        except OSError:
            return False
        return True

    def files(self, suffix: str = SUFFIX) -> Iterator[Item]:
        for name in os.listdir(self.handle):
            if name.endswith(suffix):
                with suppress(FileNotFoundError):
                    found = os.stat(name, dir_fd=self.handle, follow_symlinks=False)
                    yield Item(name, found.st_size, found.st_mtime)

    def sweep(self, limit: int) -> list[Item]:
        """Remove what is not used for longest, until all files have at most `limit` bytes, and what was left unfinished."""
        removed: list[Item] = []
        for item in self.files(TEMPORARY):
            if time.time() - item.used > ABANDONED and self.remove(item.name):
                removed.append(item)
        kept = sorted(self.files(), key=lambda item: item.used)
        size = sum(item.size for item in kept)
        for item in kept:
            if size <= limit:
                break
            size -= item.size
            if self.remove(item.name):
                removed.append(item)
        return removed


def make_folder(path: Path) -> None:
    """The folder, for this user alone, and those above it down from the first that is missing. A home that is not there is
    not made."""
    home = Path(os.path.expanduser("~"))
    if home in path.parents and not home.is_dir():
        raise FileNotFoundError(f"there is no home folder {home}; choose a folder by ATTNGEN_CACHE_DIR")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)


def check(found: os.stat_result, what: str, foreign: str, writable: str) -> None:
    """Raises Refused unless it is this user's, and only this user's to write. foreign, writable: what to do if not."""
    if found.st_uid != os.geteuid():
        raise Refused(f"{what} belongs to user {found.st_uid}, not to user {os.geteuid()}", foreign)
    if found.st_mode & OTHERS:
        raise Refused(f"{what} can be written by other users (its mode is {stat.S_IMODE(found.st_mode):04o})", writable)

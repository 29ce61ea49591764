"""Compiled kernels on disk, so that a later process need not compile them again. A cache that cannot be used is one without
kernels: said once by a warning, never an error."""

from __future__ import annotations

import os
import re
import warnings
from importlib import import_module
from pathlib import Path

from attngen.cache_file import Damaged, Entry, pack, unpack
from attngen.cache_folder import SUFFIX, Folder
from attngen.ir.diagnostics import Error

FOLDER, SWITCH, SIZE = "ATTNGEN_CACHE_DIR", "ATTNGEN_CACHE", "ATTNGEN_CACHE_SIZE"
"""Variables: where kernels are kept, 0 for nowhere, and how many bytes they may have in all."""

DEFAULT_SIZE = "512M"


class Cache:
    """The kernels kept in one folder, of at most `limit` bytes."""

    def __init__(self, path: Path, limit: int) -> None:
        self.path, self.limit = path, limit

    def find(self, key: str) -> Entry | None:
        """What is kept under a key. A damaged file is nothing; `keep` will replace it."""
        try:
            with Folder(self.path) as folder:
                return unpack(folder.read(key + SUFFIX), key)
        except (FileNotFoundError, Damaged):
            return None
        except OSError as e:
            warn(self.path, problem(e))
            return None

    def keep(self, entry: Entry) -> str:
        """Keep a kernel, and remove what goes beyond the limit. Returns why it could not be kept, or nothing."""
        data = pack(entry)
        if len(data) > self.limit:
            return f"its {len(data):,} bytes are more than {SIZE} allows"
        try:
            with Folder(self.path, create=True) as folder:
                folder.write(entry.key + SUFFIX, data)
                folder.sweep(self.limit)
        except OSError as e:
            warn(self.path, problem(e))
            return problem(e)
        return ""


def open_cache() -> Cache | None:
    """The cache as the environment describes it; None if it is turned off. Raises Error for a limit that is none."""
    return Cache(cache_path(), cache_limit()) if cache_is_on() else None


def cache_is_on() -> bool:
    return os.environ.get(SWITCH, "").strip().lower() not in ("0", "off", "no", "false")


def cache_path() -> Path:
    chosen = os.environ.get(FOLDER)
    return Path(os.path.expanduser(chosen)).absolute() if chosen else import_module("platformdirs").user_cache_path("attngen")


def cache_limit() -> int:
    text = os.environ.get(SIZE) or DEFAULT_SIZE
    try:
        return read_size(text)
    except ValueError:
        raise Error(f"{SIZE}: expected a number of bytes such as 512M or 2G, got {text!r}; change or unset it") from None


def read_size(text: str) -> int:
    """Bytes, as a number with K, M or G behind it. Raises ValueError."""
    found = re.fullmatch(r"\s*(\d+)\s*([KMG]?)(?:i?B)?\s*", text, re.IGNORECASE | re.ASCII)
    if not found:
        raise ValueError(text)
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2].upper()]


def problem(error: OSError) -> str:
    """What is wrong, in words: our own, or the operating system's."""
    return error.strerror or str(error)


WARNED: set[tuple[Path, str]] = set()


def warn(path: Path, why: str) -> None:
    """Once in a process."""
    if (path, why) not in WARNED:
        WARNED.add((path, why))
        warnings.warn(
            f"attngen keeps no kernels in {path}, and compiles them again in each process: {why}. "
            f"`attngen doctor` tells what to do; {SWITCH}=0 turns this off",
            stacklevel=2,
        )

"""Whether kernels can be kept on this machine, tried out, and what to do if not."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import dataclass

from attngen.cache import FOLDER, SWITCH, cache_is_on, cache_limit, cache_path, problem
from attngen.cache_folder import TEMPORARY, Folder, Refused
from attngen.cache_sources import NotKept, own_sources

PROBE = 65536
"""Bytes that are written to try it: the size of a large kernel."""


@dataclass(frozen=True)
class State:
    """usable: whether kernels are found and kept. problem, advice: if not, why, and what to do. files, size: what is there, in
    bytes; free: what the device has left."""

    folder: str
    usable: bool
    problem: str = ""
    advice: str = ""
    files: int = 0
    size: int = 0
    limit: int = 0
    free: int = 0


def cache_state() -> State:
    """Writes a small file and removes it again. Raises Error where ATTNGEN_CACHE_SIZE is no size."""
    path, limit = cache_path(), cache_limit()
    if not cache_is_on():
        return State(str(path), False, f"turned off by {SWITCH}={os.environ[SWITCH]}", f"unset {SWITCH}", limit=limit)
    try:
        with Folder(path, create=True) as folder:
            items = list(folder.files())
            found = State(
                str(path),
                True,
                files=len(items),
                size=sum(x.size for x in items),
                limit=limit,
                free=shutil.disk_usage(path).free,
            )
            probe = f"probe-{os.getpid()}{TEMPORARY}"
            folder.write(probe, bytes(PROBE))
            folder.remove(probe)
        own_sources()
        return found
    except NotKept as e:
        return State(str(path), False, str(e), "install attngen with its source files, and begin a new process", limit=limit)
    except OSError as e:
        return State(str(path), False, problem(e), advice(e), limit=limit)


def advice(error: OSError) -> str:
    if isinstance(error, Refused):
        return error.advice
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"free some space there, run `attngen cache gc --size 10M`, or choose a folder elsewhere: export {FOLDER}=…"
    return f"choose a folder that you can write: export {FOLDER}=…"

"""An executable: from the kernels kept on disk, or built, and kept from then on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import attngen
from attngen.backends import Executable, KeepsCode
from attngen.cache import Cache, open_cache
from attngen.cache_file import Entry
from attngen.cache_key import kernel_key
from attngen.cache_sources import NotKept, check_unchanged
from attngen.derived import Derived


@dataclass(frozen=True)
class Made:
    """An executable, what making it took by step, and where it came from, in words."""

    executable: Executable
    seconds: Mapping[str, float]
    origin: str


def build(derived: Derived) -> Made:
    """Raises what passes and the backend raise; nothing because of the cache."""
    if derived.verify_each == "run":
        _ = derived.result  # executing instances was asked for, not just their result
    cache = open_cache()
    start = time.perf_counter()
    key, why = find_key(derived) if cache else ("", "the cache is turned off")
    seconds = {**derived.seconds, "key": time.perf_counter() - start}
    if cache and key and (found := kept(derived, cache, key, seconds)):
        return found
    executable = derived.backend.build(derived.emitted)
    seconds |= {**derived.seconds, **executable.seconds}
    if cache and key:
        start = time.perf_counter()
        why = keep(derived, cache, key, executable)
        seconds["keeping"] = time.perf_counter() - start
    return Made(executable, seconds, f"compiled, not kept: {why}" if why else "compiled and kept")


def find_key(derived: Derived) -> tuple[str, str]:
    """The key, or why there is none."""
    try:
        return kernel_key(derived), ""
    except NotKept as e:
        return "", str(e)


def kept(derived: Derived, cache: Cache, key: str, seconds: dict[str, float]) -> Made | None:
    backend = derived.backend
    start = time.perf_counter()
    entry = cache.find(key)
    if entry is None or not isinstance(backend, KeepsCode):
        return None
    seconds["reading"] = time.perf_counter() - start
    try:
        executable = backend.restore(derived.func, derived.variant, entry.saved, lambda: derived.emitted)
    except (LookupError, RuntimeError, TypeError, ValueError):
        return None  # whole, but not what this backend saves: as good as none
    return Made(executable, {**seconds, **executable.seconds}, "read from the cache")


def keep(derived: Derived, cache: Cache, key: str, executable: Executable) -> str:
    """Why the kernel could not be kept, or nothing."""
    backend, func = derived.backend, derived.func
    assert isinstance(backend, KeepsCode)
    try:
        check_unchanged()
    except NotKept as e:
        return str(e)
    arrays = ", ".join(f"{p.name}: {v.type}" for p, v in zip(func.params, func.args, strict=True))
    target = f"{backend.name}:{derived.variant}".rstrip(":")
    about = {"name": func.name, "target": target, "arrays": arrays, "attngen": attngen.__version__}
    return cache.keep(Entry(key, about, backend.save(executable)))

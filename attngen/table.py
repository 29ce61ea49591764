"""A bounded table of what has been made already, shared by threads."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from attngen.kernel import Kernel

T = TypeVar("T")


class _Entry(Generic[T]):
    def __init__(self) -> None:
        self.lock, self.made = Lock(), list[T]()


class Table(Generic[T]):
    """At most `limit` entries; the one not used for longest goes first. Threads that ask for one key make it once."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.reset()

    def reset(self) -> None:
        """Empty the table."""
        self.lock, self.entries = Lock(), OrderedDict[Hashable, _Entry[T]]()

    def after_fork(self) -> None:
        """In a forked child: new locks, since other threads of the parent may have held those, and what was made already."""
        self.lock = Lock()
        self.entries = OrderedDict((key, entry) for key, entry in self.entries.items() if entry.made)
        for entry in self.entries.values():
            entry.lock = Lock()

    def __len__(self) -> int:
        return len(self.entries)

    def find(self, key: Hashable) -> T | None:
        with self.lock:
            entry = self.entries.get(key)
            if entry is None or not entry.made:
                return None
            self.entries.move_to_end(key)
            return entry.made[0]

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The entry, made if it is missing; if making it fails nothing is kept."""
        with self.lock:
            entry = self.entries.setdefault(key, _Entry())
            self.entries.move_to_end(key)
            while len(self.entries) > self.limit:
                self.entries.popitem(last=False)
        with entry.lock:
            if not entry.made:
                try:
                    entry.made.append(make())
                except BaseException:
                    with self.lock:
                        if self.entries.get(key) is entry:
                            del self.entries[key]
                    raise
            return entry.made[0]


KERNELS: Table[Kernel] = Table(128)
"""Kernels compiled by calls that take arrays, in this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=KERNELS.after_fork)

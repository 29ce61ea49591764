"""How many threads a call may use: its argument, else the context, else what was set, else the environment and the machine."""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

from attngen.ir.diagnostics import Error

VARIABLE = "ATTNGEN_NUM_THREADS"


class _Chosen:
    """What `set_num_threads` has set, for the whole process."""

    number: int | None = None


_context: ContextVar[int | None] = ContextVar("attngen_num_threads", default=None)


def set_num_threads(n: int | None) -> None:
    """Let calls of this process use at most n threads; None goes back to the environment. Raises Error if n is not such."""
    _Chosen.number = read_count("n", n)


def get_num_threads() -> int:
    """How many threads a call uses at most that does not say so itself.

    The number of `with threads(n)`, else of `set_num_threads`, else of the variable ATTNGEN_NUM_THREADS. Else the least of
    OMP_NUM_THREADS, of PyTorch's number if that is loaded, and of the processors that this process may run on.
    """
    found = _context.get() or _Chosen.number
    if found is not None:
        return found
    text = os.environ.get(VARIABLE)
    if text:
        if not text.strip().isdecimal() or not int(text):
            raise Error(f"{VARIABLE}: expected a whole number of at least 1, got {text!r}; change or unset the variable")
        return int(text)
    return _from_others()


def threads(n: int) -> AbstractContextManager[None]:
    """`with threads(n):` lets calls inside of it, of this thread or task, use at most n threads. Raises Error for a wrong n."""
    number = read_count("n", n)
    if number is None:
        raise Error("n: expected a whole number of at least 1, got None")
    return _inside(number)


@contextmanager
def _inside(number: int) -> Generator[None]:
    token = _context.set(number)
    try:
        yield
    finally:
        _context.reset(token)


def read_count(name: str, n: Any) -> int | None:
    """The number, or None; anything else is an error."""
    if n is None:
        return None
    try:
        number = 0 if isinstance(n, bool) else operator.index(n)
    except TypeError:
        number = 0
    if number < 1:
        raise Error(f"{name}: expected a whole number of at least 1 or None, got {n!r}")
    return number


def _from_others() -> int:
    numbers = [len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1]
    # OpenMP takes a list, a number for each level of nesting; what it does not understand it ignores.
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if first.isdecimal() and int(first):
        numbers.append(int(first))
    # Another thread may be in the middle of importing it.
    count = getattr(sys.modules.get("torch"), "get_num_threads", None)
    if count is not None:
        numbers.append(count())
    return min(numbers)

"""Kernels that one process keeps in memory: how many, for which threads, and what a forked child has of them."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from attngen.table import Table


def test_threads_that_ask_at_once_make_it_once() -> None:
    table, made, start = Table[int](10), list[int](), threading.Barrier(8)

    def make() -> int:
        made.append(threading.get_ident())
        time.sleep(0.05)
        return len(made)

    def ask(key: int) -> int:
        start.wait()
        return table.get(key % 2, make)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(8)))
    assert len(made) == 2
    assert found[0::2] == [found[0]] * 4
    assert found[1::2] == [found[1]] * 4


def test_what_cannot_be_made_is_tried_again() -> None:
    table = Table[int](10)
    with pytest.raises(ZeroDivisionError):
        table.get("x", lambda: 1 // 0)
    assert table.get("x", lambda: 3) == 3


def test_the_one_not_used_for_longest_goes_first() -> None:
    table = Table[int](3)
    for key in "abc":
        table.get(key, lambda: 1)
    table.find("a")
    table.get("d", lambda: 2)
    assert [key for key in "abcd" if table.find(key)] == ["a", "c", "d"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes do not fork here")
def test_a_forked_child_has_what_was_made_and_no_locks() -> None:
    """Another thread of the parent holds the lock of one entry, and that of the table."""
    table, entered, leave = Table[int](10), threading.Event(), threading.Event()
    table.get("whole", lambda: 1)

    def slow() -> int:
        entered.set()
        with table.lock:
            leave.wait(10)
        return 2

    thread = threading.Thread(target=table.get, args=("part", slow))
    thread.start()
    entered.wait()
    child = os.fork()
    if not child:
        table.after_fork()
        right = table.find("whole") == 1 and table.find("part") is None and table.get("part", lambda: 3) == 3
        os._exit(0 if right else 1)
    leave.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert table.find("part") == 2

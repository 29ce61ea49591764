"""A pool of threads that share the parts of a nest of loops.

The caller works too, and waits only for threads that have begun to help it. So nothing hangs where no other thread comes: in a
forked child, while other callers keep the pool busy, or when the interpreter is about to exit.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread, local

MOST = 256
"""Threads that the pool has at most, whatever is asked for."""

Run = Callable[[int, int], None]
"""Runs the parts from the first number to before the last one."""


class Work:
    """The parts of one nest that nobody has begun yet, and how many threads of the pool are in the middle of some."""

    def __init__(self, run: Run, parts: int, least: int, threads: int) -> None:
        self.run, self.left, self.least, self.threads = run, parts, least, threads
        self.lock, self.done = Lock(), Lock()
        self.done.acquire()  # the last helper releases it, if the caller waits
        self.helpers = 0
        self.waiting = False
        self.error: BaseException | None = None

    def share(self) -> None:
        """Run parts until none is left, large shares first and single ones last, so that all threads finish together.

        Numbers are handed out from the highest one down: under a causal mask the last rows have most to do, and work that
        begins late should be small.
        """
        while True:
            with self.lock:
                last = self.left
                if not last:
                    return
                self.left = first = max(last - max(last // (4 * self.threads), self.least), 0)
            self.run(first, last)

    def help(self) -> None:
        """What a thread of the pool does: nothing if it comes too late."""
        with self.lock:
            if not self.left:
                return
            self.helpers += 1
        try:
            self.share()
        except BaseException as error:  # for the caller, who raises it
            self.stop(error)
        with self.lock:
            self.helpers -= 1
            if self.waiting and not self.helpers:
                self.done.release()

    def stop(self, error: BaseException) -> None:
        with self.lock:
            self.left = 0
            self.error = self.error or error

    def wait(self) -> None:
        """Until no helper is in the middle of a part: only then may the arrays go away."""
        while True:
            try:
                with self.lock:
                    if not self.helpers:
                        return
                    self.waiting = True
                self.done.acquire()
            except BaseException as error:  # KeyboardInterrupt must not leave threads that write to freed memory
                self.stop(error)


class Pool:
    """Threads that live until the process ends, started when they are first wanted."""

    def __init__(self) -> None:
        self.here = local()
        self.reset()

    def reset(self) -> None:
        """Without threads. A forked child begins so: it has none of its parent's, and a lock may be held for ever."""
        self.lock, self.queue, self.threads = Lock(), SimpleQueue[Work](), list[Thread]()

    def run(self, run: Run, parts: int, least: int, threads: int) -> None:
        """Run all parts on at most so many threads, at least `least` parts at a time (but for the last ones)."""
        if threads < 2 or parts <= least or getattr(self.here, "inside", False):
            run(0, parts)
            return
        helpers = min(threads - 1, MOST)
        if len(self.threads) < helpers:
            self.grow(helpers)
        work = Work(run, parts, least, threads)
        try:
            for _ in range(helpers):
                self.queue.put(work)
            work.share()
        except BaseException as error:
            work.stop(error)
        work.wait()
        if work.error is not None:
            raise work.error

    def grow(self, count: int) -> None:
        with self.lock:
            while len(self.threads) < count:
                thread = Thread(target=self.loop, args=(self.queue,), name=f"attngen-{len(self.threads)}", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # no more threads for this process, or it is ending: those that are there will do
                    return
                self.threads.append(thread)

    def loop(self, queue: SimpleQueue[Work]) -> None:
        self.here.inside = True
        while True:
            work = queue.get()
            work.help()
            del work  # nothing of a call is kept alive until the next one


POOL = Pool()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=POOL.reset)

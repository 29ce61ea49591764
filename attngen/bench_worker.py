"""A process of its own for each implementation that is timed: no shared pools of threads, and a crash ends one of them only."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from attngen.bench import Shape, make_inputs
from attngen.bench_peers import load, to_float64
from attngen.ir.diagnostics import Error

COUNTS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Read by libraries when they are loaded: the only way to tell NumPy's BLAS."""
SLOW = 1.0
"""Calls of more seconds are not warmed up before each block."""


class Failed(Exception):
    """An implementation could not do a shape. kind: `refused` for what it says it cannot do, else `error`."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind, self.why = kind, why


class Worker:
    """An implementation in a process, used as a context."""

    def __init__(self, name: str, threads: int) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, name, threads), daemon=True)
        with environment(dict.fromkeys(COUNTS, str(threads))):
            self.process.start()
        theirs.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self.pipe.close()
        self.process.join(0 if any(error) else 5)
        self.process.kill()
        self.process.join()

    def prepare(self, shape: Shape) -> tuple[float, np.ndarray]:
        """Seconds that it took to prepare with one first call, and the result of that in float64."""
        return self.ask(("prepare", shape))

    def block(self, seconds: float) -> tuple[list[float], float]:
        """Times of calls, for so long, at least one, after an untimed one; and the share of core time that others took."""
        return self.ask(("block", seconds))

    def ask(self, what: Any) -> Any:
        try:
            self.pipe.send(what)
            kind, answer = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(5)
            raise Failed("error", f"its process ended with exit code {self.process.exitcode}") from None
        if kind != "done":
            raise Failed(kind, answer)
        return answer


@contextmanager
def environment(values: dict[str, str]) -> Generator[None]:
    """For processes that are started inside."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def serve(pipe: Connection[Any, Any], name: str, threads: int) -> None:
    """Answer until the other end closes."""
    call: Callable[[], Any] | None = None
    with suppress(EOFError, KeyboardInterrupt, BrokenPipeError):
        while True:
            what, given = pipe.recv()
            try:
                if what == "prepare":
                    call = None  # frees the arrays of the last shape
                    start = time.perf_counter()
                    call = load(name)(given, make_inputs(given), threads)
                    out = call()
                    answer: Any = (time.perf_counter() - start, to_float64(out))
                elif call is None:
                    raise Error("no shape is prepared")
                else:
                    waited, start = waiting_time(), time.perf_counter()
                    times = timed(call, given)
                    share = (waiting_time() - waited) / (time.perf_counter() - start) / threads
                    answer = (times, min(max(share, 0.0), 1.0))
            except Exception as e:  # whatever another library raises; the table shows it
                first = next(iter(str(e).strip().splitlines()), "")
                message = ("refused", first) if isinstance(e, Error) else ("error", f"{type(e).__name__}: {first}")
                pipe.send(message)
            else:
                pipe.send(("done", answer))


def waiting_time() -> float:
    """Seconds for which threads of this process could have run and had no core; 0 where Linux does not count them."""
    total = 0
    for file in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError, IndexError, ValueError):  # threads end, and not every kernel has figures
            total += int(file.read_text().split()[1])
    return total / 1e9


def timed(call: Callable[[], Any], seconds: float) -> list[float]:
    start = time.perf_counter()
    call()
    times = [time.perf_counter() - start]
    if times[0] < SLOW:
        times.clear()
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times

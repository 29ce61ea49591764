"""Timing implementations in turn on a shape, each checked before it is timed, and the baseline twice."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from attngen.backends.cpu.peak import multiply_adds, reading
from attngen.bench import ALLOWED, ITEM_BYTES, Shape, expected, make_inputs, relative_error
from attngen.bench_peers import OURS
from attngen.bench_worker import SLOW, Failed, Worker

AGAIN = " again"
"""Added to the name of the baseline when it is timed a second time: how far that is from the first is the noise of the run."""
PEAK_SECONDS = 0.05
SMALLEST = 1 << 18
"""Fewer bytes are not worth a measurement of their own."""

LARGE = 1 << 24
"""From as many bytes on, caches hold only a part on most machines, and the memory's own bandwidth is measured too."""
MEMORY = 1 << 28
"""As many bytes are read to measure it."""

Progress = Callable[[str], None]


@dataclass
class Result:
    """An implementation on a shape. status: done, refused, error or wrong; rounds: the times of each round, in seconds."""

    implementation: str
    status: str = "done"
    why: str = ""
    error: float | None = None
    """The largest, relative to the largest value."""
    prepare_s: float | None = None
    rounds: list[list[float]] = field(default_factory=list[list[float]])
    disturbed: float = 0.0
    """The largest share of core time that other processes took from it in a round."""

    @property
    def timed(self) -> bool:
        return self.status == "done" and bool(self.rounds)

    @property
    def median(self) -> float:
        return statistics.median(t for times in self.rounds for t in times)

    @property
    def min(self) -> float:
        return min(t for times in self.rounds for t in times)

    def ratios(self, baseline: Result) -> list[float]:
        """How many times as fast as the baseline, in each round, by medians."""
        pairs = zip(baseline.rounds, self.rounds, strict=True)
        return [statistics.median(base) / statistics.median(own) for base, own in pairs]


@dataclass
class Timing:
    """All implementations on a shape, and what the machine can do: GFLOP/s in registers, GB/s reading as many bytes.

    memory_peak: GB/s reading from memory, if the inputs and the output are large.
    """

    shape: Shape
    results: list[Result]
    baseline: Result | None
    again: Result | None
    flops_peak: float
    read_peak: float
    memory_peak: float | None = None

    @property
    def spread(self) -> tuple[float, float]:
        """How far the baseline is from itself, relative: in the median and in the minimum."""
        if self.baseline is None or self.again is None or not self.again.timed:
            return float("inf"), float("inf")
        pairs = ((self.baseline.median, self.again.median), (self.baseline.min, self.again.min))
        median, least = (max(one, other) / min(one, other) - 1 for one, other in pairs)
        return median, least

    def verdict(self, result: Result) -> str:
        """faster, slower or level: what is true of median and minimum, beyond the spread of the baseline."""
        if self.baseline is None or not result.timed:
            return ""
        beyond = 1 + max(self.spread)
        ratios = self.baseline.median / result.median, self.baseline.min / result.min
        if min(ratios) > beyond:
            return "faster"
        return "slower" if max(ratios) * beyond < 1 else "level"


class Bench:
    """Implementations in their processes, used as a context: they start when first needed and end with it.

    names: of implementations, as in `attngen.bench_peers`. seconds: of timed calls per implementation and shape, in all.
    """

    def __init__(self, names: Sequence[str], threads: int, rounds: int, seconds: float, progress: Progress) -> None:
        self.names, self.threads, self.rounds, self.seconds = list(dict.fromkeys(names)), threads, rounds, seconds
        self.progress = progress
        self.workers: dict[str, Worker] = {}
        self.stack = ExitStack()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    def worker(self, name: str) -> Worker:
        if name in self.workers and not self.workers[name].process.is_alive():
            del self.workers[name]
        if name not in self.workers:
            self.workers[name] = self.stack.enter_context(Worker(name.removesuffix(AGAIN), self.threads))
        return self.workers[name]

    def run(self, shape: Shape) -> Timing:
        self.progress(f"{shape.name}: computing the right result")
        right = expected(shape, make_inputs(shape))

        def ready(name: str) -> Result:
            self.progress(f"{shape.name}: preparing and checking {name}")
            result = Result(name)
            try:
                result.prepare_s, out = self.worker(name).prepare(shape)
            except Failed as e:
                result.status, result.why = e.kind, e.why
                return result
            result.error = relative_error(out, right)
            if not result.error <= ALLOWED[shape.dtype]:
                wrong = "the shape of the output differs" if out.shape != right.shape else f"error {result.error:.1e}"
                result.status, result.why = "wrong", f"{wrong}, allowed {ALLOWED[shape.dtype]:.0e}"
            return result

        results = [ready(name) for name in self.names]
        able = [r for r in results if r.status == "done"]
        # A peer if one can do it; attngen may have to be its own.
        baseline = next((r for r in sorted(able, key=lambda r: r.implementation == OURS)), None)
        again = ready(baseline.implementation + AGAIN) if baseline else None
        contestants = able + ([again] if again and again.status == "done" else [])
        element = max(ITEM_BYTES[shape.dtype], 4)
        peaks = [self.peaks(shape, element)]
        self.play(shape, contestants)
        peaks.append(self.peaks(shape, element))
        flops, read, *memory = (max(values) for values in zip(*peaks, strict=True))
        return Timing(shape, results, baseline, again, flops, read, *memory)

    def peaks(self, shape: Shape, element: int) -> list[float]:
        sizes = [max(shape.bytes, SMALLEST), *([MEMORY] if shape.bytes >= LARGE else [])]
        flops = multiply_adds(element, self.threads, PEAK_SECONDS)
        return [flops, *(reading(size, self.threads, PEAK_SECONDS) for size in sizes)]

    def play(self, shape: Shape, contestants: list[Result]) -> None:
        """Rounds A B C, B C A, …; two suffice for calls that take long."""
        for n in range(self.rounds):
            if n >= 2 and any(r.min > SLOW for r in contestants if r.timed):
                break
            self.progress(f"{shape.name}: round {n + 1} of {self.rounds}")
            first = n % max(len(contestants), 1)
            for result in contestants[first:] + contestants[:first]:
                if result.status != "done":
                    continue
                try:
                    times, disturbed = self.worker(result.implementation).block(self.seconds / self.rounds)
                except Failed as e:
                    result.status, result.why = e.kind, e.why
                else:
                    result.rounds.append(times)
                    result.disturbed = max(result.disturbed, disturbed)

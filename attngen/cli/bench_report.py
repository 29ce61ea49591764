"""What `attngen bench` prints, writes as JSON, and draws."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import numpy as np

import attngen
from attngen.bench_peers import OURS
from attngen.bench_rounds import Result, Timing
from attngen.cli.tables import table
from attngen.ir.diagnostics import Error
from attngen.written import write

FORMATS = (".png", ".svg")
DISTURBED = 0.05
"""The share of core time from which on a warning is printed."""
COLOURS = ("#3465a4", "#c17d11", "#73a157", "#75507b", "#888a85")


def heading(timing: Timing) -> str:
    """The shape, the limits of the machine, and what there is to say of attngen."""
    peaks = f"FMA peak {timing.flops_peak:.0f} GFLOP/s, reads its {size(timing.shape.bytes)} at {timing.read_peak:.1f} GB/s"
    if timing.memory_peak is not None:
        peaks += f", memory at {timing.memory_peak:.1f} GB/s"
    lines = [f"{timing.shape.name}: {timing.shape}", peaks]
    if timing.baseline is not None:
        median, least = (f"{100 * x:.1f} %" for x in timing.spread)
        lines.append(f"{timing.baseline.implementation} against itself: {median} apart in the median, {least} in the minimum")
    ours = next((r for r in timing.results if r.implementation == OURS), None)
    if ours is not None and ours is not timing.baseline and (verdict := timing.verdict(ours)) and timing.baseline is not None:
        other = timing.baseline.implementation
        said = {"level": f"attngen and {other} are level: no further apart than that"}
        lines.append(said.get(verdict, f"attngen is {verdict} than {other} by more than that"))
    disturbed = max((r.disturbed for r in timing.results), default=0.0)
    if disturbed > DISTURBED:
        lines.append(f"other processes took up to {100 * disturbed:.0f} % of the cores' time: repeat on an idle machine")
    return "\n".join(lines)


def size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.0f} KiB"


def duration(seconds: float) -> str:
    return f"{1e6 * seconds:.1f} µs" if seconds < 1e-3 else f"{1e3 * seconds:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def show_ratio(x: float) -> str:
    return f"{x:.2f}" if x < 100 else f"{x:.0f}"


def results_table(timing: Timing) -> str:
    """A line for each implementation, the fastest first; those that could not be timed last, with the reason."""
    shown = [*timing.results, *([timing.again] if timing.again else [])]
    timed = sorted((r for r in shown if r.timed), key=lambda r: r.median)
    read = "% read" if timing.memory_peak is None else "% DRAM"
    head = ("implementation", "median", "min", "ratio", "in rounds", "GFLOP/s", "% FMA", read, "error")
    text = table(head, [row(timing, r) for r in timed]) if timed else ""
    failed = [f"{r.implementation}: {r.status}: {r.why}" for r in shown if not r.timed]
    return "\n".join(([text] if text else []) + failed)


def row(timing: Timing, result: Result) -> tuple[str, ...]:
    ratio = spread = ""
    if timing.baseline is not None and timing.baseline.timed:
        ratios = result.ratios(timing.baseline)
        ratio, spread = (
            show_ratio(timing.baseline.median / result.median),
            "–".join(map(show_ratio, (min(ratios), max(ratios)))),
        )
    rate = timing.shape.flops / result.median / 1e9
    return (
        result.implementation,
        duration(result.median),
        duration(result.min),
        ratio,
        spread,
        f"{rate:.1f}",
        f"{100 * rate / timing.flops_peak:.0f}",
        f"{100 * timing.shape.bytes / result.median / 1e9 / (timing.memory_peak or timing.read_peak):.0f}",
        f"{result.error:.0e}",
    )


def document(timings: Sequence[Timing], settings: Mapping[str, object]) -> dict[str, Any]:
    """Everything measured, seconds and GFLOP/s, ready for JSON."""
    versions = {"attngen": attngen.__version__, "python": platform.python_version(), "numpy": np.__version__}
    return {
        "versions": versions,
        "machine": platform.machine(),
        "settings": dict(settings),
        "shapes": list(map(entry, timings)),
    }


def entry(timing: Timing) -> dict[str, Any]:
    shape, base = timing.shape, timing.baseline
    measured = {"fma_peak_gflops": timing.flops_peak, "read_peak_gbs": timing.read_peak, "memory_peak_gbs": timing.memory_peak}
    shown = [*timing.results, *([timing.again] if timing.again else [])]
    results: list[dict[str, Any]] = []
    for r in shown:
        item: dict[str, Any] = {**asdict(r), "error": r.error if r.error is not None and np.isfinite(r.error) else None}
        if r.timed:
            item |= {"median_s": r.median, "min_s": r.min, "calls": sum(map(len, r.rounds))}
            for kind, seconds in (("median", r.median), ("min", r.min)):
                item |= {
                    f"gflops_{kind}": shape.flops / seconds / 1e9,
                    f"fma_share_{kind}": shape.flops / seconds / 1e9 / timing.flops_peak,
                    f"read_share_{kind}": shape.bytes / seconds / 1e9 / timing.read_peak,
                }
                if timing.memory_peak is not None:
                    item[f"memory_share_{kind}"] = shape.bytes / seconds / 1e9 / timing.memory_peak
            if base is not None and base.timed:
                item |= {"ratio_median": base.median / r.median, "ratio_min": base.min / r.min, "ratio_rounds": r.ratios(base)}
                item["verdict"] = timing.verdict(r)
        results.append(item)
    named = {
        "baseline": base.implementation if base else None,
        "spread": [x if np.isfinite(x) else None for x in timing.spread],
    }
    counted = {"flops": shape.flops, "bytes": shape.bytes}
    return {**asdict(shape), **counted, **measured, **named, "results": results}


def check_plot(file: str) -> None:
    """Raise Error before anything is timed if a plot could not be written."""
    if Path(file).suffix.lower() not in FORMATS:
        raise Error(f"--plot {file}: expected a name that ends in {' or '.join(FORMATS)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise Error("--plot needs matplotlib, which is not installed: pip install 'attngen[plot]'")


def plot(timings: Sequence[Timing], file: str) -> None:
    """Bars of GFLOP/s by shape, a line for the FMA peak, whiskers from the slowest to the fastest round."""
    figures: Any = import_module("matplotlib.figure")
    names = list(dict.fromkeys(r.implementation for t in timings for r in t.results if r.timed))
    figure = figures.Figure(figsize=(max(5.0, 1.6 * len(timings) + 2), 4.2), layout="constrained")
    axes = figure.add_subplot()
    width = 0.8 / max(len(names), 1)
    for n, name in enumerate(names):
        for at, timing in enumerate(timings):
            for r in timing.results:
                if r.implementation == name and r.timed:
                    rates = [timing.shape.flops / float(np.median(times)) / 1e9 for times in r.rounds]
                    rate = timing.shape.flops / r.median / 1e9
                    whiskers = [[max(rate - min(rates), 0.0)], [max(max(rates) - rate, 0.0)]]
                    place = at - 0.4 + width * (n + 0.5)
                    axes.bar(place, rate, width, yerr=whiskers, color=COLOURS[n % len(COLOURS)], ecolor="#2e3436")
        axes.bar(0, 0, color=COLOURS[n % len(COLOURS)], label=name)
    for at, timing in enumerate(timings):
        label = "FMA peak" if at == 0 else None
        axes.hlines(timing.flops_peak, at - 0.45, at + 0.45, color="#2e3436", linestyle="--", linewidth=1, label=label)
    axes.set_xticks(range(len(timings)), [t.shape.name for t in timings])
    axes.set_ylabel("GFLOP/s (median)")
    axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(names) + 1)
    axes.spines[["top", "right"]].set_visible(False)

    def save(out: IO[bytes]) -> None:
        figure.savefig(out, format=Path(file).suffix.lower().removeprefix("."), dpi=150)

    write(file, save)

"""With CI set, a test skipped for want of an extra has failed; only a reason that starts with `hardware:` is accepted.

Kernels are neither kept nor found on disk, but where a test says so: some replace parts of the compiler.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest


def pytest_configure() -> None:
    os.environ["ATTNGEN_CACHE"] = "0"
    os.environ["COLUMNS"] = "100"  # workers of pytest-xdist otherwise say 80


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    forbid_skip(report, item.nodeid)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    forbid_skip(report, collector.nodeid)
    return report


def forbid_skip(report: pytest.TestReport | pytest.CollectReport, node: str) -> None:
    """Turn a skip into a failure in place."""
    if os.environ.get("CI") and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not reason.removeprefix("Skipped: ").startswith("hardware:"):
            report.outcome = "failed"
            report.longrepr = f"{node} was skipped, which CI does not allow: {reason}"

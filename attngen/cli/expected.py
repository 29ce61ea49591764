"""Expected diagnostics in comments: `// expected-error@+1 {{extents differ}}`, as MLIR's tests write them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from attngen.ir.diagnostics import IRError, Remark

EXPECTED = re.compile(r"expected-(error|remark)(?:@([+-]\d+|above|below|unknown))?\s*\{\{(.*?)\}\}")


@dataclass
class Report:
    """What happened to one part of a file."""

    errors: list[IRError] = field(default_factory=list[IRError])
    remarks: list[Remark] = field(default_factory=list[Remark])


def check_expected(text: str, file: str, report: Report) -> list[str]:
    """What differs from the comments: an expected diagnostic that did not come, or an error that nothing expects."""
    problems: list[str] = []
    errors = {e: (e.loc.line, f"error[{e.code}]: {e.message}\n{e.help}\n{' '.join(e.notes)}") for e in report.errors}
    remarks = [(r.loc.line, str(r)) for r in report.remarks]
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        for kind, where, message in EXPECTED.findall(line):
            target = place(where, number, lines)
            if kind == "error":
                found = [e for e, (at, shown) in errors.items() if (target in (0, at)) and message in shown]
                for e in found[:1]:
                    del errors[e]
            else:
                found = [r for r in remarks if target in (0, r[0]) and message in r[1]]
            if not found:
                problems.append(f"{file}:{number}: expected {kind} {message!r} was not produced")
    return problems + [f"unexpected error:\n{e}" for e in errors]


def place(where: str, number: int, lines: list[str]) -> int:
    """The line that a comment is about; 0 is any. `above` and `below` skip lines that hold expectations only."""
    if where in ("above", "below"):
        step = -1 if where == "above" else 1
        number += step
        while 0 < number <= len(lines) and EXPECTED.search(lines[number - 1]):
            number += step
        return number
    return 0 if where == "unknown" else number + int(where or 0)

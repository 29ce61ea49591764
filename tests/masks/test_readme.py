"""The table of faults names tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
LINE = re.compile(r"\| ([UN]\d+) .*\|.*\|(.*)\|")


def test_every_kind_of_fault_has_its_tests() -> None:
    kinds = {m[1]: m[2] for m in map(LINE.match, (HERE / "README.md").read_text().splitlines()) if m}
    assert list(kinds) == [f"U{n}" for n in range(1, 38)] + [f"N{n}" for n in range(1, 21)]
    for kind, cell in kinds.items():
        for part in re.sub(r"\([^)]*\)", "", cell).split(";"):
            where, _, names = part.partition(":")
            if where.strip() == "none":
                continue
            for file in where.split(","):
                path = HERE.parent.parent / file.strip() if "/" in file else HERE / f"{file.strip()}.py"
                text = path.read_text()
                for name in filter(None, map(str.strip, names.split(","))):
                    assert f"def test_{name}(" in text, f"{kind}: {path.name} has no test_{name}"

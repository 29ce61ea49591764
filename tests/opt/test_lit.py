"""The .ir files of this folder: `attngen opt` and FileCheck, as in MLIR's own tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILES = sorted(p.name for p in HERE.glob("*.ir"))


@pytest.mark.parametrize("name", FILES)
def test_file(name: str, tmp_path: Path) -> None:
    lit = [sys.executable, "-c", "from lit.main import main; main()", "-v", str(HERE / name)]
    env = {**os.environ, "ATTNGEN_LIT_OUTPUT": str(tmp_path)}
    done = subprocess.run(lit, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_are_files_and_each_runs_something() -> None:
    assert len(FILES) >= 4
    assert all("// RUN: " in (HERE / name).read_text() for name in FILES)

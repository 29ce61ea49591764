"""The rule of tests/conftest.py: under CI a skip for want of an extra is a failure, at run time and while collecting."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hygiene.tree import ROOT

SKIPS = """
import pytest
def test_extra(): pytest.importorskip("no_such_library_here")
def test_machine(): pytest.skip("hardware: no such device")
@pytest.mark.xfail
def test_known(): assert False
"""


@pytest.mark.parametrize(("ci", "failed"), [("", []), ("true", ["test_extra", "test_whole"])])
def test_skips(tmp_path: Path, ci: str, failed: list[str]) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "test_some.py").write_text(SKIPS)
    (tmp_path / "test_whole.py").write_text("import pytest\npytest.importorskip('no_such_library_here')\n")
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    command.append("--continue-on-collection-errors")
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "CI": ci}, capture_output=True, text=True, check=False)
    found = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    assert [any(name in line for line in found) for name in failed] == [True] * len(failed), done.stdout
    assert len(found) == len(failed), done.stdout
    assert (done.returncode == 0) == (not failed)

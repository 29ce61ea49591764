"""Examples in docstrings and in the README are run."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import attngen.backends
from tests.hygiene.tree import ROOT, modules


@pytest.mark.parametrize("name", sorted(set(modules()) - {"attngen.__main__"}))
def test_docstring_examples(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__, f"{name} does not say what it is for"
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


def test_readme_python(tmp_path: Path) -> None:
    """All Python blocks, in order, as one program: what a reader types who follows the page."""
    code = "\n".join(blocks("python"))
    assert "import attngen" in code
    program = tmp_path / "readme.py"
    program.write_text(code)
    command, env = [sys.executable, str(program)], {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_readme_has_the_commands_that_ci_runs() -> None:
    """`.ci/run` takes the test command from the page; the other one must name the main job."""
    install, test = [block.strip() for block in blocks("sh")[:2]]
    assert install == "python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/attngen run"
    assert test == 'python3 -m venv .venv && .venv/bin/pip install ".[test]" && .venv/bin/python -m pytest -n auto'


def test_every_backend_says_what_it_runs_on() -> None:
    for name in attngen.backends.backend_names():
        targets = attngen.backends.get_backend(name).targets()
        assert "" in targets
        assert all(targets.values())

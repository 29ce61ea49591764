"""What is on disk, what is packaged, how long files are, and which names may appear where."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

from tests.hygiene.tree import ROOT, modules, sources


def packages_on_disk() -> set[str]:
    return {name for name, path in modules().items() if path.name == "__init__.py"}


def packages_declared() -> set[str]:
    text = (ROOT / "pyproject.toml").read_text()
    declared = re.search(r"^packages = \[(.*?)\]", text, re.MULTILINE | re.DOTALL)
    assert declared
    return set(re.findall(r'"([^"]+)"', declared[1]))


def test_every_package_is_declared() -> None:
    """A folder that pyproject.toml does not list would be missing from the wheel without any error."""
    assert packages_declared() == packages_on_disk()


def test_every_folder_with_code_is_a_package() -> None:
    assert {p.parent for p in modules().values() if not (p.parent / "__init__.py").exists()} == set()


def test_py_typed_is_there() -> None:
    assert (ROOT / "attngen" / "py.typed").exists()


@pytest.mark.parametrize("name", ["ir", "backends"])
def test_a_second_copy_cannot_be_imported(name: str) -> None:
    """From the root of the repository, `import ir` finds the folder; its classes would be different ones."""
    done = subprocess.run([sys.executable, "-c", f"import {name}"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"ImportError: import attngen.{name}" in done.stderr


def test_both_paths_lead_to_one_module() -> None:
    types = importlib.import_module("attngen.ir.types")
    files = {module: Path(str(getattr(module, "__file__", None))).resolve() for module in set(sys.modules.values())}
    assert [module for module, file in files.items() if file == ROOT / "ir" / "types.py"] == [types]
    assert importlib.import_module("attngen.backends").Error is importlib.import_module("attngen.ir.diagnostics").Error


def lines_of_code(path: Path) -> int:
    """Lines that hold code: blank ones, comments and docstrings are free."""
    layout = {tokenize.INDENT, tokenize.DEDENT, tokenize.NEWLINE, tokenize.NL, tokenize.COMMENT}
    layout |= {tokenize.ENCODING, tokenize.ENDMARKER}
    held: set[int] = set()
    starts_line = True
    with path.open("rb") as file:
        for t in tokenize.tokenize(file.readline):
            if t.type not in layout and not (t.type == tokenize.STRING and starts_line):
                held.update(range(t.start[0], t.end[0] + 1))
            starts_line = t.type in layout
    return len(held)


def test_the_language_stays_small(capsys: pytest.CaptureFixture[str]) -> None:
    size = sum(map(lines_of_code, sources("ir").values()))
    with capsys.disabled():
        sys.stdout.write(f"\nir/ has {size} lines of code\n")
    assert 1000 < size < 5000


def test_no_file_is_long() -> None:
    files = [item for folder in ("attngen", "ir", "backends", "tests", "examples") for item in sources(folder).items()]
    sizes = {name: len(path.read_text().splitlines()) for name, path in files}
    assert {name: size for name, size in sizes.items() if size > 600} == {}


def identifiers(tree: ast.AST) -> set[str]:
    """Every name that a file defines or uses, keywords of calls and attributes included."""
    fields = ("id", "arg", "attr", "name", "asname")
    return {value for node in ast.walk(tree) for field in fields if isinstance(value := getattr(node, field, None), str)}


def test_backends_know_no_attention() -> None:
    """Backends lower ops; that some function is attention, and what its inputs are called, is not theirs to know."""
    wrong: set[str] = set()
    for path in sources("backends").values():
        text = path.read_text()
        wrong |= {f"{path.name}: {name}" for name in identifiers(ast.parse(text)) & {"q", "k", "v", "query", "queries"}}
        wrong |= {f"{path.name}: {word}" for word in re.findall(r"(?i)softmax|attention|flash", text)}
    assert wrong == set()

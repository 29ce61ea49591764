"""Imports go one way: attngen uses backends and ir, backends use ir. Heavy libraries stay where they belong."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.hygiene.tree import ROOT, sources


def imported(source: str) -> set[str]:
    """Every module that a file imports anywhere: at the top, in functions, for type checking, and by import_module("…")."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import():
                found |= {alias.name for alias in node.names}
            case ast.ImportFrom():
                found |= {f"{node.module}.{alias.name}" for alias in node.names} if not node.level else {"." * node.level}
            case ast.Call(func=ast.Name(id="__import__") | ast.Attribute(attr="import_module"), args=[name, *_]):
                # Of an f-string, what comes before the first brace.
                first = name.values[0] if isinstance(name, ast.JoinedStr) else name
                found |= {first.value} if isinstance(first, ast.Constant) and isinstance(first.value, str) else {"?"}
            case _:
                pass
    return found


def belongs(module: str, *packages: str) -> bool:
    return any(module == p or module.startswith(f"{p}.") for p in packages)


def violations(folder: str, allowed: tuple[str, ...]) -> set[str]:
    """Imports of ours that leave the allowed packages."""
    return {
        f"{name} imports {module}"
        for name, path in sources(folder).items()
        for module in imported(path.read_text())
        if belongs(module, "attngen", "ir", "backends", "tests", "examples", ".") and not belongs(module, *allowed)
    }


def test_the_language_imports_nothing_of_ours() -> None:
    assert violations("ir", ("attngen.ir",)) == set()


def test_backends_import_the_language_only() -> None:
    assert violations("backends", ("attngen.ir", "attngen.backends")) == set()


def test_the_product_does_not_import_tests() -> None:
    assert violations("attngen", ("attngen",)) == set()


def test_the_rule_would_see_an_import_in_a_function() -> None:
    source = (
        "def f():\n    if True:\n        from attngen.compile import compile\n    importlib.import_module(f'attngen.x.{y}')\n"
    )
    assert imported(source) == {"attngen.compile.compile", "attngen.x."}
    assert not belongs("attngen.irrelevant", "attngen.ir")


HOMES = {
    "numpy": ("attngen/", "ir/", "backends/"),
    "networkx": ("ir/graph.py",),
    "numba": ("backends/cpu/", "backends/cuda/"),
    "llvmlite": ("backends/cpu/", "backends/cuda/"),
    "click": ("attngen/cli/",),
    "rich": ("attngen/cli/",),
    "platformdirs": ("attngen/",),
    "typing_extensions": ("attngen/", "ir/", "backends/"),
}
"""Each library we require, and the only places that may import it."""

OPTIONAL = {"torch", "jax", "matplotlib", "ml_dtypes", "onnx", "transformers"}
"""Libraries of users; imported only inside functions of attngen/, never in ir/ or backends/."""


def test_libraries_stay_where_they_belong() -> None:
    wrong: set[str] = set()
    for name, path in (sources("attngen") | sources("ir") | sources("backends")).items():
        for module in {m.partition(".")[0] for m in imported(path.read_text())} - sys.stdlib_module_names - {"attngen"}:
            if module in OPTIONAL and name.startswith("attngen/"):
                continue
            if not name.startswith(HOMES.get(module, ())):
                wrong.add(f"{name} imports {module}")
    assert wrong == set()


def fresh(code: str) -> str:
    """The output of a new Python process."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


HEAVY = ("numpy", "networkx", "numba", "llvmlite", "click", "rich", "torch", "jax")


def test_importing_attngen_loads_nothing_heavy() -> None:
    loaded = fresh(f"import attngen, sys; print(*(m for m in {HEAVY!r} if m in sys.modules))")
    assert loaded == ""


def test_importing_attngen_is_quick() -> None:
    """Under 100 ms; the best of several processes, since others may be busy on the same machine."""
    code = "import time; t = time.perf_counter(); import attngen; print(time.perf_counter() - t)"
    assert min(float(fresh(code)) for _ in range(5)) < 0.1


@pytest.mark.parametrize("module", ["attngen.ir.passes", "attngen.backends"])
def test_the_language_needs_no_compiler(module: str) -> None:
    loaded = fresh(f"import {module}, sys; print(*(m for m in ('networkx', 'numba', 'llvmlite') if m in sys.modules))")
    assert loaded == ""

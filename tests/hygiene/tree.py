"""The files of the three top-level folders, each once, whatever the symlinks say."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

FOLDERS = {"attngen": "attngen", "attngen.ir": "ir", "attngen.backends": "backends"}
"""Import name -> folder at the top."""


def sources(folder: str) -> dict[str, Path]:
    """Python files by their path from the root; folders behind symlinks are not entered."""
    files = sorted((ROOT / folder).rglob("*.py"))
    return {p.relative_to(ROOT).as_posix(): p for p in files if p.resolve() == p}


def modules() -> dict[str, Path]:
    """Python files of the product by import name."""
    found: dict[str, Path] = {}
    for name, folder in FOLDERS.items():
        for path in sources(folder).values():
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join((name, *(p for p in parts if p != "__init__")))] = path
    return found

"""Reading and writing files: errors by name, and no partial output."""

from __future__ import annotations

import importlib.util
import linecache
import sys
import traceback
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import attngen
from attngen.ir.diagnostics import Error
from attngen.written import write

OWN = str(Path(attngen.__file__).parent)
MOST_FRAMES = 10
"""How much of a traceback is shown; an endless recursion has a thousand frames."""


def read_text(file: str) -> tuple[str, str]:
    """The text of a file, or of standard input for `-`, and the name that errors use for it."""
    try:
        if file != "-":
            return Path(file).read_text(encoding="utf-8"), file
        text = sys.stdin.buffer.read().decode("utf-8")
    except OSError as e:
        raise Error(f"cannot read {file}: {e.strerror}") from None
    except UnicodeDecodeError as e:
        raise Error(f"cannot read {file}: not UTF-8 text at byte {e.start}") from None
    # Errors show the line they are about.
    linecache.cache["<stdin>"] = (len(text), None, text.splitlines(keepends=True), "<stdin>")
    return text, "<stdin>"


def load_module(file: str) -> ModuleType:
    """A Python file as a module. What it raises is the user's own error and keeps its traceback, shown as theirs."""
    name = f"attngen_user_{Path(file).stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None or not Path(file).is_file():
        raise Error(f"cannot read {file}: {'it is no Python file (.py)' if Path(file).is_file() else 'no such file'}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Error:
        raise
    except SystemExit as e:
        raise Error(f"{file} ended the process (SystemExit: {e}); put what runs under if __name__ == '__main__':") from e
    except Exception as e:
        raise failed(file, e) from e
    return module


def failed(what: str, e: Exception) -> Error:
    """An exception of the user's own code, with the lines of theirs that led to it."""
    frames = [f for f in traceback.extract_tb(e.__traceback__) if not f.filename.startswith(("<frozen importlib", OWN))]
    shown = traceback.format_list(frames[-MOST_FRAMES:])
    return Error(f"{what} failed:\n{''.join(shown)}{type(e).__name__}: {e}")


def write_text(file: str, text: str) -> None:
    """To a file, or to standard output for `-`."""
    if file == "-":
        sys.stdout.write(text)
    else:
        write(file, lambda out: out.write(text.encode()))


def read_arrays(file: str) -> dict[str, np.ndarray]:
    """Every array of an .npz file."""
    try:
        loaded: Any = np.load(file, allow_pickle=False)
    except OSError as e:
        raise Error(f"--inputs {file}: {e.strerror or 'is no .npz file'}") from None
    except (ValueError, EOFError, zipfile.BadZipFile):
        raise Error(f"--inputs {file}: is no .npz file; write one with numpy.savez") from None
    if not hasattr(loaded, "files"):
        raise Error(f"--inputs {file}: holds one array without a name (.npy); write an .npz file with numpy.savez")
    arrays: dict[str, np.ndarray] = {}
    for name in loaded.files:
        try:
            found = loaded[name]
            if not isinstance(found, np.ndarray):
                raise ValueError("it is no array (.npy)")
            arrays[name] = found
        except Exception as e:  # zip, zlib and header errors have no common class
            raise Error(f"--inputs {file}: cannot read {name}: {e}") from None
    return arrays


def write_arrays(file: str, arrays: Mapping[str, np.ndarray]) -> None:
    save: Any = np.savez
    write(file, lambda out: save(out, **arrays))

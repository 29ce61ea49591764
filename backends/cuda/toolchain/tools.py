"""NVIDIA's programs: where they are, and how they are run. What they read and write are files in memory, so nothing is left
behind and no folder has to be writable."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO


def folders() -> list[str]:
    """Where programs are looked for, the one to prefer first: beside what pip installed, on the path, in an installation of
    CUDA."""
    package = find_spec("nvidia.cu13") if find_spec("nvidia") else None
    wheel = list(package.submodule_search_locations or ()) if package else []
    toolkit = [home for variable in ("CUDA_HOME", "CUDA_PATH") if (home := os.environ.get(variable))]
    path = filter(None, os.get_exec_path())
    return list(dict.fromkeys((*(str(Path(x, "bin")) for x in wheel), *path, *(str(Path(x, "bin")) for x in toolkit))))


def places(name: str) -> list[str]:
    """Where a program is, the one to prefer first."""
    return [found for folder in folders() if (found := shutil.which(name, path=folder))]


def memory_file(content: bytes = b"") -> BinaryIO:
    file = open(os.memfd_create("attngen"), "w+b")
    file.write(content)
    file.flush()
    return file


def path(file: BinaryIO) -> str:
    """Of a file in memory, as a program that `run` starts sees it."""
    return f"/proc/self/fd/{file.fileno()}"


def run(command: Sequence[str], *files: BinaryIO) -> subprocess.CompletedProcess[str]:
    """files: those in memory that the command names."""
    numbers = [file.fileno() for file in files]
    return subprocess.run(
        command,
        pass_fds=numbers,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )

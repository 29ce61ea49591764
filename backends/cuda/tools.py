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


def places(name: str) -> list[str]:
    """Where a program is, the one to prefer first: beside what pip installed, on the path, in an installation of CUDA."""
    package = find_spec("nvidia.cu13") if find_spec("nvidia") else None
    folders = list(package.submodule_search_locations or ()) if package else []
    wheel = [Path(folder, "bin", name) for folder in folders]
    toolkit = [Path(home, "bin", name) for variable in ("CUDA_HOME", "CUDA_PATH") if (home := os.environ.get(variable))]
    return list(dict.fromkeys(filter(None, map(shutil.which, map(str, [*wheel, name, *toolkit])))))


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

"""Object code by LLVM, and the C compiler that makes a shared library of it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llvmlite.binding as untyped  # pyright: ignore[reportMissingTypeStubs]

from attngen.backends.cpu.export.glue import glue
from attngen.backends.cpu.export.interface import Interface
from attngen.backends.cpu.machine_code import linked, loops_text
from attngen.backends.cpu.source import Program
from attngen.backends.cpu.target import Target, platform
from attngen.ir.diagnostics import Error

llvm: Any = untyped

LLVM = ".".join(map(str, llvm.llvm_version_info))
"""The version of what makes the code."""

FLAGS = ("-std=gnu99", "-O2", "-fPIC", "-fvisibility=hidden", "-shared")
LIBRARIES = ("-pthread", "-lm")


def module(program: Program, entry: str) -> tuple[Any, Any]:
    """LLVM's module with one function, which no library shows, and the code generator for it."""
    made, machine = linked(program, loops_text(program), entry)
    made.get_function(entry).visibility = "hidden"
    return made, machine


def object_code(program: Program, entry: str) -> bytes:
    made, machine = module(program, entry)
    return machine.emit_object(made)


def texts(program: Program, entry: str) -> dict[str, str]:
    """The same as LLVM's text and as assembly."""
    made, machine = module(program, entry)
    return {".ll": str(made), ".s": machine.emit_assembly(made)}


def shared_library(x: Interface, file: str, cc: str = "") -> bytes:
    """The kernel and the C around it, linked. file: the name that programs which are linked with it look for; cc: the C
    compiler and its flags, if empty that of `compiler`.

    Raises Error where there is no C compiler for the target, and with what it says where it fails.
    """
    target = x.versions[0].program.target
    command = shlex.split(cc) or compiler(target)
    if shutil.which(command[0]) is None:
        raise Error(f"there is no C compiler {command[0]!r} here, which links a .so; {install(command[0])}")
    with tempfile.TemporaryDirectory() as folder:
        names = ["glue.c", *(f"{entry}.o" for entry in x.entries)]
        Path(folder, names[0]).write_text(glue(x), encoding="utf-8")
        for version, entry in zip(x.versions, x.entries, strict=True):
            Path(folder, f"{entry}.o").write_bytes(object_code(version.program, entry))
        named = f"-Wl,-install_name,@rpath/{file}" if "darwin" in target.platform else f"-Wl,-soname,{file}"
        run([*command, *FLAGS, named, "-o", "library.so", *names, *LIBRARIES], folder)
        return Path(folder, "library.so").read_bytes()


def compiler(target: Target) -> list[str]:
    """The C compiler for a target: $CC or cc for machines such as this, else the one that Debian calls so."""
    here = platform(llvm.get_process_triple())
    if target.platform == here:
        return shlex.split(os.environ.get("CC", "")) or ["cc"]
    architecture, _, system = target.platform.partition(" ")
    if system == "linux":
        return [f"{architecture}-linux-gnu-gcc"]
    raise Error(f"a .so for {target.platform} cannot be linked on {here}; write .o, .c and .h files and link them there")


def install(command: str) -> str:
    package = "gcc libc6-dev" if command in ("cc", "gcc") else command.replace("_", "-").removesuffix("-gcc")
    package = package if package.startswith("gcc") else f"gcc-{package}"
    return f"install one (Debian and Ubuntu: apt-get install {package}), or write .o, .c and .h files and link them elsewhere"


def run(command: Sequence[str], folder: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()[:12]
        raise Error(f"{command[0]} failed with exit code {done.returncode}:\n" + "\n".join(lines))

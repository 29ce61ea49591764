"""Exporting a kernel, and calling it from C: a driver that reads arrays from files and writes the outputs back."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")


def needs(*tools: str) -> pytest.MarkDecorator:
    """Skip where a tool is missing. `.ci/run` installs them where it can."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    return pytest.mark.skipif(bool(missing), reason=f"hardware: {', '.join(missing)} not found")


def run(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def driver(name: str, inputs: Sequence[str], outputs: Sequence[str], threads: int) -> str:
    """A program that prints the code of the self test and of a call, in words."""
    read = "".join(f'    a.{x} = load("{x}.bin", COUNT(a.{x}_extents) * sizeof *a.{x});\n' for x in inputs)
    made = "".join(f"    a.{x} = calloc(COUNT(a.{x}_extents), sizeof *a.{x});\n" for x in outputs)
    kept = "".join(f'    save("{x}.bin", a.{x}, COUNT(a.{x}_extents) * sizeof *a.{x});\n' for x in outputs)
    return f"""#include <stdio.h>
#include <stdlib.h>
#include "{name}.h"
#define COUNT(x) count(x, sizeof(x) / sizeof *(x))

static size_t count(const int64_t *extents, size_t rank)
{{
    size_t product = 1;
    while (rank > 0) product *= (size_t)extents[--rank];
    return product;
}}

static void *load(const char *name, size_t bytes)
{{
    void *data = malloc(bytes);
    FILE *file = fopen(name, "rb");
    if (file == NULL || data == NULL || fread(data, 1, bytes, file) != bytes) exit(2);
    fclose(file);
    return data;
}}

static void save(const char *name, const void *data, size_t bytes)
{{
    FILE *file = fopen(name, "wb");
    if (file == NULL || fwrite(data, 1, bytes, file) != bytes) exit(3);
    fclose(file);
}}

int main(void)
{{
    {name}_args a;
    {name}_init(&a);
    a.threads = {threads};
{read}{made}    printf("%s; ", {name}_message({name}_selftest()));
    printf("%s", {name}_message({name}(&a)));
{kept}    return 0;
}}
"""


def call_from_c(
    folder: Path,
    name: str,
    inputs: Mapping[str, np.ndarray],
    outputs: Mapping[str, tuple[tuple[int, ...], Any]],
    *,
    build: Sequence[str],
    emulator: Sequence[str] = (),
    threads: int = 1,
) -> tuple[np.ndarray, ...]:
    """The outputs, computed by a C program. build: the compiler, its flags, and what is linked beside the driver."""
    (folder / "main.c").write_text(driver(name, list(inputs), list(outputs), threads))
    for x, array in inputs.items():
        array.tofile(folder / f"{x}.bin")
    compiler, *rest = build
    run([compiler, "-std=c99", *WARNINGS, "-o", "main", "main.c", *rest], folder)
    assert run([*emulator, "./main"], folder) == "no error; no error"
    return tuple(np.fromfile(folder / f"{x}.bin", dtype).reshape(shape) for x, (shape, dtype) in outputs.items())

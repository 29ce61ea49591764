"""`Kernel.export`: a kernel as files for programs without Python, by the suffix of the name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import PurePath
from typing import Any

import numpy as np

import attngen
from attngen import export_cuda
from attngen.backends import Executable, get_backend
from attngen.backends.cpu.build import Built as CpuBuilt
from attngen.backends.cpu.export import njit
from attngen.backends.cpu.export.glue import glue
from attngen.backends.cpu.export.header import FIELDS, FIELDS_BESIDE, header
from attngen.backends.cpu.export.interface import Array, Interface, Vector, Version, View, c_name
from attngen.backends.cpu.export.link import LLVM, object_code, shared_library, texts
from attngen.backends.cpu.export.loader import loader
from attngen.backends.cpu.export.vectors import random_array, take_samples
from attngen.backends.cpu.source import Program
from attngen.ir.diagnostics import Error
from attngen.ir.func import Func
from attngen.ir.interpreter import Interpreter
from attngen.ir.types import TensorType, UpTo, bound
from attngen.kernel import Built, Traced
from attngen.specs import array_dtype
from attngen.written import write

SUFFIXES = {
    ".so": "a shared library that C can call",
    ".h": "its header",
    ".py": "a module that calls the library lib<name>.so beside it, with NumPy alone",
    ".o": "object code; needs the .c file",
    ".c": "what goes around the object code: checks, threads, self test",
    ".ll": "the kernel as LLVM's text",
    ".s": "the kernel as assembly",
    **export_cuda.SUFFIXES,
}

INTERPRETED = 1 << 25
"""Elements of the largest value of a program that the interpreter computes the results of tests for."""


@dataclass(frozen=True)
class Compiled:
    """A kernel for one target."""

    target: str
    traced: Traced
    built: Built | None


def export(kernels: Sequence[Compiled], path: str | PathLike[str], *, name: str = "", cc: str = "") -> None:
    """Write one file. kernels: of one program, the best target first."""
    file = fspath(path)
    suffix = PurePath(file).suffix
    if suffix not in SUFFIXES:
        known = "; ".join(f"{s} is {what}" for s, what in SUFFIXES.items())
        raise Error(f"export: {file}: the suffix says what to write: {known}")
    if suffix in (".o", ".ll", ".s") and len(kernels) > 1:
        raise Error(f"export: {file}: several targets go into one .so; write a {suffix} file for one target")
    for kernel in kernels:
        export_cuda.check(file, kernel.target, len(kernels), name)
    if suffix in export_cuda.SUFFIXES:
        return export_cuda.export(file, kernels[0].target, kernels[0].traced, whole(kernels[0], "cuda"))
    made = interface(kernels, name, tested=suffix in (".so", ".c"))
    content = contents(made, PurePath(file), cc)
    write(file, lambda out: out.write(content if isinstance(content, bytes) else content.encode()))


def contents(x: Interface, path: PurePath, cc: str) -> str | bytes:
    program, entry = x.versions[0].program, x.entries[0]
    match path.suffix:
        case ".so":
            return shared_library(x, path.name, cc)
        case ".h":
            return header(x)
        case ".py":
            return loader(x, f"lib{path.stem}.so")
        case ".c":
            return glue(x)
        case ".o":
            return object_code(program, entry)
        case _:
            return texts(program, entry)[path.suffix]


def interface(kernels: Sequence[Compiled], name: str, tested: bool) -> Interface:
    """What C sees of the kernels. tested: with the results of tests, which cost a run of the program."""
    builts = [whole(kernel) for kernel in kernels]
    traced, built = kernels[0].traced, builts[0]
    versions = tuple(Version(k.target, program(k, b)) for k, b in zip(kernels, builts, strict=True))
    check_alike(kernels, versions)
    func = built.derived.func
    name = c_name(name or func.name)
    given = {**traced.inputs, **{n: (b.layout, b.type) for n, b in traced.captured.items()}}
    outputs = zip(traced.out_names, traced.func.out_layouts, traced.func.outputs, strict=True)
    arrays: list[Array] = []
    taken = list(FIELDS)
    for shown, layout, type, written in (
        *((n, layout, type, False) for n, (layout, type) in given.items()),
        *((n, layout, value.tensor, True) for n, layout, value in outputs),
    ):
        found = c_name(shown.replace("[", "").replace("]", ""), taken, FIELDS_BESIDE)
        taken += [found, *(f"{found}{ending}" for ending in FIELDS_BESIDE)]
        arrays.append(Array(found, layout, type, written))
    places = {n: k for k, n in enumerate(given)}
    views = [View(places[n], p.layout, v.tensor) for n, p, v in zip(built.sources, func.params, func.args, strict=True)]
    views += [
        View(len(given) + k, layout, v.tensor) for k, (layout, v) in enumerate(zip(func.out_layouts, func.outputs, strict=True))
    ]
    made = Interface(name, tuple(arrays), tuple(views), versions, (), 2, info(kernels))
    return with_vectors(made, list(given), traced, kernels[0], built) if tested else made


def whole(kernel: Compiled, backend: str = "cpu") -> Built:
    """What was built, if it is machine code of this backend."""
    if kernel.target.partition(":")[0] != backend:
        raise Error(
            f"export: a kernel for {kernel.target} has no machine code of the CPU; compile for target='cpu' or 'cpu:x86-64-v3'"
        )
    built = kernel.built
    if built is None or len(built.live) != len(kernel.traced.func.outputs):
        raise Error(f"export: @{kernel.traced.func.name} has an axis of extent 0, so there is no loop to export")
    return built


def program(kernel: Compiled, built: Built) -> Program:
    variant = kernel.target.partition(":")[2]
    return get_backend("cpu").emit(built.derived.result.func, variant).payload


def check_alike(kernels: Sequence[Compiled], versions: Sequence[Version]) -> None:
    first = versions[0]
    for kernel, version in zip(kernels, versions, strict=True):
        if str(kernel.traced.func) != str(kernels[0].traced.func):
            raise Error("export: the versions of a library must be kernels of one program for the same shapes")
        if version.program.target.platform != first.program.target.platform:
            platforms = f"{first.target} and {version.target}"
            raise Error(f"export: one library cannot hold code for {platforms}: they differ in more than instructions")
        if version.program.arguments != first.program.arguments:
            raise Error(f"export: {first.target} and {version.target} were compiled by different passes")
    if len({v.target for v in versions}) != len(versions):
        raise Error("export: two versions have the same target")


def info(kernels: Sequence[Compiled]) -> str:
    text = str(kernels[0].traced.func)
    return json.dumps(
        {
            "attngen": attngen.__version__,
            "llvm": LLVM,
            "function": text.partition("{")[0].strip(),
            "ir_sha256": hashlib.sha256(text.encode()).hexdigest(),
            "pipelines": {k.target: str(k.built.derived.result.pipeline) if k.built else "" for k in kernels},
        }
    )


def nopython(kernel: Compiled) -> Any:
    """The kernel as a function of Numba's."""
    executable = whole(kernel).executable
    assert isinstance(executable, CpuBuilt)
    if executable.function is None:
        raise Error(f"njit: a kernel for {kernel.target} cannot run here: {executable.elsewhere}")
    return njit.nopython(interface([kernel], "", tested=False), executable.function)


# ---- results to test by


def with_vectors(x: Interface, given: Sequence[str], traced: Traced, kernel: Compiled, built: Built) -> Interface:
    """The largest extents on one thread; then, where a call chooses extents, half of them, rows with gaps and two threads."""
    try:
        return vectors(x, given, traced, kernel, built, integers=2)
    except Error:
        # A table of one entry has no entry number 1.
        return vectors(x, given, traced, kernel, built, integers=1)


def vectors(x: Interface, given: Sequence[str], traced: Traced, kernel: Compiled, built: Built, integers: int) -> Interface:
    made: list[Vector] = []
    for seed, gap, threads, part in ((1, 0, 1, 1), (2, 3, 2, 2)):
        sizes = {n: -(-e.bound // part) if isinstance(e, UpTo) else e for n, e in x.axes.items()}
        arrays = {
            n: random_array(seed, k, shape(x.arrays[k], sizes), array_dtype(x.arrays[k].type.element), integers)
            for k, n in enumerate(given)
        }
        results = right_results(arrays, traced, kernel, built, [shape(a, sizes) for a in x.arrays[len(given) :]])
        samples = [
            take_samples(len(given) + k, result, x.arrays[len(given) + k].type.element) for k, result in enumerate(results)
        ]
        made.append(Vector(seed, sizes, gap, threads, tuple(s for some in samples for s in some)))
    return Interface(x.name, x.arrays, x.views, x.versions, tuple(made), integers, x.info)


def shape(array: Array, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(int(np.prod([sizes[n] for n in group])) for group in array.layout.groups)


def right_results(
    arrays: Mapping[str, np.ndarray], traced: Traced, kernel: Compiled, built: Built, shapes: Sequence[tuple[int, ...]]
) -> Sequence[np.ndarray]:
    """By the interpreter in float64; where the program's values are too large for that, by the kernel compiled for this
    machine."""
    if largest_value(traced.func) <= INTERPRETED:
        return Interpreter(wide=True).run(traced.func, *(arrays[n] for n in traced.sources))
    outputs = [np.empty(s, array_dtype(v.element)) for s, v in zip(shapes, traced.func.outputs, strict=True)]
    host_executable(kernel, built)([arrays[n] for n in built.sources], outputs)
    return outputs


def host_executable(kernel: Compiled, built: Built) -> Executable:
    if kernel.target == "cpu":
        return built.executable
    backend = get_backend("cpu")
    return backend.build(backend.emit(built.derived.result.func, ""))


def largest_value(func: Func) -> int:
    types = (v.type for op in func.walk() for v in op.results)
    return max((int(np.prod([bound(e) for _, e in t.axes])) for t in types if isinstance(t, TensorType)), default=0)

"""Kernels for NVIDIA GPUs as files: `.ptx` is text that a driver translates for its GPU, `.cubin` machine code.

Beside each, `FILE.json` says how to launch it, and under `help` what its words mean. Where there are tensor maps, `requires`
says what arrays have to be like. What attngen itself runs has a second version for all others; a file has not.
"""

from __future__ import annotations

import json
from pathlib import PurePath
from typing import Any

import attngen
from attngen.backends.cuda.build import Built as CudaBuilt
from attngen.backends.cuda.program import Map, Program
from attngen.backends.cuda.toolchain import facts
from attngen.backends.cuda.toolchain.assembler import cubin
from attngen.backends.cuda.toolchain.compiler import module
from attngen.ir.diagnostics import Error
from attngen.kernel import Built, Traced
from attngen.written import write

SUFFIXES = {
    ".ptx": "a kernel for NVIDIA GPUs as PTX, and .ptx.json, which says how to launch it",
    ".cubin": "a kernel for one architecture of NVIDIA GPUs as machine code, and .cubin.json, which says how to launch it",
}


HELP = {
    "kernels": "launched in their order",
    "grid": "one-dimensional: as many blocks along x as there are parts, that is the product over these axes of extent / step, "
    "rounded up; the last axis varies fastest",
    "threads": "of a block, along x",
    "most_blocks": "if not 0, launch at most so many blocks: each then works on several parts",
    "shared_bytes": "dynamic shared memory of a block; beyond 48 KB a kernel has to be allowed it",
    "extent": "in a list, the largest value of a runtime extent",
    "dimensions": "of an array, the axes in each; several are in row-major order within it",
    "temporary": "memory for this call, dense in the order of its axes; need not be cleared",
    "element": "i1 is one byte",
    "address": "where an array begins, u64; arrays are numbered from 0 as in `arrays`",
    "stride": "bytes from one element to the next along an axis, i64",
    "length": "a runtime extent, i32",
    "workspace": "where `bytes` bytes for each block begin, u64; need not be cleared",
    "copyable": "1 where `axis` is dense, and the address, its bytes and all other strides are multiples of 16 bytes; "
    "else 0; i32",
    "map": "a tensor map by value, 128 bytes: `axes` the innermost first; `box` elements of each, in the same order; "
    "`swizzle` in bytes; no interleaving, zeros outside; the array has to be copyable along the first axis, with no other "
    "stride 0 or less",
}
"""Of the words in a file, in JSON."""


def export(file: str, target: str, traced: Traced, built: Built) -> None:
    """Write the kernel and what says how to launch it."""
    executable = built.executable
    assert isinstance(executable, CudaBuilt)
    kernels = executable.kernels
    text = module(kernels.ptx)
    if PurePath(file).suffix == ".ptx":
        code = text.encode()
    else:
        # What is interpreted has no machine code so far.
        code = kernels.cubin or cubin(kernels.ptx, kernels.program.target)
    about = {
        "attngen": attngen.__version__,
        "target": target,
        "function": str(traced.func).partition("{")[0].strip(),
        "stride_unit": "bytes",
        **requires(kernels.program, built.sources),
        **described(kernels.program, built.sources, [traced.out_names[k] for k in built.live]),
        "help": HELP,
    }
    write(file, lambda out: out.write(code))
    write(f"{file}.json", lambda out: out.write(shown(about).encode()))


def requires(program: Program, inputs: tuple[str, ...]) -> dict[str, str]:
    """What tensor maps ask of arrays. inputs: their names."""
    maps = {p.array: p.axes[0] for entry in program.entries for p in entry.parameters if isinstance(p, Map)}
    if not maps:
        return {}
    arrays = ", ".join(f"{inputs[n] if n < len(inputs) else f'array {n}'} along {axis}" for n, axis in sorted(maps.items()))
    said = f"arrays without gaps along one axis ({arrays}), whose address, bytes there and other strides are multiples of 16, "
    return {"requires": said + "strides above 0; for others, make a file for a target without tensor maps, such as cuda:sm_90"}


def described(program: Program, inputs: tuple[str, ...], outputs: list[str]) -> dict[str, Any]:
    """The arrays of a program by number, and its kernels. inputs, outputs: their names."""
    func, written = program.func, facts.written(program)
    layouts = [*(p.layout for p in func.params), *func.out_layouts]
    named = [*(("input", name) for name in inputs), *(("output", name) for name in outputs)]
    arrays: list[dict[str, Any]] = [
        {"name": name, "role": role, **facts.written_tensor(tensor), "dimensions": [list(group) for group in layout.groups]}
        for (role, name), layout, tensor in zip(named, layouts, program.arrays, strict=False)
    ]
    arrays += [{"name": "", "role": "temporary", **tensor} for tensor in written["temporaries"]]
    return {"arrays": arrays, "kernels": written["entries"]}


def shown(about: dict[str, Any]) -> str:
    """JSON with a line for each array, each kernel, and each word that is explained."""

    def line(value: Any) -> str:
        if value is HELP:
            return json.dumps(value, indent=1).replace("\n", "\n ")
        return "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]" if isinstance(value, list) else json.dumps(value)  # pyright: ignore[reportUnknownArgumentType]

    return "{\n" + ",\n".join(f" {json.dumps(key)}: {line(value)}" for key, value in about.items()) + "\n}\n"


def check(file: str, target: str, count: int, name: str = "") -> None:
    """That this file can hold kernels for this target. count: how many targets there are; name: asked for, of a function."""
    suffix, backend = PurePath(file).suffix, target.partition(":")[0]
    if (suffix in SUFFIXES) != (backend == "cuda"):
        known = " or ".join(SUFFIXES)
        wanted = f"write a {known} file" if backend == "cuda" else "compile for a GPU, such as target='cuda:sm_90a'"
        raise Error(f"export: {file}: a {suffix} file cannot hold a kernel for {target}; {wanted}")
    if suffix in SUFFIXES and count > 1:
        raise Error(f"export: {file}: {suffix} is for one target, {count} are given; write a file for each")
    if suffix in SUFFIXES and name:
        raise Error(
            f"export: {file}: name={name!r} is for functions in C; kernels are named after the program, as {file}.json says"
        )

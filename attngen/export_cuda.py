"""Kernels for NVIDIA GPUs as files: `.ptx` is text that a driver translates for its GPU, `.cubin` machine code.

Beside each, `FILE.json` says how to launch it. `kernels` are launched in their order, each with `threads` threads (along x) in
as many blocks (along x) as its `grid` has parts, that is the product of extent / step, rounded up, over its axes; at most
`most_blocks`, if that is not 0. An extent in a list is a runtime extent and its largest value. `shared_bytes` is dynamic shared
memory; beyond 48 KB a kernel has to be allowed it. `parameters` are, by their `kind`:

- address: where an array begins, u64. Arrays are numbered as in `arrays`; those that are temporary are memory for this call,
  dense in the order of their axes. A boolean is one byte.
- stride: bytes from one element to the next along an axis, i64. Axes that share a dimension are in row-major order within it.
- length: a runtime extent, i32.
- workspace: where `bytes` bytes for each block begin, u64; not cleared.
- copyable: 1 where `axis` is dense, and the address, its bytes and all other strides are multiples of 16 bytes; else 0; i32.
- map: a tensor map by value, 128 bytes: `axes` the innermost first, `box` elements of each, `swizzle` bytes, no interleaving,
  zeros outside. The array has to be copyable along the first axis, and no other stride may be 0 or negative.

Where there are maps, `requires` says in words which arrays have to be like that. What attngen itself runs has a second version
for all others; a file has not.
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
        **requires(kernels.program, built.sources),
        **described(kernels.program, built.sources, [traced.out_names[k] for k in built.live]),
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
    """JSON with a line for each array and each kernel."""

    def line(value: Any) -> str:
        return "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]" if isinstance(value, list) else json.dumps(value)  # pyright: ignore[reportUnknownArgumentType]

    return "{\n" + ",\n".join(f" {json.dumps(key)}: {line(value)}" for key, value in about.items()) + "\n}\n"


def check(file: str, target: str, count: int) -> None:
    """That this file can hold kernels for this target. count: how many targets there are."""
    suffix, backend = PurePath(file).suffix, target.partition(":")[0]
    if (suffix in SUFFIXES) != (backend == "cuda"):
        known = " or ".join(SUFFIXES)
        wanted = f"write a {known} file" if backend == "cuda" else "compile for a GPU, such as target='cuda:sm_90a'"
        raise Error(f"export: {file}: a {suffix} file cannot hold a kernel for {target}; {wanted}")
    if suffix in SUFFIXES and count > 1:
        raise Error(f"export: {file}: {suffix} is for one target, {count} are given; write a file for each")

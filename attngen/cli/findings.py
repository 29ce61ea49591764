"""What `attngen doctor` looks for. Nothing here needs what it looks for to be there."""

from __future__ import annotations

import ctypes
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attngen
from attngen.cache import FOLDER, SIZE
from attngen.cache_state import State, cache_state
from attngen.cli.cache import show_bytes
from attngen.ir.diagnostics import Error, IRError
from attngen.thread_count import VARIABLE, get_num_threads

NEEDED = ("numpy", "numba", "llvmlite", "networkx", "click", "rich", "platformdirs")

EXTRAS = {
    "ml_dtypes": "bfloat16 in NumPy arrays",
    "torch": "PyTorch's tensors, and FlexAttention's score_mod and mask_mod",
    "jax": "JAX as a peer in attngen bench",
    "onnx": "the examples of ONNX's Attention",
    "matplotlib": "plots of attngen bench",
}
"""Packages that some uses need, and which."""

OTHER = "aarch64" if platform.machine() == "x86_64" else "x86_64"
CC = (shlex.split(os.environ.get("CC", "")) or ["cc"])[0]

TOOLS = {
    CC: ("gcc libc6-dev", "exporting kernels as shared libraries"),
    "ld": ("binutils", "the same"),
    f"{OTHER}-linux-gnu-gcc": (f"gcc-{OTHER.replace('_', '-')}-linux-gnu", f"exporting shared libraries for {OTHER}"),
    f"qemu-{OTHER}": ("qemu-user", f"running what was exported for {OTHER} here"),
}
"""Programs, the package of Debian that has each, and what needs it."""

FEATURES = (
    *("sse4.2", "avx2", "fma", "f16c", "avx512f", "avx512vl", "avx512dq", "avx512bf16", "avx512fp16", "amx-tile"),
    *("neon", "fullfp16", "bf16", "sve"),
)
"""Of the processor's features those that code for attention gains from."""


@dataclass(frozen=True)
class Missing:
    """why: what is wrong, or which use needs it; command: what to type; required: no kernel can be compiled without it."""

    what: str
    why: str
    command: str
    required: bool = False


@dataclass(frozen=True)
class Findings:
    """Lines by section, and what is missing."""

    sections: Mapping[str, Mapping[str, str]]
    missing: tuple[Missing, ...]

    def json(self) -> Mapping[str, Any]:
        return {**self.sections, "missing": [asdict(m) for m in self.missing]}


def find_all() -> Findings:
    missing: list[Missing] = []
    sections = {
        "versions": versions(missing),
        "processor": processor(missing),
        "cache": cache(missing),
        "threads": threads(missing),
        "tools": tools(missing),
        "gpu": gpu(missing),
    }
    return Findings(sections, tuple(sorted(missing, key=lambda m: not m.required)))


def versions(missing: list[Missing]) -> dict[str, str]:
    rows = {
        "attngen": f"{attngen.__version__} in {Path(attngen.__path__[0])}",
        "Python": f"{platform.python_version()}, {sys.executable}",
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}, {' '.join(platform.libc_ver())}",
    }
    for name in (*NEEDED, *EXTRAS):
        required = name in NEEDED
        try:
            rows[name] = metadata.version(name)
            if required:
                import_module(name)
        except metadata.PackageNotFoundError:
            rows[name] = "not installed"
            missing.append(Missing(name, f"for {EXTRAS.get(name, 'every kernel')}", pip(name), required))
        except Exception as e:  # whatever a broken installation raises
            rows[name] += ", which cannot be imported"
            missing.append(Missing(name, f"import {name}: {type(e).__name__}: {e}", pip(f"--force-reinstall {name}"), required))
    return rows


def processor(missing: list[Missing]) -> dict[str, str]:
    try:
        kept, target = (import_module(f"attngen.backends.cpu.{name}") for name in ("kept", "target"))
        here, found = kept.host(), target.host()
    except Exception as e:
        missing.append(Missing("LLVM", f"{type(e).__name__}: {e}", pip("--force-reinstall llvmlite"), required=True))
        return {"target": "unknown: LLVM cannot be loaded"}
    has = {name[1:] for name in here["features"].split(",") if name.startswith("+")}
    return {
        "target": f"cpu: {here['processor']}, {here['triple']}",
        "vectors": f"{found.vector_registers} registers of {found.vector_bits} bits",
        "features": " ".join(name for name in FEATURES if name in has) or "none of those that matter here",
        "LLVM": here["LLVM"],
    }


def cache(missing: list[Missing]) -> dict[str, str]:
    try:
        state = cache_state()
    except Error as e:
        missing.append(Missing("cache", str(e), f"unset {SIZE}"))
        return {"state": f"not usable: {e}"}
    origin = f"from {FOLDER}" if os.environ.get(FOLDER) else f"{FOLDER} chooses another"
    rows = {"folder": f"{state.folder} ({origin})"}
    if state.usable:
        rows["state"] = f"kernels are kept: {show(state)}"
    else:
        rows["state"] = f"kernels are not kept: {state.problem}"
        missing.append(Missing("cache", f"each process compiles every kernel again: {state.problem}", state.advice))
    return rows


def show(state: State) -> str:
    return (
        f"{state.files} files, {show_bytes(state.size)} of at most {show_bytes(state.limit)}; "
        f"{show_bytes(state.free)} free on the device"
    )


def threads(missing: list[Missing]) -> dict[str, str]:
    """How many, and each setting that has a say."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        number = get_num_threads()
        by = VARIABLE if os.environ.get(VARIABLE) else "the affinity" if number == allowed else "OMP_NUM_THREADS"
        used = f"at most {number}, from {by}; set_num_threads and num_threads= come before that"
    except Error as e:
        used = f"none can be chosen: {e}"
        missing.append(Missing("threads", str(e), f"unset {VARIABLE}", required=True))
    return {
        "used": used,
        VARIABLE: os.environ.get(VARIABLE, "not set; if it is, it decides"),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "not set"),
        "affinity": f"{allowed} of {os.cpu_count()} processors may be used",
        "torch": "counts, where the program has imported it" if find_spec("torch") else "not installed",
    }


def tools(missing: list[Missing]) -> dict[str, str]:
    rows: dict[str, str] = {}
    for name, (package, use) in TOOLS.items():
        path = shutil.which(name)
        rows[name] = f"{path}, {first_line(path)}" if path else "not found"
        if not path:
            missing.append(Missing(name, f"for {use}", system_package(package)))
    return rows


def first_line(path: str) -> str:
    """What a program says of its version."""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as e:
        return f"cannot be run: {e}"
    return (done.stdout or done.stderr).partition("\n")[0].strip()


def gpu(missing: list[Missing]) -> dict[str, str]:
    """What compiles for NVIDIA GPUs, which needs none, and what runs there."""
    names = (
        *("toolchain.assembler", "runtime.device", "runtime.driver", "toolchain.kept", "toolchain.reports", "target"),
        *("toolchain.compiler", "toolchain.tools"),
    )
    modules = (import_module(f"attngen.backends.cuda.{name}") for name in names)
    assembler, device, driver, kept, reports, target, toolchain, programs = modules
    rows = {package: version for package, version in kept.versions().items() if "cuda" in package or "nvidia" in package}
    try:
        toolchain.numba_cuda()
        rows["targets"] = f"cuda:{', '.join(target.KNOWN)}"
        rows["ptxas"] = assembler.ptxas()
    except IRError as e:
        rows.setdefault("targets", "none")
        rows["ptxas"] = "not found"
        missing.append(Missing("CUDA", e.message, e.help.replace("pip install ", pip(""))))
    try:
        rows["nvdisasm"] = reports.disassembler()
    except Error:
        rows["nvdisasm"] = "not found"
        missing.append(Missing("nvdisasm", "for the stage sass of kernels for GPUs", pip(reports.PACKAGE)))
    rows["searched"] = "\n".join(programs.folders())
    kernel_module = Path("/proc/driver/nvidia/version")
    rows["kernel module"] = kernel_module.read_text().partition("\n")[0] if kernel_module.exists() else "none of NVIDIA"
    try:
        found = driver.driver()
        version: int = found.made("cuDriverGetVersion", ctypes.c_int)
        rows["driver"] = f"of CUDA {version // 1000}.{version % 1000 // 10}"
        for ordinal in range(found.made("cuDeviceGetCount", ctypes.c_int)):
            x = device.device(ordinal)
            rows[f"GPU {ordinal}"] = (
                f"{x}, {x.multiprocessors} multiprocessors, {x.shared_bytes >> 10} KB of shared memory for a block"
            )
    except Error as e:
        rows["driver"] = f"not usable: {e.message if isinstance(e, IRError) else e}"
    return rows


def pip(what: str) -> str:
    return f"{sys.executable} -m pip install {what}"


def system_package(name: str) -> str:
    """The command of this system; package names are those of Debian."""
    prefix = "" if os.geteuid() == 0 else "sudo "
    if shutil.which("apt-get"):
        return f"{prefix}apt-get install {name}"
    return f"install the package that Debian calls {name}"

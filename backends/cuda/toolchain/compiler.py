"""From Numba source to PTX, which needs no GPU and no driver."""

from __future__ import annotations

import hashlib
import linecache
import os
import re
import threading
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from attngen.backends import Unsupported
from attngen.backends.cuda.program import Address, Copyable, Entry, Length, Map, Parameter, Stride, Workspace
from attngen.backends.cuda.runtime.map_parameters import maps_by_value
from attngen.backends.cuda.target import Target

INSTALL = "pip install 'attngen[cuda]'"
SIMULATOR = "NUMBA_ENABLE_CUDASIM"
LOCK = threading.RLock()

TYPES: dict[type[Parameter], str] = {
    **dict.fromkeys((Address, Workspace, Map), "uint64"),
    Stride: "int64",
    **dict.fromkeys((Length, Copyable), "int32"),
}
"""What Numba calls the type of each parameter."""


def ptx(entry: Entry, target: Target) -> str:
    """A kernel as PTX, by Numba and NVVM. The same entry and versions give the same text; the kernel has the entry's name."""
    cuda = numba_cuda()
    function = defined(entry)
    signature = tuple(getattr(cuda.types, TYPES[type(p)]) for p in entry.parameters)
    least = entry.least_blocks_per_multiprocessor
    with quiet():
        text, _ = cuda.compile_ptx(
            function,
            signature,
            cc=(*target.capability, target.suffix) if target.suffix else target.capability,
            device=False,
            # Said here, since Numba's environment variables would decide otherwise.
            debug=False,
            opt=True,
            fastmath=False,
            launch_bounds=(entry.threads, least) if least else (entry.threads,),
        )
    return maps_by_value(readable(text, entry.name), entry)


def defined(entry: Entry) -> Callable[..., Any]:
    """The function of the entry's text. With the text in linecache, a traceback through it shows its lines."""
    digest = hashlib.sha256(entry.text.encode()).hexdigest()[:12]
    file = f"<attngen {entry.name} {digest}>"
    linecache.cache[file] = (len(entry.text), None, entry.text.splitlines(keepends=True), file)
    scope: dict[str, Any] = dict(entry.namespace())
    assert entry.name not in scope, f"{entry.name} is a function that kernels call"
    exec(compile(entry.text, file, "exec"), scope)
    return scope[entry.name]


def readable(text: str, name: str) -> str:
    """PTX with short names in place of Numba's, which hold hashes and count what the process has compiled.

    Names of variables begin with that of the kernel, so that several kernels can be linked.
    """
    found = re.search(r"\.entry\s+([\w$]+)", text)
    assert found is not None, "Numba made no kernel"
    mangled = found[1]
    # Numba's record of a function's globals, which no kernel reads.
    text = re.sub(rf"^\.common \.global .*NumbaEnv{re.escape(mangled[3:])};\n", "", text, flags=re.MULTILINE)
    text = text.replace(mangled, name)
    shared = dict.fromkeys(re.findall(r"\b_cudapy_smem_\d+\b", text))
    new = {old: f"{name}_shared_{number}" for number, old in enumerate(shared)}
    return re.sub(r"\b_cudapy_smem_\d+\b", lambda old: new[old[0]], text)


def module(texts: Sequence[str]) -> str:
    """One PTX module of several for the same target, whose kernels have names of their own."""
    first, *others = texts
    # The head of a module ends with the size of addresses.
    return "\n".join((first, *(re.split(r"^\.address_size .*\n", text, flags=re.MULTILINE)[1] for text in others)))


# ---- what has to be installed


@cache
def numba_cuda() -> Any:
    """The module `numba.cuda` of the package numba-cuda. Numba's own does not know later architectures, and says nothing."""
    if os.environ.get(SIMULATOR, "0") not in ("", "0"):
        raise Unsupported("backend cuda", f"{SIMULATOR} is set, so Numba runs kernels in Python", help=f"unset {SIMULATOR}")
    if find_spec("numba_cuda") is None:
        raise missing("numba-cuda is not installed")
    with installed(), quiet():
        import_module("cuda.bindings")
        module = import_module("numba.cuda")
        for library in ("nvvm", "nvrtc"):
            import_module("cuda.pathfinder").load_nvidia_dynamic_lib(library)
    if getattr(module, "implementation", "") != "NVIDIA":
        raise missing("numba-cuda is there, but `import numba.cuda` finds Numba's own module: pip did not install it")
    return module


@contextmanager
def installed() -> Generator[None]:
    """Inside of it, a package or a library that is not there is an error that says how to install it."""
    try:
        yield
    except Exception as e:  # also whatever packages that do not fit together raise
        # The rest is where NVIDIA's packages have looked.
        raise missing(f"{type(e).__name__}: {str(e).partition(': No such file')[0]}") from e


def missing(what: str) -> Unsupported:
    return Unsupported("backend cuda", f"kernels for NVIDIA GPUs cannot be compiled: {what}", help=INSTALL)


@contextmanager
def quiet() -> Generator[None]:
    """Numba and NVVM warn of what the user can do nothing about. One thread at a time: filters belong to the process, and Numba
    compiles one function at a time anyway."""
    with LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield

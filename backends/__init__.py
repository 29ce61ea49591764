"""attngen.backends: from loop-level IR to something that runs.

A backend is a folder here, or a package that announces itself under the entry point `attngen.backends`; its module has a
`backend` that satisfies `Backend`. Copy `numpy/` to start one.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from attngen.ir.diagnostics import Error, IRError
from attngen.ir.func import Func

if __name__ != "attngen.backends":
    raise ImportError("import attngen.backends: a second copy named backends would have classes of its own")


class Unsupported(IRError):
    """A backend cannot do something. There is no fallback: the message names the op, its line and what would work."""


@dataclass(frozen=True)
class Emitted:
    """A function as a backend's text: stage name (e.g. `python`) -> text, plus whatever `build` needs besides."""

    func: Func
    target: str
    text: Mapping[str, str]
    payload: Any = None


def one() -> int:
    return 1


class Executable(Protocol):
    """A built function.

    Call it with the positional arrays the function's parameters describe, and with one array per output to write into.
    Shapes and element types have been checked by the caller, strides may be anything. threads: how many threads may work at
    once, asked only where there is enough to do for several.
    """

    scratch_bytes: int
    """Working memory of one thread."""
    temporary_bytes: int
    """Whole tensors that one nest of loops stores for a later one."""
    seconds: Mapping[str, float]
    """What building took, by tool."""

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], threads: Callable[[], int] = one) -> None: ...

    def direct(self, places: Sequence[int], dtypes: Sequence[Any]) -> Callable[..., Any] | None:
        """A shorter way to call it, if there is one: with the arguments of `__call__` given by position in another order, the
        output last. It returns that, or None for arrays that it leaves to `__call__` and its checks. places: which argument
        each parameter and output is; dtypes: theirs."""
        ...

    def stages(self) -> Mapping[str, str]:
        """Text that exists only once built, e.g. `llvm` and `asm`; made when asked for."""
        ...


class Backend(Protocol):
    """Three steps: passes of its own (run and checked like all others), text, something callable."""

    name: str

    def targets(self) -> Mapping[str, str]:
        """The names after the colon in `cpu:x86-64-v3`, and what each means. The empty name is this machine."""
        ...

    def passes(self, target: str) -> str:
        """The pipeline that follows the common one, as text; may be empty."""
        ...

    def emit(self, func: Func, target: str) -> Emitted: ...

    def build(self, emitted: Emitted) -> Executable: ...


@dataclass(frozen=True)
class Saved:
    """What is left of an executable on disk: object code, and all else that calls need, as JSON can hold it."""

    code: bytes
    facts: Mapping[str, Any]


@runtime_checkable
class KeepsCode(Protocol):
    """What a backend has besides, if its executables can be kept on disk. (One that lacks this builds them each time.)"""

    def fingerprint(self, target: str) -> Mapping[str, str]:
        """All that code depends on besides the function, the passes and the sources of attngen: what is known of the
        processor, versions of the libraries that make the code."""
        ...

    def save(self, executable: Executable) -> Saved:
        """What `restore` needs to make an executable that `build` made."""
        ...

    def restore(self, func: Func, target: str, saved: Saved, emit: Callable[[], Emitted]) -> Executable:
        """The executable again. func: any function of the same signature; emit: the text, made when it is asked for.
        Raises LookupError, TypeError or ValueError if the facts are not what `save` makes."""
        ...


class Arrays(Protocol):
    """How the arrays of a call are read and made. What stands for one has the attributes of a NumPy array that say what it is:
    dtype, shape, ndim, size, itemsize, strides (in bytes)."""

    def read(self, name: str, x: Any) -> Any:
        """What stands for an array that a user has given. Raises Error for all that kernels of the target cannot read."""
        ...

    def small(self, x: Any) -> Any:
        """A few numbers that the user has given in whatever form, as something that NumPy reads."""
        ...

    def overlap(self, a: Any, b: Any) -> bool:
        """Whether they may have a byte in common."""
        ...

    def writeable(self, x: Any) -> bool: ...

    def empty(self, shape: tuple[int, ...], dtype: Any, like: Sequence[Any]) -> Any:
        """A new one, made by the library that the first of the inputs `like` came from."""
        ...

    def result(self, x: Any) -> Any:
        """The array of that library, for whoever called."""
        ...

    def upload(self, values: Any, like: Sequence[Any]) -> Any:
        """A NumPy array, where the inputs `like` are; if there are none, where kernels run that nobody says more about."""
        ...

    def download(self, x: Any) -> Any:
        """As a NumPy array."""
        ...

    def fill(self, x: Any, values: Any) -> None:
        """Write the elements of a NumPy array to it."""
        ...

    def wait(self, arrays: Sequence[Any]) -> None:
        """Until all is done that was asked for where these arrays are."""
        ...


@runtime_checkable
class OwnArrays(Protocol):
    """What a backend has besides, if its kernels take other arrays than NumPy's."""

    def arrays(self, target: str) -> Arrays | None:
        """Those that kernels for the target take; None for NumPy's."""
        ...


@runtime_checkable
class Parallel(Protocol):
    """What a backend has besides, if it does not work with as many threads as `attngen.get_num_threads` says."""

    def parallelism(self, target: str, rows: int) -> tuple[int, int]:
        """How many rows are about one part of a nest of loops, and how many parts run at the same time. rows: there are."""
        ...


@runtime_checkable
class Launches(Protocol):
    """What an executable has besides, if it is kernels for a device."""

    emulated: bool
    """Whether an interpreter runs them: then the time of a call says nothing about a device."""

    def launches(self) -> Sequence[str]:
        """What each is launched with and made of, in words."""
        ...


@runtime_checkable
class Tiles(Protocol):
    """What a backend has besides, if it cuts axes in its own way."""

    def tiling(self, target: str) -> str:
        """The pass that stands for every `tile` without options."""
        ...


def built_in() -> set[str]:
    """The backends here. A folder without build.py holds tools, and is no backend."""
    return {
        m.name
        for m in pkgutil.iter_modules(__path__)
        if m.ispkg and any(Path(p, m.name, "build.py").exists() for p in __path__)
    }


def installed() -> Mapping[str, Any]:
    """Entry points of other packages, by the names of their backends. Asking takes some milliseconds."""
    return {e.name: e for e in importlib.import_module("importlib.metadata").entry_points(group="attngen.backends")}


def backend_names() -> list[str]:
    """Every backend, built in or installed."""
    return sorted(built_in() | set(installed()))


def get_backend(name: str) -> Backend:
    """The backend of a target: `cpu` for `cpu:x86-64-v3`. What is built in comes first."""
    if name in built_in():
        return importlib.import_module(f"attngen.backends.{name}").backend
    others = installed()
    if name not in others:
        raise Error(f"there is no backend {name!r}; known: {', '.join(backend_names())}")
    return others[name].load()

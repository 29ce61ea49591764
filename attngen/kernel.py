"""A compiled program: something to call, and everything that can be asked about how it came to be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from attngen.arrays import HOST, Array, ArrayType, check_out
from attngen.backends import Arrays, Executable, Launches
from attngen.derived import Derived
from attngen.ir.diagnostics import Error, Remark
from attngen.ir.func import Func
from attngen.ir.interpreter import run
from attngen.ir.types import Layout, TensorType
from attngen.names import suggest
from attngen.thread_count import get_num_threads, read_count


@dataclass(frozen=True, eq=False)
class Bound:
    """An array that the program captured: a parameter that each call binds to it."""

    layout: Layout
    type: TensorType
    array: Any


@dataclass(frozen=True, eq=False)
class Traced:
    """A program as a function of the IR. sources: which input each parameter reads (an input may be read twice); inputs:
    layout and type by name; several: whether a tuple of outputs is returned; captured: arrays that are no inputs, by name."""

    func: Func
    sources: tuple[str, ...]
    inputs: Mapping[str, tuple[Layout, TensorType]]
    out_names: tuple[str, ...]
    several: bool
    captured: Mapping[str, Bound] = field(default_factory=dict[str, Bound])


if TYPE_CHECKING:
    from attngen.report import Report

OFTEN = 16
"""Calls after which a shorter way to call a kernel pays for itself."""

NO_LOOPS = Remark("compile", "an axis has extent 0, so no loops were made")


@dataclass(frozen=True, eq=False)
class Built:
    """What a backend made. live: which outputs of the traced function it computes (the others are empty); sources: which
    input each parameter reads; seconds: what making it took, by step; origin: whether it was compiled or kept, in words."""

    derived: Derived
    executable: Executable
    live: tuple[int, ...]
    sources: tuple[str, ...]
    seconds: Mapping[str, float]
    origin: str


class Stages(Mapping[str, str]):
    """Stage name -> text, in order: input, each pass, the backend's texts. All are made when they are asked for, and those
    that only a built kernel has when one of them is."""

    def __init__(self, traced: Func, built: Built | None) -> None:
        self._traced, self._built = traced, built

    @cached_property
    def _funcs(self) -> Mapping[str, Func]:
        return self._built.derived.result.stages if self._built else {"input": self._traced}

    @cached_property
    def _late(self) -> Mapping[str, str]:
        return self._built.executable.stages() if self._built else {}

    def __getitem__(self, name: str) -> str:
        if name in self._funcs:
            return str(self._funcs[name])
        if self._built is not None and name in self._built.derived.emitted.text:
            return self._built.derived.emitted.text[name]
        late = self._late
        if name in late:
            return late[name]
        raise KeyError(f"{name!r}; the stages are {', '.join(self)}")

    def __iter__(self) -> Iterator[str]:
        early = dict.fromkeys((*self._funcs, *(self._built.derived.emitted.text if self._built else ())))
        return iter(dict.fromkeys((*early, *self._late)))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Kernel:
    """Call it with the program's arrays, by position or by name; `out=` is written in place and returned.

    func: the final function. stages: every stage as text. pipeline: the passes with the options they ran with. remarks: what
    they did or declined, and why. (Of a kernel that was kept on disk, these are made when they are asked for.) seconds: what
    making it took, by step. origin: whether it was compiled or kept.
    """

    def __init__(
        self,
        program: Callable[..., Any],
        traced: Traced,
        built: Built | None,
        *,
        target: str,
        arrays: Arrays = HOST,
    ) -> None:
        """arrays: what kernels for the target take and make."""
        self.program, self.target = program, target
        self._own = arrays
        self.stages: Mapping[str, str] = Stages(traced.func, built)
        self.seconds: Mapping[str, float] = built.seconds if built else {}
        self.origin = built.origin if built else "not compiled"
        self._traced, self._built = traced, built
        self._inputs = tuple(ArrayType(name, layout, type) for name, (layout, type) in traced.inputs.items())
        self._capture(traced.captured)
        func = traced.func
        self._calls = 0
        self._direct: Callable[..., Any] | None = None
        self._made: tuple[tuple[int, ...], Any] = (), None
        self._outputs = tuple(
            ArrayType(name, layout, v.tensor)
            for name, layout, v in zip(traced.out_names, func.out_layouts, func.outputs, strict=True)
        )

    def __repr__(self) -> str:
        shown = ", ".join(f"{t.name}: {t.type}" for t in self._inputs)
        return f"<attngen kernel {self.name}({shown}) for {self.target}>"

    def __copy__(self) -> Kernel:
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)
        return new

    def __deepcopy__(self, memo: object) -> Kernel:
        """Itself, as of a function."""
        return self

    def __reduce__(self) -> NoReturn:
        raise Error(
            f"@{self.name}: machine code cannot be pickled; compile the program where the kernel is needed, "
            "which takes milliseconds while it is kept on disk"
        )

    @property
    def name(self) -> str:
        return self._traced.func.name

    @property
    def func(self) -> Func:
        return self._built.derived.result.func if self._built else self._traced.func

    @property
    def pipeline(self) -> str:
        return str(self._built.derived.result.pipeline) if self._built else ""

    @property
    def remarks(self) -> tuple[Remark, ...]:
        return tuple(self._built.derived.result.remarks) if self._built else (NO_LOOPS,)

    def __call__(self, *arrays: Any, out: Any = None, num_threads: int | None = None, **named: Any) -> Any:
        """The output, a tuple if the program returns one. Arrays of the shapes and dtypes compiled for, any strides: NumPy's.
        Those of a kernel for GPUs are of torch, CuPy or any library there; on their stream it may still run when this returns.

        num_threads: at most so many threads; None asks `attngen.get_num_threads`. The result is the same to the last bit.
        Raises Error for anything else, and for an `out=` that is read-only or overlaps itself or an input.
        """
        if self._direct is not None and num_threads is None and not named:
            made: Any = np.empty(*self._made) if out is None else out
            if self._direct(*arrays, made) is not None:
                return made
        count = read_count("num_threads", num_threads)
        if named or len(arrays) != len(self._inputs):
            arrays = self._bind(arrays, named)
        extents: dict[str, int] = {}
        own = self._own
        given = [want.check(x, extents, own) for want, x in zip(self._inputs, arrays, strict=True)]
        given += [own.upload(x, given) for x in self._captured]
        outputs = self._out_arrays(out, extents, given)
        built = self._built
        if built is None or 0 in extents.values():
            # An extent of 0 needs no loop, and its meaning is that of the interpreter.
            if any(x.size for x in outputs):
                read = [own.download(given[self._places[name]]) for name in self._traced.sources]
                for array, result in zip(outputs, run(self._traced.func, *read), strict=True):
                    own.fill(array, result)
        else:
            threads = get_num_threads if count is None else lambda: count
            built.executable([given[k] for k in self._read], [outputs[k] for k in built.live], threads)
            self._calls += 1
            if self._calls == OFTEN:
                self._shorten()
        outputs = [own.result(x) for x in outputs]
        # What was given is returned itself, of whatever subclass of an array it is.
        if not self._traced.several:
            return outputs[0] if out is None else out
        return tuple(outputs if out is None else (x if y is None else y for x, y in zip(outputs, out, strict=True)))

    def _shorten(self) -> None:
        """Ask for a shorter way to call what is called often."""
        built = self._built
        assert built is not None
        if self._captured or self._traced.several or self._outputs[0].fixed_shape is None:
            return
        self._made = self._outputs[0].fixed_shape, self._outputs[0].dtype
        wanted = [*(self._inputs[k] for k in self._read), *self._outputs]
        self._direct = built.executable.direct([*self._read, len(self._inputs)], [want.dtype for want in wanted])

    def with_captured(self, captured: Mapping[str, Bound]) -> Kernel:
        """The same kernel on what another trace of an equal program has captured."""
        if not captured:
            return self
        new = copy(self)
        new._capture(captured)
        return new

    def _capture(self, captured: Mapping[str, Bound]) -> None:
        self._captured = [bound.array for bound in captured.values()]
        self._places = {name: k for k, name in enumerate((*self._traced.inputs, *captured))}
        # A kernel that is kept for later traces has no captured arrays of its own, and is not called.
        self._read = [self._places[name] for name in self._built.sources if name in self._places] if self._built else []

    def _bind(self, arrays: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        names = [want.name for want in self._inputs]
        if len(arrays) > len(names):
            raise Error(f"@{self.name} takes {len(names)} arrays ({', '.join(names)}), got {len(arrays)}")
        found = dict(zip(names, arrays, strict=False))
        for name, x in named.items():
            if name not in names:
                raise Error(f"@{self.name} has no input {name!r}; {suggest(name, names, 'its inputs are')}")
            if name in found:
                raise Error(f"@{self.name}: {name} is given twice, by position and by name")
            found[name] = x
        missing = [name for name in names if name not in found]
        if missing:
            verb = "is" if len(missing) == 1 else "are"
            raise Error(f"@{self.name}: {' and '.join(missing)} {verb} missing; its inputs are {', '.join(names)}")
        return tuple(found[name] for name in names)

    def _out_arrays(self, out: Any, extents: dict[str, int], inputs: Sequence[Array]) -> list[Array]:
        given: list[Any] = (
            [out] if not self._traced.several else [None] * len(self._outputs) if out is None else list(_sequence(out))
        )
        if len(given) != len(self._outputs):
            raise Error(f"out: expected {len(self._outputs)} arrays, got {len(given)}; use None for one that is to be made")
        arrays: list[Array] = []
        taken = tuple(zip(self._places, inputs, strict=True))
        for want, x in zip(self._outputs, given, strict=True):
            if x is None:
                shape = want.fixed_shape if want.fixed_shape is not None else want.shape(extents)
                arrays.append(self._own.empty(shape, want.dtype, inputs))
            else:
                arrays.append(check_out(want, x, extents, taken, self._own))
                taken = (*taken, (want.name, arrays[-1]))
        return arrays

    def export(self, path: str | PathLike[str], *, name: str = "", cc: str = "", versions: Sequence[Kernel] = ()) -> None:
        """Write one file, for use without Python; the suffix says which.

        .so is a shared library that C can call, .h its header; .py calls the library lib<name>.so beside it, with NumPy
        alone. .o is object code and .c what goes around it, for linking elsewhere. .ll and .s are the kernel as text.
        Kernels for GPUs are written as .ptx or .cubin, with FILE.json beside it, which says how to launch it.

        name: of the function in C, the program's own if empty. cc: the C compiler that links a .so, with its flags; if empty,
        $CC or cc, or the cross compiler of the target, such as aarch64-linux-gnu-gcc. versions: kernels of the same program
        for other targets; the library runs the first one that the processor can run, this kernel first.

        Raises Error for other suffixes, for those that the kernel's target has no code for, and where there is no C compiler.
        """
        from attngen.export import Compiled, export

        compiled = [Compiled(k.target, k._traced, k._built) for k in (self, *versions)]
        export(compiled, path, name=name, cc=cc)

    @cached_property
    def njit(self) -> Any:
        """The kernel as a function that Numba's nopython code can call: arrays in, in the order of the inputs and then of what
        the program captured, outputs back. One thread; ValueError for other shapes.
        """
        from attngen.export import Compiled, nopython

        return nopython(Compiled(self.target, self._traced, self._built))

    def report(self, **arrays: Any) -> Report:
        """Operations, bytes, loops, tile sizes and layouts and the reason for each, what masks leave out, and an estimate of
        the time; for GPUs, in its place, how kernels are launched and what they take.

        arrays: inputs by name; those that masks depend on are needed to count what is left out.
        """
        # Most processes that call kernels ask none for a report.
        from attngen.report import make_report, masks_of

        built = self._built
        known = dict(zip(list(self._places)[len(self._inputs) :], self._captured, strict=True)) | arrays
        for name in arrays:
            if name not in self._traced.inputs:
                raise Error(f"@{self.name} has no input {name!r}; {suggest(name, self._traced.inputs, 'its inputs are')}")
        executable = built.executable if built else None
        return make_report(
            self._traced.func,
            self.func,
            target=self.target,
            scratch_bytes=executable.scratch_bytes if executable else 0,
            temporary_bytes=executable.temporary_bytes if executable else 0,
            device=executable if isinstance(executable, Launches) else None,
            bytes_moved=sum(t.bytes for t in (*self._inputs, *self._outputs)),
            remarks=self.remarks,
            own_passes=built.derived.own_passes if built else (),
            masks=tuple(masks_of(self._traced.func, built.derived.result.stages, built.sources, known)) if built else (),
            seconds=self.seconds,
            origin=self.origin,
        )


def _sequence(out: Any) -> Sequence[Any]:
    if not isinstance(out, tuple | list):
        raise Error(f"out: the program returns a tuple, so expected a tuple of arrays, got {type(out).__qualname__}")
    return out  # pyright: ignore[reportUnknownVariableType]

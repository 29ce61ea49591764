"""Programs: Python functions on named axes, and how they become functions of the IR."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from attngen.closures import with_tables
from attngen.ir import build
from attngen.ir.core import Block, Value, at
from attngen.ir.diagnostics import Error, Loc
from attngen.ir.func import Func
from attngen.ir.rewrite import postorder
from attngen.ir.types import INDEX, ElementType, Layout, TensorType
from attngen.kernel import Bound, Traced
from attngen.lowering import build_kernel
from attngen.names import kind_of, suggest
from attngen.specs import input_types, read_input
from attngen.table import KERNELS
from attngen.tensor import Tensor, unwrap
from attngen.tracing import Trace, tracing, user_error

OPTIONS = ("dtype", "target", "pipeline", "verify_each")
"""Keyword arguments of `attngen.compile`, which inputs cannot be named after."""


@dataclass(frozen=True, eq=False)
class Program:
    """A traced function and the layouts of its arrays.

    Called on arrays, it is compiled for their shapes and run; called on traced values, inside another program, it becomes
    part of that.
    """

    function: Callable[..., Any]
    layouts: Mapping[str, Layout]
    outs: tuple[Layout, ...] | None
    """One per output; None: axes in order of first appearance over the inputs, groups kept."""
    several: bool = False
    """Whether `out` was given as a tuple, so that a tuple is returned."""
    out_elements: tuple[ElementType | None, ...] = ()
    """Element types of the outputs, where they differ from that of the first float input."""
    out_names: tuple[str, ...] = ()
    """What errors call the arrays of `out=`; by default out, or out[0], out[1], …"""

    @property
    def name(self) -> str:
        return re.sub(r"\W", "_", getattr(self.function, "__name__", "program").strip("<>")) or "program"

    @property
    def loc(self) -> Loc:
        code = getattr(self.function, "__code__", None)
        return Loc(code.co_filename, code.co_firstlineno) if code else Loc()

    def trace(self, types: Mapping[str, TensorType]) -> Func:
        """The function of the IR for inputs of these types."""
        return self.bind(types).func

    def bind(self, types: Mapping[str, TensorType], lengths: Mapping[str, int] | None = None) -> Traced:
        """The function of the IR, and which input each of its parameters reads.

        lengths: of axes with runtime extents, if it is traced for one call; captured arrays are bound to it at these lengths.
        """
        trace = Trace.of(self.name, self.layouts, types, lengths)
        inputs = {r.source: Tensor(r.value, trace) for r in trace.reads}
        with tracing(trace):
            returned = with_tables(self.function)(**inputs)
            outputs, several = self._outputs(returned, trace)
            layouts = self._out_layouts(outputs, trace)
            with at(self.loc):
                outputs = [build.cast(v, to) for v, to in zip(outputs, self._elements(outputs, types), strict=True)]
        body = Block(tuple(r.value for r in trace.reads), tuple(postorder(outputs)), tuple(outputs))
        func = Func(self.name, tuple(r.param for r in trace.reads), body, layouts)
        names = self.out_names or tuple(f"out[{k}]" if several else "out" for k in range(len(outputs)))
        inputs = {name: (layout, types[name]) for name, layout in self.layouts.items()}
        captured = {name: Bound(c.layout, c.type, c.array) for name, c in trace.captured.items()}
        return Traced(func, tuple(r.source for r in trace.reads), inputs, names, several, captured)

    def _outputs(self, returned: Any, trace: Trace) -> tuple[list[Value], bool]:
        if returned is None:
            raise user_error(f"@{self.name} returned nothing", loc=self.loc, help="return the traced value that is the output")
        several = isinstance(returned, tuple)
        items: list[Any] = [*returned] if several else [returned]
        for item in items:
            if not isinstance(item, Tensor):
                raise user_error(
                    f"@{self.name} returned a {kind_of(item)}, expected a traced value or a tuple of them", loc=self.loc
                )
        if self.outs is not None and (len(items) != len(self.outs) or several != self.several):
            want = f"a tuple of {len(self.outs)}" if self.several else "one traced value"
            got = f"a tuple of {len(items)}" if several else "one traced value"
            raise user_error(f"@{self.name} returned {got}, but out= describes {want}", loc=self.loc)
        if not items:
            raise user_error(f"@{self.name} returned an empty tuple", loc=self.loc)
        found = [unwrap(item) for item in items]
        return [v for v in found if isinstance(v, Value)], several

    def _out_layouts(self, outputs: Sequence[Value], trace: Trace) -> tuple[Layout, ...]:
        if self.outs is None:
            return tuple(default_layout(v, [r.param.layout for r in trace.reads]) for v in outputs)
        for v, layout in zip(outputs, self.outs, strict=True):
            if set(v.names) != set(layout.names):
                got, want = (" ".join(sorted(names)) for names in (v.names, layout.names))
                raise user_error(
                    f"@{self.name} returned axes ({got}), but out= expects ({want})",
                    loc=v.op.loc if v.op else self.loc,
                    help=f"the layout is out={str(layout)!r}",
                )
        return self.outs

    def _elements(self, outputs: Sequence[Value], types: Mapping[str, TensorType]) -> list[ElementType]:
        floats = [t.element for t in types.values() if t.element.is_float]
        wanted = self.out_elements or (None,) * len(outputs)

        def of(v: Value, given: ElementType | None) -> ElementType:
            if v.element is INDEX:
                return ElementType.I64
            return v.element if not v.element.is_float else given or (floats[0] if floats else v.element)

        return [of(v, given) for v, given in zip(outputs, wanted, strict=True)]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """On NumPy arrays: compile for their shapes (once), and run on the CPU. Inside a program: the traced result."""
        try:
            given = inspect.signature(self.function).bind(*args, **kwargs).arguments
        except TypeError as e:
            raise Error(f"@{self.name}: {e}; its inputs are {', '.join(self.layouts)}") from None
        inputs = {name: given[name] for name in self.layouts}
        traced = [name for name, x in inputs.items() if isinstance(x, Tensor)]
        if traced:
            return self._inline(inputs, args, kwargs)
        constants = [name for name in given if name not in inputs]
        if constants:
            raise Error(f"@{self.name}: {constants[0]} is a constant of the program, not an input; leave it away")
        for name, x in inputs.items():
            if not isinstance(x, np.ndarray):
                raise Error(f"{name}: expected a NumPy array, got {kind_of(x)}; use np.asarray({name})")
        specs = {name: read_input(x, "float32", name) for name, x in inputs.items()}
        # Traced again on every call, so that captured numbers are those of now; compiled once per distinct function.
        bound = self.bind(input_types(self.layouts, specs))
        bare = dataclasses.replace(bound, captured={})
        kernel = KERNELS.get(("program", bound.func), lambda: build_kernel(self, bare))
        return kernel.with_captured(bound.captured)(*inputs.values())

    def _inline(self, inputs: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        for name, x in inputs.items():
            want = set(self.layouts[name].names)
            got = set(x.axes) if isinstance(x, Tensor) else None
            if got != want:
                shown = "no traced value" if got is None else f"axes ({' '.join(sorted(got))})"
                raise user_error(
                    f"@{self.name}: {name} has {shown}, expected axes ({' '.join(sorted(want))})", help="use attngen.rename"
                )
        return self.function(*args, **kwargs)


def default_layout(v: Value, inputs: Sequence[Layout]) -> Layout:
    """Axes in order of first appearance over the inputs, a group kept where the value has all of it."""
    groups: list[tuple[str, ...]] = []
    seen: set[str] = set()
    for group in (g for layout in inputs for g in layout.groups):
        parts = [group] if set(group) <= set(v.names) and not seen & set(group) else [(axis,) for axis in group]
        for part in parts:
            if set(part) <= set(v.names) and not seen & set(part):
                groups.append(part)
                seen |= set(part)
    return Layout((*groups, *((axis,) for axis in v.names if axis not in seen)))


@overload
def program(function: Callable[..., Any], /, *, out: str | tuple[str, ...] | None = None, **layouts: str) -> Program: ...
@overload
def program(*, out: str | tuple[str, ...] | None = None, **layouts: str) -> Callable[[Callable[..., Any]], Program]: ...
def program(
    function: Callable[..., Any] | None = None, /, *, out: str | tuple[str, ...] | None = None, **layouts: str
) -> Program | Callable[[Callable[..., Any]], Program]:
    """Make a program of a function on named axes: ``@program(q="b h i d", k="b h j d", v="b h j e", out="b h i e")``.

    layouts: per parameter of the function, the axes of its array in order; `(g r)` is one dimension that holds two axes.
    out: the layout of the output, a tuple for several outputs; without it axes come in order of first appearance.
    Parameters with a default value need no layout: they are constants.
    """

    def make(function: Callable[..., Any]) -> Program:
        return make_program(function, layouts, out)

    return make if function is None else make(function)


def make_program(
    function: Callable[..., Any],
    layouts: Mapping[str, str],
    out: str | tuple[str, ...] | None = None,
    out_elements: tuple[ElementType | None, ...] = (),
    out_names: tuple[str, ...] = (),
) -> Program:
    if not callable(function):
        raise Error(
            f"program: expected a function, got {type(function).__qualname__}; give layouts by keyword: program(q='b h i d')"
        )
    name = getattr(function, "__name__", "program")
    parameters = inspect.signature(function).parameters
    for p in parameters.values():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.POSITIONAL_ONLY):
            raise Error(f"@{name}: parameter {p.name} cannot have a layout; write each input as an ordinary parameter")
        if p.default is p.empty and p.name not in layouts:
            raise Error(f"@{name}: parameter {p.name} has no layout; write {p.name}='…' in program(…)")
    for given in layouts:
        if given not in parameters:
            raise Error(f"@{name}: there is no parameter {given!r}; {suggest(given, parameters, 'its parameters are')}")
        if given in OPTIONS:
            raise Error(
                f"@{name}: an input cannot be named {given}, which is an option of attngen.compile; rename the parameter"
            )
    for taken in ("out", "num_threads"):
        if taken in parameters:
            raise Error(
                f"@{name}: a parameter cannot be named {taken}, which is an argument of every kernel; rename the parameter"
            )
    read = {p: read_layout(f"@{name}: {p}", layouts[p]) for p in parameters if p in layouts}
    if not read:
        raise Error(f"@{name}: a program needs at least one input")
    texts = out if isinstance(out, tuple) else () if out is None else (out,)
    outs = tuple(read_layout(f"@{name}: out", text) for text in texts)
    return Program(function, read, None if out is None else outs, isinstance(out, tuple), out_elements, out_names)


def read_layout(what: str, text: object) -> Layout:
    if not isinstance(text, str):
        raise Error(f"{what}: a layout is text such as 'b h i d', got {text!r}")
    try:
        return Layout.parse(text)
    except Error as e:
        raise Error(f"{what}: {e}") from None

"""`attngen.compile`: a program and the shapes of its inputs to a kernel."""

from __future__ import annotations

from typing import Any

from attngen.ir.diagnostics import Error
from attngen.ir.pipeline import Pipeline, VerifyEach
from attngen.kernel import Kernel, Traced
from attngen.lowering import build_kernel
from attngen.names import suggest
from attngen.programs import Program
from attngen.specs import Spec, input_types, read_input


def compile(
    program: Program,
    /,
    *,
    dtype: str | type[Any] = "float32",
    target: str = "cpu",
    pipeline: str | Pipeline | None = None,
    verify_each: VerifyEach = True,
    **inputs: Any,
) -> Kernel:
    """Compile a program for inputs of given shapes: ``compile(attention, q=(1, 8, 512, 64), k=…, v=…)``.

    inputs: by name, a shape, an attngen.Spec(shape, dtype) or a NumPy array to take both from; `attngen.upto(n)` is an extent
    that is known when the kernel is called. dtype: of inputs given as a shape. pipeline: passes as text, in place of the
    common ones; the backend's own follow, unless it names some of them, so that a kernel's pipeline runs again as it is and
    passes can be left out. verify_each: True checks the IR after every pass; "run" also executes a small instance before and
    after it.

    Raises Error for inputs that do not fit the program or each other, and whatever a pass or the backend refuses.
    """
    return build_kernel(
        program, read_program(program, inputs, dtype), target=target, pipeline=pipeline, verify_each=verify_each
    )


def read_program(program: Any, inputs: dict[str, Any], dtype: Any) -> Traced:
    """The program traced for the inputs given."""
    if not isinstance(program, Program):
        name = getattr(program, "__qualname__", type(program).__qualname__)
        raise Error(f"compile: {name} is no program; decorate it with @attngen.program(q='b h i d', …)")
    names = list(program.layouts)
    for name in inputs:
        if name not in names:
            raise Error(f"compile: @{program.name} has no input {name!r}; {suggest(name, names, 'its inputs are')}")
    missing = [name for name in names if name not in inputs]
    if missing:
        raise Error(
            f"compile: give the shape of {' and '.join(missing)}, as {missing[0]}=(…); @{program.name} takes {', '.join(names)}"
        )
    specs: dict[str, Spec] = {name: read_input(inputs[name], dtype, name) for name in names}
    return program.bind(input_types(program.layouts, specs))

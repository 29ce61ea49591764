"""Names, parameters and lines of a scalar kernel's source."""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Generator, Mapping
from contextlib import contextmanager

from attngen.backends.cuda.program import Address, Length, Parameter, Stride, Workspace
from attngen.backends.cuda.scalar.memory import Place
from attngen.backends.cuda.scalar.phases import Planner
from attngen.backends.cuda.scalar.steps import LANES, Slot
from attngen.backends.unique import Unique
from attngen.ir.core import Value
from attngen.ir.func import Func
from attngen.ir.loop import Load, Parallel
from attngen.ir.types import ElementType, Extent

NAMES = (
    *(
        "f32",
        "f64",
        "i8",
        "i32",
        "i64",
        "div",
        "rem",
        "exp",
        "exp2",
        "log",
        "log2",
        "tanh",
        "sqrt",
        "floor",
        "rint",
        "absolute",
    ),
    *("negative", "sigmoid", "rsqrt", "divide", "floordiv", "mod", "maximum", "minimum", "round_f16", "round_bf16", "select"),
    *(f"{verb}_{element}" for verb in ("load", "store", "get", "put") for element in ElementType),
    *("cuda", "inf", "nan", "synchronize"),
)
"""What the namespace of a kernel has."""
TAKEN = frozenset((*keyword.kwlist, *keyword.softkwlist, *dir(builtins), *NAMES, "thread", "part", "n"))


class Source:
    """The text of one kernel as it grows.

    arrays: the numbers of tensors in global memory; names: variables that hold values; ranges: first coordinate and length of
    each part; lengths: those of axes that are cut; memo: what each block of lines knows, by value and coordinates.
    """

    def __init__(
        self, func: Func, nest: Parallel, arrays: Mapping[Value, int], plan: Planner, places: Mapping[Slot, Place], kernel: str
    ) -> None:
        self.func, self.nest, self.arrays, self.plan, self.places = func, nest, arrays, plan, places
        self.workspace_bytes = 0
        self.parameters: dict[Parameter, str] = {}
        self.fresh = Unique(TAKEN)
        self.kernel = self.fresh(kernel)
        self.names: dict[Value, str] = {}
        self.ranges: dict[Value, tuple[str, str]] = {}
        self.lengths: dict[tuple[str, Extent], str] = {}
        self.slot_names: dict[Slot, str] = {}
        self.axis_names: dict[str, str] = {}
        self.memo: list[dict[tuple[Value, tuple[str, ...]], str]] = []
        self.lines: list[str] = []
        self.depth = 1

    # ---- names

    def variable(self, value: Value) -> str:
        return self.fresh(value.hint or ("loaded" if isinstance(value.op, Load) else "x"))

    def slot_name(self, slot: Slot) -> str:
        if slot not in self.slot_names:
            self.slot_names[slot] = self.fresh(f"{slot.hint or 'x'}_tile")
        return self.slot_names[slot]

    def axis_name(self, axis: str) -> str:
        """The coordinate along an axis, wherever there is one."""
        if axis not in self.axis_names:
            self.axis_names[axis] = self.fresh(axis if axis != LANES else "lane")
        return self.axis_names[axis]

    # ---- parameters

    def parameter(self, parameter: Parameter, wish: str) -> str:
        if parameter not in self.parameters:
            self.parameters[parameter] = self.fresh(wish)
        return self.parameters[parameter]

    def array_name(self, number: int) -> str:
        inputs, outputs = len(self.func.params), len(self.func.outputs)
        if number < inputs:
            return self.func.params[number].name
        if number < inputs + outputs:
            return f"out{number - inputs}" if outputs > 1 else "out"
        return f"between{number - inputs - outputs}"

    def address(self, number: int) -> str:
        return self.parameter(Address(number), self.array_name(number))

    def stride(self, number: int, axis: str) -> str:
        return self.parameter(Stride(number, axis), f"{self.array_name(number)}_{axis}")

    def workspace(self) -> str:
        return self.parameter(Workspace(self.workspace_bytes), "workspace")

    def length(self, axis: str, extent: Extent) -> str:
        if isinstance(extent, int):
            return str(extent)
        return self.lengths.get((axis, extent)) or self.parameter(Length(axis), f"length_{axis}")

    # ---- lines

    def put(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    @contextmanager
    def indented(self, head: str) -> Generator[None]:
        """Lines below a head; what they know is forgotten when it ends."""
        self.put(head)
        self.depth += 1
        self.memo.append({})
        yield
        self.memo.pop()
        self.depth -= 1

    @contextmanager
    def counting(self, name: str, first: str, end: str, step: str | int) -> Generator[None]:
        """A loop. (What Numba makes of `for … in range(…)` keeps NVVM from turning products with the counter into sums.)"""
        self.put(f"{name} = {first}")
        with self.indented(f"while {name} < {end}:"):
            yield
            self.put(f"{name} += {step}")

"""Loop-level (or tensor-level) IR as NumPy source: a value is an array whose axes are those of its type, a range is a slice,
a loop is a Python loop over slices, and every other op is one line."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from attngen.backends import Unsupported
from attngen.ir.core import Block, Env, Op, Value
from attngen.ir.elementwise import PREDICATES, Cast, Compare, Elementwise
from attngen.ir.func import Func
from attngen.ir.loop import Bound, For, If, Load, Parallel, Store
from attngen.ir.nd import Constant, Contract, Expand, Index, Reduce
from attngen.ir.types import Axis, ElementType, Extent, TensorType, round_bf16

PRELUDE = '''\
import numpy as np


def parts(extent, step, first=0, end=None):
    """The slices of a loop that hold a coordinate from first to before end; the last may be shorter."""
    first, end = max(int(first), 0), extent if end is None else min(int(end), extent)
    starts = range(first // step * step, end, step) if first < end else ()
    return [slice(start, min(start + step, extent)) for start in starts]


'''

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Emitter:
    """Writes one function. entry: its name in the text; namespace: what the text uses besides NumPy, by name."""

    def __init__(self, func: Func) -> None:
        self.func, self.entry = func, ""
        self.namespace: dict[str, Any] = {"round_bf16": round_bf16}
        self.names: dict[Value, str] = {}
        self.taken = {"np", "parts", "round_bf16", *keyword.kwlist, *keyword.softkwlist}
        self.lines: list[str] = []
        self.lengths: dict[str, str] = {}
        """The variable that holds the length of an axis with a runtime extent."""

    def text(self) -> str:
        func = self.func
        params = [self.name(value, param.name) for value, param in zip(func.args, func.params, strict=True)]
        outs = [self.fresh(f"out{index}") for index in range(len(func.outputs))]
        self.entry = self.fresh(func.name)
        self.put(0, f"def {self.entry}({', '.join((*params, *outs))}):")
        for array, value, param in zip(params, func.args, func.params, strict=True):
            self.runtime_lengths(array, value.tensor, param.layout.groups)
            names = param.layout.names
            shape = ", ".join(self.length(name, value.tensor.extents[name]) for name in names)
            axes = f".reshape({shape})" if len(names) != len(param.layout.groups) else ""
            line = f"np.asarray({array}, {dtype(value)}){axes}{transposed(names, value.names)}"
            self.put(1, f"{array} = {self.round(line, value.element)}", value)
        self.block(func.body, 1)
        for out, value, layout in zip(outs, func.outputs, func.out_layouts, strict=True):
            result = f"{self.names[value]}{transposed(value.names, layout.names)}"
            if len(layout.names) != len(layout.groups):
                result = f"np.reshape({result}, {out}.shape)"
            self.put(1, f"{out}[...] = {result}")
        return PRELUDE + "\n".join(self.lines) + "\n"

    # ---- names and lengths

    def fresh(self, wish: str) -> str:
        base = re.sub(r"\W", "_", wish, flags=re.ASCII)
        base = base if base[:1].isalpha() else f"v{base}"
        name, count = base, 0
        while name in self.taken:
            name, count = f"{base}_{count}", count + 1
        self.taken.add(name)
        return name

    def name(self, value: Value, wish: str = "") -> str:
        self.names[value] = self.fresh(wish or value.hint or (value.op.name.split(".")[-1] if value.op else "x"))
        return self.names[value]

    def runtime_lengths(self, array: str, type: TensorType, groups: Sequence[Sequence[str]]) -> None:
        for index, group in enumerate(groups):
            for axis in group:
                if not isinstance(type.extents[axis], int) and axis not in self.lengths:
                    known = [str(e) for name in group if isinstance(e := type.extents[name], int)]
                    self.lengths[axis] = self.fresh(f"n_{axis}")
                    divided = f" // ({' * '.join(known)})" if known else ""
                    self.put(1, f"{self.lengths[axis]} = {array}.shape[{index}]{divided}")

    def length(self, axis: str, extent: Extent) -> str:
        if isinstance(extent, int):
            return str(extent)
        if axis not in self.lengths:
            raise Unsupported(
                "backend numpy", f"no parameter tells the runtime extent of axis {axis}", help=f"give {axis} a fixed extent"
            )
        return self.lengths[axis]

    def shape(self, axes: Sequence[Axis], *before: str) -> str:
        lengths = [*before, *(self.length(*axis) for axis in axes)]
        return f"({', '.join(lengths)}{',' if len(lengths) == 1 else ''})"

    # ---- lines

    def put(self, depth: int, line: str, value: Value | None = None) -> None:
        line = "    " * depth + line
        self.lines.append(line if value is None else f"{line:<52}  # {value.type}")

    def block(self, block: Block, depth: int) -> None:
        for op in block.ops:
            match op:
                case For():
                    self.loop(op, depth)
                case Parallel():
                    self.parallel(op, depth)
                case If():
                    self.choice(op, depth)
                case Store():
                    target = self.names[op.target]
                    tile = f"{self.names[op.value]}{transposed(op.value.names, op.target.names)}"
                    self.put(depth, f"{target}{self.selection(op.target, op.ranges)} = {tile}", op.value)
                    self.names[op.result] = target
                case _:
                    line = self.expression(op)
                    self.put(depth, f"{self.name(op.result)} = {line}", op.result)

    def loop(self, op: For, depth: int) -> None:
        """Carried values are variables, set together at the end of each trip."""
        range, *carried = op.body.args
        for value, init, result in zip(carried, op.inits, op.results, strict=True):
            self.put(depth, f"{self.name(value)} = {self.names[init]}{transposed(init.names, value.names)}", value)
            self.names[result] = self.names[value]
        limits = "".join(
            f", {word}={self.names[value]}" for word, value in (("first", op.first), ("end", op.end)) if value is not None
        )
        self.put(depth, f"for {self.name(range, op.axis)} in parts({self.length(op.axis, op.extent)}, {op.step}{limits}):")
        self.block(op.body, depth + 1)
        each = zip(op.body.yields, carried, strict=True)
        new = ", ".join(f"{self.names[value]}{transposed(value.names, to.names)}" for value, to in each)
        self.put(depth + 1, f"{', '.join(self.names[value] for value in carried)} = {new}" if carried else "pass")

    def parallel(self, op: Parallel, depth: int) -> None:
        """Results are new arrays, written in place by the stores in the body."""
        ranges, outs = op.body.args[: len(op.axes)], op.body.args[len(op.axes) :]
        for value, result in zip(outs, op.results, strict=True):
            self.put(depth, f"{self.name(value)} = np.empty({self.shape(value.tensor.axes)}, {dtype(value)})", value)
            self.names[result] = self.names[value]
        for index, (range, axis, extent, step) in enumerate(zip(ranges, op.axes, op.extents, op.steps, strict=True)):
            self.put(depth + index, f"for {self.name(range, axis)} in parts({self.length(axis, extent)}, {step}):")
        inner = depth + len(ranges)
        self.block(op.body, inner)
        for value, result in zip(outs, op.body.yields, strict=True):
            if self.names[result] != self.names[value]:
                self.put(inner, f"{self.names[value]}[...] = {self.names[result]}", value)

    def choice(self, op: If, depth: int) -> None:
        """Each region sets the results."""
        for result in op.results:
            self.name(result)
        for head, region in ((f"if {self.names[op.condition]}:", op.then), ("else:", op.otherwise)):
            self.put(depth, head)
            self.names |= {arg: self.names[given] for arg, given in zip(region.args, op.inputs, strict=True)}
            self.block(region, depth + 1)
            for result, value in zip(op.results, region.yields, strict=True):
                self.put(
                    depth + 1, f"{self.names[result]} = {self.names[value]}{transposed(value.names, result.names)}", result
                )
            if not op.results:
                self.put(depth + 1, "pass")

    # ---- one op as an expression

    def expression(self, op: Op) -> str:
        match op:
            case Constant():
                value = float(round_bf16(np.asarray(op.value))) if op.element is ElementType.BF16 else op.value
                number = repr(value) if np.isfinite(value) else f'"{value}"'
                return f"np.{op.element.numpy.type.__name__}({number})"
            case Index(range=None):
                return f"np.arange({self.length(*op.result.tensor.axes[0])})"
            case Index(range=Value() as range):
                return f"np.arange({self.names[range]}.start, {self.names[range]}.stop)"
            case Expand():
                spans = [f"{self.names[r]}.stop - {self.names[r]}.start" for r in op.ranges]
                x, rank = self.names[op.value], len(spans) + len(op.axes)
                return f"np.broadcast_to({x}[...{', None' * rank}], {self.shape(op.axes, f'*{x}.shape', *spans)})"
            case Bound():
                end = "start" if op.end == "first" else "stop - 1"
                return f"np.asarray({self.names[op.range]}.{end})"
            case Load():
                return f"{self.names[op.source]}{self.selection(op.source, op.ranges)}"
            case Contract():
                return self.contract(op)
            case Reduce():
                axes = tuple(op.value.names.index(name) for name in op.over)
                empty = {"max": '-float("inf")', "min": 'float("inf")'}.get(op.kind)
                extra = (
                    f"dtype={dtype(op.result)}"
                    if empty is None
                    else f"initial={empty}"
                    if op.acc.is_float
                    else "keepdims=False"
                )
                return self.round(f"np.{op.kind}({self.converted(op.value, op.acc)}, axis={axes}, {extra})", op.acc)
            case Cast():
                x = f'np.asarray({self.names[op.value]}, "{op.to.numpy.name}")'
                return self.round(x, op.to)
            case Compare():
                return self.call(PREDICATES[op.predicate], op)
            case Elementwise() if hasattr(type(op), "numpy"):
                return self.round(self.call(type(op).numpy, op), op.result.element)
            case _:
                return self.meaning(op)

    def contract(self, op: Contract) -> str:
        a, b, out = self.converted(op.lhs, op.acc), self.converted(op.rhs, op.acc), op.result.names
        if op.where is None:
            letters = dict(zip(dict.fromkeys(op.lhs.names + op.rhs.names), LETTERS, strict=False))
            spec = ",".join("".join(letters[n] for n in value.names) for value in (op.lhs, op.rhs))
            return self.round(f'np.einsum("{spec}->{"".join(letters[n] for n in out)}", {a}, {b}, optimize=True)', op.acc)
        names = (*out, *op.over)
        axes = tuple(range(-len(op.over), 0))
        product = f"{a}{aligned(op.lhs.names, names)} * {b}{aligned(op.rhs.names, names)}"
        keep = f"{self.names[op.where]}{aligned(op.where.names, names)}"
        return self.round(f"np.where({keep}, {product}, 0).sum(axis={axes}, dtype={dtype(op.result)})", op.acc)

    def call(self, function: Callable[..., Any], op: Op) -> str:
        """A call of a NumPy function by its name, or of an op's own function."""
        args = ", ".join(f"{self.names[value]}{aligned(value.names, op.result.names)}" for value in op.operands)
        name: str = getattr(function, "__name__", "")
        if getattr(np, name, None) is function:
            return f"np.{name}({args})"
        own = f"_{op.name.replace('.', '_')}"  # no variable starts with an underscore
        self.namespace[own] = function
        return f"np.asarray({own}({args}), {dtype(op.result)})"

    def meaning(self, op: Op) -> str:
        """Anything else: a call of the op's own NumPy meaning."""
        if op.regions:
            what, help = f"cannot run {op.name}", "ops with regions must be loop.for, loop.parallel or loop.if"
            raise Unsupported("backend numpy", what, loc=op.loc, ir=repr(op)[1:-1], help=help)
        name = self.fresh(f"{op.name.replace('.', '_')}_{len(self.namespace)}")

        def function(extents: dict[str, int], *args: Any) -> Any:
            return op.evaluate(args, Env(extents, lambda block, args: args))

        self.namespace[name] = function
        args: list[str] = []
        for field in op.fields.operands:
            given: Value | tuple[Value, ...] | None = getattr(op, field)
            args += (
                [self.names[value] for value in given] if isinstance(given, tuple) else [self.names[given] if given else "None"]
            )
        extents = ", ".join(f'"{axis}": {length}' for axis, length in self.lengths.items())
        return f"{name}({', '.join((f'{{{extents}}}', *args))})"

    def converted(self, value: Value, to: ElementType) -> str:
        """The value as another float type; nothing to do where NumPy holds both alike."""
        name = self.names[value]
        return name if value.element.numpy == to.numpy else f'{name}.astype("{to.numpy.name}")'

    def round(self, text: str, element: ElementType) -> str:
        return f"round_bf16({text})" if element is ElementType.BF16 else text

    def selection(self, tensor: Value, ranges: Sequence[Value]) -> str:
        at = {r.range.axis: self.names[r] for r in ranges}
        chosen = [at.get(name, ":") for name in tensor.names]
        return f"[{', '.join(chosen) or '...'}]"


def dtype(value: Value) -> str:
    return f'"{value.element.numpy.name}"'


def transposed(names: Sequence[str], to: Sequence[str]) -> str:
    order = [names.index(n) for n in to]
    return "" if order == sorted(order) else f".transpose({', '.join(map(str, order))})"


def aligned(names: Sequence[str], to: Sequence[str]) -> str:
    """What to append to an array with axes `names`, so that it broadcasts against one with axes `to`."""
    if not names or tuple(names) == tuple(to):
        return ""
    kept = [n for n in to if n in names]
    index = [":" if n in names else "None" for n in to]
    while index and index[0] == "None":
        index.pop(0)
    turn = transposed(names, kept)
    return turn if "None" not in index else f"{turn}[{', '.join(index)}]"

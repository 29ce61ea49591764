"""From loop-level IR to Python source: the function, its arrays, and its loops.

The parts of a nest of parallel loops have numbers, so that several threads can each run some of them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from attngen.backends import Unsupported
from attngen.backends.cpu.counting import counted, expression
from attngen.backends.cpu.kernels import Kernel, Reduction, Scalar
from attngen.backends.cpu.lookup_kernel import OUTSIDE
from attngen.backends.cpu.op_source import OpWriter, axes_word, unsupported
from attngen.backends.cpu.ops import Chain, Lookup, Map, Pack, Product
from attngen.backends.cpu.storage import ALIGNMENT, Storage
from attngen.backends.cpu.target import Target
from attngen.backends.cpu.vector import Operand, Size
from attngen.ir.core import Block, Value, argument, uses
from attngen.ir.elementwise import Elementwise
from attngen.ir.func import Func
from attngen.ir.loop import Bound, For, If, Load, Parallel, Store, trips
from attngen.ir.nd import Constant, Contract, Expand, Gather, Index, Reduce
from attngen.ir.types import ElementType, Extent, UpTo, bound, scalar

WIDTH = 100
"""Columns of the text."""


class Split(NamedTuple):
    """An axis of a parallel loop, cut into parts."""

    axis: str
    extent: Extent
    step: int

    @property
    def single(self) -> bool:
        return isinstance(self.extent, int) and trips(self.extent, self.step) == 1


class Nest(NamedTuple):
    """What is known of one nest: the axes that have several parts, and the operations at the largest extents."""

    splits: tuple[Split, ...]
    flops: int

    def parts(self, sizes: Mapping[str, int]) -> int:
        return prod(-(-sizes.get(axis, bound(extent)) // step) for axis, extent, step in self.splits)


@dataclass(frozen=True)
class Program:
    """Generated source and what it calls.

    arguments: for each array its address and the strides of its axes, as its layout orders them, then runtime extents, then
    scratch and temporary memory, then flags for each of `lookups` (if there are any), then which nest (if there are several)
    and the first and the last of its parts, the latter excluded. extents: the axes whose lengths are arguments, and the
    largest length of each. lookups: for each flag the op that sets it, and which of its coordinates lay outside of the table.
    """

    name: str
    text: str
    arguments: tuple[str, ...]
    kernels: Mapping[str, Kernel]
    extents: Mapping[str, int]
    nests: tuple[Nest, ...]
    lookups: tuple[tuple[Gather, int], ...]
    scratch_bytes: int
    temporary_bytes: int
    target: Target


class Writer(OpWriter):
    """Writes one function."""

    def __init__(self, func: Func, target: Target) -> None:
        super().__init__(target)
        self.func = func
        self.name = self.unique(func.name)
        self.arguments: list[str] = []
        self.scratch_bytes = self.temporary_bytes = 0
        self.storage: Storage | None = None
        self.nests: list[Nest] = []
        self.longest: dict[str, int] = {}

    def program(self) -> Program:
        self.arrays()
        loops = [op for op in self.func.body.ops if isinstance(op, Parallel)]
        several = len(loops) > 1
        for number, op in enumerate(loops):
            if several:
                self.lines.append(f"    if nest == {number}:")
            above = len(self.lines)
            self.parallel(op, 1 + several)
            if len(self.lines) == above:
                self.lines.append("        pass")
        self.arguments += [OUTSIDE] * bool(self.lookups) + ["nest"] * several + ["first", "last"]
        head = [
            f"# @{self.func.name}, vectors of {self.target.vector_bits} bits",
            *(f"#   {p.name}: {value.type}" for p, value in zip(self.func.params, self.func.args, strict=True)),
            "# Arguments: addresses of arrays, bytes from element to element along each axis, working memory,",
            "# which parts to run.",
            *textwrap.wrap(f"def {self.name}({', '.join(self.arguments)}):", WIDTH, subsequent_indent=" " * 8),
        ]
        return Program(
            name=self.name,
            text="\n".join([*head, *(self.lines or ["    pass"])]) + "\n",
            kernels=self.kernels,
            extents=self.longest,
            nests=tuple(self.nests),
            lookups=tuple(self.lookups),
            scratch_bytes=self.scratch_bytes,
            temporary_bytes=self.temporary_bytes,
            arguments=tuple(self.arguments),
            target=self.target,
        )

    # ---- the function's arrays

    def arrays(self) -> None:
        made = [value for op in self.func.body.ops if isinstance(op, Parallel) for value in op.results]
        for op in self.func.body.ops:
            if not isinstance(op, Parallel | Constant):
                raise unsupported(op, f"outside of loops the CPU backend cannot run {op.name}", "run the pass tile first")
        outs = self.func.outputs
        for index, value in enumerate(outs):
            if value not in made or value in outs[:index]:
                message = f"@{self.func.name}: output {index} is not written by a loop of its own"
                raise Unsupported("cpu", message, help="run the pass tile")
        several = len(outs) > 1
        named = [(p.name, p.layout, value) for p, value in zip(self.func.params, self.func.args, strict=True)]
        named += [
            (f"out{index}" if several else "out", layout, value)
            for index, (layout, value) in enumerate(zip(self.func.out_layouts, outs, strict=True))
        ]
        bases = [self.unique(name) for name, _, _ in named]
        for (_, layout, value), base in zip(named, bases, strict=True):
            # In the layout's order: that of a type's axes may change from pass to pass.
            strides: dict[str, Size] = {n: self.unique(f"{base}_{n}") for n in layout.names}
            self.arguments += [base, *(s for s in strides.values() if isinstance(s, str))]
            self.operands[value] = Operand(base, strides, value.names, value.element)
        sizes = {n: e for value in (*self.func.args, *made) for n, e in value.tensor.axes if isinstance(e, UpTo)}
        self.extents = {n: self.unique(f"size_{n}") for n in sizes}
        self.longest = {n: bound(e) for n, e in sizes.items()}
        self.arguments += [*self.extents.values(), "scratch", "temporary"]
        for value in (*self.func.args, *made):
            self.lengths[value] = {n: self.extent(n, e) for n, e in value.tensor.axes}
        for value in made:
            if value not in outs:
                self.temporary(value)

    def temporary(self, value: Value) -> None:
        strides: dict[str, Size] = {}
        step = value.element.bytes
        for name, extent in reversed(value.tensor.axes):
            strides[name] = step
            step *= bound(extent)
        base = self.unique(f"stored_{value.hint or ''.join(value.names)}")
        self.lines.append(f"    {base} = temporary + {self.temporary_bytes}  # {value.type}")
        self.operands[value] = Operand(base, strides, value.names, value.element)
        self.temporary_bytes += -(-step // ALIGNMENT) * ALIGNMENT

    # ---- loops

    def parallel(self, op: Parallel, depth: int) -> None:
        """One nest: the parts from `first` to before `last`, counted with the last axis fastest."""
        storage = self.storage = Storage(op.body, self.target)
        self.scratch_bytes = max(self.scratch_bytes, storage.bytes)
        pad = "    " * depth
        for place in storage.places():
            value = place.values[0]
            hint = next((x.hint for x in place.values if x.hint), "")
            base = self.unique("_".join(filter(None, (hint or "tile", axes_word(value)))))
            self.lines.append(f"{pad}{base} = scratch + {place.offset}  # {value.type}")
            for x in place.values:
                strides: dict[str, Size] = {**storage.strides(x.tensor)}
                self.operands[x] = Operand(base, strides, x.names, x.element, padded=True)
        n = len(op.axes)
        for arg, result in zip(op.body.args[n:], op.results, strict=True):
            self.operands[arg], self.lengths[arg] = self.operands[result], self.lengths[result]
        each = [
            (value, Split(axis, extent, step))
            for value, axis, extent, step in zip(op.body.args, op.axes, op.extents, op.steps, strict=False)
        ]
        several = [(value, split) for value, split in each if not split.single]
        self.nests.append(Nest(tuple(split for _, split in several), op.flops))
        for value, split in each:
            if split.single:
                self.ranges[value] = (0, bound(split.extent))
        if several:
            self.split(several, depth)
        self.block(op.body, depth + bool(several))

    def split(self, each: Sequence[tuple[Value, Split]], depth: int) -> None:
        """Open the loop over parts, with the place of a part along each axis."""
        pad = "    " * depth
        counts: list[Size] = []
        for _, (axis, extent, step) in each:
            count: Size = trips(extent, step)
            if not isinstance(extent, int):
                count = self.unique(f"parts_{axis}")
                self.lines.append(f"{pad}{count} = ({self.extent(axis, extent)} + {step - 1}) // {step}")
            counts.append(count)
        self.lines.append(f"{pad}for part in range(first, last):")
        for index, (value, (axis, extent, step)) in reversed([*enumerate(each)]):
            below = product_of(counts[index + 1 :])
            place = "part" if below == "1" else f"part // {below}"
            place = place if index == 0 else f"{place} % {counts[index]}"
            start = self.unique(axis)
            self.lines.append(f"{pad}    {start} = {place if step == 1 else f'{place} * {step}'}")
            self.ranges[value] = (start, self.length(value, axis, start, extent, step, depth + 1))

    def range(self, op: For, first: str, end: str, depth: int) -> int:
        """Open a loop over the parts of an axis, unless there is exactly one; the depth of its body. first, end: which part of
        the axis is visited, where that is limited."""
        pad, value, axis, extent, step = "    " * depth, op.body.args[0], op.axis, op.extent, op.step
        if isinstance(extent, int) and trips(extent, step) == 1 and not op.limits:
            self.ranges[value] = (0, extent)
            return depth
        start, begin, stop = self.unique(axis), "0", str(self.extent(axis, extent))
        if end:
            end = f"min({end}, {stop})"
            stop = self.unique(f"{axis}_end")
            self.lines.append(f"{pad}{stop} = {end}")
        if first:
            begin = self.unique(f"{axis}_first")
            self.lines.append(f"{pad}{begin} = max({first}, 0)")
            begin, stop = f"{begin} // {step} * {step}", f"{stop} if {begin} < {stop} else 0"
        self.lines.append(f"{pad}for {start} in range({begin}, {stop}, {step}):")
        self.ranges[value] = (start, self.length(value, axis, start, extent, step, depth + 1))
        return depth + 1

    def length(self, value: Value, axis: str, start: str, extent: Extent, step: int, depth: int) -> Size:
        """How long the part of an axis that begins at `start` is."""
        if not isinstance(value.range.extent, UpTo):
            return step
        length = self.unique(f"n_{axis}")
        self.lines.append(f"{'    ' * depth}{length} = min({step}, {self.extent(axis, extent)} - {start})")
        return length

    def loop(self, op: For, depth: int) -> None:
        assert self.storage is not None
        for init, arg, result in zip(op.inits, op.body.args[1:], op.results, strict=True):
            self.lengths[arg] = self.lengths[result] = self.lengths[init]
            if arg in self.storage.memory:
                self.operands[arg] = self.operands[result] = self.operands[init]
        first, end = ("" if value is None else unwrapped(self.number(value)) for value in (op.first, op.end))
        self.copies(self.storage.starts[op], depth)
        above = len(self.lines)
        inner = self.range(op, first, end, depth)
        empty = len(self.lines)
        self.block(op.body, inner)
        self.copies(self.storage.ends[op], inner)
        if len(self.lines) == empty:
            del self.lines[above:]

    def number(self, value: Value) -> str:
        """A truth value or an index as an expression: computed by the source, or read from its tile."""
        if value in self.numbers:
            return self.numbers[value]
        truth = value.element is ElementType.I1
        name = self.unique("if_true" if truth else "index")
        self.kernels[name] = Scalar({"in0": self.operands[value]}, {})
        return f"{name}({self.operands[value].address}){' != 0' if truth else ''}"

    def branch(self, op: If, depth: int) -> None:
        assert self.storage is not None
        for value, result in zip(op.then.yields, op.results, strict=True):
            if result in self.storage.memory:
                self.operands[result] = self.operands[value]
        pad = "    " * depth
        self.lines.append(f"{pad}if {unwrapped(self.number(op.condition))}:")
        for n, region in enumerate((op.then, op.otherwise)):
            if n:
                self.lines.append(f"{pad}else:")
            above = len(self.lines)
            self.block(region, depth + 1)
            for value, result in zip(region.yields, op.results, strict=True):
                self.lengths[result] = self.lengths[value]
            self.copies(self.storage.joins[region], depth + 1)
            if all(line.lstrip().startswith("#") for line in self.lines[above:]):
                if n:
                    del self.lines[above - 1 :]
                else:
                    self.lines.append(f"{pad}    pass")

    def block(self, block: Block, depth: int) -> None:
        stores = stored_whole(block)
        for op in block.ops:
            if isinstance(op, Chain):
                self.aim(op, stores, depth)
            match op:
                case For():
                    self.loop(op, depth)
                case If():
                    self.branch(op, depth)
                case Bound():
                    start, length = self.ranges[op.range]
                    last = f"({start} + {length} - 1)" if isinstance(length, str) else added(start, length - 1)
                    self.numbers[op.result] = str(start) if op.end == "first" else last
                case Constant():
                    self.numbers[op.result] = str(int(op.value))
                case Load():
                    self.operands[op.result] = self.part(op.source, op.ranges, depth)
                    lengths = {value.range.axis: self.ranges[value][1] for value in op.ranges}
                    self.lengths[op.result] = {**self.lengths[op.source], **lengths}
                case Store():
                    self.operands[op.result], self.lengths[op.result] = self.operands[op.target], self.lengths[op.target]
                    self.store(op, depth)
                case Map():
                    self.chain(op, depth)
                case Pack():
                    self.pack(op, depth)
                case Lookup():
                    self.lookup(op, depth)
                case Contract():
                    total = argument(scalar(op.acc))
                    self.product(op, op, Block((total,), (), (total,)), depth)
                case Product():
                    self.product(op, op.contraction, op.body, depth)
                case Reduce():
                    operands, lengths = self.tiles(op, in0=op.value)
                    kernel = Reduction(operands, lengths, kind=op.kind, summed=op.over, acc=op.acc)
                    self.call(f"{op.kind}_{axes_word(op.result)}", kernel, depth, f"over {', '.join(op.over)}")
                case _ if counted(op):
                    self.numbers[op.result] = expression(op, self.numbers.__getitem__)
                case _:
                    help = (
                        "run the pass form-chains first"
                        if isinstance(op, Elementwise | Expand | Index)
                        else "use the numpy target"
                    )
                    raise unsupported(op, f"the CPU backend cannot compute {op.name} on tiles", help)


def added(start: Size, number: int) -> str:
    return str(start + number) if isinstance(start, int) else f"({start} + {number})"


def unwrapped(expression: str) -> str:
    """Without the parentheses that belong to its outermost operation."""
    return expression[1:-1] if expression.startswith("(") else expression


def stored_whole(block: Block) -> Mapping[Value, Store]:
    """The values that chains of a block make only to be stored by it."""
    users = [*block.yields, *(value for op in block.ops for value in uses(op))]
    stores = {op.value: op for op in block.ops if isinstance(op, Store) and isinstance(op.value.op, Chain)}
    return {value: op for value, op in stores.items() if users.count(value) == 1 and value.op in block.ops}


def product_of(counts: Iterable[Size]) -> str:
    """The product of numbers and names, as an expression to divide by."""
    counts = list(counts)
    number = prod(n for n in counts if isinstance(n, int))
    factors = [str(number)] * (number != 1) + [n for n in counts if isinstance(n, str)]
    return f"({' * '.join(factors)})" if len(factors) > 1 else factors[0] if factors else "1"

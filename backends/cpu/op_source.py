"""Source of single ops: one call each, with the addresses of its tiles and the distances between their elements.

Names come from axes and from what an op does, not from numbers of values: a change to one chain changes its lines alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from attngen.backends import Unsupported
from attngen.backends.cpu import chain_kernel, lookup_kernel, scalars
from attngen.backends.cpu.copy_kernel import Copy
from attngen.backends.cpu.dot_kernel import Dots
from attngen.backends.cpu.kernels import Kernel
from attngen.backends.cpu.lookup_kernel import OUTSIDE
from attngen.backends.cpu.ops import Chain, Lookup, Map, Pack, Product, dot_axis
from attngen.backends.cpu.product_kernel import Contraction, product_row
from attngen.backends.cpu.target import Target
from attngen.backends.cpu.vector import Operand, Size
from attngen.backends.unique import Unique
from attngen.ir.core import Block, Op, Value
from attngen.ir.elementwise import Cast, Compare
from attngen.ir.loop import Store
from attngen.ir.nd import Constant, Contract, Gather
from attngen.ir.printer import Names
from attngen.ir.types import Axis, Extent, RangeType, bound

Lengths = Mapping[str, Size]

RESERVED = ("range", "min", "max", "scratch", "temporary", "nest", "part", "first", "last", OUTSIDE)


class OpWriter:
    """Where values lie, how long axes are, and the calls written so far."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.unique = Unique([*RESERVED])
        self.lines: list[str] = []
        self.kernels: dict[str, Kernel] = {}
        self.operands: dict[Value, Operand] = {}
        self.lengths: dict[Value, Lengths] = {}
        self.ranges: dict[Value, tuple[Size, Size]] = {}
        self.extents: dict[str, str] = {}
        """Names of runtime extents by axis."""
        self.numbers: dict[Value, str] = {}
        """Scalars that the source computes, as expressions."""
        self.aimed: dict[Value, tuple[Operand, Operand]] = {}
        """Results that are computed where they go: that place, and the one in scratch memory."""
        self.lookups: list[tuple[Gather, int]] = []
        """For each flag the op that sets it, and for which of its coordinates."""

    def extent(self, name: str, extent: Extent) -> Size:
        if isinstance(extent, int):
            return extent
        if name not in self.extents:
            raise Unsupported("cpu", f"nothing says how long axis {name} is", help="give a parameter this axis")
        return self.extents[name]

    def lookup(self, op: Lookup, depth: int) -> None:
        roles = {"in0": op.table, **{f"at{n}": value for n, value in enumerate(op.at)}}
        operands, lengths = self.tiles(op, **roles)
        table, own = operands["in0"], self.lengths[op.table]
        kept = {n: stride for n, stride in table.strides.items() if n not in op.over}
        first = len(self.lookups)
        found = tuple((table.strides[n], own[n], first + index) for index, n in enumerate(op.over))
        self.lookups += [(op.gather, index) for index in range(len(op.over))]
        operands["in0"] = dataclasses.replace(table, strides=kept, order=tuple(n for n in table.order if n in kept))
        kernel = lookup_kernel.Lookup(operands, {n: lengths[n] for n in op.order}, lookups=found)
        self.call(f"look_up_{axes_word(op.result)}", kernel, depth, f"along {', '.join(op.over)}")

    def copies(self, pairs: Sequence[tuple[Value, Value]], depth: int) -> None:
        for source, to in pairs:
            operands = {"in0": self.operands[source], "out0": self.operands[to]}
            self.lengths.setdefault(to, self.lengths[source])
            self.call(f"copy_{axes_word(to)}", Copy(operands, self.lengths[source]), depth)

    def part(self, source: Value, ranges: Sequence[Value], depth: int) -> Operand:
        """The place of the part that ranges select."""
        whole = self.operands[source]
        moves = [(value.range.axis, self.ranges[value][0]) for value in ranges if self.ranges[value][0] != 0]
        padded = whole.padded and not any(value.range.axis == whole.order[-1] for value in ranges)
        if not moves:
            return dataclasses.replace(whole, padded=padded)
        base = self.unique(f"{whole.address}_at_{''.join(axis for axis, _ in moves)}")
        terms = [f"{start} * {whole.strides[axis]}" for axis, start in moves]
        self.lines.append(f"{'    ' * depth}{base} = {' + '.join((whole.address, *terms))}")
        return dataclasses.replace(whole, address=base, padded=padded)

    def tiles(self, op: Op, known: Lengths | None = None, /, **roles: Value) -> tuple[dict[str, Operand], Lengths]:
        """Where an op's tiles lie, and the lengths of all their axes."""
        for value in op.operands:
            if value not in self.operands and value not in self.numbers and not isinstance(value.type, RangeType):
                raise unsupported(op, f"the CPU backend cannot read {value!r} here", "run the pass form-chains first")
        lengths: dict[str, Size] = dict(known or {})
        for value in roles.values():
            lengths |= self.lengths[value]
        for value in op.results:
            self.lengths[value] = {n: lengths[n] for n in value.names}
        outs = {f"out{index}": self.operands[value] for index, value in enumerate(op.results)}
        return {role: self.operands[value] for role, value in roles.items()} | outs, lengths

    # ---- tiles that need no place of their own

    def store(self, op: Store, depth: int) -> None:
        value, aimed = op.value, self.aimed.get(op.value)
        if aimed is None:
            operands = {"in0": self.operands[value], "out0": self.part(op.target, op.ranges, depth)}
            self.call(f"store_{axes_word(value)}", Copy(operands, self.lengths[value]), depth)
            return
        place, own = aimed
        self.lines.append(f"{'    ' * depth}if {place.strides[value.names[-1]]} != {value.element.bytes}:")
        self.call(f"store_{axes_word(value)}", Copy({"in0": own, "out0": place}, self.lengths[value]), depth + 1)

    def pack(self, op: Pack, depth: int) -> None:
        """The copy; it is left out at run time where the value's elements lie side by side."""
        kernel, word = Copy(*self.tiles(op, in0=op.value)), axes_word(op.result)
        found = self.alias(op.result, self.operands[op.value], depth)
        if found is None:
            self.call(f"pack_{word}", kernel, depth)
            return
        self.call(f"pack_{word}", kernel, depth + 1)
        self.lines.append(f"{'    ' * (depth + 1)}{found}")

    def aim(self, op: Chain, stores: Mapping[Value, Store], depth: int) -> None:
        """Let results that are stored whole be computed where they go, if elements lie side by side there."""
        for value in op.results[: op.stored]:
            if value in stores and self.operands[stores[value].target].order[-1:] == value.names[-1:]:
                place = self.part(stores[value].target, stores[value].ranges, depth)
                own = self.operands[value]
                if (found := self.alias(value, place, depth)) is not None:
                    self.lines.append(f"{'    ' * (depth + 1)}{found}")
                    self.aimed[value] = place, own

    def alias(self, value: Value, there: Operand, depth: int) -> str | None:
        """Read and write a tile in user memory where vectors can be. Writes the choice up to its condition, and gives the line
        that chooses scratch memory after all; None if that is clear from the start."""
        own, lane = self.operands[value], value.names[-1] if value.names else ""
        spacing, size = there.strides.get(lane), value.element.bytes
        if there.order[-1:] != (lane,) or not isinstance(spacing, str) or size < 2 or there.element is not value.element:
            return None
        name = self.unique(f"{there.address}_or_{own.address}")
        strides: dict[str, Size] = {n: self.unique(f"{name}_{n}") if bound(e) > 1 else 0 for n, e in value.tensor.axes}
        strides[lane] = size
        moving = [n for n in value.names if isinstance(strides[n], str)]
        names = ", ".join([name, *(str(strides[n]) for n in moving)])
        pad = "    " * depth
        self.lines.append(f"{pad}{names} = {', '.join([there.address, *(str(there.strides[n]) for n in moving)])}")
        self.lines.append(f"{pad}if {spacing} != {size}:")
        self.operands[value] = Operand(name, strides, value.names, value.element)
        return f"{names} = {', '.join([own.address, *(str(own.strides[n]) for n in moving)])}"

    def product(self, op: Contract | Product, contraction: Contract, body: Block, depth: int) -> None:
        roles = {"in0": op.lhs, "in1": op.rhs, **({} if op.where is None else {"where": op.where})}
        inputs, down, kinds = (op.inputs, op.down, op.kinds) if isinstance(op, Product) else ((), (), ())
        found, more, lengths = self.inputs(inputs, op.axes if isinstance(op, Product) else (), depth, len(roles))
        operands, lengths = self.tiles(op, lengths, **roles, **more)
        space = contraction.result.names
        lengths = {n: lengths[n] for n in (*space, *op.over)}
        along = dot_axis(contraction)
        if along and all(operands[role].unit(along) for role in ("in0", "in1")):
            row = product_row(space, lengths, op.lhs.names, op.rhs.names, ())
            kernel = Dots(operands, lengths, body, found, kinds, space, along, row, op.acc)
        else:
            kernel = Contraction(operands, lengths, body, found, kinds, space, op.over, op.acc, down)
        sums = f"sum over {', '.join(op.over)}"
        if isinstance(op, Contract):
            self.call(f"contract_{axes_word(op.result)}", kernel, depth, sums)
            return
        self.describe(op, space, sums, depth)
        self.call(f"contract_{axes_word(contraction.result)}", kernel, depth)

    def inputs(
        self, values: Sequence[Value], axes: Sequence[Axis], depth: int, first: int = 0
    ) -> tuple[tuple[str | tuple[str, Size], ...], dict[str, Value], dict[str, Size]]:
        """For the inputs of a chain: where the kernel finds each, the values among them by role, and lengths of axes."""
        inputs: list[str | tuple[str, Size]] = []
        roles: dict[str, Value] = {}
        lengths: dict[str, Size] = {n: self.extent(n, e) for n, e in axes}
        for index, value in enumerate(values, first):
            if isinstance(value.type, RangeType):
                start, lengths[value.type.axis] = self.ranges[value]
                inputs.append((value.type.axis, start))
            elif value in self.numbers:
                name = self.unique("number")
                self.lines.append(f"{'    ' * depth}{name} = {self.numbers[value]} + 0")
                inputs.append(("", name))
            else:
                roles[f"in{index}"] = value
                inputs.append(f"in{index}")
        inputs += [(name, 0) for name, _ in axes]
        return tuple(inputs), roles, lengths

    def chain(self, op: Map, depth: int) -> None:
        inputs, roles, ranges = self.inputs(op.inputs, op.axes, depth)
        operands, lengths = self.tiles(op, ranges, **roles)
        space = tuple(name for name, _ in op.space)
        kernel = chain_kernel.Chain(
            operands,
            {n: lengths[n] for n in space},
            body=op.body,
            inputs=inputs,
            kinds=op.kinds,
            space=space,
            down=op.down,
        )
        self.describe(op, space, "", depth)
        self.call(f"map_{axes_word(op.space)}", kernel, depth)

    def describe(self, op: Map | Product, space: Sequence[str], first: str, depth: int) -> None:
        """The scalar ops of a chain as comments; refuses those that cannot be built."""
        names = Names()
        given = [first] * bool(first) + [self.shown(value) for value in op.inputs]
        shown = ", ".join(f"{name} = {x}" for name, x in zip(names.define(op.body.args), given, strict=False))
        pad = "    " * depth
        self.lines.append(f"{pad}# for each {', '.join(space) or 'call'}: {shown}")
        for inner in op.body.ops:
            if not isinstance(inner, Constant | Compare | Cast) and type(inner) not in scalars.BUILD:
                raise unsupported(inner, f"the CPU backend cannot compute {inner.name}", "use the numpy target")
            if isinstance(inner, Constant):
                names.names[inner.result] = str(inner.value)
                continue
            (name,) = names.define(inner.results)
            self.lines.append(f"{pad}#   {name} = {inner.line(names)}")
        ways = ["", *(f" {kind} over {', '.join(op.down)} of" for kind in op.kinds)]
        results = [
            f"{self.operands[r].address} ={ways[max(n - op.stored + 1, 0)]} {names(value)}"
            for n, (r, value) in enumerate(zip(op.results, op.body.yields, strict=True))
        ]
        self.lines.append(f"{pad}#   {', '.join(results)}")

    def shown(self, value: Value) -> str:
        if value in self.numbers:
            return self.numbers[value]
        return self.operands[value].address if value in self.operands else f"index {value.range.axis}"

    def call(self, name: str, kernel: Kernel, depth: int, comment: str = "") -> None:
        name = self.unique(name)
        self.kernels[name] = kernel
        call = f"{'    ' * depth}{name}({', '.join(kernel.arguments())})"
        self.lines.append(f"{call}  # {comment}" if comment else call)


def axes_word(of: Value | Sequence[Axis]) -> str:
    """The axes of a tile in memory order, those of one element left out."""
    axes = of.tensor.axes if isinstance(of, Value) else of
    return "".join(n for n, extent in axes if bound(extent) > 1) or "one"


def unsupported(op: Op, message: str, help: str) -> Unsupported:
    return Unsupported(op.name, message, loc=op.loc, ir=repr(op)[1:-1], help=help)

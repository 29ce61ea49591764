"""From loop-level IR to Python source: loops, address arithmetic, and one call per op.

Names come from axes and from what an op does, not from numbers of values: a change to one chain changes its lines alone.
"""

from __future__ import annotations

import dataclasses
import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attngen.backends import Unsupported
from attngen.backends.cpu import chain_kernel, scalars
from attngen.backends.cpu.chains import uses
from attngen.backends.cpu.copy_kernel import Copy
from attngen.backends.cpu.counting import counted, expression
from attngen.backends.cpu.kernels import Flag, Kernel, Reduction
from attngen.backends.cpu.ops import Chain, Map, Pack, Product
from attngen.backends.cpu.product_kernel import Contraction
from attngen.backends.cpu.storage import ALIGNMENT, Storage
from attngen.backends.cpu.target import Target
from attngen.backends.cpu.vector import REGISTER, Operand, Size
from attngen.ir.core import Block, Op, Value, argument
from attngen.ir.diagnostics import UNKNOWN
from attngen.ir.elementwise import Cast, Compare, Elementwise
from attngen.ir.func import Func
from attngen.ir.loop import Bound, For, If, Load, Parallel, Store, trips
from attngen.ir.nd import Constant, Contract, Expand, Index, Reduce
from attngen.ir.printer import Names
from attngen.ir.types import Axis, Extent, RangeType, UpTo, bound, scalar

Lengths = Mapping[str, Size]


@dataclass(frozen=True)
class Program:
    """Generated source and what it calls.

    arguments: for each array its address and the strides of its axes, then runtime extents, then scratch and temporary memory.
    """

    name: str
    text: str
    arguments: tuple[str, ...]
    kernels: Mapping[str, Kernel]
    extents: tuple[str, ...]
    scratch_bytes: int
    temporary_bytes: int
    target: Target


class Unique:
    """Names that are free: the wished one, or with a number behind it."""

    def __init__(self, taken: Sequence[str]) -> None:
        self.taken = set(taken)

    def __call__(self, wish: str) -> str:
        wish = re.sub(r"\W", "_", wish)
        if keyword.iskeyword(wish) or not wish or wish[0].isdigit():
            wish = f"_{wish}"
        name, count = wish, 1
        while name in self.taken:
            count += 1
            name = f"{wish}_{count}"
        self.taken.add(name)
        return name


class Writer:
    """Writes one function."""

    def __init__(self, func: Func, target: Target) -> None:
        self.func, self.target = func, target
        self.unique = Unique(["range", "min", "max", "scratch", "temporary"])
        self.name = self.unique(func.name)
        self.lines: list[str] = []
        self.kernels: dict[str, Kernel] = {}
        self.operands: dict[Value, Operand] = {}
        self.lengths: dict[Value, Lengths] = {}
        self.ranges: dict[Value, tuple[Size, Size]] = {}
        self.extents: dict[str, str] = {}
        self.arguments: list[str] = []
        self.scratch_bytes = self.temporary_bytes = 0
        self.storage: Storage | None = None
        self.numbers: dict[Value, str] = {}
        """Scalars that the source computes, as expressions."""
        self.aimed: dict[Value, tuple[Operand, Operand]] = {}
        """Results that are computed where they go: that place, and the one in scratch memory."""

    def program(self) -> Program:
        self.arrays()
        for op in self.func.body.ops:
            if isinstance(op, Parallel):
                self.parallel(op, 1)
        shown = ", ".join(f"{p.name}: {value.type}" for p, value in zip(self.func.params, self.func.args, strict=True))
        head = [
            f"# @{self.func.name}({shown}), vectors of {self.target.vector_bits} bits",
            "# addresses of arrays, bytes from element to element along each axis, working memory",
            f"def {self.name}({', '.join(self.arguments)}):",
        ]
        return Program(
            name=self.name,
            text="\n".join([*head, *(self.lines or ["    pass"])]) + "\n",
            kernels=self.kernels,
            extents=tuple(self.extents),
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
        named = [(p.name, value) for p, value in zip(self.func.params, self.func.args, strict=True)]
        named += [(f"out{index}" if several else "out", value) for index, value in enumerate(outs)]
        bases = [self.unique(name) for name, _ in named]
        for (what, value), base in zip(named, bases, strict=True):
            check_element(what, value)
            strides: dict[str, Size] = {n: self.unique(f"{base}_{n}") for n in value.names}
            self.arguments += [base, *(s for s in strides.values() if isinstance(s, str))]
            self.operands[value] = Operand(base, strides, value.names, value.element)
        sizes = {n: e for value in (*self.func.args, *made) for n, e in value.tensor.axes if isinstance(e, UpTo)}
        self.extents = {n: self.unique(f"size_{n}") for n in sizes}
        self.arguments += [*self.extents.values(), "scratch", "temporary"]
        for value in (*self.func.args, *made):
            self.lengths[value] = {n: self.extent(n, e) for n, e in value.tensor.axes}
        for value in made:
            if value not in outs:
                self.temporary(value)

    def temporary(self, value: Value) -> None:
        check_element("a stored value", value)
        strides: dict[str, Size] = {}
        step = value.element.bytes
        for name, extent in reversed(value.tensor.axes):
            strides[name] = step
            step *= bound(extent)
        base = self.unique(f"stored_{value.hint or ''.join(value.names)}")
        self.lines.append(f"    {base} = temporary + {self.temporary_bytes}  # {value.type}")
        self.operands[value] = Operand(base, strides, value.names, value.element)
        self.temporary_bytes += -(-step // ALIGNMENT) * ALIGNMENT

    def extent(self, name: str, extent: Extent) -> Size:
        if isinstance(extent, int):
            return extent
        if name not in self.extents:
            raise Unsupported("cpu", f"nothing says how long axis {name} is", help="give a parameter this axis")
        return self.extents[name]

    # ---- loops

    def parallel(self, op: Parallel, depth: int) -> None:
        storage = self.storage = Storage(op.body, self.target)
        self.scratch_bytes = max(self.scratch_bytes, storage.bytes)
        for place in storage.places():
            value = place.values[0]
            check_element("a tile", value)
            hint = next((x.hint for x in place.values if x.hint), "")
            base = self.unique("_".join(filter(None, (hint or "tile", axes_word(value)))))
            self.lines.append(f"    {base} = scratch + {place.offset}  # {value.type}")
            for x in place.values:
                strides: dict[str, Size] = {**storage.strides(x.tensor)}
                self.operands[x] = Operand(base, strides, x.names, x.element, padded=True)
        n = len(op.axes)
        for arg, result in zip(op.body.args[n:], op.results, strict=True):
            self.operands[arg], self.lengths[arg] = self.operands[result], self.lengths[result]
        for value, axis, extent, step in zip(op.body.args, op.axes, op.extents, op.steps, strict=False):
            depth = self.range(value, axis, extent, step, depth)
        self.block(op.body, depth)

    def range(self, value: Value, axis: str, extent: Extent, step: int, depth: int) -> int:
        """Open a loop over the parts of an axis, unless there is exactly one; the depth of its body."""
        pad = "    " * depth
        if isinstance(extent, int) and trips(extent, step) == 1:
            self.ranges[value] = (0, extent)
            return depth
        start, end = self.unique(axis), self.extent(axis, extent)
        self.lines.append(f"{pad}for {start} in range(0, {end}, {step}):")
        length: Size = step
        if isinstance(value.range.extent, UpTo):
            length = self.unique(f"n_{axis}")
            self.lines.append(f"{pad}    {length} = min({step}, {end} - {start})")
        self.ranges[value] = (start, length)
        return depth + 1

    def loop(self, op: For, depth: int) -> None:
        assert self.storage is not None
        for init, arg, result in zip(op.inits, op.body.args[1:], op.results, strict=True):
            self.lengths[arg] = self.lengths[result] = self.lengths[init]
            if arg in self.storage.memory:
                self.operands[arg] = self.operands[result] = self.operands[init]
        self.copies(self.storage.starts[op], depth)
        above = len(self.lines)
        inner = self.range(op.body.args[0], op.axis, op.extent, op.step, depth)
        empty = len(self.lines)
        self.block(op.body, inner)
        self.copies(self.storage.ends[op], inner)
        if len(self.lines) == empty:
            del self.lines[above:]

    def branch(self, op: If, depth: int) -> None:
        assert self.storage is not None
        for value, result in zip(op.then.yields, op.results, strict=True):
            if result in self.storage.memory:
                self.operands[result] = self.operands[value]
        pad, condition = "    " * depth, self.numbers.get(op.condition)
        if condition is None:
            name = self.unique("if_true")
            self.kernels[name] = Flag({"in0": self.operands[op.condition]}, {})
            condition = f"{name}({self.operands[op.condition].address}) != 0"
        self.lines.append(f"{pad}if {unwrapped(condition)}:")
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

    def copies(self, pairs: Sequence[tuple[Value, Value]], depth: int) -> None:
        for source, to in pairs:
            operands = {"in0": self.operands[source], "out0": self.operands[to]}
            self.lengths.setdefault(to, self.lengths[source])
            self.call(f"copy_{axes_word(to)}", Copy(operands, self.lengths[source]), depth)

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
                case Contract():
                    check_element(op.name, op.lhs)
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

    # ---- ops

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
            if value not in self.operands and not isinstance(value.type, RangeType):
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
        if there.order[-1:] != (lane,) or not isinstance(spacing, str) or size < 4 or there.element is not value.element:
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
        found, more, lengths = self.inputs(inputs, op.axes if isinstance(op, Product) else (), len(roles))
        operands, lengths = self.tiles(op, lengths, **roles, **more)
        space = contraction.result.names
        kernel = Contraction(
            operands,
            {n: lengths[n] for n in (*space, *op.over)},
            body=body,
            inputs=found,
            kinds=kinds,
            space=space,
            summed=op.over,
            acc=op.acc,
            down=down,
        )
        sums = f"sum over {', '.join(op.over)}"
        if isinstance(op, Contract):
            self.call(f"contract_{axes_word(op.result)}", kernel, depth, sums)
            return
        self.describe(op, space, sums, depth)
        self.call(f"contract_{axes_word(contraction.result)}", kernel, depth)

    def inputs(
        self, values: Sequence[Value], axes: Sequence[Axis], first: int = 0
    ) -> tuple[tuple[str | tuple[str, Size], ...], dict[str, Value], dict[str, Size]]:
        """For the inputs of a chain: where the kernel finds each, the values among them by role, and lengths of axes."""
        inputs: list[str | tuple[str, Size]] = []
        roles: dict[str, Value] = {}
        lengths: dict[str, Size] = {n: self.extent(n, e) for n, e in axes}
        for index, value in enumerate(values, first):
            if isinstance(value.type, RangeType):
                start, lengths[value.type.axis] = self.ranges[value]
                inputs.append((value.type.axis, start))
            else:
                roles[f"in{index}"] = value
                inputs.append(f"in{index}")
        inputs += [(name, 0) for name, _ in axes]
        return tuple(inputs), roles, lengths

    def chain(self, op: Map, depth: int) -> None:
        inputs, roles, ranges = self.inputs(op.inputs, op.axes)
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
            for value in (*inner.operands, *inner.results):
                check_element(inner.name, value)
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
        return self.operands[value].address if value in self.operands else f"index {value.range.axis}"

    def call(self, name: str, kernel: Kernel, depth: int, comment: str = "") -> None:
        name = self.unique(name)
        self.kernels[name] = kernel
        call = f"{'    ' * depth}{name}({', '.join(kernel.arguments())})"
        self.lines.append(f"{call}  # {comment}" if comment else call)


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


def axes_word(of: Value | Sequence[Axis]) -> str:
    """The axes of a tile in memory order, those of one element left out."""
    axes = of.tensor.axes if isinstance(of, Value) else of
    return "".join(n for n, extent in axes if bound(extent) > 1) or "one"


def check_element(what: str, value: Value) -> None:
    if value.element.value not in REGISTER:
        raise Unsupported(
            "cpu",
            f"{what} has element type {value.element}",
            loc=value.op.loc if value.op else UNKNOWN,
            help="use f32 or f64, or the numpy target",
        )


def unsupported(op: Op, message: str, help: str) -> Unsupported:
    return Unsupported(op.name, message, loc=op.loc, ir=repr(op)[1:-1], help=help)

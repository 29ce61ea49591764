"""Nests of loops as plain Numba CUDA kernels: any program, any element type, no tensor cores.

One block of threads does one part of a nest. Every op on tiles is a loop of all threads over the elements of its result.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

from attngen.backends import Unsupported
from attngen.backends.cuda import scalar_ops as ops
from attngen.backends.cuda.program import Address, Entry, Length, Parameter, Part, Program, Stride, Workspace
from attngen.backends.cuda.scalar_barriers import Barriers
from attngen.backends.cuda.scalar_memory import Place, place_slots
from attngen.backends.cuda.scalar_phases import LANES, Branch, Copy, Loop, Partial, Phase, Planner, Slot, Step, size, uses
from attngen.backends.cuda.target import Target
from attngen.ir.core import Op, Value
from attngen.ir.elementwise import Elementwise
from attngen.ir.func import Func
from attngen.ir.loop import Bound, For, If, Load, Parallel, Store
from attngen.ir.nd import Constant, Contract, Expand, Gather, Index, Reduce
from attngen.ir.types import ElementType, Extent, TensorType, bound

WORKSPACE = 64 << 20
"""Bytes of global memory that the blocks of a kernel may use together."""
TAKEN = frozenset((*keyword.kwlist, *keyword.softkwlist, *dir(builtins), "cuda", "inf", "nan", "thread", "part", "n"))
NAMES = (
    *("f32", "f64", "i8", "i32", "i64", "div", "rem", "exp", "exp2", "log", "log2", "tanh", "sqrt", "floor", "rint", "absolute"),
    *("negative", "sigmoid", "rsqrt", "divide", "floordiv", "mod", "maximum", "minimum", "round_f16", "round_bf16", "select", "synchronize"),
    *(f"{verb}_{element}" for verb in ("load", "store", "get", "put") for element in ElementType),
)
"""What the namespace of a kernel has."""


def scalar_program(func: Func, target: Target) -> Program:
    """A whole function, each nest a kernel of its own."""
    arrays, temporaries = number_arrays(func)
    nests = [op for op in func.body.ops if isinstance(op, Parallel)]
    taken: set[str] = set()
    entries: list[Entry] = []
    for nest in nests:
        name, count = func.name if len(nests) == 1 else f"{func.name}_{len(entries)}", 0
        while name in taken:
            name, count = f"{name}_{count}", count + 1
        taken.add(name)
        entries.append(write(func, nest, target, arrays, name))
    return Program(func, target, tuple(entries), temporaries)


def number_arrays(func: Func) -> tuple[dict[Value, int], tuple[TensorType, ...]]:
    """The numbers of all tensors in global memory (see `Program`), and the types of those between nests."""
    arrays = {value: k for k, value in enumerate((*func.args, *func.outputs))}
    made = [value for op in func.body.ops if isinstance(op, Parallel) for value in op.results]
    if len(arrays) < len(func.args) + len(func.outputs) or not set(func.outputs) <= set(made):
        raise Unsupported(
            "backend cuda", "an output is not stored by a loop.parallel of its own", help="run the pass `tile` on the function"
        )
    between = [value for value in made if value not in arrays]
    return arrays | {value: len(arrays) + k for k, value in enumerate(between)}, tuple(value.tensor for value in between)


def write(func: Func, nest: Parallel, target: Target, arrays: Mapping[Value, int], name: str) -> Entry:
    """One nest as a kernel. arrays: the numbers of the function's arguments and of the results of its nests."""
    return Writer(func, nest, target, arrays, name).entry()


def needed(nest: Parallel, body: Sequence[Op]) -> list[Op]:
    """The ops outside of nests that a nest depends on."""
    wanted, found = uses(nest), list[Op]()
    for op in reversed(body):
        if not isinstance(op, Parallel) and not wanted.isdisjoint(op.results):
            wanted |= uses(op)
            found.append(op)
    return found[::-1]


@dataclass(frozen=True)
class Element:
    """One of the elements that a thread works on at once: its coordinates, and when it exists, if not always."""

    at: Mapping[str, str]
    exists: str = ""


class Writer:
    """Writes one kernel."""

    def __init__(self, func: Func, nest: Parallel, target: Target, arrays: Mapping[Value, int], name: str) -> None:
        self.func, self.nest, self.target, self.kernel = func, nest, target, name
        outs = dict(zip(nest.body.args[len(nest.axes) :], (arrays[v] for v in nest.results), strict=True))
        self.arrays = {**arrays, **outs}
        self.ops = [*needed(nest, func.body.ops), *nest.body.ops]
        layouts = [p.layout.names for p in func.params] + [layout.names for layout in func.out_layouts]
        names = {v: layouts[k] if k < len(layouts) else v.names for v, k in self.arrays.items()}
        self.plan = Planner(nest, {v: axes[-1] if axes else None for v, axes in names.items()})
        self.steps = self.plan.plan(self.ops)
        self.threads = self.plan.threads
        slot_axes = {slot: self.plan.ordered_axes(v) for v, slot in self.plan.slots.items()}
        self.places = place_slots(self.steps, slot_axes, target.shared_bytes)
        ends = {shared: max((p.end for p in self.places.values() if p.shared == shared), default=0) for shared in (True, False)}
        self.shared_bytes, self.workspace_bytes = ends[True], -(-ends[False] // 256) * 256
        parts = prod(-(-bound(e) // step) for e, step in zip(nest.extents, nest.steps, strict=True))
        most = max(WORKSPACE // self.workspace_bytes, 1) if self.workspace_bytes else 0
        self.most_blocks = most if parts > most else 0
        self.barriers = Barriers(self.steps, self.places, bool(self.most_blocks)).before
        self.blocked = self.find_blocked()

        self.parameters: dict[Parameter, str] = {}
        self.taken = {*TAKEN, *NAMES, name}
        self.names: dict[Value, str] = {}
        self.ranges: dict[Value, tuple[str, str]] = {}
        """First coordinate and length of each part."""
        self.lengths: dict[tuple[str, Extent], str] = {}
        self.bases: dict[tuple[Value, ...], str] = {}
        """Where the part of an array begins that a `tile.load` selects."""
        self.slot_names: dict[Slot, str] = {}
        self.axis_names: dict[str, str] = {}
        self.memo: list[dict[tuple[Value, tuple[str, ...]], str]] = []
        self.lines: list[str] = []
        self.depth = 1

    def entry(self) -> Entry:
        nest = self.nest
        grid = tuple(Part(*each) for each in zip(nest.axes, nest.extents, nest.steps, strict=True))
        self.part_loop()
        body, self.lines, self.depth = self.lines, [], 1
        self.put("thread = i64(cuda.threadIdx.x)")
        if self.workspace_bytes:
            self.workspace()
        for parameter, name in self.parameters.items():
            if not isinstance(parameter, Stride):
                own = f" + i64(cuda.blockIdx.x) * {parameter.bytes}" if isinstance(parameter, Workspace) else ""
                self.put(f"{name} = i64({name}){own}")
        for slot, place in sorted(self.places.items(), key=lambda item: (not item[1].shared, item[1].first)):
            where = f"{place.first}" if place.shared else f"{self.workspace()} + {place.first}"
            self.put(f"{self.slot_name(slot)} = {where}  # {slot.type}, {'shared' if place.shared else 'global'} memory")
        head = f"def {self.kernel}({', '.join(self.parameters.values())}):"
        return Entry(
            self.kernel,
            "\n".join((head, *self.lines, *body)) + "\n",
            functions,
            tuple(self.parameters),
            grid,
            self.threads,
            self.shared_bytes,
            self.most_blocks,
        )

    # ---- names, parameters

    def fresh(self, wish: str) -> str:
        base = re.sub(r"\W", "_", wish, flags=re.ASCII)
        base = base if base[:1].isalpha() else f"v{base}"
        name, count = base, 0
        while name in self.taken:
            count += 1
            name = f"{base}_{count}"
        self.taken.add(name)
        return name

    def variable(self, value: Value) -> str:
        op = value.op
        return self.fresh(value.hint or (f"{op.name.split('.')[-1]}ed" if isinstance(op, Load) else "x"))

    def parameter(self, parameter: Parameter, wish: str) -> str:
        if parameter not in self.parameters:
            self.parameters[parameter] = self.fresh(wish)
        return self.parameters[parameter]

    def array_name(self, number: int) -> str:
        inputs, outputs = len(self.func.params), len(self.func.outputs)
        if number < inputs:
            return self.func.params[number].name
        return f"out{number - inputs if outputs > 1 else ''}" if number < inputs + outputs else f"between{number - inputs - outputs}"

    def address(self, number: int) -> str:
        return self.parameter(Address(number), self.array_name(number))

    def stride(self, number: int, axis: str) -> str:
        return self.parameter(Stride(number, axis), f"{self.array_name(number)}_{axis}")

    def workspace(self) -> str:
        return self.parameter(Workspace(self.workspace_bytes), "workspace")

    def slot_name(self, slot: Slot) -> str:
        if slot not in self.slot_names:
            self.slot_names[slot] = self.fresh(f"{slot.hint or 'x'}_tile")
        return self.slot_names[slot]

    def axis_name(self, axis: str) -> str:
        if axis not in self.axis_names:
            self.axis_names[axis] = self.fresh(axis if axis != LANES else "lane")
        return self.axis_names[axis]

    def length(self, axis: str, extent: Extent) -> str:
        if isinstance(extent, int):
            return str(extent)
        return self.lengths.get((axis, extent)) or self.parameter(Length(axis), f"length_{axis}")

    # ---- lines

    def put(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    @contextmanager
    def indented(self, head: str) -> Iterator[None]:
        """Lines below a head; nothing is known any more of what was computed there once it ends."""
        self.put(head)
        self.depth += 1
        self.memo.append({})
        yield
        self.memo.pop()
        self.depth -= 1

    @contextmanager
    def counting(self, name: str, first: str, end: str, step: str | int) -> Iterator[None]:
        """A loop. (What Numba makes of `for … in range(…)` keeps NVVM from turning products with the counter into sums.)"""
        self.put(f"{name} = {first}")
        with self.indented(f"while {name} < {end}:"):
            yield
            self.put(f"{name} += {step}")

    def part_loop(self) -> None:
        nest = self.nest
        lengths = [self.length(axis, extent) for axis, extent in zip(nest.axes, nest.extents, strict=True)]
        counts: list[str] = []
        for extent, length, step in zip(nest.extents, lengths, nest.steps, strict=True):
            counts.append(str(-(-extent // step)) if isinstance(extent, int) else f"(({length} + {step - 1}) // {step})")
        if self.most_blocks:
            with self.counting("part", "i64(cuda.blockIdx.x)", " * ".join(counts) or "1", "i64(cuda.gridDim.x)"):
                self.part(counts, lengths)
        else:
            self.put("part = i64(cuda.blockIdx.x)")
            self.part(counts, lengths)

    def part(self, counts: Sequence[str], lengths: Sequence[str]) -> None:
        nest = self.nest
        many = [k for k, count in enumerate(counts) if count != "1"]
        for k, (axis, (step, kind)) in enumerate(zip(nest.axes, nest.ranges, strict=True)):
            first = "0"
            if k in many:
                behind = [counts[m] for m in many if m > k]
                index = f"div(part, {' * '.join(behind)})" if behind else "part"
                index = index if k == many[0] else f"rem({index}, {counts[k]})"
                first = self.fresh(f"{axis}_first")
                self.put(f"{first} = {index}{f' * {step}' if step > 1 else ''}")
            self.begin_range(nest.body.args[k], first, lengths[k], step)
        self.block(self.ops, self.steps)

    def begin_range(self, range: Value, first: str, length: str, step: int) -> None:
        kind = range.range
        count = str(kind.extent)
        if self.plan.unit(kind.axis, kind.extent):
            count = "1"
        elif not isinstance(kind.extent, int):
            count = self.fresh(f"{kind.axis}_length")
            self.put(f"{count} = min({step}, {length} - {first})")
            self.lengths[kind.axis, kind.extent] = count
        self.ranges[range] = first, count

    # ---- steps

    def block(self, ops_: Sequence[Op], steps: Sequence[Step]) -> None:
        for op in ops_:
            if isinstance(op, Load):
                self.base(op)
        for step in steps:
            match step:
                case Phase():
                    if step in self.barriers:
                        self.put("synchronize()")
                    self.phase(step)
                case Loop():
                    self.loop(step.op, step.body)
                case Branch():
                    self.branch(step)

    def base(self, op: Load) -> None:
        source = self.plan.resolve(op.source)
        if source not in self.arrays:
            return
        number = self.arrays[source]
        text = self.address(number)
        for range in op.ranges:
            first, axis = self.ranges[self.plan.resolve(range)][0], range.range.axis
            if first != "0":
                text += f" + {first} * {self.stride(number, axis)}"
        if text != self.address(number):
            name = self.fresh(f"{self.array_name(number)}_at")
            self.put(f"{name} = {text}")
            text = name
        self.bases[self.part_of(op)] = text

    def part_of(self, op: Load) -> tuple[Value, ...]:
        return tuple(map(self.plan.resolve, op.operands))

    def variables(self, each: Sequence[tuple[Value, Value]]) -> None:
        """Sets variables to values, all at once. each: the value that a variable is for, and the one it gets."""
        pairs: list[tuple[str, str]] = []
        for variable, value in each:
            text = self.read(value, {})
            if variable not in self.names:
                self.names[variable] = self.fresh(variable.hint or "x")
            pairs.append((self.names[variable], text))
        if pairs:
            self.put(f"{', '.join(a for a, _ in pairs)} = {', '.join(b for _, b in pairs)}")

    def loop(self, op: For, body: Sequence[Step]) -> None:
        each = list(zip(op.body.args[1:], op.inits, op.body.yields, op.results, strict=True))
        changed = [x for x in each if x[2] is not x[0] and not self.plan.axes(x[0])]
        self.variables([(arg, init) for arg, init, _, _ in changed])
        first, end, step = "0", self.length(op.axis, op.extent), op.step
        if op.end is not None:
            whole, end = end, self.fresh(f"{op.axis}_end")
            self.put(f"{end} = min({self.read(op.end, {})}, {whole})")
        if op.first is not None:
            # A part runs if it holds a coordinate from the first to before the end.
            first = self.fresh(f"{op.axis}_begin")
            self.put(f"{first} = max({self.read(op.first, {})}, 0)")
            begin, last = first, end
            first, end = self.fresh(f"{op.axis}_from"), self.fresh(f"{op.axis}_to")
            self.put(f"{first}, {end} = {begin} // {step} * {step}, {last} if {begin} < {last} else 0")
        at = self.fresh(f"{op.axis}_first")
        length = self.length(op.axis, op.extent)
        with self.counting(at, first, end, step):
            self.begin_range(op.body.args[0], at, length, step)
            self.block(op.body.ops, body)
            self.variables([(arg, new) for arg, _, new, _ in changed])
        self.names |= {result: self.names[arg] for arg, _, _, result in changed}

    def filled(self) -> None:
        if self.lines[-1].endswith(":"):
            self.put("pass")

    def branch(self, step: Branch) -> None:
        op = step.op
        for head, region, steps in (
            (f"if {self.read(op.condition, {})}:", op.then, step.then),
            ("else:", op.otherwise, step.otherwise),
        ):
            with self.indented(head):
                self.block(region.ops, steps)
                each = zip(op.results, region.yields, strict=True)
                self.variables([(result, value) for result, value in each if not self.plan.axes(result)])
                self.filled()

    # ---- phases

    def find_blocked(self) -> dict[frozenset[tuple[str, Extent]], dict[str, int]]:
        """Spaces of contractions of which a thread computes several elements at once, so that it reads operands less often:
        the number of elements along each of the axes."""
        found: dict[frozenset[tuple[str, Extent]], dict[str, int]] = {}
        for phase in phases(self.steps):
            space = frozenset(phase.axes)
            if space in found or not any(isinstance(work, Contract) for work in phase.work):
                continue
            factors: dict[str, int] = {}
            room = phase.size // self.threads
            for axis, extent in reversed(phase.axes[-2:]):
                factor = next((f for f in (4, 2) if f <= room and bound(extent) % f == 0), 1)
                if factor > 1:
                    factors[axis] = factor
                    room //= factor
            found[space] = factors
        return {space: factors for space, factors in found.items() if factors}

    def phase(self, phase: Phase) -> None:
        """The loop of a phase. What it computes for an element nothing after it knows."""
        self.memo.append({})
        blocked = self.blocked.get(frozenset(phase.axes), {})
        counts = {axis: max(bound(extent), 1) // blocked.get(axis, 1) for axis, extent in phase.axes}
        total = prod(counts.values())
        if not phase.axes:
            self.compute(phase, [Element({})])
        elif total == self.threads:
            self.elements(phase, "thread", counts, blocked)
        elif total > self.threads:
            with self.counting("n", "thread", str(total), self.threads):
                self.elements(phase, "n", counts, blocked)
        else:
            with self.indented(f"if thread < {total}:"):
                self.elements(phase, "thread", counts, blocked)
        self.memo.pop()

    def elements(self, phase: Phase, number: str, counts: Mapping[str, int], blocked: Mapping[str, int]) -> None:
        """Finds the coordinates of a thread's elements."""
        firsts: dict[str, str] = {}
        many = [axis for axis, count in counts.items() if count > 1]
        for axis, count in counts.items():
            behind = prod(counts[x] for x in many[many.index(axis) + 1 :]) if axis in many else 0
            index = "0" if axis not in many else f"div({number}, {behind})" if behind > 1 else number
            firsts[axis] = index if axis not in many or axis == many[0] else f"rem({index}, {count})"
        together = any(isinstance(work, Contract) for work in phase.work)
        self.open_axes(phase, list(phase.axes), firsts, counts, blocked if together else {}, blocked, [Element({})])

    def open_axes(
        self,
        phase: Phase,
        axes: list[tuple[str, Extent]],
        firsts: Mapping[str, str],
        counts: Mapping[str, int],
        together: Mapping[str, int],
        blocked: Mapping[str, int],
        found: list[Element],
    ) -> None:
        """Lines for the coordinates along the axes, then those for the elements. together: axes along which a thread has
        several elements in variables of their own; along other blocked axes it takes one after the other."""
        if not axes:
            self.compute(phase, found)
            return
        (axis, extent), *rest = axes
        name, length = self.axis_name(axis), self.length(axis, extent)

        def go_on(elements: list[Element]) -> None:
            self.open_axes(phase, rest, firsts, counts, together, blocked, elements)

        def along(at: str, exists: str = "") -> list[Element]:
            both = (" and ".join(filter(None, (x.exists, exists))) for x in found)
            return [Element({**x.at, axis: at}, condition) for x, condition in zip(found, both, strict=True)]

        if axis in blocked and axis not in together:
            with self.counting(name, firsts[axis], length, counts[axis]):
                go_on(along(name))
            return
        self.put(f"{name} = {firsts[axis]}")
        elements = along(name)
        for k in range(1, together.get(axis, 1)):
            further, at = self.axis_name(f"{axis}_{k}"), f"{name} + {k * counts[axis]}"
            if isinstance(extent, int):
                self.put(f"{further} = {at}")
                elements += along(further)
            else:
                # Instead of an element past the end, the thread's first one is computed again, and not stored.
                self.put(f"{further} = {at} if {at} < {length} else {name}")
                elements += along(further, f"{at} < {length}")
        if isinstance(extent, int):
            go_on(elements)
        else:
            with self.indented(f"if {name} < {length}:"):
                go_on(elements)

    def compute(self, phase: Phase, elements: Sequence[Element]) -> None:
        """The work of a phase for some elements."""
        stores: list[tuple[Element, Callable[[], None]]] = []
        for work in phase.work:
            match work:
                case Contract():
                    self.contract(work, work.result, elements)
                case Reduce():
                    self.reduce(work, work.result, elements)
                case Partial(op=Contract() as op):
                    self.contract(op, work.result, elements, work)
                case Partial(op=Reduce() as op):
                    self.reduce(op, work.result, elements, work)
                case Copy():
                    for x in elements:
                        self.know(work.result, x, self.read(work.value, x.at))
                case Store():
                    stores += [(x, lambda work=work, x=x: self.store(work, x)) for x in elements]
                case Partial():
                    raise AssertionError
                case _:
                    for x in elements:
                        name = self.variable(work.results[0])
                        self.put(f"{name} = {self.expression(work, x.at)}")
                        self.know(work.results[0], x, name)
        # All that is read is read before anything is written, by this thread; other threads have other elements.
        texts = [(slot, x, self.read(value, x.at)) for value, slot in phase.puts for x in elements]
        stores += [(x, lambda slot=slot, x=x, text=text: self.fill(slot, x, text)) for slot, x, text in texts]
        for x in elements:
            mine = [line for element, line in stores if element is x]
            if mine and x.exists:
                with self.indented(f"if {x.exists}:"):
                    for line in mine:
                        line()
            else:
                for line in mine:
                    line()

    def know(self, value: Value, element: Element, name: str) -> None:
        if self.plan.axes(value):
            self.memo[-1][self.key(value, element.at)] = name
        else:
            self.names[value] = name

    def key(self, value: Value, at: Mapping[str, str]) -> tuple[Value, tuple[str, ...]]:
        return value, tuple(sorted(f"{axis}={at[axis]}" for axis, _ in self.plan.axes(value)))

    def fill(self, slot: Slot, element: Element, text: str) -> None:
        place, name = self.places[slot], self.slot_name(slot)
        index = indexed(place, element.at)
        if place.shared:
            self.put(f"put_{place.element}({name}, {index}, {text})")
        else:
            self.put(f"store_{place.element}({name} + ({index}) * {place.element.bytes}, {text})")

    def store(self, op: Store, element: Element) -> None:
        number = self.arrays[self.plan.resolve(op.target)]
        ranges = {range.range.axis: self.ranges[self.plan.resolve(range)][0] for range in op.ranges}
        text = self.address(number)
        for axis, _ in op.target.tensor.axes:
            at = " + ".join(x for x in (ranges.get(axis, "0"), element.at.get(axis, "0")) if x != "0")
            if at:
                text += f" + {f'({at})' if '+' in at else at} * {self.stride(number, axis)}"
        line = f"store_{op.target.element}({text}, {self.read(op.value, element.at)})"
        if element.at:
            self.put(line)
        else:
            with self.indented("if thread == 0:"):
                self.put(line)

    # ---- reductions

    def over(self, op: Contract | Reduce, partial: Partial | None, at: Mapping[str, str]) -> list[tuple[str, str, str, int]]:
        """The loops over the axes that are summed: axis, first coordinate, end, step."""
        found: list[tuple[str, str, str, int]] = []
        for axis in op.over:
            extent = op.operands[0].tensor.extents[axis]
            if self.plan.unit(axis, extent):
                continue
            shared = partial is not None and axis == partial.axis
            found.append((axis, at[LANES] if shared else "0", self.length(axis, extent), partial.lanes if shared else 1))
        return found

    def accumulate(
        self,
        op: Contract | Reduce,
        result: Value,
        elements: Sequence[Element],
        partial: Partial | None,
        start: str,
        step: Callable[[str, Mapping[str, str]], None],
    ) -> None:
        names = [self.fresh(result.hint or ("sum" if start.endswith("(0.0)") else "top")) for _ in elements]
        for name in names:
            self.put(f"{name} = {start}")
        loops = self.over(op, partial, elements[0].at)
        inner = {axis: self.axis_name(axis) for axis, *_ in loops}

        def nested(depth: int) -> None:
            if depth < len(loops):
                axis, *limits = loops[depth]
                with self.counting(inner[axis], *limits):
                    nested(depth + 1)
                return
            for name, element in zip(names, elements, strict=True):
                step(name, {**element.at, **inner})

        nested(0)
        for name, element in zip(names, elements, strict=True):
            self.know(result, element, name)

    def contract(self, op: Contract, result: Value, elements: Sequence[Element], partial: Partial | None = None) -> None:
        def step(name: str, at: Mapping[str, str]) -> None:
            a, b = (ops.cast(self.read(x, at), x.element, op.acc) for x in (op.lhs, op.rhs))
            line = f"{name} += {a} * {b}"
            if op.where is None:
                self.put(line)
            else:
                with self.indented(f"if {self.read(op.where, at)}:"):
                    self.put(line)

        self.accumulate(op, result, elements, partial, ops.literal(0, op.acc), step)

    def reduce(self, op: Reduce, result: Value, elements: Sequence[Element], partial: Partial | None = None) -> None:
        def step(name: str, at: Mapping[str, str]) -> None:
            x = ops.cast(self.read(op.value, at), op.value.element, op.acc)
            if op.kind == "sum":
                self.put(f"{name} += {x}")
            else:
                self.put(f"{name} = {ops.combined(op.kind, name, x, op.acc)}")

        self.accumulate(op, result, elements, partial, ops.identity(op.kind, op.acc), step)

    # ---- values

    def read(self, value: Value, at: Mapping[str, str]) -> str:
        """A value at these coordinates, as a variable or a constant; lines before compute it."""
        value = self.plan.resolve(value)
        if value in self.names:
            return self.names[value]
        key = self.key(value, at)
        for known in reversed(self.memo):
            if key in known:
                return known[key]
        op = value.op
        if value in self.arrays:
            text = self.array(value, self.address(self.arrays[value]), at)
        elif value in self.plan.slots:
            text = self.tile(value, at)
        elif isinstance(op, Constant):
            return ops.literal(op.value, op.element)
        elif isinstance(op, Expand):
            return self.read(op.value, at)
        elif isinstance(op, Bound):
            first, length = self.ranges[self.plan.resolve(op.range)]
            return first if op.end == "first" else f"({first} + {length} - 1)"
        elif op is not None:
            text = self.expression(op, at)
        else:
            raise AssertionError(f"{value} has no place")
        if text.isidentifier() or text.isdigit():
            return text
        name = self.variable(value)
        self.put(f"{name} = {text}")
        if self.plan.axes(value):
            self.memo[-1][key] = name
        return name

    def array(self, array: Value, first: str, at: Mapping[str, str]) -> str:
        """An element of an array. first: the address of the one from which coordinates are counted."""
        if array in self.nest.body.args:
            raise Unsupported("backend cuda", "a nest reads what it stores", loc=self.nest.loc)
        for axis, _ in array.tensor.axes:
            if at.get(axis, "0") != "0":
                first += f" + {at[axis]} * {self.stride(self.arrays[array], axis)}"
        return f"load_{array.element}({first})"

    def tile(self, value: Value, at: Mapping[str, str]) -> str:
        slot = self.plan.slots[value]
        place, name = self.places[slot], self.slot_name(slot)
        index = indexed(place, at)
        if place.shared:
            return f"get_{place.element}({name}, {index})"
        return f"load_{place.element}({name} + ({index}) * {place.element.bytes})"

    def expression(self, op: Op, at: Mapping[str, str]) -> str:
        match op:
            case Load():
                return self.load(op, at)
            case Gather():
                return self.gather(op, at)
            case Index():
                axis = op.result.names[0]
                first = "0" if op.range is None else self.ranges[self.plan.resolve(op.range)][0]
                return " + ".join(x for x in (first, at.get(axis, "0")) if x != "0") or "0"
            case Expand():
                return self.read(op.value, at)
            case Elementwise():
                return ops.elementwise(op, [self.read(x, at) for x in op.operands])
            case _:
                what, help = f"does not know {op.name}", "choose target cpu or numpy"
                raise Unsupported("backend cuda", what, loc=op.loc, ir=repr(op)[1:-1], help=help)

    def load(self, op: Load, at: Mapping[str, str]) -> str:
        source = self.plan.resolve(op.source)
        if source in self.arrays:
            return self.array(source, self.bases[self.part_of(op)], at)
        moved = dict(at)
        for range in op.ranges:
            first, axis = self.ranges[self.plan.resolve(range)][0], range.range.axis
            moved[axis] = f"({first} + {at[axis]})" if at.get(axis, "0") != "0" else first
        return self.read(op.source, moved)

    def gather(self, op: Gather, at: Mapping[str, str]) -> str:
        """Outside of the table, the first element is read."""
        moved = dict(at)
        for axis, coordinate in zip(op.over, op.at, strict=True):
            index = self.read(coordinate, at)
            length = self.length(axis, op.table.tensor.extents[axis])
            moved[axis] = self.fresh(f"{axis}_at")
            self.put(f"{moved[axis]} = i64({index})")
            self.put(f"{moved[axis]} = {moved[axis]} if 0 <= {moved[axis]} and {moved[axis]} < {length} else 0")
        return self.read_table(op.table, moved)

    def read_table(self, table: Value, at: Mapping[str, str]) -> str:
        return self.read(table, at)


def indexed(place: Place, at: Mapping[str, str]) -> str:
    """The number of an element in its slot."""
    terms = [at[axis] if stride == 1 else f"{at[axis]} * {stride}" for axis, stride in place.strides.items() if at[axis] != "0"]
    return " + ".join(terms) or "0"


def phases(steps: Sequence[Step]) -> Iterator[Phase]:
    for step in steps:
        match step:
            case Phase():
                yield step
            case Loop():
                yield from phases(step.body)
            case Branch():
                yield from phases((*step.then, *step.otherwise))


def functions() -> Mapping[str, object]:
    """The namespace; Numba is imported when it is asked for."""
    from attngen.backends.cuda.scalar_functions import namespace

    return namespace()

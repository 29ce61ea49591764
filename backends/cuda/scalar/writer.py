"""Nests of loops as plain Numba CUDA kernels: any program, any element type, no tensor cores.

One block of threads does one part of a nest, or several in turn. What the threads do step by step is planned in
`phases.py`, where tiles live in `memory.py`, where threads wait in `barriers.py`; this file and its bases (`elements.py`,
`values.py`, `source.py`) write it down. `functions.py` has what the text calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from attngen.backends import Unsupported
from attngen.backends.cuda.program import Entry, Part, Stride, Workspace
from attngen.backends.cuda.scalar.barriers import Barriers
from attngen.backends.cuda.scalar.elements import Elements, find_blocked
from attngen.backends.cuda.scalar.memory import place_slots
from attngen.backends.cuda.scalar.phases import Planner
from attngen.backends.cuda.scalar.steps import Branch, Loop, Phase, Step
from attngen.backends.cuda.target import Target
from attngen.ir.core import Op, Value, uses
from attngen.ir.func import Func
from attngen.ir.loop import For, Load, Parallel
from attngen.ir.types import TensorType, bound

WORKSPACE = 64 << 20
"""Bytes of global memory that the blocks of a kernel may use together."""


def number_arrays(func: Func) -> tuple[dict[Value, int], tuple[TensorType, ...]]:
    """The numbers of all tensors in global memory (see `Program`), and the types of those between nests."""
    arrays = {value: n for n, value in enumerate((*func.args, *func.outputs))}
    made = [value for op in func.body.ops if isinstance(op, Parallel) for value in op.results]
    if len(arrays) < len(func.args) + len(func.outputs) or not set(func.outputs) <= set(made):
        raise Unsupported(
            "backend cuda", "an output is not stored by a loop.parallel of its own", help="run the pass `tile` on the function"
        )
    between = [value for value in made if value not in arrays]
    return arrays | {value: len(arrays) + n for n, value in enumerate(between)}, tuple(value.tensor for value in between)


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


class Writer(Elements):
    """Writes one kernel."""

    def __init__(self, func: Func, nest: Parallel, target: Target, arrays: Mapping[Value, int], name: str) -> None:
        outs = zip(nest.body.args[len(nest.axes) :], (arrays[x] for x in nest.results), strict=True)
        arrays = {**arrays, **dict(outs)}
        layouts = [p.layout.names for p in func.params] + [layout.names for layout in func.out_layouts]
        axes = {x: layouts[n] if n < len(layouts) else x.names for x, n in arrays.items()}
        plan = Planner(nest, {x: names[-1] if names else "" for x, names in axes.items()})
        self.ops, self.threads = [*needed(nest, func.body.ops), *nest.body.ops], plan.threads
        self.steps = plan.block(self.ops, [])
        slots = {slot: plan.ordered_axes(value) for value, slot in plan.slots.items()}
        super().__init__(func, nest, arrays, plan, place_slots(self.steps, slots, target.shared_bytes), name)
        self.shared_bytes, workspace = (
            max((place.end for place in self.places.values() if place.shared == shared), default=0) for shared in (True, False)
        )
        self.workspace_bytes = -(-workspace // 256) * 256
        parts = prod(-(-bound(e) // step) for e, step in zip(nest.extents, nest.steps, strict=True))
        most = max(WORKSPACE // self.workspace_bytes, 1) if workspace else parts
        self.most_blocks = most if parts > most else 0
        self.barriers = Barriers(self.steps, self.places, repeated=self.most_blocks > 0).before
        self.blocked, self.bases = find_blocked(self.steps, self.threads), {}

    def entry(self) -> Entry:
        nest = self.nest
        self.parts()
        body, self.lines = self.lines, []
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
            name=self.kernel,
            text="\n".join((head, *self.lines, *body)) + "\n",
            namespace=functions,
            parameters=tuple(self.parameters),
            grid=tuple(Part(*each) for each in zip(nest.axes, nest.extents, nest.steps, strict=True)),
            threads=self.threads,
            shared_bytes=self.shared_bytes,
            most_blocks=self.most_blocks,
        )

    # ---- parts

    def parts(self) -> None:
        """All parts of this block."""
        nest, counts = self.nest, list[str]()
        lengths = [self.length(axis, extent) for axis, extent in zip(nest.axes, nest.extents, strict=True)]
        for extent, length, step in zip(nest.extents, lengths, nest.steps, strict=True):
            counts.append(str(-(-extent // step)) if isinstance(extent, int) else f"(({length} + {step - 1}) // {step})")
        if self.most_blocks:
            with self.counting("part", "i64(cuda.blockIdx.x)", " * ".join(counts), "i64(cuda.gridDim.x)"):
                self.part(counts, lengths)
        else:
            self.put("part = i64(cuda.blockIdx.x)")
            self.part(counts, lengths)

    def part(self, counts: Sequence[str], lengths: Sequence[str]) -> None:
        nest = self.nest
        many = [n for n, count in enumerate(counts) if count != "1"]
        for n, (axis, step) in enumerate(zip(nest.axes, nest.steps, strict=True)):
            first = "0"
            if n in many:
                behind = [counts[m] for m in many if m > n]
                index = f"div(part, {' * '.join(behind)})" if behind else "part"
                index = index if n == many[0] else f"rem({index}, {counts[n]})"
                first = self.fresh(f"{axis}_first")
                self.put(f"{first} = {index}{f' * {step}' if step > 1 else ''}")
            self.begin(nest.body.args[n], first, lengths[n], step)
        self.block(self.ops, self.steps)

    def begin(self, range: Value, first: str, length: str, step: int) -> None:
        """A part of an axis of this length begins."""
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

    def block(self, ops: Sequence[Op], steps: Sequence[Step]) -> None:
        for op in ops:
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

    def assign(self, each: Sequence[tuple[Value, Value]]) -> None:
        """Sets variables, all at once. each: the value that a variable is for, and the one it gets."""
        texts = [self.read(value, {}) for _, value in each]
        for variable, _ in each:
            if variable not in self.names:
                self.names[variable] = self.fresh(variable.hint or "x")
        if each:
            self.put(f"{', '.join(self.names[variable] for variable, _ in each)} = {', '.join(texts)}")

    def loop(self, op: For, body: Sequence[Step]) -> None:
        each = zip(op.body.args[1:], op.inits, op.body.yields, op.results, strict=True)
        variables = [x for x in each if x[2] is not x[0] and not self.plan.axes(x[0])]
        self.assign([(arg, init) for arg, init, _, _ in variables])
        length = self.length(op.axis, op.extent)
        first, end = "0", length
        if op.end is not None:
            end = self.fresh(f"{op.axis}_end")
            self.put(f"{end} = min({self.read(op.end, {})}, {length})")
        if op.first is not None:
            # A part runs if it holds a coordinate from the first to before the end.
            begin, first, last = (self.fresh(f"{op.axis}_{word}") for word in ("begin", "from", "to"))
            self.put(f"{begin} = max({self.read(op.first, {})}, 0)")
            self.put(f"{first} = {begin} // {op.step} * {op.step}")
            self.put(f"{last} = {end} if {begin} < {end} else 0")
            end = last
        at = self.fresh(f"{op.axis}_first")
        with self.counting(at, first, end, op.step):
            self.begin(op.body.args[0], at, length, op.step)
            self.block(op.body.ops, body)
            self.assign([(arg, new) for arg, _, new, _ in variables])
        self.names |= {result: self.names[arg] for arg, _, _, result in variables}

    def branch(self, step: Branch) -> None:
        op = step.op
        condition = self.read(op.condition, {})
        variables = [n for n, result in enumerate(op.results) if not self.plan.axes(result)]
        for head, region, steps in ((f"if {condition}:", op.then, step.then), ("else:", op.otherwise, step.otherwise)):
            with self.indented(head):
                self.block(region.ops, steps)
                self.assign([(op.results[n], region.yields[n]) for n in variables])
                self.put("pass") if self.lines[-1].endswith(":") else None


def functions() -> Mapping[str, object]:
    """The namespace; Numba is imported when it is asked for."""
    from attngen.backends.cuda.scalar.functions import namespace

    return namespace()

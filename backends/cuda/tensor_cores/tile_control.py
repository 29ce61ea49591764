"""Loops and choices of a grid's text, in plain Python."""

from __future__ import annotations

from collections.abc import Sequence

from attngen.backends.cuda.ops import Finite, Pad, Stage
from attngen.backends.cuda.passes.pipelining import stage_bytes
from attngen.backends.cuda.tensor_cores.tile_stages import StageText
from attngen.backends.cuda.tensor_cores.tile_text import Range
from attngen.backends.cuda.tensor_cores.tiles import Tile
from attngen.ir.core import Block, Value, walk
from attngen.ir.loop import For, If, Load
from attngen.ir.nd import Gather, Index, Reduce
from attngen.ir.types import ElementType, RangeType, bound


def read_in_registers(loop: For) -> list[Value]:
    """Parts of arrays and coordinates from outside of a loop that its trips read from registers."""
    inside = {r for op in walk(loop.body) for r in op.results}
    found: dict[Value, None] = {}
    for op in walk(loop.body):
        match op:
            case Stage() | Pad():
                continue
            case Gather():
                read = op.at
            case Reduce() if isinstance(op.value.op, Load):
                continue
            case _:
                read = op.operands
        found |= dict.fromkeys(item for item in read if isinstance(item.op, Load | Pad | Index) and item not in inside)
    return [*found]


class ControlText(StageText):
    def block(self, block: Block) -> None:
        for op in block.ops:
            self.op(op)

    def loop(self, op: For) -> None:
        carried = op.body.args[1:]
        names: list[str] = []
        for value, init in zip(carried, op.inits, strict=True):
            source = self.operand(init)
            name = self.fresh(value.hint or "carried")
            if value.element is ElementType.INDEX and self.kind(init).element == "i32":
                source = f"i64({source})" if self.kind(init).layout == "one" else self.wide(init, source)
            self.put(f"{name} = {source}")
            self.variables[value], self.kinds[value] = name, self.tile(value)
            names.append(name)
        for value in read_in_registers(op):
            self.operand(value)
        outside = dict(self.variables)
        self.trips(op, [x for x in op.body.ops if isinstance(x, Stage)], names)
        # What a trip makes is not there where no trip takes place.
        self.variables = outside
        for result, name, value in zip(op.results, names, carried, strict=True):
            self.variables[result], self.kinds[result] = name, self.kinds[value]

    def limits(self, op: For) -> tuple[str, str, str]:
        """Variables of the first coordinate of a trip and of the loop's end, and how many coordinates a trip has."""
        length = self.length(op.axis, op.extent)
        first, end = self.fresh(f"{op.axis}_first"), self.fresh(f"{op.axis}_end")
        low = "0" if op.first is None else f"i32(max({self.use(op.first)}, 0)) // {op.step} * {op.step}"
        high = length if op.end is None else f"min({self.use(op.end)}, {length})"
        self.put(f"{first} = i32({low})")
        self.put(f"{end} = i32({high})")
        if isinstance(op.extent, int) and op.extent % op.step == 0:
            return first, end, str(op.step)
        return first, end, f"i32(min({op.step}, i32({length} - {first})))"

    def start_trip(self, op: For, first: str, count: str) -> None:
        if not count.isdigit():
            name = self.fresh(f"{op.axis}_count")
            self.put(f"{name} = {count}")
            count = name
        self.ranges[op.body.args[0]] = Range(first, count)

    def trips(self, op: For, stages: Sequence[Stage], names: Sequence[str]) -> None:
        """The loop itself: copies run ahead of their use by one trip less than there are buffers."""
        first, end, count = self.limits(op)
        length = self.length(op.axis, op.extent)
        depth = max((s.stages for s in stages), default=0)
        for s in stages:
            self.reserve(s)
        turn = self.fresh("turn")
        if depth > 1:
            for ahead in range(depth - 1):
                self.fill(op, stages, f"i32({first} + {ahead * op.step})", end, str(ahead), length)
            self.put(f"{turn} = i32(0)")
        if depth == 0:
            self.settle()
        # The wait for the first trip's copies is one for all that have begun before them; without a trip it is still to come.
        pending, self.pending = self.pending, False
        self.put(f"while {first} < {end}:")
        self.depth += 1
        self.start_trip(op, first, count)
        if depth > 1:
            self.put(f"{self.call(f'wait_{depth - 2}', 'wait', depth - 2)}()")
            self.put(f"{self.call('barrier', 'barrier')}()")
            ahead = f"i32(i32({turn} + {depth - 1}) % {depth})"
            self.fill(op, stages, f"i32({first} + {(depth - 1) * op.step})", end, ahead, length)
            for s in stages:
                b = self.buffers[s.result]
                self.put(f"{b.variable} = i32(shared + i32({turn} * {stage_bytes(s)}) + {b.offset})")
        elif depth == 1:
            self.put(f"{self.call('barrier', 'barrier')}()")
            for s in stages:
                b = self.buffers[s.result]
                self.put(f"{b.variable} = i32(shared + {b.offset})")
                self.copy(s, b.variable, None)
            self.put(f"{self.call('commit', 'commit')}()")
            self.put(f"{self.call('wait_0', 'wait', 0)}()")
            self.put(f"{self.call('barrier', 'barrier')}()")
        for x in op.body.ops:
            if not isinstance(x, Stage):
                self.op(x)
        self.hand_on(op.body.args[1:], names, op.body.yields)
        self.put(f"{first} = i32({first} + {op.step})")
        if depth > 1:
            self.put(f"{turn} = i32(i32({turn} + 1) % {depth})")
        self.depth -= 1
        self.pending = pending

    def fill(self, op: For, stages: Sequence[Stage], first: str, end: str, slot: str, length: str) -> None:
        """Begin the copies of a trip, if it takes place, and commit them as a group in any case."""
        at = self.fresh(f"{op.axis}_next")
        self.put(f"{at} = {first}")
        self.put(f"if {at} < {end}:")
        self.depth += 1
        counted = isinstance(op.extent, int) and op.extent % op.step == 0
        count = str(min(op.step, bound(op.extent))) if counted else f"min({op.step}, i32({length} - {at}))"
        part = Range(at, count)
        for s in stages:
            target = self.fresh("target")
            self.put(f"{target} = i32(shared + i32({slot} * {stage_bytes(s)}) + {self.buffers[s.result].offset})")
            self.copy(s, target, part)
        self.depth -= 1
        self.put(f"{self.call('commit', 'commit')}()")

    def wide(self, value: Value, source: str) -> str:
        kind = self.kind(value)
        to = Tile(kind.layout, "i64", kind.blocks)
        return f"{self.call('wide', 'spread', kind, to)}({source})"

    def hand_on(self, carried: Sequence[Value], names: Sequence[str], yields: Sequence[Value]) -> None:
        """The carried values of the next trip, all at once."""
        sources = [self.conform(value, y) for value, y in zip(carried, yields, strict=True)]
        clash = any(s in names and s != n for s, n in zip(sources, names, strict=True))
        if clash:
            kept = [self.fresh("next") for _ in sources]
            for name, source in zip(kept, sources, strict=True):
                self.put(f"{name} = {source}")
            sources = kept
        for name, source in zip(names, sources, strict=True):
            if name != source:
                self.put(f"{name} = {source}")

    def conform(self, value: Value, y: Value) -> str:
        """What a region hands on, as the kind of the value that takes it."""
        source, kind, want = self.operand(y), self.kind(y), self.tile(value)
        if kind == want:
            return source
        return f"{self.call(f'spread_{want.layout}', 'spread', kind, want)}({source})"

    def anew(self, name: str) -> str:
        """A number of which the compiler does not know that it is the same: what is computed from it in a branch that is rarely
        taken is computed there, and fills no registers before."""
        again = self.fresh(name)
        self.put(f"{again} = {self.call('again', 'again', Tile('one', 'i32'))}({name})")
        return again

    def choice(self, op: If) -> None:
        condition = self.operand(op.condition)
        self.settle()
        names: list[str] = []
        for r in op.results:
            names.append(self.fresh(r.hint or "chosen"))
        pending = self.pending
        for word, block in ((f"if {condition}:", op.then), ("else:", op.otherwise)):
            self.put(word)
            self.depth += 1
            saved = len(self.lines)
            outside = dict(self.variables)
            for arg, value in zip(block.args, op.inputs, strict=True):
                if isinstance(arg.type, RangeType):
                    self.ranges[arg] = self.ranges[value]
                else:
                    self.variables[arg], self.kinds[arg] = self.operand(value), self.kind(value)
            self.pending = pending
            if isinstance(op.condition.op, Finite) and block is op.otherwise:
                self.place = self.anew("row"), self.anew("column")
            self.block(block)
            self.place = "row", "column"
            for r, name, y in zip(op.results, names, block.yields, strict=True):
                self.put(f"{name} = {self.conform(r, y)}")
            if len(self.lines) == saved:
                self.put("pass")
            self.depth -= 1
            # What a branch makes is not there in the other.
            self.variables = outside
        for r, name in zip(op.results, names, strict=True):
            self.variables[r], self.kinds[r] = name, self.tile(r)

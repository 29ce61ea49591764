"""A grid for Hopper as Numba source: one warpgroup copies boxes into shared memory, the others multiply them.

The ops are those of `tile_source.py`. What differs is how tiles come to shared memory (by tensor maps, in panels of 64 columns
whose 16-byte pieces are swizzled), who waits for whom (mbarriers), and the product (wgmma, which reads shared memory itself).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attngen.backends import Unsupported
from attngen.backends.cuda.ops import Finite, Fragments, Grid, Mma, Pad, Stage, loaded, staged
from attngen.backends.cuda.program import Map
from attngen.backends.cuda.target import Target
from attngen.backends.cuda.tensor_cores.panels import PANEL, ROW, box_bytes, descriptor, panel_bytes, panels, steps
from attngen.backends.cuda.tensor_cores.tile_source import TileWriter
from attngen.backends.cuda.tensor_cores.tile_text import CARRIERS, Buffer, Range
from attngen.backends.cuda.tensor_cores.tiles import Tile
from attngen.ir.core import Op, Value, walk
from attngen.ir.loop import For, Load
from attngen.ir.types import RangeType, bound

GROUP = 128
"""Threads of a warpgroup."""
FEW, MANY = 24, 240
"""Registers of a thread that copies, and of one that multiplies; two groups of these and one of those share 65,536."""


class WarpgroupWriter(TileWriter):
    """Writes one grid whose engine is wgmma."""

    def __init__(
        self, name: str, grid: Grid, numbers: Mapping[Value, int], words: Mapping[int, str], top: Sequence[Op], target: Target
    ) -> None:
        super().__init__(name, grid, numbers, words, top, target)
        self.groups = grid.warps // 4
        """How many warpgroups multiply."""
        self.arrived: set[Value] = set()
        """Tiles that are copied once and have been waited for."""
        self.full: dict[Value, int] = {}
        self.empty: dict[Value, int] = {}
        """The numbers of the mbarriers that say so of a tile's first buffer."""
        self.barrier_count = 0
        for op in walk(grid.body):
            if isinstance(op, Stage):
                self.reserve(op)
        self.barriers = self.shared
        """Where the mbarriers begin in shared memory."""
        self.shared += 8 * self.barrier_count

    # ---- the kernel

    @property
    def threads(self) -> int:
        return GROUP * (self.groups + 1)

    def heading(self) -> list[str]:
        """The place of a thread among those that multiply; the others' numbers are negative."""
        return [
            "    thread = i32(cuda.threadIdx.x)",
            "    lane = i32(thread & 31)",
            "    warp = i32(i32(thread >> 5) - 4)",
            "    group = i32(warp >> 2)",
            "    row = i32(i32(warp * 16) + i32(lane >> 2))",
            "    column = i32(i32(lane & 3) * 2)",
        ]

    def body(self) -> None:
        """First what all threads compute, then the two roles."""
        common = [op for op in self.grid.body.ops if self.everywhere(op)]
        for op in common:
            self.op(op)
        self.start_barriers()
        self.put("if group < 0:")
        self.depth += 1
        if self.groups > 1:
            self.put(f"{self.call('fewer_registers', 'registers', FEW, False)}()")
        self.put("if thread == 0:")
        self.depth += 1
        self.produce()
        self.depth -= 2
        self.put("else:")
        self.depth += 1
        if self.groups > 1:
            self.put(f"{self.call('more_registers', 'registers', MANY, True)}()")
        rest = [op for op in self.grid.body.ops if op not in common and not isinstance(op, Stage)]
        for op in rest:
            self.await_own(op)
            self.op(op)
        self.depth -= 1

    def everywhere(self, op: Op) -> bool:
        """Whether all threads compute an op, so that copies may depend on it: scalars of the block."""
        if op.regions or isinstance(op, Stage | Fragments | Mma | Finite):
            return False
        return all(not isinstance(item.type, RangeType) and self.layout(item) == "one" for item in op.results) or isinstance(
            op, Load | Pad
        )

    def start_barriers(self) -> None:
        init = self.call("barrier_init", "barrier_init")
        self.put("if thread == 0:")
        each = (*((x, at, 1) for x, at in self.full.items()), *((x, at, 4 * self.groups) for x, at in self.empty.items()))
        for value, at, arrivals in each:
            for slot in range(staged(value).stages):
                self.put(f"    {init}({self.barrier_at(at + slot)}, {arrivals})")
        self.put(f"    {self.call('barriers_visible', 'barriers_visible')}()")
        self.put(f"{self.call('barrier', 'barrier')}()")

    def barrier_at(self, number: int) -> str:
        return f"i32(shared + {self.barriers + 8 * number})"

    # ---- copies

    def reserve(self, op: Stage) -> None:
        if op.result in self.buffers:
            return
        self.shared = -(-self.shared // 1024) * 1024
        self.buffers[op.result] = Buffer(self.fresh(f"{op.result.hint or 'tile'}_at"), self.shared)
        self.shared += op.stages * box_bytes(op)
        self.full[op.result] = self.barrier_count
        self.barrier_count += op.stages
        if self.loop_of(op) is not None:
            self.empty[op.result] = self.barrier_count
            self.barrier_count += op.stages

    def loop_of(self, op: Stage) -> For | None:
        return next((f for f in self.grid.body.ops if isinstance(f, For) and op in f.body.ops), None)

    def produce(self) -> None:
        """What the copying thread does: the loops, with nothing in them but copies."""
        wait, put = self.call("barrier_wait", "barrier_wait"), self.put
        for op in self.grid.body.ops:
            if isinstance(op, Stage):
                self.boxes(op, self.barrier_at(self.full[op.result]), f"i32(shared + {self.buffers[op.result].offset})")
            if not isinstance(op, For) or not (stages := [s for s in op.body.ops if isinstance(s, Stage)]):
                continue
            first, end, _ = self.limits(op)
            turn, phase = self.fresh("turn"), self.fresh("phase")
            put(f"{turn} = i32(0)")
            put(f"{phase} = i32(1)")
            put(f"while {first} < {end}:")
            self.depth += 1
            self.ranges[op.body.args[0]] = Range(first, str(op.step))
            for s in stages:
                put(f"{wait}({self.slot(self.empty[s.result], turn)}, {phase})")
                full = self.fresh("full")
                put(f"{full} = {self.slot(self.full[s.result], turn)}")
                self.boxes(s, full, f"i32(shared + i32({turn} * {box_bytes(s)}) + {self.buffers[s.result].offset})")
            put(f"{first} = i32({first} + {op.step})")
            self.next_turn(turn, phase, stages[0].stages)
            self.depth -= 1

    def slot(self, barrier: int, turn: str) -> str:
        return f"i32(shared + i32({turn} * 8) + {self.barriers + 8 * barrier})"

    def next_turn(self, turn: str, phase: str, stages: int) -> None:
        self.put(f"{turn} = i32({turn} + 1)")
        self.put(f"if {turn} == {stages}:")
        self.put(f"    {turn} = i32(0)")
        self.put(f"    {phase} = i32({phase} ^ 1)")

    def boxes(self, op: Stage, barrier: str, target: str) -> None:
        """Begin the copies of a tile, a panel at a time."""
        load = loaded(op.value)
        number = self.numbers[load.source]
        *outer, last = op.order
        extents = op.result.tensor.extents
        inner = [n for n in reversed(outer) if bound(extents[n]) > 1 or n in self.roles.rows]
        axes = (last, *inner, *(n for n in reversed(load.source.names) if n not in (last, *inner)))
        if len(axes) > 5:
            raise Unsupported("backend cuda", f"{self.words[number]} has {len(axes)} axes, a tensor map has at most 5")
        box = (PANEL, *(bound(extents[n]) for n in axes[1:]))
        parameter = self.parameters.map(Map(number, axes, box))
        firsts = {r.range.axis: self.ranges[r].first for r in load.ranges}
        self.put(f"{self.call('barrier_expect', 'barrier_expect')}({barrier}, {box_bytes(op)})")
        copy = self.call(f"copy_box_{len(axes)}d", "copy_box", len(axes))
        for panel in range(panels(op)):
            begin = firsts.get(last, "0")
            where = [f"i32({begin} + {PANEL * panel})", *(f"i32({firsts.get(n, '0')})" for n in axes[1:])]
            self.put(f"{copy}(i32({target} + {panel * panel_bytes(op)}), {parameter}, {barrier}, {', '.join(where)})")

    def settle(self) -> None:
        """Nothing: tiles are waited for one by one, in `trips` and `await_own`."""

    # ---- the loop of those who multiply

    def trips(self, op: For, stages: Sequence[Stage], names: Sequence[str]) -> None:
        first, end, count = self.limits(op)
        turn, phase = self.fresh("turn"), self.fresh("phase")
        self.put(f"{turn} = i32(0)")
        self.put(f"{phase} = i32(0)")
        work = [x for x in op.body.ops if not isinstance(x, Stage)]
        early = next((x for x in work if isinstance(x, Mma) and x.ahead), None)
        run = Ahead(self, early, turn, phase, f"i32({first} + {op.step})", end) if early else None
        if run:
            run.prologue(first)
        self.put(f"while {first} < {end}:")
        self.depth += 1
        self.start_trip(op, first, count)
        here = [s.result for s in stages if early is None or s.result is not early.rhs]
        for s in here:
            self.point(s, turn)
        if run:
            run.begin()
        waited: set[Value] = set()
        for index, x in enumerate(work):
            if x is early:
                continue
            for s in here:
                if s in self.read(x) and s not in waited:
                    self.wait_for(s, turn, phase)
                    waited.add(s)
            self.op(x)
            for s in here:
                if s in self.read(x) and not any(s in self.read(later) for later in work[index + 1 :]):
                    self.release(s, turn)
        self.hand_on(op.body.args[1:], names, op.body.yields)
        if run:
            run.finish()
        self.put(f"{first} = i32({first} + {op.step})")
        self.next_turn(turn, phase, max((s.stages for s in stages), default=1))
        self.depth -= 1

    def point(self, stage: Value, turn: str) -> None:
        """Let a tile's variable be the address of the buffer of this turn."""
        b = self.buffers[stage]
        self.put(f"{b.variable} = i32(shared + i32({turn} * {box_bytes(staged(stage))}) + {b.offset})")

    def wait_for(self, stage: Value, turn: str, phase: str) -> None:
        self.put(f"{self.call('barrier_wait', 'barrier_wait')}({self.slot(self.full[stage], turn)}, {phase})")

    def release(self, stage: Value, turn: str) -> None:
        readers = [op for op in walk(self.grid.body) if stage in op.operands]
        lanes = any(isinstance(op, Finite) or isinstance(op, Mma) and op.where is not None for op in readers)
        name = self.call("arrive_with_lanes" if lanes else "arrive", "barrier_arrive", lanes)
        self.put(f"{name}({self.slot(self.empty[stage], turn)}, lane)")

    def read(self, op: Op) -> set[Value]:
        """The staged tiles that an op reads, its regions included."""
        inner = [x for b in op.regions for x in b.ops]
        found = {item for item in op.operands if isinstance(item.op, Stage)}
        return found.union(*map(self.read, inner))

    def await_own(self, op: Op) -> None:
        """Wait for tiles that are copied once, before the first op that reads them."""
        for s in sorted(self.read(op) - set(self.empty) - self.arrived, key=lambda item: self.full[item]):
            self.put(f"{self.call('barrier_wait', 'barrier_wait')}({self.barrier_at(self.full[s])}, 0)")
            self.put(f"{self.buffers[s].variable} = i32(shared + {self.buffers[s].offset})")
            self.arrived.add(s)

    # ---- products

    def op(self, op: Op) -> None:
        if isinstance(op, Fragments):
            # Left operands are read where they are.
            self.variables[op.result], self.kinds[op.result] = self.buffers[op.value].variable, self.tile(op.result)
        elif isinstance(op, Finite):
            stage = op.value
            name = self.call("finite", "finite_words", CARRIERS[stage.element], box_bytes(staged(stage)))
            self.define(op.result, f"{name}({self.buffers[stage].variable}, lane)")
        else:
            super().op(op)

    def rows_of(self, stage: Value) -> tuple[int, int]:
        return ROW, panel_bytes(staged(stage))

    def described(self, stage: Value, summed_last: bool, offset: str = "") -> str:
        at = self.buffers[stage].variable
        address = f"i32({at} + {offset})" if offset else at
        return f"(i64({descriptor(staged(stage), summed_last)}) | i64(i32({address} & 262143) >> 4))"

    def multiply(self, op: Mma, left: str, sums: list[str]) -> None:
        self.define(op.result, self.multiplied(op, left, sums, wait=True))

    def multiplied(self, op: Mma, left: str, sums: list[str], *, wait: bool) -> str:
        stage, result = op.rhs, self.tile(op.result)
        summed_last = staged(stage).order[-1] in op.over
        (inner,) = [n for n in op.over if self.roles.is_column(n, op.lhs.tensor.extents[n])]
        count = bound(op.lhs.tensor.extents[inner]) // 16
        rights, lefts = steps(staged(stage), summed_last, count), ()
        registers: Tile | None = self.kind(op.lhs)
        if isinstance(op.lhs.op, Fragments):
            own = op.lhs.op.value
            left, registers = self.described(own, True, f"i32(group * {64 * ROW})"), None
            lefts = steps(staged(own), True, count)
        given = (CARRIERS[stage.element], registers, result, lefts, rights, not summed_last, bool(sums), wait)
        name = self.call("warpgroup_product" if wait else "begin_product", "warpgroup_product", *given)
        return f"{name}({', '.join((left, self.described(stage, summed_last), *sums))})"


class Ahead:
    """A product that is begun one trip ahead. In the last trip it is begun once more on the tile at hand, and nobody reads it:
    what is under way in registers must not depend on a branch."""

    def __init__(self, writer: WarpgroupWriter, op: Mma, turn: str, phase: str, following: str, end: str) -> None:
        self.writer, self.op, self.turn, self.phase = writer, op, turn, phase
        self.following, self.end = following, end
        self.stages = staged(op.rhs).stages
        self.name, self.next = writer.fresh(op.result.hint or "ahead"), writer.fresh("next_turn")
        self.started, self.other = writer.fresh("started"), writer.fresh("next_phase")

    def prologue(self, first: str) -> None:
        """The product of the first trip."""
        w, stage = self.writer, self.op.rhs
        left = w.operand(self.op.lhs)
        w.put(f"{self.name} = {w.zeros(w.tile(self.op.result))}")
        w.point(stage, self.turn)
        w.put(f"if {first} < {self.end}:")
        w.depth += 1
        w.wait_for(stage, self.turn, self.phase)
        w.put(f"{self.name} = {w.multiplied(self.op, left, [], wait=True)}")
        w.release(stage, self.turn)
        w.depth -= 1
        w.variables[self.op.result], w.kinds[self.op.result] = self.name, w.tile(self.op.result)

    def begin(self) -> None:
        w, stage = self.writer, self.op.rhs
        left = w.operand(self.op.lhs)
        w.put(f"{self.next} = {self.turn}")
        w.put(f"if {self.following} < {self.end}:")
        w.put(f"    {self.next} = i32(i32({self.turn} + 1) % {self.stages})")
        w.put(f"    {self.other} = i32({self.phase} ^ i32({self.next} == 0))")
        w.depth += 1
        w.wait_for(stage, self.next, self.other)
        w.depth -= 1
        w.point(stage, self.next)
        w.put(f"{self.started} = {w.multiplied(self.op, left, [], wait=False)}")

    def finish(self) -> None:
        w = self.writer
        done = w.call("warpgroup_wait", "warpgroup_wait", w.tile(self.op.result))
        w.put(f"{self.name} = {done}({self.started})")
        w.put(f"if {self.following} < {self.end}:")
        w.depth += 1
        w.release(self.op.rhs, self.next)
        w.depth -= 1

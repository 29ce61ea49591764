"""Random well-typed functions: every op class, element type and odd attribute value, loops with regions, places and names.

``random_func(seed)`` is the same function every time. All can be interpreted.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence

from attngen.ir import attn, loop, nd
from attngen.ir import elementwise as ew
from attngen.ir.core import REGISTRY, Block, Op, Value, argument, at
from attngen.ir.diagnostics import UNKNOWN, Error, Loc
from attngen.ir.func import Func, Param
from attngen.ir.types import Axis, ElementType, Extent, Layout, RangeType, TensorType, UpTo, tile_extent

F32, F64, F16, BF16 = ElementType.F32, ElementType.F64, ElementType.F16, ElementType.BF16
I1, I8, I32, I64, INDEX = ElementType.I1, ElementType.I8, ElementType.I32, ElementType.I64, ElementType.INDEX

FINITE = (0.0, -0.0, 1.0, -1.5, 0.1, 1e-45, 5e-324, 1e30, 3.4028234663852886e38, 1e300, math.pi, 2, -7)
FLOATS = (*FINITE, math.inf, -math.inf, math.nan)
INTEGERS = (0, 1, -1, 7, 127, -128)
HINTS = ("", "", "", "x", "x", "x_1", "acc", "0", "a b", "loc", "none")
LOCS = (
    *(UNKNOWN, Loc("model.py", 3), Loc("model.py", 12, 5), Loc("<string>", 1, 1)),
    *(Loc('C:\\a "b" (c).py', 7), Loc("unknown", 2), Loc("é.py", 4)),
)
STEPS = (1, 2, 3, 8)

End = Callable[[], tuple[Value, ...]]


class Generator:
    """Adds random ops to a block; `values` is what they may read."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        choose = self.random.choice
        self.extents: dict[str, Extent] = {name: choose((1, 2, 3, 4, 5, UpTo(3), UpTo(5), UpTo(8))) for name in "bijde"}
        self.values: list[Value] = []
        self.ops: list[Op] = []
        self.looped: set[str] = set()
        self.depth = 0

    # ---------------------------------------------------------------- choosing

    def value(self, fits: Callable[[Value], bool] = lambda v: True) -> Value:
        """A value, rather a late one."""
        found = [v for v in self.values if isinstance(v.type, TensorType) and fits(v)]
        if not found:
            raise Error("no such value yet")
        return found[max(self.random.randrange(len(found)), self.random.randrange(len(found)))]

    def of(self, *elements: ElementType) -> Value:
        return self.value(lambda v: v.element in elements)

    def floating(self) -> Value:
        return self.value(lambda v: v.element.is_float)

    def some(self, names: Sequence[str], least: int = 0) -> tuple[str, ...]:
        if len(names) < least:
            raise Error("too few axes")
        return tuple(self.random.sample(list(names), self.random.randint(least, len(names))))

    def axis(self, name: str) -> Axis:
        return name, self.extents[name]

    def ranges(self) -> list[Value]:
        return [v for v in self.values if isinstance(v.type, RangeType)]

    # ---------------------------------------------------------------- growing a block

    def add(self, op: Op) -> Op:
        for result in op.results:
            result.hint = self.random.choice(HINTS)
        self.ops.append(op)
        self.values += op.results
        return op

    def grow(self, count: int) -> None:
        """Up to `count` tries at random ops."""
        makers = [*MAKERS, *LOOPS] if self.depth < 2 else MAKERS
        for _ in range(count):
            with at(self.random.choice(LOCS)):
                mark = len(self.values), len(self.ops)
                try:
                    self.random.choice(makers)(self)
                except Error:
                    del self.values[mark[0] :], self.ops[mark[1] :]

    def block(self, args: tuple[Value, ...], count: int, end: End, axes: Iterable[str] = ()) -> Block:
        """A region with random ops, then what `end` adds and yields."""
        outside = list(self.values), self.ops, set(self.looped)
        self.values, self.ops, self.depth = [*self.values, *args], [], self.depth + 1
        self.looped |= set(axes)
        try:
            self.grow(count)
            yields = end()
            return Block(args, tuple(self.ops), yields)
        finally:
            (self.values, self.ops, self.looped), self.depth = outside, self.depth - 1

    def like(self, target: Value) -> Value:
        """A value of the target's type: one there is, or the target combined with something."""
        for _ in range(3):
            try:
                other = self.value(lambda v: v.element is target.element and set(v.tensor.axes) <= set(target.tensor.axes))
                cls = self.random.choice((ew.Or, ew.And) if target.element is I1 else (ew.Add, ew.Max, ew.Min))
                return self.add(cls(lhs=target, rhs=other)).result
            except Error:
                continue
        return target


# ---------------------------------------------------------------- one function per kind of op


def accepted(g: Generator, cls: type[ew.Elementwise]) -> Value:
    return g.floating() if cls.accepts == "float" else g.of(I1) if cls.accepts == "logic" else g.value()


def unary(g: Generator) -> None:
    cls = g.random.choice([c for c in REGISTRY.values() if issubclass(c, ew.Unary)])
    g.add(cls(value=accepted(g, cls)))


def binary(g: Generator) -> None:
    cls = g.random.choice([c for c in REGISTRY.values() if issubclass(c, ew.Binary) and c is not ew.Compare])
    first = accepted(g, cls)
    g.add(cls(lhs=first, rhs=g.of(first.element)))


def compare(g: Generator) -> None:
    first = g.value()
    g.add(ew.Compare(lhs=first, rhs=g.of(first.element), predicate=g.random.choice(list(ew.PREDICATES))))


def select(g: Generator) -> None:
    first = g.value()
    g.add(ew.Select(condition=g.of(I1), lhs=first, rhs=g.of(first.element)))


def cast(g: Generator) -> None:
    g.add(ew.Cast(value=g.value(), to=g.random.choice(list(ElementType))))


def constant(g: Generator) -> None:
    element = g.random.choice(list(ElementType))
    values = FLOATS if element.is_float else (True, False) if element is I1 else INTEGERS
    g.add(nd.Constant(value=g.random.choice(values), element=element))


def index(g: Generator) -> None:
    ranges = g.ranges()
    if ranges and g.random.random() < 0.7:
        g.add(nd.Index(range=g.random.choice(ranges)))
    else:
        name = g.random.choice(list(g.extents))
        g.add(nd.Index(axis=name, extent=g.extents[name]))


def expand(g: Generator) -> None:
    x, ranges = g.value(), g.ranges()
    new = [n for n in g.extents if n not in x.names and n not in g.looped]
    along = tuple(r for r in ranges if r.range.axis not in x.names and g.random.random() < 0.5)
    g.add(nd.Expand(value=x, ranges=along, axes=tuple(map(g.axis, g.some(new)))))


def contract(g: Generator) -> None:
    a = g.floating()
    b = g.of(a.element)
    where = g.of(I1) if g.random.random() < 0.5 else None
    over = g.some([n for n in a.names if n in b.names])
    g.add(nd.Contract(lhs=a, rhs=b, where=where, over=over, acc=g.random.choice((a.element.accumulator, F64))))


def reduce(g: Generator) -> None:
    x = g.floating()
    g.add(nd.Reduce(value=x, kind=g.random.choice(("sum", "max")), over=g.some(x.names, 1), acc=x.element.accumulator))


def gather(g: Generator) -> None:
    table = g.value(lambda v: any(isinstance(e, int) for _, e in v.tensor.axes))
    fixed = {n: e for n, e in table.tensor.axes if isinstance(e, int)}
    over = g.some(list(fixed), 1)
    at: list[Value] = []
    for name in over:
        x = g.of(INDEX, I64, I32)
        size = g.add(nd.Constant(value=fixed[name], element=x.element)).result
        at.append(g.add(ew.Mod(lhs=x, rhs=size)).result)
    g.add(nd.Gather(table=table, at=tuple(at), over=over))


def score(g: Generator) -> None:
    q = g.floating()
    k = g.of(q.element)
    g.add(attn.Score(query=q, key=k, over=g.some([n for n in q.names if n in k.names])))


def scale(g: Generator) -> None:
    g.add(attn.Scale(value=g.floating(), by=g.random.choice(FINITE)))


def mask(g: Generator) -> None:
    g.add(attn.Mask(value=g.floating(), keep=g.of(I1)))


def softmax(g: Generator) -> None:
    x = g.of(F32, F64)
    g.add(attn.Softmax(value=x, over=g.some(x.names, 1)))


def weigh(g: Generator) -> None:
    a, v = g.of(F32, F64), g.floating()
    keep = g.of(I1) if g.random.random() < 0.5 else None
    g.add(attn.Weigh(weights=a, value=v, keep=keep, over=g.some([n for n in a.names if n in v.names])))


def load(g: Generator) -> None:
    ranges = g.ranges()
    x = g.value(lambda v: any(g.axis(r.range.axis) in v.tensor.axes for r in ranges))
    chosen = tuple(r for r in ranges if g.axis(r.range.axis) in x.tensor.axes)
    g.add(loop.Load(source=x, ranges=chosen))


def sequential(g: Generator) -> None:
    name = g.random.choice(g.some([n for n in g.extents if n not in g.looped], 1))
    extent, step = g.extents[name], g.random.choice(STEPS)
    inits = tuple(g.value() for _ in range(g.random.choice((1, 1, 2, 3))))
    limits = [g.add(nd.Constant(value=g.random.randint(-2, 9), element=INDEX)).result for _ in range(2)]
    carried = tuple(argument(v.type, g.random.choice(HINTS)) for v in inits)
    trip = argument(RangeType(name, tile_extent(extent, step)), g.random.choice(("", name)))
    body = g.block((trip, *carried), g.random.randint(1, 8), lambda: tuple(map(g.like, carried)), name)
    merge = None
    if g.random.random() < 0.5:
        pairs = tuple(argument(v.type, g.random.choice(HINTS)) for v in inits * 2)
        merge = g.block(pairs, 2, lambda: tuple(map(g.like, pairs[: len(inits)])))
    first, end = (g.random.choice((None, limit)) for limit in limits)
    g.add(loop.For(inits=inits, axis=name, extent=extent, step=step, body=body, merge=merge, first=first, end=end))


def parallel(g: Generator) -> None:
    # A new tensor has the extents of the function: a part of an axis that a loop runs over has another.
    source = g.value(lambda v: bool(v.names) and all(n not in g.looped and g.axis(n) in v.tensor.axes for n in v.names))
    names = g.some(source.names, 1)
    extents = tuple(g.extents[n] for n in names)
    steps = tuple(g.random.choice(STEPS) for _ in names)
    types = (RangeType(n, tile_extent(e, s)) for n, e, s in zip(names, extents, steps, strict=True))
    trips = tuple(argument(t, g.random.choice(("", t.axis))) for t in types)
    target = argument(source.type, g.random.choice(HINTS))

    def end() -> tuple[Value, ...]:
        tile = g.add(loop.Load(source=source, ranges=trips)).result
        return (g.add(loop.Store(value=g.like(tile), target=target, ranges=trips)).result,)

    # The target may be written only by the store, so that the random ops do not see it.
    body = g.block(trips, g.random.randint(0, 6), end, names)
    body = Block((*trips, target), body.ops, body.yields)
    g.add(loop.Parallel(axes=names, extents=extents, steps=steps, body=body))


def choice(g: Generator) -> None:
    condition = g.add(nd.Constant(value=g.random.random() < 0.5, element=I1)).result
    inputs = tuple(g.value() for _ in range(g.random.choice((1, 2, 3))))
    ranges = tuple(g.ranges()[:1])

    def region() -> Block:
        args = tuple(argument(v.type, g.random.choice(HINTS)) for v in (*ranges, *inputs))
        return g.block(args, g.random.randint(0, 5), lambda: tuple(map(g.like, args[len(ranges) :])))

    g.add(loop.If(condition=condition, inputs=(*ranges, *inputs), then=region(), otherwise=region()))


def bound(g: Generator) -> None:
    ranges = g.ranges()
    if not ranges:
        raise Error("no range yet")
    g.add(loop.Bound(range=g.random.choice(ranges), end=g.random.choice(("first", "last"))))


MAKERS: list[Callable[[Generator], None]] = [
    *(unary, binary, compare, select, cast, constant, index, expand, contract, reduce, gather),
    *(score, scale, mask, softmax, weigh, load, bound),
]
LOOPS: list[Callable[[Generator], None]] = [sequential, parallel, choice]


def random_func(seed: int, size: int = 24) -> Func:
    """A random function of about `size` ops, regions not counted."""
    g = Generator(seed)
    args: list[Value] = []
    params: list[Param] = []
    names = g.random.choice((["q", "k", "v", "w"], ["x", "1", "θ x", ""]))
    elements = F32, g.random.choice((F32, F64, F16, BF16)), *g.random.sample((I1, I8, I32, I64, F64), 2)
    for name, element in zip(names, elements, strict=True):
        axes = g.some(list(g.extents))
        args.append(argument(TensorType(tuple(map(g.axis, axes)), element), name))
        params.append(Param(name, layout(g, axes)))
    g.values += args
    g.grow(size)
    outs = tuple(g.value() for _ in range(g.random.randint(1, 3)))
    name = g.random.choice(("f", "attention", "<lambda>", 'a "b"'))
    return Func(name, tuple(params), Block(tuple(args), tuple(g.ops), outs), tuple(layout(g, v.names) for v in outs))


def layout(g: Generator, names: Sequence[str]) -> Layout:
    """The axes in some order, the first two perhaps as one dimension."""
    order = g.some(names, len(names))
    if len(order) > 1 and g.random.random() < 0.3 and all(isinstance(g.extents[n], int) for n in order[:2]):
        return Layout((order[:2], *((n,) for n in order[2:])))
    return Layout(tuple((n,) for n in order))

"""Whether a value may follow the running result of a reduction, and what corrects it when that result changes.

A body of a later reduction is written body(x, r), r the result of an earlier one over the same axis. It may follow r if every
value in it that reads r is linear in a factor f(y, t(r)) with a known ratio: f(y, t') = f(y, t) · ρ(t, t'). Two things are
proven besides, or the running values may overflow or become NaN: t(r) >= y on every prefix of the loop, and t is finite there.
Only facts declared on op classes are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from attngen.ir.build import add, compare, constant, folded, maximum, mul, neg, select, sub
from attngen.ir.core import Op, Value, attribute_key, constant_value, label
from attngen.ir.intervals import Intervals
from attngen.ir.rewrite import Interner, postorder


class NotSeparable(Exception):
    """Why a reduction cannot follow the running result of an earlier one."""


@dataclass(frozen=True)
class Shift:
    """The reference t that a factor is relative to, and ρ(old, new)."""

    reference: Value
    kind: object
    ratio: Callable[[Value, Value], Value]
    floor: float

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shift) and self.reference is other.reference and self.kind == other.kind

    def __hash__(self) -> int:
        return hash((self.reference, self.kind))


Shifts = tuple[Shift, ...]

MOST_SHIFTS = 8
"""More corrections than this per step cost more than a second loop."""


class Separability:
    """Asks about bodies over one axis.

    running: the results that change while the loop runs. maxima: of those that are running maxima, the value whose maximum
    they are. varying: everything that depends on the part of the axis a trip works on.
    """

    def __init__(
        self,
        running: Collection[Value],
        maxima: Mapping[Value, Value],
        varying: Callable[[Value], bool],
        bounds: Intervals,
        interner: Interner,
    ) -> None:
        self.running, self.maxima, self.varying = running, maxima, varying
        self.bounds, self.interner = bounds, interner
        self.read: dict[Value, bool] = {}
        self.found: dict[Value, Shifts] = {}
        self.above: dict[tuple[Value, Value], bool] = {}

    def reads(self, x: Value) -> bool:
        """Whether x depends on a running result."""
        if x not in self.read:
            for op in postorder((x,), stop=lambda op: all(r in self.running or r in self.read for r in op.results)):
                below = [*op.operands, *(v for b in op.regions for v in b.yields)]
                found = any(v in self.running or self.read.get(v, False) for v in below)
                for r in op.results:
                    self.read.setdefault(r, found)
        return x in self.running or self.read.get(x, False)

    def shifts(self, x: Value) -> Shifts:
        """What x must be corrected by: its factors that read a running result."""
        if x not in self.found:
            self.found[x] = self.derive(x)
            if len(self.found[x]) > MOST_SHIFTS:
                raise NotSeparable(f"more than {MOST_SHIFTS} factors follow {self.which(x)}")
        return self.found[x]

    def derive(self, x: Value) -> Shifts:
        if not self.reads(x):
            return ()
        op = x.op
        if op is None or not self.varying(x):
            raise NotSeparable(f"a factor without the axis reads {self.which(x)}")
        if op.regions:
            raise NotSeparable(f"{self.which(x)} arrives through another loop")
        facts, operands = op.algebra, op.operands
        if facts.ratio is not None:
            y, t = operands[facts.ratio.value], operands[facts.ratio.reference]
            if self.reads(y) or self.varying(t):
                raise NotSeparable(f"{op.name} of a value that reads {self.which(y)}")
            found: Shifts = (self.proven(Shift(t, type(op), facts.ratio.factor, facts.ratio.floor(t)), y),)
        elif facts.sum_to_product:
            y, t = self.split(operands[0])
            if y is None or t is None:
                raise NotSeparable(f"{op.name} of a value that reads {self.which(x)}")

            def ratio(old: Value, new: Value) -> Value:
                return folded(op.rebuild(lambda _: sub(old, new), lambda b: b))

            found = (self.proven(Shift(t, type(op), ratio, t.element.lowest), y),)
        elif facts.combination:
            found = self.same(op, range(len(facts.combination)))
        elif facts.multilinear:
            found = tuple(s for k in facts.multilinear for s in self.shifts(operands[k]))
            self.others_do_not_read(op, facts.multilinear)
        elif facts.jointly_linear or facts.positively_homogeneous:
            found = self.same(op, facts.jointly_linear or facts.positively_homogeneous)
        else:
            raise NotSeparable(f"{op.name} of a value that reads {self.which(x)}")
        inside = set(op.attributes.get("over", ()))
        for s in found:
            if inside & set(s.reference.names):
                raise NotSeparable(f"the correction varies along {', '.join(inside)}, which is reduced inside")
        return found

    def same(self, op: Op, which: Collection[int]) -> Shifts:
        """The factor that all these operands share; a constant 0 has every factor."""
        self.others_do_not_read(op, which)
        lists = [self.shifts(op.operands[k]) for k in which if constant_value(op.operands[k]) != 0]
        if any(sorted(map(hash, found)) != sorted(map(hash, lists[0])) for found in lists):
            raise NotSeparable(f"the operands of {op.name} follow different running values")
        return lists[0]

    def others_do_not_read(self, op: Op, which: Collection[int]) -> None:
        for k, v in enumerate(op.operands):
            if k not in which and self.reads(v):
                raise NotSeparable(f"{op.name} of a value that reads {self.which(v)}")

    def split(self, x: Value) -> tuple[Value | None, Value | None]:
        """x = y - t: y does not read a running result, t does not vary along the axis. None is 0."""
        if not self.reads(x):
            return x, None
        if not self.varying(x):
            return None, neg(x)
        op = x.op
        if op is None or op.regions:
            raise NotSeparable(f"an exponent reads {self.which(x)}")
        facts = op.algebra
        if facts.combination in ((1, 1), (1, -1)):
            (y1, t1), (y2, t2) = map(self.split, op.operands)
            combine = plus if facts.combination == (1, 1) else minus
            return combine(y1, y2), combine(t1, t2)
        if len(facts.multilinear) == 2:
            for k, factor in enumerate(op.operands):
                c = constant_value(factor)
                if c is not None and c > 0:
                    y, t = self.split(op.operands[1 - k])
                    return y and mul(y, factor), t and mul(t, factor)
        if facts.chooses and facts.jointly_linear:
            self.others_do_not_read(op, facts.chooses)
            first, *rest = (op.operands[k] for k in facts.chooses)
            if all(constant_value(v) == float("-inf") for v in rest):
                y, t = self.split(first)
                return folded(op.rebuild(lambda v: (y or constant(0, v.element)) if v is first else v, lambda b: b)), t
        raise NotSeparable(f"{op.name} in an exponent reads {self.which(x)}")

    def proven(self, shift: Shift, y: Value) -> Shift:
        t, y = self.interner.value(shift.reference), self.interner.value(y)
        if any(
            op.regions and self.reads(op.results[0]) for op in postorder((t,), stop=lambda op: op.results[0] in self.running)
        ):
            raise NotSeparable(f"{self.which(t)} arrives through another loop, which every step would have to repeat")
        if not self.dominates(t, y):
            raise NotSeparable(f"{self.which(t)} is not known to be above what it is subtracted from")
        if not self.defined(t):
            raise NotSeparable(f"what is made of {self.which(t)} may be no number while nothing has been seen")
        return Shift(t, shift.kind, shift.ratio, shift.floor)

    def guarded(self, shift: Shift) -> Value:
        """The reference, kept finite: a maximum over nothing is -inf, and -inf - (-inf) is not a number."""
        t = shift.reference
        if self.bounds(t).lo >= shift.floor:
            return t
        return maximum(t, constant(shift.floor, t.element))

    def defined(self, t: Value) -> bool:
        """Whether t is a number while the maxima it reads are still -inf: no log of it, no product of it with 0."""
        for op in postorder((t,), stop=lambda op: op.results[0] in self.running or not self.reads(op.results[0])):
            facts, reading = op.algebra, [k for k, v in enumerate(op.operands) if self.reads(v)]
            low = [self.bounds(op.operands[k]).lo for k in reading]
            if all(lo > float("-inf") and lo >= facts.domain[0] for lo in low):
                continue
            if facts.combination:
                fine = all(facts.combination[k] > 0 for k in reading)
            elif facts.multilinear:
                fine = all(positive(v) for k, v in enumerate(op.operands) if k not in reading) and len(reading) == 1
            else:
                fine = bool(facts.upper_bound or facts.lower_bound or facts.chooses or facts.monotone)
                fine = fine and all(lo >= facts.domain[0] for lo in low)
            if not fine:
                return False
        return True

    # ---- t >= y for all of the axis that has been seen

    def dominates(self, t: Value, y: Value) -> bool:
        if (t, y) not in self.above:
            self.above[t, y] = self.is_above(t, y)
        return self.above[t, y]

    def is_above(self, t: Value, y: Value) -> bool:
        if constant_value(y) == float("-inf") or t is y:
            return True
        below = y.op.algebra if y.op else None
        if y.op and below and below.chooses:
            operands = [y.op.operands[k] for k in below.chooses]
            if (any if below.lower_bound else all)(self.dominates(t, v) for v in operands):
                return True
        if t in self.maxima:
            return self.maxima[t] is y
        op = t.op
        if op is None or op.regions:
            return False
        facts = op.algebra
        if facts.upper_bound and any(self.dominates(v, y) for v in op.operands):
            return True
        if facts.combination == (1.0,) and self.dominates(op.operands[0], y):
            return True
        alike = y.op is not None and type(op) is type(y.op) and attribute_key(op) == attribute_key(y.op)
        if y.op is not None and alike and len(op.operands) == len(y.op.operands):
            pairs = list(enumerate(zip(op.operands, y.op.operands, strict=True)))
            if all(a is b or self.rises(op, k) and self.dominates(a, b) for k, (a, b) in pairs):
                return True
        return self.bounds(t).lo >= self.bounds(y).hi

    def rises(self, op: Op, k: int) -> bool:
        """Whether the op does not decrease with its k-th operand."""
        facts = op.algebra
        if facts.monotone and facts.monotone[k] > 0:
            return True
        others = [v for j, v in enumerate(op.operands) if j != k]
        return k in facts.multilinear and len(others) == 1 and self.bounds(others[0]).nonnegative

    def which(self, x: Value) -> str:
        found = {y for op in postorder((x,)) for y in (*op.operands, *op.results) if y in self.running}
        found |= {x} & set(self.running)
        return " and ".join(sorted({f"the running {label(self.carried(y))[1:]}" for y in found})) or "a running value"

    def carried(self, result: Value) -> Value:
        """The carried argument behind a loop's result, for its name."""
        op = result.op
        return op.regions[0].args[1 + result.index] if op is not None and op.regions else result


def positive(x: Value) -> bool:
    """Whether x is a positive constant, in the precision of its type as well."""
    c = constant_value(x)
    return c is not None and x.element.tiny <= c <= x.element.largest


def unless_equal(old: Value, new: Value, ratio: Value) -> Value:
    """The ratio of equal references is 1, even if they are infinite."""
    return select(compare("eq", old, new), constant(1, ratio.element), ratio)


def plus(a: Value | None, b: Value | None) -> Value | None:
    return b if a is None else a if b is None else add(a, b)


def minus(a: Value | None, b: Value | None) -> Value | None:
    return a if b is None else neg(b) if a is None else sub(a, b)

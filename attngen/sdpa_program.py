"""Attention with everything it can be modified by, as a program: the same steps for every combination, in one order.

Scale, softcap, score_mod, ALiBi, additive bias and mask, boolean and structural masks, sinks, softmax.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from attngen import arithmetic, functions
from attngen.ir import build
from attngen.ir import elementwise as ew
from attngen.ir.core import Value, constant_value
from attngen.ir.elementwise import LOG2E
from attngen.ir.nd import Gather
from attngen.ir.rewrite import postorder
from attngen.ir.types import I1, INDEX, ElementType, Layout
from attngen.mods import Mod, coordinate, masked, modified
from attngen.programs import Program
from attngen.sdpa_inputs import Extra
from attngen.sdpa_options import Options
from attngen.sdpa_shapes import Shape
from attngen.tensor import Tensor, unwrap, unwrap_traced
from attngen.tracing import Trace, current

Groups = tuple[tuple[str, ...], ...]
"""The dimensions of an array, each with its axes."""


def sdpa_program(
    shape: Shape,
    options: Options,
    accumulator: ElementType,
    extras: Sequence[Extra] = (),
    score_mod: Mod | None = None,
    mask_mod: Mod | None = None,
) -> Program:
    """Attention on arrays of this shape."""
    many: Groups = (shape.head_axes,) if shape.head_axes else ()
    one: Groups = (shape.kv_head_axes,) if shape.kv_head_axes else ()
    batch = tuple((axis,) for axis in shape.batch_axes)

    def layout(heads: Groups, length: str, features: str) -> Layout:
        inner = (*heads, (length,)) if options.layout == "BHSD" else ((length,), *heads)
        return Layout((*batch, *inner, (features,)))

    layouts = {"query": layout(many, "i", "d"), "key": layout(one, "j", "d"), "value": layout(one, "j", "e")}
    layouts |= {extra.name: extra.layout for extra in extras}

    def scaled_dot_product(query: Tensor, key: Tensor, value: Tensor, **extra: Tensor) -> Tensor | tuple[Tensor, ...]:
        attention = Attention(shape, options, accumulator, extra, score_mod, mask_mod)
        scaled = attention.scaled(query, key)
        outputs = attention.outputs(scaled, attention.capped(scaled), value)
        (first, *others) = outputs
        return outputs if others else first

    outs: list[tuple[Layout, ElementType | None, str]] = [(layout(many, "i", "e"), None, "out")]
    if options.return_lse:
        outs.append((Layout((*batch, *many, ("i",))), accumulator, "lse"))
    if options.tap is not None:
        outs.append((Layout((*batch, *many, ("i",), ("j",))), None, "scores"))
    if len(outs) == 1:
        return Program(scaled_dot_product, layouts, tuple(x for x, _, _ in outs))
    out_layouts, elements, names = zip(*outs, strict=True)
    return Program(scaled_dot_product, layouts, out_layouts, True, elements, names)


@dataclass
class Attention:
    """One run of the program's function."""

    shape: Shape
    options: Options
    accumulator: ElementType
    extra: Mapping[str, Tensor]
    score_mod: Mod | None
    mask_mod: Mod | None

    def scaled(self, query: Tensor, key: Tensor) -> Tensor:
        s = functions.score(query, key, over="d")
        return functions.scale(s, 1 / math.sqrt(query.extent("d")) if self.options.scale is None else self.options.scale)

    def capped(self, s: Tensor) -> Tensor:
        cap = self.options.softcap
        return cap * functions.tanh(s / cap) if cap else s

    def final(self, capped: Tensor) -> tuple[Tensor, Tensor | None]:
        """What softmax is taken of, and the condition under which a key counts (None: always)."""
        trace = current()
        conditions: list[arithmetic.Operand] = []
        s = self.add_scores(trace, capped, conditions)
        conditions += self.structure(trace)
        keep = conjunction(conditions)
        if keep is None:
            return s, None
        if self.options.semantics.empty_row == "mean":
            # A finite score: where nothing is kept, all keys weigh the same.
            return functions.where(keep, s, self.accumulator.lowest), None
        return functions.mask(s, keep), keep

    def outputs(self, scaled: Tensor, capped: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """From the scores before and after the soft cap: the output, the log-sum-exp and the tapped matrix, if asked for."""
        s, mask = self.final(capped)
        weights, lse = self.softmax(s)
        found = [functions.weigh(weights, value, over="j", where=mask)]
        if self.options.return_lse:
            found.append(self.shown(lse()))
        if self.options.tap is not None:
            found.append((scaled, capped, s, weights)[self.options.tap])
        return tuple(found)

    # ---- what changes the scores

    def add_scores(self, trace: Trace, s: Tensor, conditions: list[arithmetic.Operand]) -> Tensor:
        """score_mod, ALiBi, additive masks; `conditions` gets what they mask by -inf."""
        if self.score_mod is not None:
            base = unwrap(s)
            new = modified(self.score_mod, s, self.coordinates(trace), self.shape.score_axes)
            assert isinstance(base, Value)
            found = kept(new, base)
            conditions += [] if found is None else [found]
            s = Tensor(without_masks(new), trace)
        if "alibi_slopes" in self.extra:
            distance = functions.abs(self.place() - functions.index("j"))
            s = s - self.extra["alibi_slopes"] * distance
        added = [self.float(name) for name in ("attn_mask", "bias") if self.is_float(name)]
        if added:
            total = reduce(lambda a, b: a + b, added)
            conditions.append(unwrap(total != -math.inf))
            s = s + total
        return s

    def is_float(self, name: str) -> bool:
        return name in self.extra and self.extra[name].dtype != "bool"

    def float(self, name: str) -> Tensor:
        x = unwrap(self.extra[name])
        return Tensor(arithmetic.lift(x, self.accumulator), current())

    # ---- what masks them

    def structure(self, trace: Trace) -> list[arithmetic.Operand]:
        """Boolean masks, lengths, causal masks, windows, mask_mod."""
        found: list[Any] = []
        j = functions.index("j")
        if "attn_mask" in self.extra and not self.is_float("attn_mask"):
            found.append(self.extra["attn_mask"])
        if "seqused_k" in self.extra:
            found.append(j < self.extra["seqused_k"])
        if "row_first" in self.extra:
            found += self.own_keys()
        left, right = self.options.reach
        if right is not None:
            found.append(j <= self.place(right))
        if left is not None:
            found.append(j >= self.place(-left))
        conditions = [unwrap(x) for x in found]
        if self.mask_mod is not None:
            conditions.append(masked(self.mask_mod, self.coordinates(trace)))
        return conditions

    def own_keys(self) -> list[Tensor]:
        """Of packed arrays: which keys are of the query's own sequence."""
        j = functions.index("j")
        return [j >= self.extra["row_first"], j < self.extra["row_end"]]

    def place(self, more: int = 0) -> Tensor:
        """Where a query stands among the keys."""
        if "row_place" in self.extra:
            return self.extra["row_place"] + more
        i = functions.index("i")
        if "offset" in self.extra:
            return i + (self.extra["offset"] + more)
        if not self.options.bottom_right:
            return i + (self.options.offset + more)
        if "seqused_k" in self.extra:
            return i + (self.extra["seqused_k"] - (self.shape.q_len - more))
        return i + (self.shape.kv_len - self.shape.q_len + more)

    def coordinates(self, trace: Trace) -> tuple[Tensor, ...]:
        """b, h, q_idx, kv_idx; of packed arrays the number of the sequence, and places in it."""
        axes = (self.shape.batch_axes, self.shape.head_axes, ("i",), ("j",))
        b, h, i, j = (coordinate(trace, names) for names in axes)
        if "row_sequence" in self.extra:
            trace.counted = unwrap_traced(reduce(lambda a, b: a & b, self.own_keys()), "row_end")
            return self.extra["row_sequence"], h, i - self.extra["row_start"], j - self.extra["row_first"]
        return b, h, i, j

    # ---- outputs

    def softmax(self, s: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
        """The weights, and what makes the natural log-sum-exp. Sinks join the maximum and the denominator."""
        precision = self.options.precision or self.accumulator
        s = Tensor(arithmetic.lift(unwrap(s), precision), current())
        if "sinks" not in self.extra:
            return functions.softmax(s, over="j"), lambda: functions.logsumexp(s, over="j")
        sink = self.extra["sinks"]
        top = functions.maximum(functions.maximum(functions.reduce_max(s, over="j"), sink), precision.lowest)
        e = functions.exp(s - top)
        total = functions.reduce_sum(e, over="j") + functions.exp(sink - top)
        return e / functions.maximum(total, precision.tiny), lambda: top + functions.log(total)

    def shown(self, lse: Tensor) -> Tensor:
        """The log-sum-exp as it was asked for."""
        if self.options.lse_base == "2":
            lse = lse * LOG2E
        empty = self.options.semantics.empty_lse
        return lse if empty == -math.inf else functions.where(lse == -math.inf, empty, lse)


def conjunction(conditions: Sequence[arithmetic.Operand]) -> Tensor | None:
    """All of them; None where nothing is masked."""
    values = [arithmetic.condition(c, "mask") for c in conditions if c is not True]
    if not values:
        return None
    return Tensor(reduce(lambda a, b: build.binary(ew.And, a, b), values), current())


# ---------------------------------------------------------------- which scores are masked


def kept(x: Value, base: Value) -> Value | None:
    """Where x, made from the scores `base`, is not masked by -inf; None: nowhere masked, whatever the scores are."""
    op = x.op
    if x is base or not may_mask(x, base):
        return None
    match op:
        case ew.Select():
            a, b = (kept(v, base) for v in (op.lhs, op.rhs))
            if constant_value(op.rhs) == -math.inf:
                return op.condition if a is None else build.binary(ew.And, op.condition, a)
            inverse = build.unary(ew.Not, op.condition)
            if constant_value(op.lhs) == -math.inf:
                return inverse if b is None else build.binary(ew.And, inverse, b)
            if a is None and b is None:
                return None
            true = build.constant(True, I1)
            return build.select(op.condition, true if a is None else a, true if b is None else b)
        case ew.Add():
            both = [k for v in op.operands if (k := kept(v, base)) is not None]
            return reduce(lambda a, b: build.binary(ew.And, a, b), both) if both else None
        case ew.Cast():
            return kept(op.value, base)
        case _:
            return build.compare("ne", x, -math.inf)


def may_mask(x: Value, base: Value) -> bool:
    """Whether x may be -inf by what is added to the scores: a constant, or a table of floats that is read as it is."""
    if constant_value(x) == -math.inf or is_table(x):
        return True
    below = postorder((x,), stop=lambda op: base in op.results)
    additive = isinstance(x.op, ew.Add | ew.Cast | ew.Select)
    return any(constant_value(v) == -math.inf or additive and is_table(v) for op in below for v in (*op.operands, *op.results))


def is_table(x: Value) -> bool:
    return x.element.is_float and (x.op is None or isinstance(x.op, Gather))


def without_masks(x: Value) -> Value:
    """x where it is kept: what `kept` has found at the top needs no second select."""
    while isinstance(x.op, ew.Select) and constant_value(x.op.rhs) == -math.inf and x.op.lhs.element is not INDEX:
        inner = x.op.lhs
        if set(inner.names) != set(x.names):
            break
        x = inner
    return x

"""Algebraic facts that op classes declare and passes ask for. No pass needs to know an op's name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attngen.ir.core import Op, Value


@dataclass(frozen=True)
class Interval:
    """Every value an expression can take when it is not NaN: lo <= x <= hi, up to rounding. A zero is taken to be 0.0, not
    -0.0: the quotient of non-negative values is non-negative."""

    lo: float = -math.inf
    hi: float = math.inf

    @property
    def nonnegative(self) -> bool:
        return self.lo >= 0


ANYTHING = Interval()
TRUTH = Interval(0, 1)


@dataclass(frozen=True)
class Ratio:
    """f(y, r) separates with a known ratio: f(y, r') = f(y, r) · factor(r, r'), and the factor is not negative.

    A running f(y, r) may then be corrected when r becomes r'. That is safe only while the correction stays finite, so two
    things must be *proven* of r before it is used: r >= y on every prefix of the loop, and r >= floor (where it is not
    known, the pass replaces r by max(r, floor), which must leave f(y, r) unchanged for every finite y <= r).

    value, reference: which operands y and r are. factor(old, new) builds the ratio. floor(r) is a float for r's type.
    """

    value: int
    reference: int
    factor: Callable[[Value, Value], Value]
    floor: Callable[[Value], float]


@dataclass(frozen=True)
class Facts:
    """What holds of an op's result, as a function of its operands. Everything defaults to "not known"."""

    commutative: bool = False
    associative: bool = False
    identity: tuple[float | None, float | None] = (None, None)
    """Left and right constants that leave the other operand as it is, for every float (-0.0 may become 0.0)."""
    combination: tuple[float, ...] = ()
    """result = Σ combination[k] · operand[k]"""
    multilinear: tuple[int, ...] = ()
    """The result is linear in each of these operands alone: a factor of one of them is a factor of the result."""
    jointly_linear: tuple[int, ...] = ()
    """The result is linear in these operands together: a factor of all of them is a factor of the result."""
    positively_homogeneous: tuple[int, ...] = ()
    """A factor >= 0 of all of these operands is a factor of the result."""
    monotone: tuple[int, ...] = ()
    """Per operand: +1 non-decreasing, -1 non-increasing, 0 not known."""
    upper_bound: bool = False
    """The result is at least each operand, or each element of a reduced one (unless NaN)."""
    lower_bound: bool = False
    """The result is at most each operand (unless NaN)."""
    chooses: tuple[int, ...] = ()
    """The result is always one of these operands."""
    domain: tuple[float, float] = (-math.inf, math.inf)
    """Where a unary op is a number; outside, and only there, it is NaN."""
    sum_to_product: bool = False
    """f(a + b) = f(a) · f(b), f > 0 and increasing; so f(y - r') = f(y - r) · f(r - r')."""
    product_to_sum: bool = False
    """f(a · b) = f(a) + f(b) for positive a and b."""
    inverse: Callable[[], type[Op]] | None = None
    """g with f(g(x)) = x."""
    base_two: Callable[[], tuple[type[Op], float]] | None = None
    """(g, c): f(x) = g(c·x) if f takes sums to products, f(x) = c·g(x) if it takes products to sums."""
    ratio: Ratio | None = None
    reduces: str = ""
    """The kind of nd.reduce that this binary op carries out step by step: sum or max."""


NOTHING_KNOWN = Facts()

"""Values, ops and blocks: an immutable SSA form.

An op is a frozen dataclass whose fields are, by their annotation, operands (`Value`, `Value | None`, `tuple[Value, ...]`),
regions (`Block`, `Block | None`) or attributes (everything else). Its result types follow from them (`infer`), so an op that
does not type-check cannot be built. A value knows the op that made it; a pass looks at `value.op` and builds new ops.
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, TypeVar, cast, get_origin

import numpy as np

from attngen.ir.diagnostics import UNKNOWN, Error, IRError, Loc
from attngen.ir.facts import ANYTHING, NOTHING_KNOWN, Facts, Interval
from attngen.ir.types import AxisMismatch, ElementType, Extent, RangeType, TensorType, Type, bound

if sys.version_info >= (3, 11):
    from typing import dataclass_transform
else:
    from typing_extensions import dataclass_transform

_current_loc: ContextVar[Loc] = ContextVar("attngen_loc", default=UNKNOWN)


@contextmanager
def at(loc: Loc) -> Generator[None]:
    """Ops built inside the block get this location: the rewriter sets it, so that no rule has to think of it."""
    token = _current_loc.set(loc)
    try:
        yield
    finally:
        _current_loc.reset(token)


class Value:
    """What an operand is: the result of an op, or an argument of a block. Compared by identity."""

    __slots__ = ("hint", "index", "op", "type")

    def __init__(self, type: Type, op: Op | None = None, index: int = 0, hint: str = "") -> None:
        self.type, self.op, self.index, self.hint = type, op, index, hint

    @property
    def tensor(self) -> TensorType:
        """The type, where only a tensor makes sense."""
        if not isinstance(self.type, TensorType):
            raise Error(f"expected a tensor, got {self.type}")
        return self.type

    @property
    def range(self) -> RangeType:
        """The type, where only a range makes sense."""
        if not isinstance(self.type, RangeType):
            raise Error(f"expected a range, got {self.type}")
        return self.type

    @property
    def names(self) -> tuple[str, ...]:
        """The names of a tensor's axes; a range has none."""
        return self.type.names if isinstance(self.type, TensorType) else ()

    @property
    def element(self) -> ElementType:
        return self.tensor.element

    def __repr__(self) -> str:
        return f"<%{self.hint or self.index} {self.op.name if self.op else 'argument'}: {self.type}>"


def argument(type: Type, hint: str = "") -> Value:
    """A new block argument."""
    return Value(type, None, 0, hint)


@dataclass(frozen=True, eq=False)
class Block:
    """Arguments, ops in order (each uses only what is above it, or outside), and the values it hands on."""

    args: tuple[Value, ...]
    ops: tuple[Op, ...]
    yields: tuple[Value, ...]


Arrays = tuple[Any, ...]
"""What ops compute on: NumPy arrays (axes in the order of the value's type), and (start, stop) for ranges."""


@dataclass
class Fields:
    """Which fields of an op class are operands, regions and attributes, read once from its annotations."""

    operands: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def flexible(self) -> tuple[str, ...]:
        """The operands that may be absent, or are several."""
        return tuple(name for name in self.operands if self.annotations[name] != "Value")


@dataclass_transform(eq_default=False, frozen_default=True, kw_only_default=True)
@dataclass(frozen=True, eq=False, repr=False)
class Op:
    """One operation. A subclass is the whole definition of an op: fields, type rule, NumPy meaning, facts, example."""

    name: ClassVar[str] = ""
    facts: ClassVar[Facts] = NOTHING_KNOWN
    fields: ClassVar[Fields] = Fields()
    level: ClassVar[str] = "tensor"
    """tensor, or loop: only in functions that `tile` has made."""

    loc: Loc = field(default_factory=_current_loc.get, kw_only=True)

    def __init_subclass__(cls, *, name: str = "", **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclass(frozen=True, eq=False, repr=False, kw_only=True)(cls)
        kinds: dict[str, list[str]] = {"operands": [], "regions": [], "attributes": []}
        annotations = {f.name: annotation(f.type) for f in dataclasses.fields(cls) if f.name != "loc"}
        for field_name, text in annotations.items():
            kinds[_KINDS.get(text, "attributes")].append(field_name)
        cls.fields = Fields(**{kind: tuple(names) for kind, names in kinds.items()}, annotations=annotations)
        if name:
            cls.name = name
            known = REGISTRY.get(name)
            if known is not None and known.__qualname__ != cls.__qualname__:
                raise Error(f"two op classes are named {name}: {known.__module__} and {cls.__module__}")
            REGISTRY[name] = cls

    def __post_init__(self) -> None:
        try:
            types = self.infer()
        except AxisMismatch as e:
            a, b = e.axis, [v for v in self.operands if e.axis in v.names]
            shown = " and ".join(f"{label(v)} has {a}={v.tensor.extents[a]}" for v in b)
            raise self.error(
                f"extents differ: {shown}",
                at=b[-1],
                help="operands must agree on every axis they share by name",
            ) from None
        object.__setattr__(self, "results", tuple(Value(t, self, k) for k, t in enumerate(types)))

    results: ClassVar[tuple[Value, ...]]  # an instance attribute, set once when the op is built

    # ---- to be defined by an op class

    def infer(self) -> tuple[Type, ...]:
        """The types of the results; raises `self.error(...)` if the operands do not fit."""
        raise TypeError(f"{type(self).__name__} does not define infer()")

    def evaluate(self, args: Arrays, env: Env) -> Any:
        """The NumPy meaning: the result from the operands (None where an optional operand is absent)."""
        raise TypeError(f"{type(self).__name__} does not define evaluate()")

    def fold(self) -> Value | None:
        """An equal, simpler value, or None. Must hold for every float, infinities and NaN included."""
        return None

    def interval(self, operands: tuple[Interval, ...]) -> Interval:
        """Bounds of the result from bounds of the operands."""
        return ANYTHING

    @property
    def flops(self) -> int:
        """Floating point operations of one execution at the largest extents."""
        return 0

    @property
    def algebra(self) -> Facts:
        """The facts of this very op: those of its class, unless an attribute decides."""
        return self.facts

    # ---- the same for every op

    @cached_property
    def operands(self) -> tuple[Value, ...]:
        found: list[Value] = []
        for name in self.fields.operands:
            value = getattr(self, name)
            if isinstance(value, tuple):
                found += value
            elif value is not None:
                found.append(value)
        return tuple(found)

    @property
    def result(self) -> Value:
        (only,) = self.results
        return only

    @cached_property
    def attributes(self) -> Mapping[str, Any]:
        return {name: getattr(self, name) for name in self.fields.attributes}

    @cached_property
    def regions(self) -> tuple[Block, ...]:
        return tuple(block for name in self.fields.regions if (block := getattr(self, name)) is not None)

    def rebuild(self, value: Callable[[Value], Value], block: Callable[[Block], Block]) -> Op:
        """The same op on other operands and regions; itself if nothing changed."""
        changes: dict[str, Any] = {}
        for name in self.fields.operands:
            old = getattr(self, name)
            if old is None:
                continue
            new = tuple(map(value, cast(tuple[Value, ...], old))) if isinstance(old, tuple) else value(old)
            if new != old:
                changes[name] = new
        for name in self.fields.regions:
            old = getattr(self, name)
            if old is not None and (new := block(old)) is not old:
                changes[name] = new
        return dataclasses.replace(self, **changes) if changes else self

    def error(self, message: str, *, at: Value | None = None, help: str = "") -> IRError:
        caret, note = (label(at), f"{label(at)[1:]}: {at.type}") if at is not None else ("", "")
        return IRError(self.name, message, loc=self.loc, ir=self.line(label), caret=caret, note=note, help=help)

    def line(self, name: Callable[[Value], str]) -> str:
        """`nd.contract %q, %k over [d] acc f32`: name, operands, attributes that differ from their default."""
        operands: list[str] = []
        grouped = len(self.fields.flexible) > 1  # then it takes brackets and `none` to tell which operand is which
        for field_name in self.fields.operands:
            value = getattr(self, field_name)
            if isinstance(value, tuple):
                several = list(map(name, cast(tuple[Value, ...], value)))
                operands += [f"[{', '.join(several)}]"] if grouped else several
            elif value is not None or grouped:
                operands.append("none" if value is None else name(value))
        words = [show_attribute(self.name), ", ".join(operands)]
        words += [f"{key} {show_attribute(value)}" for key, value in self.stated.items()]
        return " ".join(filter(None, words))

    @property
    def stated(self) -> Mapping[str, Any]:
        """The attributes that differ from their default, as text shows them (-0.0 differs from 0.0, NaN not from NaN)."""
        defaults = {f.name: f.default for f in dataclasses.fields(self)}
        return {k: x for k, x in self.attributes.items() if repr(x) != repr(defaults[k])}

    def __repr__(self) -> str:
        return f"<{self.line(label)}>"


_KINDS = {
    "Value": "operands",
    "Value | None": "operands",
    "tuple[Value, ...]": "operands",
    "Block": "regions",
    "Block | None": "regions",
}


def annotation(type: object) -> str:
    """The annotation of a field as text: `Value | None`, `tuple[Axis, ...]`, `float | int`, evaluated or not."""
    text = type if isinstance(type, str) else str(type) if get_origin(type) else getattr(type, "__name__", str(type))
    text = re.sub(r"\s*\|\s*", " | ", re.sub(r"(?:\b\w+\.)+(?=\w)", "", text))
    text = re.sub(r"Optional\[(.*)\]$", r"\1 | None", text)
    return text.replace("int | UpTo", "Extent").replace("tuple[str, Extent]", "Axis")


REGISTRY: dict[str, type[Op]] = {}
"""Every op class by its name, entered where it is declared."""


def label(value: Value) -> str:
    """A name for a value outside of any function: its hint, its constant, or the op that made it."""
    if value.hint:
        return f"%{value.hint}"
    return f"%{value.op.name.split('.')[-1]}" if value.op else "%argument"


WORD = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
RESERVED = ("none", "true", "false", "inf", "nan")


def quote(text: str) -> str:
    """The text in quotes, as MLIR writes strings: \\XX is one byte of UTF-8."""

    def byte(match: re.Match[str]) -> str:
        c = match[0]
        return c if c.isprintable() else "".join(f"\\{b:02X}" for b in c.encode("utf-8", "surrogatepass"))

    return '"' + re.sub(r"[^ !#-\[\]-~]", byte, text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def show_attribute(value: Any) -> str:
    """An attribute as text: words and numbers bare, other strings quoted, tuples in brackets, floats exactly."""
    if isinstance(value, tuple):
        items = cast(tuple[Any, ...], value)
        if items and all(isinstance(x, tuple) for x in items):
            return f"[{', '.join(f'{name}={extent}' for name, extent in items)}]"
        return f"[{', '.join(map(show_attribute, items))}]"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return float.__repr__(value)
    if isinstance(value, str):
        return value if WORD.fullmatch(value) and value not in RESERVED else quote(value)
    return str(value)


@dataclass
class Env:
    """What the meaning of an op may depend on besides its operands: the runtime extents of the function's axes,
    and whether floats are computed in float64 whatever their type says (`wide`)."""

    extents: Mapping[str, int]
    run: Callable[[Block, Arrays], Arrays]
    """Executes a region of the op on the given arguments."""
    wide: bool = False

    def extent(self, name: str, extent: Extent) -> int:
        return extent if isinstance(extent, int) else self.extents[name]

    def dtype(self, element: ElementType) -> np.dtype[np.generic]:
        return np.dtype("f8") if self.wide and element.is_float else element.numpy


def walk(block: Block) -> Iterator[Op]:
    for op in block.ops:
        yield op
        for region in op.regions:
            yield from walk(region)


def uses(op: Op) -> set[Value]:
    """Everything an op reads, its regions included; values of the regions themselves among it."""
    inner = [x for region in op.regions for x in walk(region)]
    yields = {value for x in (op, *inner) for region in x.regions for value in region.yields}
    return {*op.operands, *(value for x in inner for value in x.operands), *yields}


def attribute_key(op: Op) -> tuple[Any, ...]:
    """Attributes as a hashable key; floats by their text, so that NaN equals itself and 0.0 is not -0.0."""
    return tuple(float.__repr__(x) if isinstance(x, float) else x for x in op.attributes.values())


def op_key(op: Op, number: Callable[[Value], Any], blocks: tuple[Any, ...]) -> tuple[Any, ...]:
    """An op up to the identity of its operands; equal keys mean equal results."""
    present = tuple(getattr(op, name) is not None for name in op.fields.operands)
    return (type(op), attribute_key(op), present, tuple(map(number, op.operands)), tuple(v.type for v in op.results), blocks)


def block_key(block: Block, numbers: dict[Value, Any]) -> tuple[Any, ...]:
    """A block as nested tuples; `numbers` holds what is defined outside (others stand for themselves)."""
    numbers = dict(numbers)

    def define(values: tuple[Value, ...]) -> tuple[Type, ...]:
        for v in values:
            numbers[v] = len(numbers)
        return tuple(v.type for v in values)

    def number(v: Value) -> Any:
        return numbers.get(v, v)

    args = define(block.args)
    ops: list[Any] = []
    for op in block.ops:
        ops.append(op_key(op, number, tuple(block_key(b, numbers) for b in op.regions)))
        define(op.results)
    return (args, tuple(ops), tuple(map(number, block.yields)))


O = TypeVar("O", bound=Op)


def defined_by(value: Value, cls: type[O]) -> O | None:
    """The op that made the value, if it is of this class."""
    return value.op if isinstance(value.op, cls) else None


def constant_value(value: Value) -> float | None:
    """The number a value is known to be, seen through expansion along axes; an integer exactly."""
    while (op := value.op) is not None:
        if "value" in op.fields.attributes and not op.operands:
            number: float | int = op.attributes["value"]
            return int(number) if isinstance(number, int) else number
        if op.facts.combination != (1.0,) or not op.operands:
            return None
        value = op.operands[0]
    return None


def is_constant(value: Value, number: float) -> bool:
    found = constant_value(value)
    return found is not None and (found == number or math.isnan(found) and math.isnan(number))


def elements(type: TensorType, over: tuple[str, ...]) -> int:
    """How many elements are summed per result, at the largest extents."""
    return math.prod(bound(type.extents[name]) for name in over)

"""The parts of a parsed PTX module. Names are already unique: those of inner scopes carry a suffix `#n`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from attngen.ir.diagnostics import Loc


@dataclass(frozen=True)
class Register:
    name: str


@dataclass(frozen=True)
class Special:
    """A predefined register such as `%tid.x` (PTX ISA, "Special Registers")."""

    name: str


@dataclass(frozen=True)
class Immediate:
    """A constant. Floats written `0f3F800000` or `0d…` are kept as their bits; `float_bits` is 32, 64, or 0 for an integer."""

    value: int
    float_bits: int = 0


@dataclass(frozen=True)
class Symbol:
    """The name of a variable, a label or a function, and a byte offset."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Vector:
    """`{a, b, …}`."""

    items: tuple[Operand, ...]


@dataclass(frozen=True)
class Pair:
    """`d|p`: a result and a predicate."""

    first: Operand
    second: Operand


@dataclass(frozen=True)
class Not:
    """`!p`: the complement of a predicate."""

    operand: Operand


@dataclass(frozen=True)
class Sink:
    """`_`: a result that nobody wants."""


@dataclass(frozen=True)
class Memory:
    """`[base+offset]`, or `[map, {x, y}]` with tensor coordinates."""

    base: Operand
    offset: int = 0
    coordinates: Vector | None = None


@dataclass(frozen=True)
class Group:
    """`(a, b)`: arguments or results of a call."""

    items: tuple[Operand, ...]


Operand: TypeAlias = "Register | Special | Immediate | Symbol | Vector | Pair | Not | Sink | Memory | Group"


@dataclass(frozen=True)
class Instruction:
    """`@guard opcode.modifiers operands;`"""

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Operand | None
    loc: Loc
    text: str

    @property
    def name(self) -> str:
        return ".".join((self.opcode, *self.modifiers))


@dataclass(frozen=True)
class Variable:
    """A declared variable. count: elements, 0 for an array `[]` whose size is given at launch; initial: bytes, or none."""

    name: str
    space: str
    type: str
    align: int
    element_bytes: int
    count: int
    loc: Loc
    initial: bytes = b""
    external: bool = False

    @property
    def size(self) -> int:
        return self.element_bytes * self.count


@dataclass
class Function:
    """An `.entry` or `.func`. labels: index of the instruction that follows; tables: of `.branchtargets`."""

    name: str
    is_entry: bool
    loc: Loc
    params: list[Variable] = field(default_factory=list[Variable])
    results: list[Variable] = field(default_factory=list[Variable])
    registers: dict[str, str] = field(default_factory=dict[str, str])
    variables: dict[str, Variable] = field(default_factory=dict[str, Variable])
    body: list[Instruction] = field(default_factory=list[Instruction])
    labels: dict[str, int] = field(default_factory=dict[str, int])
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    has_body: bool = True


@dataclass
class Module:
    file: str
    version: str = ""
    target: tuple[str, ...] = ()
    variables: dict[str, Variable] = field(default_factory=dict[str, Variable])
    functions: dict[str, Function] = field(default_factory=dict[str, Function])

    def entries(self) -> list[Function]:
        return [f for f in self.functions.values() if f.is_entry]

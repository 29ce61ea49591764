"""One entry as a flat list of instructions: functions inlined, variables placed, labels resolved.

Every call gets a copy of the function's body in its place, so that the order of addresses stays the order of the program,
which is what reconvergence by the lowest address relies on. Recursion and calls through registers are refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from attngen.backends.cuda.ptx.errors import PtxError, Unsupported
from attngen.backends.cuda.ptx.syntax import (
    Function,
    Group,
    Instruction,
    Memory,
    Module,
    Not,
    Operand,
    Pair,
    Register,
    Symbol,
    Variable,
    Vector,
)
from attngen.backends.cuda.ptx.types import TYPES, Type
from attngen.ir.diagnostics import Loc


@dataclass(frozen=True)
class Place:
    """Where a variable lies: its state space, and the byte offset inside the part of it that belongs to one owner."""

    space: str
    offset: int
    variable: Variable


@dataclass
class Program:
    """sizes: bytes per state space (shared: per block, local: per thread, param and const: one copy)."""

    module: Module
    entry: Function
    code: list[Instruction] = field(default_factory=list[Instruction])
    labels: dict[str, int] = field(default_factory=dict[str, int])
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    registers: dict[str, Type] = field(default_factory=dict[str, Type])
    variables: dict[str, Variable] = field(default_factory=dict[str, Variable])
    places: dict[str, Place] = field(default_factory=dict[str, Place])
    sizes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("shared", "local", "param", "const", "global"), 0))

    def target(self, i: Instruction, label: str) -> int:
        if label not in self.labels:
            raise PtxError(f"there is no label {label.partition('#')[0]}", i.loc)
        return self.labels[label]

    def place(self, name: str, loc: Loc) -> Place:
        if name not in self.places:
            raise PtxError(f"{name.partition('#')[0]} is neither a register, a variable nor a label", loc)
        return self.places[name]


def find_entry(module: Module, name: str | None = None) -> Function:
    """The entry of this name, or whose name contains it (names are often mangled); the only one if no name is given."""
    entries = module.entries()
    found = [f for f in entries if f.name == name] or [f for f in entries if name is None or name in f.name]
    if len(found) != 1:
        known = ", ".join(f.name for f in entries) or "none"
        raise PtxError(f"{len(found)} entries match {name!r}; the entries are: {known}", Loc(module.file))
    return found[0]


def link(module: Module, name: str | None = None) -> Program:
    """The program of one entry."""
    entry = find_entry(module, name)
    made = Program(module, entry, variables=dict(module.variables))
    Inliner(made).add(entry, "", {}, ())
    lay_out(made)
    return made


class Inliner:
    def __init__(self, program: Program) -> None:
        self.program, self.calls = program, 0

    def add(self, f: Function, prefix: str, aliases: dict[str, str], stack: tuple[str, ...]) -> None:
        """Append the body. aliases: parameters that are the caller's variables; prefix: makes all other names unique."""
        p = self.program
        names = {n: prefix + n for n in (*f.registers, *f.variables, *f.labels, *f.tables)} | aliases
        p.registers |= {names[n]: TYPES[kind] for n, kind in f.registers.items()}
        p.variables |= {names[n]: replace(var, name=names[n]) for n, var in f.variables.items() if n not in aliases}
        p.tables |= {names[n]: tuple(names.get(x, x) for x in labels) for n, labels in f.tables.items()}
        ends = {index: [n for n, at in f.labels.items() if at == index] for index in f.labels.values()}
        finish = f"{prefix}(end of {f.name})"
        for index in range(len(f.body) + 1):
            p.labels |= {names[n]: len(p.code) for n in ends.get(index, ())}
            if index < len(f.body):
                i = renamed(f.body[index], names) if stack else f.body[index]
                if i.opcode == "call":
                    self.call(i, (*stack, f.name))
                elif i.opcode == "ret" and stack:
                    p.code.append(replace(i, opcode="bra", modifiers=(), operands=(Symbol(finish),)))
                else:
                    p.code.append(i)
        p.labels[finish] = len(p.code)

    def call(self, i: Instruction, stack: tuple[str, ...]) -> None:
        """`call (results), function, (arguments);`: arguments are variables of `.param` space, registers or constants."""
        p = self.program
        rest = list(i.operands)
        results = grouped(rest)
        target = rest.pop(0) if rest else None
        arguments = grouped(rest)
        f = p.module.functions.get(target.name) if isinstance(target, Symbol) else None
        if f is None or not f.has_body or rest:
            name = target.name if isinstance(target, Symbol) else "a register"
            raise Unsupported(f"call of {name}: it has no body in this module", i.loc)
        if f.name in stack:
            raise Unsupported(f"call of {f.name}: recursion", i.loc)
        if len(arguments) != len(f.params) or len(results) != len(f.results):
            raise PtxError(f"call of {f.name}: wrong number of arguments or results", i.loc)
        self.calls += 1
        prefix, skip = f"{f.name}/{self.calls}:", f"(after call {self.calls})"
        if i.guard is not None:
            inverse = i.guard.operand if isinstance(i.guard, Not) else Not(i.guard)
            p.code.append(replace(i, opcode="bra", modifiers=(), operands=(Symbol(skip),), guard=inverse))
        aliases: dict[str, str] = {}
        before, after = list[Instruction](), list[Instruction]()
        for var, given in (*zip(f.params, arguments, strict=True), *zip(f.results, results, strict=True)):
            if isinstance(given, Symbol) and var.space == "param":
                aliases[var.name] = given.name
            elif var in f.results:
                after.append(moved(i, var, given, Register(prefix + var.name), Memory(Symbol(prefix + var.name)), out=True))
            else:
                before.append(moved(i, var, given, Register(prefix + var.name), Memory(Symbol(prefix + var.name)), out=False))
        p.code += before
        self.add(f, prefix, aliases, stack)
        p.code += after
        p.labels[skip] = len(p.code)


def grouped(rest: list[Operand]) -> tuple[Operand, ...]:
    """Take `( … )` from the front, if that is what is there."""
    match rest:
        case [Group(items), *_]:
            del rest[0]
            return items
        case _:
            return ()


def moved(i: Instruction, var: Variable, given: Operand, register: Register, memory: Memory, out: bool) -> Instruction:
    """The instruction that passes one argument or result that is no variable."""
    if var.space == "reg":
        operands = (given, register) if out else (register, given)
        return replace(i, opcode="mov", modifiers=(var.type,), operands=operands, guard=None)
    operands = (given, memory) if out else (memory, given)
    return replace(i, opcode="ld" if out else "st", modifiers=("param", var.type), operands=operands, guard=None)


def renamed(i: Instruction, names: dict[str, str]) -> Instruction:
    def new(o: Operand) -> Operand:
        match o:
            case Register(name):
                return Register(names.get(name, name))
            case Symbol(name, offset):
                return Symbol(names.get(name, name), offset)
            case Not(operand):
                return Not(new(operand))
            case Pair(first, second):
                return Pair(new(first), new(second))
            case Vector(items):
                return Vector(tuple(map(new, items)))
            case Group(items):
                return Group(tuple(map(new, items)))
            case Memory(base, offset, coordinates):
                inner = Vector(tuple(map(new, coordinates.items))) if coordinates else None
                return Memory(new(base), offset, inner)
            case _:
                return o

    return replace(i, operands=tuple(map(new, i.operands)), guard=None if i.guard is None else new(i.guard))


def symbols(o: Operand) -> set[str]:
    match o:
        case Symbol(name):
            return {name}
        case Memory(base):
            return symbols(base)
        case Vector(items) | Group(items):
            return set[str]().union(*map(symbols, items))
        case _:
            return set()


def lay_out(p: Program) -> None:
    """Give each variable that is used its place. Arrays without a size follow all others of shared memory."""
    used = set[str]().union(*(symbols(o) for i in p.code for o in i.operands))
    kernel = {var.name for var in p.entry.params}
    open_ended: list[Variable] = []
    for var in p.variables.values():
        if var.name not in used and var.name not in kernel:
            continue
        space = "local" if var.space == "param" and var.name not in kernel else var.space
        if space == "reg":
            continue
        if space == "shared" and var.count == 0:
            open_ended.append(var)
            continue
        offset = -(-p.sizes[space] // var.align) * var.align
        p.places[var.name] = Place(space, offset, var)
        p.sizes[space] = offset + var.size
    for var in open_ended:
        start = -(-p.sizes["shared"] // var.align) * var.align
        p.places[var.name] = Place("shared", start, var)
    if open_ended:
        p.sizes["shared"] = max(p.places[var.name].offset for var in open_ended)

"""PTX text to `syntax.Module` (PTX ISA, "PTX Source Format", "Directives").

>>> module = parse(".version 8.0 .target sm_80 .address_size 64 .visible .entry f() { ret; }")
>>> [entry.name for entry in module.entries()]
['f']
"""

from __future__ import annotations

import struct
from dataclasses import replace

from attngen.backends.cuda.ptx.cursor import Cursor, Scope
from attngen.backends.cuda.ptx.errors import PtxError, Unsupported
from attngen.backends.cuda.ptx.operands import operand, operands
from attngen.backends.cuda.ptx.syntax import Function, Instruction, Module, Operand, Symbol, Variable
from attngen.backends.cuda.ptx.types import TYPES

LINKAGE = {".extern", ".visible", ".weak", ".common"}
SPACES = {".global", ".const", ".shared", ".local", ".param"}
PERFORMANCE = {
    *(".maxntid", ".reqntid", ".minnctapersm", ".maxnctapersm", ".maxnreg", ".noreturn", ".reqnctapercluster"),
    *(".explicitcluster", ".maxclusterrank", ".abi_preserve", ".abi_preserve_control"),
}


def parse(text: str, file: str = "<ptx>") -> Module:
    """The module, or a `PtxError` that names the file, the line and the word that was not understood."""
    return Parser(Cursor(text, file)).module()


class Parser:
    def __init__(self, cursor: Cursor) -> None:
        self.c = cursor
        self.count = 0
        self.outer = Scope()

    def module(self) -> Module:
        c, made = self.c, Module(self.c.file)
        while c.word.kind != "end":
            linkage: set[str] = set()
            while c.word.text in LINKAGE:
                linkage.add(c.next().text)
            directive = c.word.text
            if directive in SPACES:
                for var in self.variables(self.outer, external=".extern" in linkage):
                    made.variables[var.name] = var
            elif directive in (".entry", ".func"):
                function = self.function()
                known = made.functions.get(function.name)
                if known is None or not known.has_body:
                    made.functions[function.name] = function
            elif directive == ".version":
                c.next()
                made.version = c.next().text
            elif directive == ".target":
                c.next()
                made.target = tuple(self.words())
            elif directive == ".address_size":
                c.next()
                if c.integer() != 64:
                    raise PtxError(".address_size must be 64", c.loc)
            elif not self.debugging():
                raise Unsupported(f"the directive {directive!r} is not known", c.loc)
        return made

    def words(self) -> list[str]:
        found = [self.c.name()]
        while self.c.accept(","):
            found.append(self.c.name())
        return found

    def debugging(self) -> bool:
        """Directives that change nothing that runs: `.file`, `.loc`, `.section`, `.pragma`."""
        c = self.c
        if c.accept(".pragma"):
            c.skip_to(";")
        elif c.word.text in (".file", ".loc"):
            line = c.next().line
            while c.word.line == line and c.word.kind != "end":
                c.next()
        elif c.accept(".section"):
            while c.word.text != "{":
                c.next()
            c.skip_braces()
        else:
            return False
        return True

    def variables(self, scope: Scope, external: bool = False) -> list[Variable]:
        """`.shared .align 16 .b8 a[64], b;`: one or several variables of a state space."""
        found = [self.variable(scope, external)]
        head = found[0]
        while self.c.accept(","):
            found.append(self.rest(scope, head.space, head.type, head.align, 1, external))
        self.c.expect(";")
        return found

    def variable(self, scope: Scope, external: bool = False) -> Variable:
        c = self.c
        space = c.next().text[1:]
        align, lanes, element = 0, 1, ""
        while c.word.kind == "dotted":
            word = c.next().text
            if word == ".align":
                align = c.integer()
            elif word in (".v2", ".v4"):
                lanes = int(word[2:])
            elif word[1:] in TYPES:
                element = word[1:]
            elif word not in (".ptr", ".global", ".shared", ".const", ".local", ".generic", ".unified"):
                c.at -= 1
                raise c.error("an alignment or a type of a variable")
        if not element:
            raise c.error("the type of a variable")
        return self.rest(scope, space, element, align, lanes, external)

    def rest(self, scope: Scope, space: str, element: str, align: int, lanes: int, external: bool) -> Variable:
        """From the name on: dimensions and initial values."""
        c, loc = self.c, self.c.loc
        name = c.name()
        count, size = lanes, TYPES[element].bytes
        while c.accept("["):
            count = count * c.integer() if c.word.text != "]" else 0
            c.expect("]")
        initial = self.initial(element) if c.accept("=") else b""
        if initial and count == 0:
            count = len(initial) // size
        unique = name + scope.suffix
        scope.variables[name] = unique
        return Variable(unique, space, element, align or size * lanes, size, count, loc, initial, external)

    def initial(self, element: str) -> bytes:
        c, t = self.c, TYPES[element]
        if c.accept("{"):
            parts: list[bytes] = []
            while not c.accept("}"):
                if parts:
                    c.expect(",")
                parts.append(self.initial(element))
            return b"".join(parts)
        if c.word.kind == "name":
            raise Unsupported(f"the address of {c.word.text} as initial value", c.loc)
        value = c.constant()
        if value.float_bits and t.bits != value.float_bits:
            raw = value.value.to_bytes(value.float_bits // 8, "little")
            return struct.pack("<f" if t.bits == 32 else "<d", *struct.unpack("<f" if len(raw) == 4 else "<d", raw))
        return (value.value & ((1 << t.bits) - 1)).to_bytes(t.bytes, "little")

    def function(self) -> Function:
        c, loc = self.c, self.c.loc
        is_entry = c.next().text == ".entry"
        scope = Scope(parent=self.outer)
        results = self.parameters(scope) if c.word.text == "(" else []
        made = Function(c.name(), is_entry, loc, results=results)
        if c.word.text == "(":
            made.params = self.parameters(scope)
        while c.word.text in PERFORMANCE:
            name, numbers = c.next().text[1:], list[int]()
            while c.word.kind == "integer":
                numbers.append(c.integer())
                c.accept(",")
            made.directives[name] = tuple(numbers)
        if c.accept(";"):
            made.has_body = False
            return made
        while c.word.text == ".pragma":
            self.debugging()
        made.variables |= {var.name: var for var in (*made.params, *made.results)}
        for var in (*made.params, *made.results):
            if var.space == "reg":
                made.registers[var.name] = var.type
        scopes: list[Scope] = []
        c.expect("{")
        self.block(made, scope, scopes)
        made.body = list(map(with_labels, made.body, scopes))
        made.tables = {j: tuple(scope.label(n) or n for n in names) for j, names in made.tables.items()}
        return made

    def parameters(self, scope: Scope) -> list[Variable]:
        c = self.c
        c.expect("(")
        found: list[Variable] = []
        while not c.accept(")"):
            if found:
                c.expect(",")
            var = self.variable(scope)
            if var.space == "reg":
                scope.registers[var.name] = var.name
            found.append(var)
        return found

    def block(self, made: Function, scope: Scope, scopes: list[Scope]) -> None:
        """Up to the closing brace. scopes: that of each instruction, since labels may be used before they appear."""
        c = self.c
        while not c.accept("}"):
            word = c.word
            if c.accept("{"):
                self.count += 1
                self.block(made, Scope(f"#{self.count}", scope), scopes)
            elif c.accept(".reg"):
                self.registers(made, scope)
            elif word.text in SPACES:
                for var in self.variables(scope):
                    made.variables[var.name] = var
            elif word.kind == "name" and c.words[c.at + 1].text == ":":
                self.label(made, scope)
            elif word.kind == "dotted":
                if not self.debugging():
                    raise Unsupported(f"the directive {word.text!r} is not known inside a function", c.loc)
            elif not c.accept(";"):
                scopes.append(scope)
                made.body.append(self.instruction(scope))

    def label(self, made: Function, scope: Scope) -> None:
        c, loc = self.c, self.c.loc
        name = c.name()
        c.expect(":")
        unique = name + scope.suffix
        scope.labels[name] = unique
        if c.accept(".branchtargets"):
            made.tables[unique] = tuple(self.words())
            c.expect(";")
            return
        if c.word.text in (".callprototype", ".calltargets"):
            raise Unsupported(f"{c.word.text}: calls through a register", loc)
        if unique in made.labels:
            raise PtxError(f"the label {name} is already defined", loc)
        made.labels[unique] = len(made.body)

    def registers(self, made: Function, scope: Scope) -> None:
        """`.reg .b32 %r<10>, %x;` and vectors, whose elements are registers `%v.x`."""
        c = self.c
        lanes = int(c.next().text[2:]) if c.word.text in (".v2", ".v4") else 0
        if c.word.text[1:] not in TYPES:
            raise c.error("the type of a register")
        kind = c.next().text[1:]
        while True:
            name = c.name()
            names = [name]
            if c.accept("<"):
                names = [f"{name}{n}" for n in range(c.integer())]
                c.expect(">")
            for one in names:
                unique = one + scope.suffix
                scope.registers[one] = unique
                elements = [f"{unique}.{axis}" for axis in "xyzw"[:lanes]] or [unique]
                made.registers |= dict.fromkeys(elements, kind)
            if not c.accept(","):
                break
        c.expect(";")

    def instruction(self, scope: Scope) -> Instruction:
        c, start, loc = self.c, self.c.word, self.c.loc
        guard = operand(c, scope) if c.accept("@") else None
        if c.word.kind != "name":
            raise c.error("an instruction")
        opcode = c.next().text
        modifiers: list[str] = []
        while c.is_dotted():
            modifiers.append(c.next().text[1:])
        given = operands(c, scope, ";")
        return Instruction(opcode, tuple(modifiers), given, guard, loc, c.between(start))


def with_labels(i: Instruction, scope: Scope) -> Instruction:
    """Symbols that are labels, by their unique names."""
    if not any(isinstance(o, Symbol) for o in i.operands):
        return i

    def resolve(o: Operand) -> Operand:
        match o:
            case Symbol(name=name) if (label := scope.label(name)) is not None:
                return Symbol(label)
            case _:
                return o

    return replace(i, operands=tuple(map(resolve, i.operands)))

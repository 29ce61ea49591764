"""MLIR's generic form, which MLIR and xDSL read when unregistered dialects are allowed. `parser.py` reads it back.

    "builtin.module"() ({
      "nd.func"() ({
      ^bb0(%q: !nd.tensor<"i=37, d=8, f32">):
        %0 = "nd.exp"(%q) : (!nd.tensor<"i=37, d=8, f32">) -> !nd.tensor<"i=37, d=8, f32">
        "nd.return"(%0) : (!nd.tensor<"i=37, d=8, f32">) -> ()
      }) {sym_name = "f", arg_names = ["q"], arg_layouts = ["i d"], result_layouts = ["i d"]} : () -> ()
    }) : () -> ()

Types and extents are quoted, because MLIR refuses a bare `=` or `<`. Floats are f64, infinities and NaN by their bits. A region
that is absent is an empty one; operands that may be absent or several are counted by `operandSegmentSizes`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from attngen.ir.core import Block, Op, Value, argument, quote
from attngen.ir.diagnostics import UNKNOWN, Loc
from attngen.ir.func import Func, Param
from attngen.ir.lexer import Token
from attngen.ir.printer import Names
from attngen.ir.reader import Raw, Reader
from attngen.ir.types import ElementType, Layout, TensorType, Type

SEGMENTS = "operandSegmentSizes"
FUNC_ATTRIBUTES = ("sym_name", "arg_names", "arg_layouts", "result_layouts")


def print_generic(*funcs: Func, locations: bool = False) -> str:
    """Functions as one module. `locations` adds where each op came from."""
    printer = GenericPrinter(locations)
    for func in funcs:
        printer.func(func)
    return "\n".join(['"builtin.module"() ({', *printer.lines, "}) : () -> ()", ""])


def show_type(type: Type) -> str:
    head, body = str(type).split("<", 1)
    return f'!{"nd" if head == "tensor" else "loop"}.{head}<"{body[:-1]}">'


def show_types(values: Sequence[Value]) -> str:
    return f"({', '.join(show_type(v.type) for v in values)})"


def show_float(x: float) -> str:
    if not math.isfinite(x):
        return {math.inf: "0x7FF0000000000000", -math.inf: "0xFFF0000000000000"}.get(x, "0x7FF8000000000000") + " : f64"
    digits, e, exponent = float.__repr__(x).partition("e")
    return f"{digits if '.' in digits else digits + '.0'}{e}{exponent} : f64"


def show(value: Any) -> str:
    """An attribute in MLIR's words."""
    if isinstance(value, tuple):
        items = cast(tuple[Any, ...], value)
        return f"[{', '.join(quote(f'{x[0]}={x[1]}') if isinstance(x, tuple) else show(x) for x in items)}]"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value} : i{max(64, value.bit_length() + 1)}"
    if isinstance(value, float):
        return show_float(value)
    return str(value) if isinstance(value, ElementType) else quote(str(value))


class GenericPrinter:
    def __init__(self, locations: bool) -> None:
        self.names, self.locations, self.lines = Names(), locations, list[str]()

    def func(self, func: Func) -> None:
        self.names = Names()
        names, layouts = tuple(p.name for p in func.params), tuple(str(p.layout) for p in func.params)
        values = func.name, names, layouts, tuple(map(str, func.out_layouts))
        self.lines.append('  "nd.func"() ({')
        self.block(func.body, "  ", "nd.return")
        self.lines.append(f"  }}){self.dictionary(dict(zip(FUNC_ATTRIBUTES, map(show, values), strict=True)))} : () -> ()")

    def dictionary(self, attributes: Mapping[str, str]) -> str:
        shown = ", ".join(f"{name} = {value}" for name, value in attributes.items())
        return f" {{{shown}}}" if shown else ""

    def block(self, block: Block, pad: str, terminator: str) -> None:
        names = self.names.define(block.args)
        if names:
            args = (f"{name}: {show_type(v.type)}" for name, v in zip(names, block.args, strict=True))
            self.lines.append(f"{pad}^bb0({', '.join(args)}):")
        for op in block.ops:
            self.op(op, pad + "  ")
        self.lines.append(f'{pad}  "{terminator}"({self.uses(block.yields)}) : {show_types(block.yields)} -> ()')

    def uses(self, values: Sequence[Value]) -> str:
        return ", ".join(map(self.names, values))

    def op(self, op: Op, pad: str) -> None:
        attributes = {name: show(value) for name, value in op.stated.items()}
        if op.fields.flexible:
            given = (getattr(op, name) for name in op.fields.operands)
            counts = (len(cast(tuple[Value, ...], x)) if isinstance(x, tuple) else int(x is not None) for x in given)
            attributes[SEGMENTS] = f"array<i32: {', '.join(map(str, counts))}>"
        names, types = ", ".join(self.names.define(op.results)), show_types(op.results)
        head = f"{pad}{f'{names} = ' if names else ''}{quote(op.name)}({self.uses(op.operands)})"
        tail = f"{self.dictionary(attributes)} : {show_types(op.operands)} -> {types[1:-1] if len(op.results) == 1 else types}"
        if self.locations:
            tail += f" loc({show_loc(op.loc)})"
        for k, name in enumerate(op.fields.regions):
            self.lines.append(f"{pad}}}, {{" if k else f"{head} ({{")
            head = f"{pad}}})"
            block: Block | None = getattr(op, name)
            if block is not None:
                self.block(block, pad, "loop.yield")
        self.lines.append(head + tail)


def show_loc(loc: Loc) -> str:
    return "unknown" if loc == UNKNOWN else f"{quote(loc.file)}:{loc.line}:{loc.column}"


class GenericReader(Reader):
    """Reads what `print_generic`, MLIR and xDSL print."""

    def module(self) -> list[Func]:
        funcs: list[Func] = []
        while self.token.kind != "end":
            if self.token.text == '"builtin.module"':
                self.next()
                for text in ("(", ")", "(", "{"):
                    self.expect(text)
                funcs += self.functions()
                self.expect(")")
                self.tail(())
            elif self.token.text in ("module", "builtin.module"):
                self.next()
                self.expect("{")
                funcs += self.functions()
                self.location()
            else:
                funcs.append(self.func())
        names = [f.name for f in funcs]
        if len(set(names)) != len(names):
            twice = next(n for n in names if names.count(n) > 1)
            raise self.error(f"there are two functions @{twice}", help="rename one of them")
        return funcs

    def functions(self) -> list[Func]:
        if self.token.kind == "block":
            self.next()
            self.expect(":")
        funcs: list[Func] = []
        while not self.take("}"):
            funcs.append(self.func())
        return funcs

    def func(self) -> Func:
        start = self.token
        if start.text != '"nd.func"':
            raise self.expected('"nd.func"', "a module holds functions", start)
        self.next()
        for text in ("(", ")", "("):
            self.expect(text)
        body = self.region_of("the function", '"nd.return"')
        if body is None:
            raise self.error("a function needs a body", start)
        self.expect(")")
        self.places.clear()
        attributes = {name: raw for name, (_, raw) in self.dictionary().items()}
        self.tail(())
        for name in FUNC_ATTRIBUTES:
            if name not in attributes:
                raise self.error(f"the function needs {name}", start, f"add {name} = … to its attributes")
        lists = [self.strings(attributes[name]) for name in FUNC_ATTRIBUTES[1:]]
        name = attributes["sym_name"]
        if name.kind != "string":
            raise self.expected("a string", token=name.token)
        names, layouts, outs = lists
        for values, given in ((body.args, names), (body.args, layouts), (body.yields, outs)):
            if len(values) != len(given):
                raise self.error(f"{len(given)} names or layouts for {len(values)} arguments or results", start)
        params = tuple(Param(x.value, self.laid_out(y, v)) for x, y, v in zip(names, layouts, body.args, strict=True))
        return Func(name.value, params, body, tuple(self.laid_out(y, v) for y, v in zip(outs, body.yields, strict=True)))

    def laid_out(self, layout: Raw, value: Value) -> Layout:
        if not isinstance(value.type, TensorType):
            raise self.error(f"a function takes and returns tensors, not {value.type}", layout.token)
        return self.layout(layout.token, layout.value, value.type)

    def strings(self, raw: Raw) -> list[Raw]:
        if raw.kind != "list" or any(x.kind != "string" for x in raw.value):
            raise self.expected('a list of strings, such as ["q", "k"]', token=raw.token)
        return raw.value

    # ---------------------------------------------------------------- the parts of an op

    def dictionary(self) -> dict[str, tuple[Token, Raw]]:
        """`{name = value, …}` by name, with the place of the name; nothing where there is none."""
        found: dict[str, tuple[Token, Raw]] = {}

        def entry() -> None:
            token = self.next()
            name = self.string_of(token) if token.kind == "string" else token.text
            if token.kind not in ("word", "string"):
                self.position -= token.kind != "end"
                raise self.expected("the name of an attribute")
            if name in found:
                raise self.error(f"{name} is given twice", token)
            self.expect("=")
            found[name] = token, self.raw(True)

        if self.take("{"):
            self.list_of(entry, "}")
        return found

    def region_of(self, owner: str, terminator: str) -> Block | None:
        """A region of one block, or None if it is empty."""
        self.expect("{")
        if self.take("}"):
            return None
        with self.region(owner):
            args: list[Value] = []

            def arg() -> None:
                token = self.of_kind("value", "an argument such as %x")
                self.expect(":")
                args.append(argument(self.type()))
                self.define(token, args[-1])
                self.location()

            if self.token.kind == "block":
                self.next()
                if self.take("("):
                    self.list_of(arg, ")")
                self.expect(":")
            ops: list[Op] = []
            while self.token.text != terminator:
                if self.token.kind not in ("value", "string") or self.token.text in ('"nd.return"', '"loop.yield"'):
                    raise self.expected(f"an op or {terminator}", f"the region ends with {terminator}")
                ops.append(self.op())
            self.next()
            yields = self.operands()
            self.tail(yields)
            self.expect("}")
        return Block(tuple(args), tuple(ops), tuple(yields))

    def operands(self) -> list[Value]:
        self.expect("(")
        return self.list_of(self.use, ")")

    def tail(self, operands: Sequence[Value]) -> tuple[list[tuple[Token, Type]], Loc | None]:
        """` : (operand types) -> result types loc(…)`: the result types and the location; checks the operand types."""
        self.expect(":")
        self.expect("(")
        given = self.list_of(self.typed, ")")
        if len(given) != len(operands):
            raise self.error(f"{len(given)} operand types for {len(operands)} operands", given[0][0] if given else None)
        for k, (token, type) in enumerate(given):
            if type != operands[k].type:
                raise self.error(f"operand {k} is {operands[k].type}, but the text says {type}", token)
        self.expect("->")
        results = self.list_of(self.typed, ")") if self.take("(") else [self.typed()]
        return results, self.location()

    def op(self) -> Op:
        start = self.token
        names = self.result_names()
        token = self.of_kind("string", 'the name of an op in quotes, such as "nd.add"')
        cls = self.op_class(token, self.string_of(token))
        operands = self.operands()
        attributes: dict[str, tuple[Token, Raw]] = {}
        if self.take("<"):
            attributes = self.dictionary()
            self.expect(">")
        blocks: list[Block | None] = []
        if self.take("("):
            blocks = self.list_of(lambda: self.region_of(f"a region of {cls.name}", '"loop.yield"'), ")")
        for name, (at, raw) in self.dictionary().items():
            if name in attributes:
                raise self.error(f"{name} is given twice", at)
            attributes[name] = at, raw
        segments = attributes.pop(SEGMENTS, None)
        types, loc = self.tail(operands)
        values = self.assign(cls, token, operands) if segments is None else self.segmented(cls, segments[1], operands)
        for name, (at, raw) in attributes.items():
            if name not in cls.fields.attributes:
                raise self.unknown(cls, at, name)
            values[name] = self.attribute(cls, name, raw)
        if len(blocks) > len(cls.fields.regions):
            raise self.error(f"{cls.name} has {len(cls.fields.regions)} regions, found {len(blocks)}", token)
        values.update({name: block for name, block in zip(cls.fields.regions, blocks, strict=False) if block is not None})
        op = self.build(cls, start, values, loc)
        self.results(op, names, types, start)
        return op

    def result_names(self) -> list[Token]:
        """`%a, %b = ` or `%a:2 = `, whose results are `%a#0` and `%a#1`; maybe nothing."""
        names: list[Token] = []
        while self.token.kind == "value":
            token = self.next()
            if self.take(":"):
                count = self.integer("the number of results")
                if count > 1000:
                    raise self.error(f"no op has {count} results", token)
                names += [token._replace(text=f"{token.text}#{k}") for k in range(count)]
            else:
                names.append(token)
            if not self.take(","):
                self.expect("=")
                break
        return names

    def segmented(self, cls: type[Op], segments: Raw, operands: Sequence[Value]) -> dict[str, Any]:
        counts = [x.value for x in segments.value] if segments.kind == "list" else []
        limits = [10**9 if cls.fields.annotations[n].startswith("tuple") else 1 for n in cls.fields.operands]
        least = [n not in cls.fields.flexible for n in cls.fields.operands]
        if (
            not all(type(n) is int for n in counts)
            or len(counts) != len(limits)
            or sum(counts) != len(operands)
            or not all(low <= n <= high for low, n, high in zip(least, counts, limits, strict=True))
        ):
            fields = ", ".join(cls.fields.operands)
            raise self.error(f"{SEGMENTS} does not count the {len(operands)} operands ({fields})", segments.token)
        values: dict[str, Any] = {}
        for name, count in zip(cls.fields.operands, counts, strict=True):
            values[name], operands = self.group(cls, name, operands[:count]), operands[count:]
        return values

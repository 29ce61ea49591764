"""Reading functions from text: the pretty form that `print_func` writes, or MLIR's generic form (see `generic.py`)."""

from __future__ import annotations

import re
from typing import Any

from attngen.ir.core import Block, Op, Value, argument
from attngen.ir.func import Func, Param
from attngen.ir.generic import GenericReader
from attngen.ir.lexer import Token, plural
from attngen.ir.loop import For, Parallel
from attngen.ir.reader import Reader
from attngen.ir.types import Extent, Layout, RangeType, TensorType, Type, tile_extent

Typed = tuple[Token, Type]
SIGNATURE = 'a function reads: func @name(%x: tensor<i=4, f32> "i") -> (tensor<i=4, f32> "i") { … }'


def parse(text: str, file: str = "<string>") -> Func:
    """The one function in the text: `parse(print_func(f)) == f`. An `IRError` says at which line and column it went wrong."""
    funcs = parse_module(text, file)
    if len(funcs) != 1:
        raise Reader(text, file).error(f"expected one function, found {len(funcs)}", help="parse_module reads any number")
    return funcs[0]


def parse_module(text: str, file: str = "<string>") -> list[Func]:
    """Every function in the text, in order; names of functions are unique."""
    generic = re.match(r'(?:\s|//[^\n]*(?:\n|$))*(?:"|module\b|builtin\.module\b)', text)
    return GenericReader(text, file).module() if generic else PrettyReader(text, file).module()


class PrettyReader(Reader):
    def module(self) -> list[Func]:
        funcs: dict[str, Func] = {}
        while self.token.kind != "end":
            self.expect("func", SIGNATURE)
            token = self.token
            name = self.name_of(self.of_kind("symbol", "the name of the function, such as @attention", SIGNATURE))
            if name in funcs:
                raise self.error(f"there are two functions @{name}", token, "rename one of them")
            with self.region(f"@{name}"):
                funcs[name] = self.func(name)
            self.places.clear()
        return list(funcs.values())

    def name_of(self, token: Token) -> str:
        if token.text[1] != '"':
            return token.text[1:]
        return self.string_of(token._replace(text=token.text[1:]))

    def func(self, name: str) -> Func:
        self.expect("(")
        params: list[Param] = []
        args: list[Value] = []

        def param() -> None:
            token = self.of_kind("value", "a parameter such as %q")
            known = self.string_of(self.next()) if self.token.kind == "string" else token.text[1:]
            self.expect(":")
            type, layout = self.laid_out()
            args.append(argument(type))
            self.define(token, args[-1])
            params.append(Param(known, layout))

        self.list_of(param, ")")
        self.expect("->", 'the results follow: -> (tensor<i=4, f32> "i")')
        self.expect("(")
        results: list[tuple[Token, Type]] = []

        def result() -> Layout:
            start = self.token
            type, layout = self.laid_out()
            results.append((start, type))
            return layout

        layouts = self.list_of(result, ")")
        self.expect("{")
        end, body = self.block(tuple(args), "return")
        if len(body.yields) != len(results):
            message = f"@{name} returns {plural(len(body.yields), 'value')}, but declares {plural(len(results), 'result')}"
            raise self.error(message, end, "return one value per declared result")
        for v, (token, type) in zip(body.yields, results, strict=True):
            if v.type != type:
                message = f"@{name} returns {v.type}, but declares {type}"
                raise self.error(message, token, "correct the type, or what is returned")
        return Func(name, tuple(params), body, tuple(layouts))

    def laid_out(self) -> tuple[TensorType, Layout]:
        """`tensor<i=4, d=8, f32> "i d"`: a type and how an array's dimensions map to its axes."""
        start = self.token
        type = self.type()
        if not isinstance(type, TensorType):
            raise self.error(f"a function takes and returns tensors, not {type}", start)
        token = self.of_kind("string", 'the layout of the array, such as "i d"')
        return type, self.layout(token, self.string_of(token), type)

    # ---------------------------------------------------------------- blocks

    def block(self, args: tuple[Value, ...], terminator: str) -> tuple[Token, Block]:
        """Ops up to the terminator, what it hands on, and the closing brace; also the place of the terminator."""
        ops: list[Op] = []
        while self.token.text != terminator:
            if self.token.text in ("}", "return", "loop.yield") or self.token.kind == "end":
                raise self.expected(f"an op or '{terminator}'", f"the region ends with {terminator} and the values it hands on")
            ops.append(self.op())
        end = self.next()
        block = Block(args, tuple(ops), tuple(self.uses()))
        self.expect("}")
        return end, block

    def args(self) -> tuple[Value, ...]:
        """`(%a: tensor<f32>, %b: range<j=8>) {`"""

        def arg() -> Value:
            token = self.of_kind("value", "an argument such as %x")
            self.expect(":")
            value = argument(self.type())
            self.define(token, value)
            return value

        self.expect("(")
        args = tuple(self.list_of(arg, ")"))
        self.expect("{")
        return args

    def types(self) -> list[Typed]:
        if not self.take(":"):
            raise self.expected("':' and the types of the results", "they come last: `: tensor<i=4, f32>`")
        if self.take("("):
            return self.list_of(self.typed, ")")
        types = [self.typed()]
        while self.take(","):
            types.append(self.typed())
        return types

    # ---------------------------------------------------------------- ops

    def op(self) -> Op:
        start = self.token
        names: list[Token] = []
        if start.kind == "value":
            names.append(self.next())
            while self.take(","):
                names.append(self.of_kind("value", "the name of a result"))
            self.expect("=", "an op reads: %result = name %operands : type")
        token = self.token
        if token.kind not in ("word", "string"):
            raise self.expected("the name of an op, such as nd.add")
        name = self.string_of(self.next()) if token.kind == "string" else self.next().text
        cls = self.op_class(token, name)
        read = self.loop_for if cls is For else self.loop_parallel if cls is Parallel else self.any_op
        values, types = read(cls, token)
        op = self.build(cls, start, values, self.location())
        self.results(op, names, types, start)
        return op

    def any_op(self, cls: type[Op], name: Token) -> tuple[dict[str, Any], list[Typed]]:
        values = self.operands(cls, name)
        while self.token.kind == "word" and self.token.text != "loc":
            token = self.next()
            if token.text in values:
                raise self.error(f"{token.text} is given twice", token)
            if token.text in cls.fields.regions:
                with self.region(f"the region {token.text} of {cls.name}"):
                    values[token.text] = self.block(self.args(), "loop.yield")[1]
            elif token.text in cls.fields.attributes:
                values[token.text] = self.attribute(cls, token.text, self.raw(False))
            else:
                self.position -= 1
                if token.text in ("tensor", "range", "return", "loop.yield"):
                    break
                raise self.unknown(cls, token, token.text, cls.fields.regions)
        return values, self.types()

    def operands(self, cls: type[Op], name: Token) -> dict[str, Any]:
        if len(cls.fields.flexible) < 2:
            return self.assign(cls, name, self.uses())
        values: dict[str, Any] = {}
        for field in cls.fields.operands:
            if values:
                self.expect(",")
            kind = cls.fields.annotations[field]
            if kind == "tuple[Value, ...]":
                self.expect("[", f"{field} is a list of values")
                values[field] = tuple(self.list_of(self.use, "]"))
            else:
                values[field] = None if kind == "Value | None" and self.take("none") else self.use()
        return values

    def along(self) -> tuple[Token, str, Extent, int]:
        """`%j: j = 0 to 53 step 8`"""
        token = self.of_kind("value", "the range of a trip, such as %j")
        self.expect(":")
        axis = self.of_kind("word", "the axis that the loop runs along")
        self.expect("=")
        if self.of_kind("number", "0, where every loop starts").text != "0":
            raise self.error("a loop starts at 0", self.tokens[self.position - 1])
        self.expect("to")
        extent = self.extent()
        self.expect("step")
        at = self.token
        step = self.integer("the step of the loop")
        if step < 1:
            raise self.error("the step must be at least 1, not 0", at)
        return token, axis.text, extent, step

    def range(self, token: Token, axis: str, extent: Extent, step: int) -> Value:
        value = argument(self.checked(token, RangeType, axis, tile_extent(extent, step)))
        self.define(token, value)
        return value

    def loop_for(self, cls: type[Op], name: Token) -> tuple[dict[str, Any], list[Typed]]:
        """`loop.for %j: j = 0 to 53 step 8 from %a until %b carry (%max = %m) : (tensor<i=16, f32>) { … } merge (…) { … }`"""
        token, axis, extent, step = self.along()
        first, end = (self.use() if self.take(word) else None for word in ("from", "until"))
        self.expect("carry")
        self.expect("(")

        def carried() -> tuple[Token, Value]:
            token = self.of_kind("value", "a carried value such as %max")
            self.expect("=", "a carried value reads: %max = %init")
            return token, self.use()

        carry = self.list_of(carried, ")")
        types = self.types()
        self.expect("{")
        with self.region(name.text):
            args = [self.range(token, axis, extent, step)]
            for carried_token, init in carry:
                args.append(argument(init.type))
                self.define(carried_token, args[-1])
            body = self.block(tuple(args), "loop.yield")[1]
        merge = None
        if self.take("merge"):
            with self.region(f"the merge of {name.text}"):
                merge = self.block(self.args(), "loop.yield")[1]
        inits = tuple(v for _, v in carry)
        values = {"inits": inits, "axis": axis, "extent": extent, "step": step, "body": body, "merge": merge}
        return {**values, "first": first, "end": end}, types

    def loop_parallel(self, cls: type[Op], name: Token) -> tuple[dict[str, Any], list[Typed]]:
        """`loop.parallel %i: i = 0 to 37 step 16 out (%dst) : (tensor<i=37, f32>) { … }`"""
        grid: list[tuple[Token, str, Extent, int]] = []
        while not self.take("out"):
            if grid and not self.take(","):
                raise self.expected("',' or 'out'")
            grid.append(self.along())
        self.expect("(")
        outs = self.list_of(lambda: self.of_kind("value", "a result such as %dst"), ")")
        types = self.types()
        if len(outs) != len(types):
            raise self.error(f"{name.text} writes {len(outs)} results, but {len(types)} types are written", name)
        self.expect("{")
        with self.region(name.text):
            args = [self.range(*along) for along in grid]
            for token, (_, type) in zip(outs, types, strict=True):
                args.append(argument(type))
                self.define(token, args[-1])
            body = self.block(tuple(args), "loop.yield")[1]
        _, axes, extents, steps = zip(*grid, strict=True) if grid else ((), (), (), ())
        return {"axes": axes, "extents": extents, "steps": steps, "body": body}, types

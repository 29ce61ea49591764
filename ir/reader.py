"""What the readers of both forms share: names of values, types, attribute values, and building ops."""

from __future__ import annotations

import dataclasses
import math
import re
import struct
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from attngen.ir import attn, elementwise, loop, nd
from attngen.ir.core import REGISTRY, Op, Value, at
from attngen.ir.diagnostics import UNKNOWN, Error, IRError, Loc
from attngen.ir.lexer import TOKEN, Cursor, Token, did_you_mean, plural, unquote
from attngen.ir.types import Axis, ElementType, Extent, Layout, RangeType, TensorType, Type, UpTo

DIALECTS = (nd, elementwise, attn, loop)
"""Importing these enters their ops in the registry."""

MAX_DEPTH = 100
"""How deep regions may nest: passes walk them recursively."""

UNREAD = object()
NUMBERS = {"true": True, "false": False, "inf": math.inf, "nan": math.nan}


class Raw(NamedTuple):
    """An attribute value as it was written: a word, string, number, extent, axis or list."""

    kind: str
    value: Any
    token: Token

    @property
    def text(self) -> str:
        return str(self.value)


class Reader(Cursor):
    """Reads names, types, attributes and ops."""

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text, file)
        self.visible: dict[str, Value] = {}
        self.places: dict[str, tuple[Token, str]] = {}
        self.depth = 0

    # ---------------------------------------------------------------- names of values

    def define(self, token: Token, value: Value) -> None:
        name = token.text
        if name in self.visible:
            first = self.place(self.places[name][0]).line
            raise self.error(f"{name} is defined twice", token, f"it is first defined on line {first}; choose another name")
        if not name[1:].isdigit() and "#" not in name:
            value.hint = name[1:]
        self.visible[name], self.places[name] = value, (token, "")

    @contextmanager
    def region(self, owner: str) -> Generator[None]:
        """What is defined inside the block can no longer be used after it."""
        outer = dict.fromkeys(self.visible)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(f"regions nest more than {MAX_DEPTH} deep")
        yield
        self.depth -= 1
        for name in [name for name in self.visible if name not in outer]:
            del self.visible[name]
            self.places[name] = (self.places[name][0], owner)

    def use(self) -> Value:
        token = self.of_kind("value", "a value such as %x")
        name = token.text
        if name in self.visible:
            return self.visible[name]
        if name in self.places:
            inside, owner = self.places[name]
            message = f"{name} is defined inside {owner} on line {self.place(inside).line}, and cannot be used outside of it"
            raise self.error(message, token, "yield it from the region, and use the result of the op")
        later = self.defined_later(name)
        if later is not None:
            message = f"{name} is used before it is defined, on line {self.place(later).line}"
            raise self.error(message, token, "move its definition up")
        raise self.error(f"{name} is not defined", token, did_you_mean(name, self.visible, "define it above"))

    def defined_later(self, name: str) -> Token | None:
        for k in range(self.position, len(self.tokens)):
            if self.tokens[k].text == name and self.tokens[k].kind == "value":
                end = k + 1
                while self.tokens[end].text == "," or self.tokens[end].kind == "value":
                    end += 1
                if self.tokens[end].text == "=":
                    return self.tokens[k]
        return None

    def uses(self) -> list[Value]:
        """Values separated by commas; maybe none."""
        values: list[Value] = []
        while self.token.kind == "value" or values:
            values.append(self.use())
            if not self.take(","):
                break
        return values

    # ---------------------------------------------------------------- types and attribute values

    def layout(self, token: Token, text: str, type: TensorType) -> Layout:
        layout = self.checked(token, Layout.parse, text)
        if set(layout.names) != set(type.names):
            help = f"name {', '.join(type.names) or 'no axis'}, each once"
            raise self.error(f"the layout {text!r} does not name the axes of {type}", token, help)
        return layout

    def integer(self, what: str) -> int:
        token = self.of_kind("number", what)
        value = self.number(token)
        if not isinstance(value, int) or value < 0:
            raise self.expected(what, token=token)
        return value

    def number(self, token: Token) -> float | int:
        text = token.text
        if text.lstrip("-").lower().startswith("0x"):
            return int(text, 16)
        if re.search(r"[.eEn]", text):
            return float(text)
        if len(text) > 4000:
            raise self.error("the number has more than 4000 digits", token)
        return int(text)

    def extent(self) -> Extent:
        if self.take("?<="):
            return UpTo(self.integer("the bound of a runtime extent, such as ?<=64"))
        return self.integer("an extent such as 64 or ?<=64")

    def element(self, token: Token) -> ElementType:
        try:
            return ElementType(token.text)
        except ValueError:
            known = [e.value for e in ElementType]
            help = did_you_mean(token.text, known, f"one of {', '.join(known)}")
            raise self.expected("an element type", help, token) from None

    def type(self) -> Type:
        """`tensor<i=4, f32>` or `range<j=8>`, or as MLIR writes them, `!nd.tensor<"i=4, f32">`."""
        token = self.next()
        if token.text in ("tensor", "range"):
            self.expect("<")
            return self.type_body(token, ">")
        if token.text not in ("!nd.tensor", "!loop.range"):
            help = did_you_mean(token.text, ("tensor", "range", "!nd.tensor", "!loop.range"))
            raise self.expected("a type such as tensor<i=4, f32>", help, token)
        self.expect("<")
        quoted = self.of_kind("string", 'the type in quotes, such as "i=4, f32"')
        outside = self.tokens, self.position
        self.tokens, self.position = self.lex(quoted.start + 1, quoted.start + len(quoted.text) - 1, "the end of the type"), 0
        type = self.type_body(token, "the end of the type")
        self.tokens, self.position = outside
        self.expect(">")
        return type

    def type_body(self, start: Token, close: str) -> Type:
        axes: list[Axis] = []
        tensor = start.text in ("tensor", "!nd.tensor")
        while True:
            name = self.of_kind("word", "an axis such as i=4, or an element type" if tensor else "an axis such as j=8")
            if tensor and self.token.text != "=":
                element = self.element(name)
                self.close(close)
                return self.checked(start, TensorType, tuple(axes), element)
            self.expect("=")
            axes.append((name.text, self.extent()))
            if not tensor:
                self.close(close)
                return self.checked(start, RangeType, *axes[0])
            self.expect(",", "a tensor type ends with its element type: tensor<i=4, f32>")

    def close(self, text: str) -> None:
        if self.next().text != text:
            self.position -= 1
            raise self.expected(text if " " in text else f"'{text}'")

    def raw(self, typed: bool, listed: bool = False) -> Raw:
        """An attribute value. `typed`: numbers may say their type, as in MLIR: `8 : i64`, `0x7FF0000000000000 : f64`."""
        token = self.next()
        if token.text == "?<=":
            self.position -= 1
            return Raw("extent", self.extent(), token)
        if token.text == "[" and not listed:
            return Raw("list", self.list_of(lambda: self.raw(typed, True), "]"), token)
        if token.kind == "string":
            return Raw("string", self.string_of(token), token)
        if token.kind == "number":
            value = self.number(token)
            suffix = self.of_kind("word", "a type such as i64") if typed and self.take(":") else None
            if suffix is not None and suffix.text == "f64" and token.text[:2].lower() == "0x":
                if value >= 2**64:
                    raise self.error("the bits of an f64 are at most 16 digits", token)
                value = struct.unpack("<d", struct.pack("<Q", value))[0]
            return Raw("number", value, token)
        if token.kind == "word":
            if token.text == "array" and typed and self.take("<"):
                self.of_kind("word", "an integer type")
                self.expect(":")
                return Raw("list", self.list_of(lambda: self.raw(False, True), ">"), token)
            if listed and self.take("="):
                return Raw("axis", (token.text, self.extent()), token)
            if token.text in NUMBERS:
                return Raw("number", NUMBERS[token.text], token)
            return Raw("word", token.text, token)
        self.position -= token.kind != "end"
        raise self.expected("a value", "", token)

    def attribute(self, cls: type[Op], name: str, raw: Raw) -> Any:
        """The value as the field's annotation wants it."""
        annotation = cls.fields.annotations[name]
        value = self.convert(annotation, raw)
        if value is UNREAD:
            wanted = " or ".join(WANTED.get(x, x) for x in re.split(r" \| (?![^\[]*\])", annotation))
            raise self.expected(f"{wanted} for {name}", f"{cls.name} declares {name}: {annotation}", raw.token)
        return value

    def convert(self, annotation: str, raw: Raw) -> Any:
        if annotation.startswith("tuple[") and annotation.endswith(", ...]"):
            if raw.kind != "list":
                return UNREAD
            items = [self.convert(annotation[6:-6], item) for item in raw.value]
            return UNREAD if UNREAD in items else tuple(items)
        options = re.split(r" \| (?![^\[]*\])", annotation)
        if len(options) > 1:
            return next((x for option in options if (x := self.convert(option, raw)) is not UNREAD), UNREAD)
        value: Any = raw.value
        text = raw.kind in ("word", "string")
        match annotation:
            case "str" if text or raw.token.text in NUMBERS:
                return value if text else raw.token.text
            case "ElementType" if text:
                return self.element(raw.token._replace(text=value))
            case "None" if raw.kind == "word" and value == "none":
                return None
            case "bool" if isinstance(value, bool):
                return value
            case "int" if isinstance(value, int) and not isinstance(value, bool):
                return value
            case "float" if isinstance(value, (int, float)):
                return value
            case "Extent" if raw.kind == "extent" or type(value) is int and value >= 0:
                return value
            case "Extent" if raw.kind == "string" and (m := re.fullmatch(r"\?<=(\d{1,4000})", raw.text)):
                return UpTo(int(m[1]))
            case "Axis" if raw.kind == "axis":
                return value
            case "Axis" if raw.kind == "string" and (m := re.fullmatch(r"(\w+)=(\?<=)?(\d{1,4000})", raw.text)):
                return m[1], UpTo(int(m[3])) if m[2] else int(m[3])
            case _:
                return UNREAD

    # ---------------------------------------------------------------- ops

    def op_class(self, token: Token, name: str) -> type[Op]:
        cls = REGISTRY.get(name)
        if cls is None:
            help = did_you_mean(name, REGISTRY, "`attngen list ops` names every op")
            raise self.error(f"there is no op {name[:80]}", token, help)
        return cls

    def unknown(self, cls: type[Op], token: Token, name: str, also: Sequence[str] = ()) -> IRError:
        known = [*cls.fields.attributes, *also]
        has = f"it has {', '.join(known)}" if known else "it has none"
        return self.error(f"{cls.name} has no attribute {name}", token, did_you_mean(name, known, has))

    def assign(self, cls: type[Op], token: Token, values: Sequence[Value]) -> dict[str, Any]:
        """Operands to fields, where at most one field may be absent or several."""
        names, flexible = cls.fields.operands, cls.fields.flexible
        fixed = len(names) - len(flexible)
        several = any(cls.fields.annotations[name] != "Value | None" for name in flexible)
        if len(values) < fixed or not several and len(values) > len(names):
            more = " or more" if several else f" or {len(names)}" if flexible else ""
            wanted = f"{fixed}{more} operands" if more else plural(fixed, "operand")
            help = f"its operands are {', '.join(names)}" if names else ""
            raise self.error(f"{cls.name} takes {wanted}, found {len(values)}", token, help)
        found: dict[str, Any] = {}
        rest = list(values)
        for name in names:
            n = len(values) - fixed if name in flexible else 1
            found[name], rest = self.group(cls, name, rest[:n]), rest[n:]
        return found

    def group(self, cls: type[Op], name: str, values: Sequence[Value]) -> Any:
        if cls.fields.annotations[name] == "tuple[Value, ...]":
            return tuple(values)
        return values[0] if values else None

    def location(self) -> Loc | None:
        """A trailing `loc(file:line:column)`, if there is one."""
        if self.token.kind != "loc":
            if self.token.text == "loc":
                raise self.expected("loc(file:line) or loc(file:line:column)")
            return None
        token = self.next()
        match = TOKEN.match(token.text)
        assert match is not None
        if match["file"] == "unknown" and not match["line"]:
            return UNKNOWN
        file = self.checked(token, unquote, match["file"]) if match["file"][0] == '"' else match["file"]
        if len(token.text) > 4000:
            raise self.error("the location is too long", token)
        return Loc(file, int(match["line"] or 0), int(match["column"] or 0))

    def build(self, cls: type[Op], start: Token, values: dict[str, Any], loc: Loc | None) -> Op:
        """The op; what does not type-check is reported at its text."""
        here = self.place(start)
        missing = [name for name in required(cls) if name not in values]
        if missing:
            raise self.error(f"{cls.name} needs {' and '.join(missing)}", start, f"add {missing[0]} and its value")
        try:
            with at(here if loc is None else loc):
                return cls(**values)
        except IRError as e:
            notes = e.notes if loc is None else (*e.notes, f"built at {loc}")
            raise IRError(e.code, e.message, loc=here, ir=e.ir, caret=e.caret, note=e.note, help=e.help, notes=notes) from None
        except Error as e:
            raise IRError(cls.name, str(e), loc=here) from None

    def results(self, op: Op, names: Sequence[Token], types: Sequence[tuple[Token, Type]], start: Token) -> None:
        """Compares the printed result types with the inferred ones, and names the results."""
        for value, (token, type) in zip(op.results, types, strict=False):
            if value.type != type:
                message = f"{op.name} gives {value.type}, but the text says {type}"
                raise self.error(message, token, "correct the type, or what the op is given")
        if not len(types) == len(names) == len(op.results):
            message = f"{op.name} gives {plural(len(op.results), 'result')}, but the text has {plural(len(names), 'name')} and "
            raise self.error(f"{message}{plural(len(types), 'type')}", start, "write one of each per result")
        for token, value in zip(names, op.results, strict=True):
            self.define(token, value)

    def typed(self) -> tuple[Token, Type]:
        token = self.token
        return token, self.type()


def required(cls: type[Op]) -> list[str]:
    """The fields of an op class that have no default."""
    missing = dataclasses.MISSING
    return [f.name for f in dataclasses.fields(cls) if f.default is missing and f.default_factory is missing]


WANTED = {
    "str": "a word",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "None": "none",
    "ElementType": "an element type",
    "Extent": "an extent such as 64 or ?<=64",
    "tuple[str, ...]": "a list of words such as [d]",
    "tuple[int, ...]": "a list of integers such as [8, 16]",
    "tuple[Extent, ...]": "a list of extents such as [64, ?<=8]",
    "tuple[Axis, ...]": "a list of axes such as [d=8]",
}

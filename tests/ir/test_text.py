"""Text: what is printed reads back as the same function, in both forms and through xDSL; bad text is refused with its place."""

from __future__ import annotations

import io
import random
import re
from typing import Any

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin
from xdsl.parser import Parser
from xdsl.printer import Printer

from attngen.ir.core import REGISTRY, Block, Op, Value, annotation, argument
from attngen.ir.diagnostics import UNKNOWN, IRError, Loc
from attngen.ir.func import Func, Param
from attngen.ir.generic import print_generic
from attngen.ir.parser import parse, parse_module
from attngen.ir.printer import print_func
from attngen.ir.types import Axis, ElementType, Extent, Layout, TensorType, Type, UpTo
from tests.ir.generate import FLOATS, random_func

F32 = ElementType.F32
T = TensorType((("i", 4),), F32)


class ManyParts(Op, name="test.many-parts"):
    """An op with everything a field can be, as another package might declare it."""

    first: Value
    maybe: Value | None = None
    several: tuple[Value, ...] = ()
    also: Value | None = None
    word: str = "plain"
    whole: int = 3
    real: float = 0.0
    either: float | int = 1
    flag: bool = False
    element: ElementType = ElementType.F16
    size: Extent = 2
    maybe_size: Extent | None = None
    maybe_word: str | None = None
    words: tuple[str, ...] = ()
    wholes: tuple[int, ...] = ()
    reals: tuple[float, ...] = ()
    sizes: tuple[Extent, ...] = ()
    axes: tuple[Axis, ...] = ()
    maybe_axes: tuple[Axis, ...] | None = None
    before: Block | None = None
    after: Block | None = None

    def infer(self) -> tuple[Type, ...]:
        return tuple(self.first.type for _ in range(self.whole % 3))


def many_parts(seed: int) -> Func:
    """A function of one such op with random fields."""
    choose = random.Random(seed).choice
    x, y, z = (argument(T, name) for name in "xyz")
    words = ("plain", "", "two words", 'a "b" \\', "tensor", "none", "true", "nan", "over", "θ\n", "3", "%x", "?<=3", "i=4")
    sizes: tuple[Extent, ...] = (0, 2, 7, UpTo(0), UpTo(9), 2**70)
    inner = argument(T, "inner")

    def some(kinds: tuple[Any, ...]) -> Any:
        return tuple(choose(kinds) for _ in range(choose((0, 1, 2, 3))))

    op = ManyParts(
        first=x,
        maybe=choose((None, y)),
        several=some((x, y, z)),
        also=choose((None, z)),
        word=choose(words),
        whole=choose((0, 1, 3, 4, -1, 2**70, -(2**63))),
        real=choose(FLOATS),
        either=choose((*FLOATS, 1, 0, True)),
        flag=choose((False, True)),
        element=choose(list(ElementType)),
        size=choose(sizes),
        maybe_size=choose((None, *sizes)),
        maybe_word=choose((None, *words)),
        words=some(words),
        wholes=some((0, -1, 2**40)),
        reals=some(tuple(x for x in FLOATS if x == x)),
        sizes=some(sizes),
        axes=tuple((name, choose(sizes)) for name in choose(("", "i", "jk"))),
        maybe_axes=choose((None, (), (("d", 8),))),
        before=choose((None, Block((), (), (x,)))),
        after=choose((None, Block((inner,), (ManyParts(first=inner),), ()))),
    )
    i = Layout((("i",),))
    return Func("f", tuple(Param(n, i) for n in "xyz"), Block((x, y, z), (op,), op.results), (i,) * len(op.results))


def places(func: Func) -> list[Loc]:
    return [op.loc for op in func.walk()]


def through_xdsl(text: str, debuginfo: bool) -> str:
    """What xDSL prints after reading the text. It knows no op of attngen."""
    context = Context(allow_unregistered=True)
    context.load_dialect(Builtin)
    module = Parser(context, text).parse_module()
    out = io.StringIO()
    Printer(out, print_generic_format=True, print_debuginfo=debuginfo).print_op(module)
    return out.getvalue()


# ---------------------------------------------------------------- round trips


@pytest.mark.parametrize("start", range(0, 500, 50))
def test_printed_functions_read_back(start: int) -> None:
    for seed in range(start, start + 50):
        func = random_func(seed)
        for show in (print_func, print_generic):
            text = show(func, locations=seed % 2 == 0)
            again = parse(text, "again.ir")
            assert again == func, (seed, text)
            assert show(again, locations=seed % 2 == 0) == text, seed  # names are kept too
            if seed % 2 == 0:
                assert places(again) == places(func), (seed, text)
            else:
                assert {loc.file for loc in places(again)} <= {"again.ir"}


def test_random_functions_have_every_op() -> None:
    seen = {type(op) for seed in range(150) for op in random_func(seed).walk()}
    assert {cls for cls in REGISTRY.values() if cls.__module__.startswith("attngen.ir.")} <= seen


@pytest.mark.parametrize("start", range(0, 120, 20))
def test_xdsl_reads_it_and_prints_the_same_function(start: int) -> None:
    for seed in range(start, start + 20):
        func, debuginfo = random_func(seed), seed % 2 == 0
        again = parse(through_xdsl(print_generic(func, locations=debuginfo), debuginfo))
        assert again == func, seed
        if debuginfo:
            assert places(again) == places(func), seed


@pytest.mark.parametrize("seed", range(200))
def test_ops_of_other_packages(seed: int) -> None:
    func = many_parts(seed)
    for text in (print_func(func), print_generic(func), through_xdsl(print_generic(func), False)):
        assert parse(text) == func, text


@pytest.mark.parametrize(
    ("evaluated", "text"),
    [
        (Value, "Value"),
        (Value | None, "Value | None"),
        (tuple[Value, ...], "tuple[Value, ...]"),
        (tuple[Axis, ...], "tuple[Axis, ...]"),
        (Extent | None, "Extent | None"),
        (float | int, "float | int"),
        ("core.Value|None", "Value | None"),
        ("Optional[ElementType]", "ElementType | None"),
    ],
)
def test_annotations_mean_the_same_evaluated_or_not(evaluated: object, text: str) -> None:
    """A module without `from __future__ import annotations` can declare ops too."""
    assert annotation(evaluated) == text


def test_both_forms_of_one_function() -> None:
    pretty = """\
func @f(%x: tensor<i=4, f32> "i") -> (tensor<i=4, f32> "i") {
  %low = nd.constant value -inf element f32 : tensor<f32>
  %m, %n = loop.for %i: i = 0 to 4 step 3 carry (%a = %x, %b = %low) : (tensor<i=4, f32>,
      tensor<f32>) {
    loop.yield %x, %b
  } merge (%c: tensor<i=4, f32>, %d: tensor<f32>, %e: tensor<i=4, f32>, %g: tensor<f32>) {
    loop.yield %c, %g
  }
  %o = loop.parallel %r: i = 0 to 4 step 4 out (%dst) : (tensor<i=4, f32>) {
    %t = tile.load %m, %r : tensor<i=4, f32>
    %s = tile.store %t, %dst, %r : tensor<i=4, f32>
    loop.yield %s
  }
  return %o
}
"""
    generic = """\
"builtin.module"() ({
  "nd.func"() ({
  ^bb0(%x: !nd.tensor<"i=4, f32">):
    %low = "nd.constant"() {value = 0xFFF0000000000000 : f64, element = f32} : () -> !nd.tensor<"f32">
    %m, %n = "loop.for"(%x, %low) ({
    ^bb0(%i: !loop.range<"i=?<=3">, %a: !nd.tensor<"i=4, f32">, %b: !nd.tensor<"f32">):
      "loop.yield"(%x, %b) : (!nd.tensor<"i=4, f32">, !nd.tensor<"f32">) -> ()
    }, {
    ^bb0(%c: !nd.tensor<"i=4, f32">, %d: !nd.tensor<"f32">, %e: !nd.tensor<"i=4, f32">, %g: !nd.tensor<"f32">):
      "loop.yield"(%c, %g) : (!nd.tensor<"i=4, f32">, !nd.tensor<"f32">) -> ()
    }) {axis = "i", extent = 4 : i64, step = 3 : i64, operandSegmentSizes = array<i32: 2, 0, 0>} : \
(!nd.tensor<"i=4, f32">, !nd.tensor<"f32">) -> (!nd.tensor<"i=4, f32">, !nd.tensor<"f32">)
    %o = "loop.parallel"() ({
    ^bb0(%r: !loop.range<"i=4">, %dst: !nd.tensor<"i=4, f32">):
      %t = "tile.load"(%m, %r) {operandSegmentSizes = array<i32: 1, 1>} : \
(!nd.tensor<"i=4, f32">, !loop.range<"i=4">) -> !nd.tensor<"i=4, f32">
      %s = "tile.store"(%t, %dst, %r) {operandSegmentSizes = array<i32: 1, 1, 1>} : \
(!nd.tensor<"i=4, f32">, !nd.tensor<"i=4, f32">, !loop.range<"i=4">) -> !nd.tensor<"i=4, f32">
      "loop.yield"(%s) : (!nd.tensor<"i=4, f32">) -> ()
    }) {axes = ["i"], extents = [4 : i64], steps = [4 : i64]} : () -> !nd.tensor<"i=4, f32">
    "nd.return"(%o) : (!nd.tensor<"i=4, f32">) -> ()
  }) {sym_name = "f", arg_names = ["x"], arg_layouts = ["i"], result_layouts = ["i"]} : () -> ()
}) : () -> ()
"""
    func = parse(pretty)
    assert print_func(func) == pretty
    assert print_generic(func) == generic
    assert parse(generic) == func


# ---------------------------------------------------------------- details of the text

ONE = 'func @one(%x: tensor<i=4, f32> "i") -> (tensor<i=4, f32> "i") {\n  %y = nd.exp %x : tensor<i=4, f32>\n  return %y\n}\n'


def test_places_come_from_the_text_or_from_loc() -> None:
    text = "// a comment\n" + ONE.replace("%y = ", "  %y = ")
    (op,) = parse(text, "f.ir").walk()
    assert op.loc == Loc("f.ir", 3, 5)
    for written, loc in {
        "loc(model.py:12)": Loc("model.py", 12),
        "loc(model.py:12:7)": Loc("model.py", 12, 7),
        'loc("my model.py":12:7)': Loc("my model.py", 12, 7),
        "loc(unknown)": UNKNOWN,
    }.items():
        func = parse(ONE.replace("f32>\n  return", f"f32> {written} // why\n  return"))
        assert places(func) == [loc]
        assert written in print_func(func, locations=True)


def test_names_that_are_numbers_are_no_hints() -> None:
    func = parse(ONE.replace("%y", "%7"))
    assert [v.hint for op in func.walk() for v in op.results] == [""]
    assert func.args[0].hint == "x"
    assert "%0 = nd.exp %x" in print_func(func)


def test_names_that_are_no_identifiers() -> None:
    x, i = argument(T, "θ x"), Layout((("i",),))
    func = Func("<lambda>", (Param("θ x", i),), Block((x,), (), (x,)), (i,))
    assert print_func(func).startswith('func @"<lambda>"(%__x "θ x": tensor<i=4, f32> "i")')
    assert parse(print_func(func)) == parse(print_generic(func)) == func


def test_what_mlir_prints_instead() -> None:
    """Its own spelling of several results, properties, a module with its custom form, and hexadecimal floats."""
    text = """
    module {
      "nd.func"() ({
      ^bb0(%arg0: !nd.tensor<"i=4, f32"> loc("a.py":1:2)):
        %c = "nd.constant"() <{element = f32, value = 0x3FF8000000000000 : f64}> : () -> !nd.tensor<"f32">
        %0:2 = "loop.for"(%arg0, %c) ({
        ^bb0(%i: !loop.range<"i=?<=3">, %a: !nd.tensor<"i=4, f32">, %b: !nd.tensor<"f32">):
          "loop.yield"(%a, %b) : (!nd.tensor<"i=4, f32">, !nd.tensor<"f32">) -> ()
        }) {axis = "i", extent = 4 : i64, step = 3 : i64} : (!nd.tensor<"i=4, f32">, !nd.tensor<"f32">)
            -> (!nd.tensor<"i=4, f32">, !nd.tensor<"f32">)
        "nd.return"(%0#1) : (!nd.tensor<"f32">) -> ()
      }) {arg_layouts = ["i"], arg_names = ["x"], result_layouts = [""], sym_name = "f"} : () -> ()
    }
    """
    func = parse(text)
    assert (
        print_func(func)
        == """\
func @f(%x: tensor<i=4, f32> "i") -> (tensor<f32> "") {
  %c = nd.constant value 1.5 element f32 : tensor<f32>
  %0, %1 = loop.for %i: i = 0 to 4 step 3 carry (%a = %x, %b = %c) : (tensor<i=4, f32>,
      tensor<f32>) {
    loop.yield %a, %b
  }
  return %1
}
"""
    )


def test_a_module_of_several_functions() -> None:
    one, two = parse(ONE), parse(ONE.replace("@one", "@two"))
    assert parse_module(print_func(one) + print_func(two)) == [one, two]
    assert parse_module(print_generic(one, two)) == [one, two]
    assert parse_module("// nothing\n") == []


def test_large_and_deep_text() -> None:
    lines = [f"  %v{k + 1} = nd.exp %v{k} : tensor<i=4, f32>" for k in range(5000)]
    text = 'func @f(%v0: tensor<i=4, f32> "i") -> (tensor<i=4, f32> "i") {\n' + "\n".join(lines) + "\n  return %v5000\n}\n"
    func = parse(text)
    assert print_func(func) == text
    assert parse(print_generic(func)) == func
    func = parse(nested(99))
    assert parse(print_generic(func)) == parse(print_func(func)) == func


def nested(depth: int) -> str:
    loop = "%m{0} = loop.for %r{0}: i = 0 to 4 step 4 carry (%c{0} = %x) : (tensor<i=4, f32>) {{\n"
    opened = "".join(loop.format(k) for k in range(depth))
    closed = "".join(f"loop.yield {f'%m{k + 1}' if k + 1 < depth else '%x'}\n}}\n" for k in reversed(range(depth)))
    return f'func @f(%x: tensor<i=4, f32> "i") -> (tensor<i=4, f32> "i") {{\n{opened}{closed}return %m0\n}}\n'


# ---------------------------------------------------------------- errors

HEAD = 'func @f(%q: tensor<i=4, d=8, f32> "i d", %k: tensor<j=5, d=8, f32> "j d") -> (tensor<i=4, f32> "i") {\n'
MAX = "%o = nd.reduce %q kind max over [d] acc f32 : tensor<i=4, f32>"


def body(*lines: str) -> str:
    return HEAD + "".join(f"  {line}\n" for line in lines) + "}\n"


def with_head(head: str) -> str:
    return f"func @f({head}) -> () {{ return }}"


LOOP = "%m = loop.for %j: j = 0 to 5 step 2 carry (%c = %o) : (tensor<i=4, f32>) {"

ERRORS = [
    ("", 1, 1, "expected one function, found 0", "parse_module reads any number"),
    ("fun @f() -> () {", 1, 1, "expected 'func', found 'fun'", "a function reads: func @name("),
    ("func f", 1, 6, "expected the name of the function, such as @attention, found 'f'", "a function reads"),
    (with_head('%q: tensor<i=4> "i"'), 1, 23, "expected ',', found '>'", "a tensor type ends with its element type"),
    (with_head('%q: tensor<i=4, f33> "i"'), 1, 25, "expected an element type, found 'f33'", "did you mean f32?"),
    (with_head('%q: tensr<i=4, f32> "i"'), 1, 13, "expected a type such as tensor<i=4, f32>, found 'tensr'", "did you mean"),
    (with_head('%q: tensor<i=-4, f32> "i"'), 1, 22, "expected an extent such as 64 or ?<=64, found '-4'", ""),
    (with_head('%q: tensor<i=4, i=4, f32> "i"'), 1, 13, "axis i appears twice in tensor<i=4, i=4, f32>", ""),
    (with_head('%q: tensor<i=4, f32> "j"'), 1, 30, "the layout 'j' does not name the axes of tensor<i=4, f32>", "name i"),
    (with_head('%q: tensor<f32> "(i"'), 1, 25, "cannot read the layout '(i': a parenthesis is not closed", ""),
    (with_head('%q: tensor<f32> "'), 1, 25, "the string is not closed", "write"),
    (with_head('%q: tensor<f32> "\\z"'), 1, 25, "a backslash in the string starts no escape", ""),
    (with_head('%q: tensor<f32> "", %q: tensor<f32> ""'), 1, 29, "%q is defined twice", "it is first defined on line 1"),
    (with_head('%q: range<i=4> "i"'), 1, 13, "a function takes and returns tensors, not range<i=4>", ""),
    (ONE + ONE, 5, 6, "there are two functions @one", "rename one of them"),
    (body(MAX.replace("nd.reduce", "nd.reduec")), 2, 8, "there is no op nd.reduec", "did you mean nd.reduce?"),
    (body(MAX.replace("over", "ovr")), 2, 30, "nd.reduce has no attribute ovr", "did you mean over?"),
    (body(MAX.replace("acc f32 ", "")), 2, 3, "nd.reduce needs acc", "add acc and its value"),
    (body(MAX.replace("[d]", "d")), 2, 35, "expected a list of words such as [d] for over, found 'd'", "declares over"),
    (body(MAX.replace("f32 :", "f32 acc f32 :")), 2, 47, "acc is given twice", ""),
    (body(MAX.replace("kind max", "kind mx")), 2, 3, "cannot reduce by mx", "one of sum, max"),
    (body(MAX.replace("i=4", "i=5")), 2, 49, "nd.reduce gives tensor<i=4, f32>, but the text says tensor<i=5", "correct the"),
    (body(MAX.replace(": ", "")), 2, 47, "expected ':' and the types of the results, found 'tensor'", "they come last"),
    (body(MAX.replace("%q", "%q, %k")), 2, 8, "nd.reduce takes 1 operand, found 2", "its operands are value"),
    (body("%o = nd.contract %q over [d] acc f32 : tensor<f32>"), 2, 8, "nd.contract takes 2 or 3 operands, found 1", "lhs"),
    (body("%c = nd.constant value 300 element i8 : tensor<i8>"), 2, 3, "300 is no i8", ""),
    (body("%c = nd.constant value abc element i8 : tensor<i8>"), 2, 26, "expected a number or an integer for value", ""),
    (body("%x = nd.index %q : tensor<i=4, index>"), 2, 3, "expected a range, got tensor<i=4, d=8, f32>", ""),
    (body(MAX, MAX), 3, 3, "%o is defined twice", "it is first defined on line 2"),
    (body("%e = nd.exp %o : tensor<i=4, f32>", MAX), 2, 15, "%o is used before it is defined, on line 3", "move its"),
    (body(MAX, "return %x"), 3, 10, "%x is not defined", "define it above"),
    (body(MAX, "return %oo"), 3, 10, "%oo is not defined", "did you mean %o?"),
    (body(MAX, LOOP, "%e = nd.exp %c : tensor<i=4, f32>", "loop.yield %e", "}", "return %e"), 7, 10,
     "%e is defined inside loop.for on line 4, and cannot be used outside of it", "yield it from the region"),
    (body(MAX, LOOP.replace("step 2", "step 0")), 3, 37, "the step must be at least 1, not 0", ""),
    (body(MAX, LOOP, "loop.yield %q", "}"), 3, 3, "the body must yield (tensor<i=4, f32>), but yields", ""),
    (body("%p, " + MAX), 2, 3, "nd.reduce gives 1 result, but the text has 2 names and 1 type", "write one of each"),
    (body(MAX, "return %o, %o"), 3, 3, "@f returns 2 values, but declares 1 result", "return one value per declared result"),
    (body(MAX, "return %q"), 1, 79, "@f returns tensor<i=4, d=8, f32>, but declares tensor<i=4, f32>", "correct the type"),
    (body(MAX, "loop.yield %o"), 3, 3, "expected an op or 'return', found 'loop.yield'", "the region ends with return"),
    (body(MAX), 3, 1, "expected an op or 'return', found '}'", "the region ends with return"),
    (HEAD, 2, 1, "expected an op or 'return', found the end of the text", "the region ends with return"),
    (body(MAX + " loc(a b)"), 2, 66, "expected loc(file:line) or loc(file:line:column), found 'loc'", ""),
    (body("%o = nd.exp %q § : tensor<f32>"), 2, 18, "unexpected character '§'", ""),
    (nested(100), 102, 1, "regions nest more than 100 deep", ""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "column", "message", "help"), ERRORS)
def test_errors_say_what_and_where(text: str, line: int, column: int, message: str, help: str) -> None:
    with pytest.raises(IRError) as caught:
        parse(text, "bad.ir")
    error = caught.value
    assert error.message.startswith(message)
    assert error.loc == Loc("bad.ir", line, column)
    assert error.help.startswith(help) or help in error.help
    assert bool(error.help) >= bool(help)


GENERIC_ERRORS = [
    ('"nd.reduce"', '"nd.reduc"', 4, 10, "there is no op nd.reduc"),
    ("over =", "ovr =", 4, 41, "nd.reduce has no attribute ovr"),
    ('["d"]', '"d"', 4, 48, 'expected a list of words such as [d] for over, found "d"'),
    ("acc = f32", "acc = f31", 4, 61, "expected an element type, found 'f31'"),
    ('-> !nd.tensor<"i=4, f32">', '-> !nd.tensor<"i=5, f32">', 4, 101, "nd.reduce gives tensor<i=4, f32>, but the text says"),
    ("(%q) {kind", "(%z) {kind", 4, 22, "%z is not defined"),
    ('i=4, d=8, f32">,', 'i=4 d=8, f32">,', 3, 28, "expected ',', found 'd'"),
    ("sym_name", "name", 2, 3, "the function needs sym_name"),
    ('"i d"', '"i"', 6, 62, "the layout 'i' does not name the axes"),
    (': (!nd.tensor<"i=4, d=8, f32">) ->', ": () ->", 4, 71, "0 operand types for 1 operand"),
    ("%o)", "%q)", 5, 24, "operand 0 is tensor<i=4, d=8, f32>, but the text says tensor<i=4, f32>"),
    ("}) : () -> ()\n", "", 7, 1, 'expected "nd.func", found the end of the text'),
    ("acc = f32", "acc = f32, operandSegmentSizes = array<i32: 2>", 4, 88, "operandSegmentSizes does not count the 1 operand"),
]


@pytest.mark.parametrize(("old", "new", "line", "column", "message"), GENERIC_ERRORS)
def test_errors_in_the_generic_form(old: str, new: str, line: int, column: int, message: str) -> None:
    text = print_generic(parse(body(MAX, "return %o")))
    assert old in text
    with pytest.raises(IRError) as caught:
        parse(text.replace(old, new, 1), "bad.mlir")
    assert caught.value.message.startswith(message)
    assert caught.value.loc == Loc("bad.mlir", line, column)


def test_an_error_shows_its_line() -> None:
    with pytest.raises(IRError) as caught:
        parse(body(MAX.replace("over", "ovr")))
    assert (
        str(caught.value)
        == """\
error[parse]: nd.reduce has no attribute ovr
 --> <string>:2:30
   |
ir |   %o = nd.reduce %q kind max ovr [d] acc f32 : tensor<i=4, f32>
   |                              ^^^
   = help: did you mean over?"""
    )


def test_an_op_that_does_not_type_check_is_shown_at_its_text() -> None:
    """Its `loc` says where it came from, which is a note."""
    with pytest.raises(IRError) as caught:
        parse(body(MAX.replace("[d]", "[j]") + " loc(model.py:8)"), "bad.ir")
    assert (
        str(caught.value)
        == """\
error[nd.reduce]: reduces over j, which the operand lacks
 --> bad.ir:2:3
   |
ir |   nd.reduce %q kind max over [j] acc f32
   |             ^^ q: tensor<i=4, d=8, f32>
   = built at model.py:8"""
    )


JUNK = (
    *("%0", "%x", '"', "<", ">", "(", ")", "{", "}", "[", "]", ",", ":", "=", "?<=", "-1", "0", "1e999", "nan", "9" * 5000),
    *("0x", "*", "loop.for", "nd.add", "tensor", "f32", "loc(", "merge", "\\", "\0", "é", "return", "loop.yield", "1.5"),
    *("true", "none", "//", "->", "#", "@", "^bb0", "i=4", "j", "[]", "axes", "array<i32: 1>", "\ud800"),
    *("test.many-parts", '"test.many-parts"'),
)


@pytest.mark.parametrize("seed", range(12))
def test_damaged_text_is_refused_with_a_place(seed: int) -> None:
    """Nothing but an `IRError` that names a line may come of it, whatever is cut, inserted or exchanged."""
    choose = random.Random(seed).choice
    funcs = [*map(random_func, range(seed * 10, seed * 10 + 4)), many_parts(seed)]
    texts = [show(func, locations=choose((True, False))) for func in funcs for show in (print_func, print_generic)]
    refused = 0
    for _ in range(250):
        tokens = re.findall(r"\w+|\s+|.", choose(texts), re.DOTALL)
        for _ in range(choose((1, 1, 2, 3))):
            at = choose(range(len(tokens)))
            tokens[at : at + 1] = choose(
                ([], [tokens[at], choose(JUNK)], [choose(JUNK)], [choose(tokens)], [tokens[at][:-1]], [tokens[at], tokens[at]])
            )
        try:
            parse("".join(tokens), "bad.ir")
        except IRError as error:
            refused += 1
            assert error.loc.file == "bad.ir"
            assert error.loc.line > 0
            assert error.message in str(error)
    assert refused > 150

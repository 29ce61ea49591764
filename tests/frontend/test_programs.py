"""Programs: their layouts, what they return, where their ops come from."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import attngen as ag
from attngen.ir.interpreter import run
from attngen.ir.types import F32, TensorType

QKV = {"q": "i d", "k": "j d", "v": "j e"}


def types(**shapes: dict[str, int]) -> dict[str, TensorType]:
    return {name: TensorType(tuple(axes.items()), F32) for name, axes in shapes.items()}


def qkv_types() -> dict[str, TensorType]:
    return types(q={"i": 5, "d": 2}, k={"j": 7, "d": 2}, v={"j": 7, "e": 3})


@ag.program(q="i d", k="j d", v="j e", out="i e")
def four_steps(q: Any, k: Any, v: Any) -> Any:
    s = ag.score(q, k, over="d")
    s = ag.scale(s, 1 / math.sqrt(q.extent("d")))
    a = ag.softmax(s, over="j")
    return ag.weigh(a, v, over="j")


FIRST_LINE = four_steps.loc.line + 2


def test_the_traced_function() -> None:
    func = four_steps.trace(qkv_types())
    assert str(func) == (
        "func @four_steps(\n"
        '    %q: tensor<i=5, d=2, f32> "i d",\n'
        '    %k: tensor<j=7, d=2, f32> "j d",\n'
        '    %v: tensor<j=7, e=3, f32> "j e") -> (tensor<i=5, e=3, f32> "i e") {\n'
        "  %0 = attn.score %q, %k over [d] : tensor<i=5, j=7, f32>\n"
        "  %1 = attn.scale %0 by 0.7071067811865475 : tensor<i=5, j=7, f32>\n"
        "  %2 = attn.softmax %1 over [j] : tensor<i=5, j=7, f32>\n"
        "  %3 = attn.weigh %2, %v over [j] : tensor<i=5, e=3, f32>\n"
        "  return %3\n"
        "}\n"
    )


def test_every_op_has_the_line_that_made_it() -> None:
    func = four_steps.trace(qkv_types())
    assert [(op.loc.file, op.loc.line) for op in func.walk()] == [(__file__, FIRST_LINE + k) for k in range(4)]


def test_numpy_functions_have_the_line_of_the_user_too() -> None:
    def body(x: Any) -> Any:
        return np.clip(np.exp(x), 0, 1)

    func = ag.program(body, x="i").trace(types(x={"i": 3}))
    line = body.__code__.co_firstlineno + 1
    assert {op.loc.line for op in func.walk()} == {line}


def test_the_built_in_program_has_lines_of_its_own() -> None:
    traced = ag.attention.trace(
        types(q={"b": 1, "h": 1, "i": 5, "d": 2}, k={"b": 1, "h": 1, "j": 7, "d": 2}, v={"b": 1, "h": 1, "j": 7, "e": 3})
    )
    assert {op.loc.file.rsplit("/", 1)[-1] for op in traced.walk()} == {"four_steps.py"}


def test_a_program_inside_a_program() -> None:
    @ag.program(q="i d", k="j d", v="j e", out="i e")
    def doubled(q: Any, k: Any, v: Any) -> Any:
        return four_steps(q, k, v) * 2

    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((5, 2), (7, 2), (7, 3))]
    (once,) = run(four_steps.trace(qkv_types()), *arrays)
    (twice,) = run(doubled.trace(qkv_types()), *arrays)
    np.testing.assert_allclose(twice, 2 * once, rtol=1e-6)


def test_a_program_inside_a_program_checks_the_axes() -> None:
    @ag.program(x="n d", k="j d", v="j e")
    def wrong(x: Any, k: Any, v: Any) -> Any:
        return four_steps(x, k, v)

    with pytest.raises(ag.Error, match=r"@four_steps: q has axes \(d n\), expected axes \(d i\)"):
        wrong.trace(types(x={"n": 5, "d": 2}, k={"j": 7, "d": 2}, v={"j": 7, "e": 3}))


def test_captured_numbers_are_constants_and_defaults_need_no_layout() -> None:
    def body(x: Any, factor: float = 3.0) -> Any:
        return x * factor + offset

    offset = 1
    (result,) = run(ag.program(body, x="i").trace(types(x={"i": 3})), np.ones(3, np.float32))
    assert result.tolist() == [4, 4, 4]


def test_called_on_arrays_it_uses_the_captured_numbers_of_now() -> None:
    def body(x: Any) -> Any:
        return ag.contract(x, x, over="i") * factor

    program = ag.program(body, x="j i")
    x = np.ones((2, 3), np.float32)
    factor = 2.0
    assert program(x).tolist() == [6, 6]
    factor = 5.0
    assert program(x=x).tolist() == [15, 15]


@pytest.mark.parametrize(
    ("layouts", "returned", "expected"),
    [
        ({"q": "b i d", "k": "b j d"}, lambda q, k: ag.contract(q, k, over="d"), "b i j"),
        ({"q": "i d", "k": "j d"}, lambda q, k: ag.contract(k, q, over="d"), "i j"),
        ({"q": "b (g r) d", "k": "b g d"}, lambda q, k: q * k, "b (g r) d"),
        ({"q": "b (g r) d", "k": "b g d"}, lambda q, k: ag.reduce_sum(q * k, over="r"), "b g d"),
        ({"q": "b (g r) d", "k": "b g d"}, lambda q, k: ag.reduce_sum(q * k, over="g"), "b r d"),
    ],
)
def test_default_layout(layouts: dict[str, str], returned: Any, expected: str) -> None:
    extents = {"b": 2, "g": 2, "r": 3, "d": 4, "i": 5, "j": 6}
    program = ag.program(lambda q, k: returned(q, k), **layouts)
    inputs = types(**{n: {a: extents[a] for a in layouts[n].replace("(", "").replace(")", "").split()} for n in layouts})
    assert str(program.trace(inputs).out_layouts[0]) == expected


@pytest.mark.parametrize(
    ("layouts", "out", "message"),
    [
        ({"q": "i", "k": "i", "vv": "i"}, None, "@three: parameter v has no layout; write v='…' in program(…)"),
        ({**QKV, "kk": "j d"}, None, "@three: there is no parameter 'kk'; did you mean k?"),
        ({**QKV, "x": "j d"}, None, "@three: there is no parameter 'x'; its parameters are q, k, v"),
        ({**QKV, "q": "i (d"}, None, "@three: q: cannot read the layout 'i (d': a parenthesis is not closed"),
        ({**QKV, "q": "i-d"}, None, "@three: q: cannot read the layout 'i-d' at 'i-d'; write axis names such as 'b (g r) i d'"),
        ({**QKV, "q": "i i"}, None, "@three: q: the layout 'i i' names an axis twice"),
        ({**QKV, "q": 3}, None, "@three: q: a layout is text such as 'b h i d', got 3"),
        (QKV, 3, "@three: out: a layout is text such as 'b h i d', got 3"),
    ],
)
def test_layout_errors(layouts: Any, out: Any, message: str) -> None:
    def three(q: Any, k: Any, v: Any) -> Any:
        return q

    with pytest.raises(ag.Error) as e:
        ag.program(three, out=out, **layouts)
    assert str(e.value) == message


def test_parameters_that_cannot_be_inputs() -> None:
    def variadic(*x: Any) -> Any:
        return x

    def named_out(out: Any) -> Any:
        return out

    def named_dtype(dtype: Any) -> Any:
        return dtype

    with pytest.raises(ag.Error, match=r"@variadic: parameter x cannot have a layout"):
        ag.program(variadic, x="i")
    with pytest.raises(ag.Error, match="@named_out: parameter out has no layout"):
        ag.program(named_out)
    with pytest.raises(ag.Error, match="@named_dtype: an input cannot be named dtype, which is an option of"):
        ag.program(named_dtype, dtype="i")
    with pytest.raises(ag.Error, match="@<lambda>: a program needs at least one input"):
        ag.program(lambda: 1)
    with pytest.raises(ag.Error, match="program: expected a function, got str"):
        ag.program("b h i d")  # pyright: ignore[reportCallIssue, reportArgumentType]


@pytest.mark.parametrize(
    ("returned", "out", "message"),
    [
        (lambda x: None, None, "@body returned nothing"),
        (lambda x: 1.0, None, "@body returned a float, expected a traced value or a tuple of them"),
        (lambda x: [x, x], None, "@body returned a list, expected a traced value or a tuple of them"),
        (lambda x: (x, 2), None, "@body returned a int, expected a traced value or a tuple of them"),
        (lambda x: (), None, "@body returned an empty tuple"),
        (lambda x: (x, x), "i j", "@body returned a tuple of 2, but out= describes one traced value"),
        (lambda x: x, ("i j", "i"), "@body returned one traced value, but out= describes a tuple of 2"),
        (lambda x: (x,), ("i j", "i"), "@body returned a tuple of 1, but out= describes a tuple of 2"),
        (lambda x: ag.reduce_sum(x, over="j"), "i j", "@body returned axes (i), but out= expects (i j)"),
        (lambda x: x, "i", "@body returned axes (i j), but out= expects (i)"),
    ],
)
def test_return_errors(returned: Any, out: Any, message: str) -> None:
    def body(x: Any) -> Any:
        return returned(x)

    with pytest.raises(ag.Error) as e:
        ag.program(body, x="i j", out=out).trace(types(x={"i": 2, "j": 3}))
    assert str(e.value).splitlines()[0] == f"error[program]: {message}"
    assert f"--> {__file__}:" in str(e.value)


def test_a_traced_value_outlives_its_program() -> None:
    kept: list[Any] = []

    def first(x: Any) -> Any:
        kept.append(x)
        return x

    def second(x: Any) -> Any:
        return x + kept[0]

    ag.program(first, x="i").trace(types(x={"i": 2}))
    message = "a traced value is used outside its program @first"
    with pytest.raises(ag.Error, match=message) as e:
        ag.program(second, x="i").trace(types(x={"i": 2}))
    assert f"--> {__file__}:{second.__code__.co_firstlineno + 1}" in str(e.value)
    with pytest.raises(ag.Error, match=message):
        ag.exp(kept[0])
    with pytest.raises(ag.Error, match="outside its program @first"):
        ag.program(lambda x: kept[0], x="i").trace(types(x={"i": 2}))


def test_functions_need_a_program() -> None:
    with pytest.raises(ag.Error, match=r"there is no program here(.|\n)*@attngen\.program"):
        ag.index("j")
    with pytest.raises(ag.Error, match="there is no program here"):
        ag.exp(1.0)


def test_an_error_in_the_program_leaves_no_trace_behind() -> None:
    def body(x: Any) -> Any:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        ag.program(body, x="i").trace(types(x={"i": 2}))
    with pytest.raises(ag.Error, match="there is no program here"):
        ag.index("j")

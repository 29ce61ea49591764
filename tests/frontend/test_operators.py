"""Operators and functions on traced values mean what they mean on NumPy arrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import attngen as ag
from attngen.ir.interpreter import run
from attngen.ir.types import BF16, F16, F32, F64, I1, I8, I32, I64, ElementType, TensorType

NUMBER: Any = 1.0
ANY: Any = {k: k for k in (0, 1, 3, "2")}
X = np.array([-2.5, -1.0, -0.0, 0.5, 1.0, 3.75], np.float32)
Y = np.array([1.0, 2.0, 0.25, -3.0, 4.0, 0.5], np.float32)


def trace(function: Callable[..., Any], **elements: ElementType) -> Any:
    """The function as IR, on one axis n, per input an element type."""
    layouts = dict.fromkeys(elements, "n")
    types = {name: TensorType((("n", len(X)),), e) for name, e in elements.items()}
    return ag.program(function, **layouts).trace(types)


def evaluate(function: Callable[[Any, Any], Any]) -> Any:
    (result,) = run(trace(lambda x, y: function(x, y), x=F32, y=F32), X, Y)
    return result


OPERATORS: list[Callable[[Any, Any], Any]] = [
    lambda x, y: x + y,
    lambda x, y: 1.5 + x,
    lambda x, y: x - y,
    lambda x, y: 1 - x,
    lambda x, y: x * y,
    lambda x, y: np.float64(2.5) * x,
    lambda x, y: x / y,
    lambda x, y: 2 / y,
    lambda x, y: x // y,
    lambda x, y: 7 // y,
    lambda x, y: x // 1,
    lambda x, y: x // 1.0,
    lambda x, y: x % y,
    lambda x, y: 5 % y,
    lambda x, y: x**2,
    lambda x, y: x**3,
    lambda x, y: x**1,
    lambda x, y: y**-2,
    lambda x, y: x**7,
    lambda x, y: abs(x) ** 0.5,
    lambda x, y: abs(y) ** -0.5,
    lambda x, y: 2**x,
    lambda x, y: 3.0**x,
    lambda x, y: -x,
    lambda x, y: +x,
    lambda x, y: abs(x),
    lambda x, y: np.float32(2) - x,
    lambda x, y: x * np.array(3.0),
    lambda x, y: sum([x, y]),
    lambda x, y: np.where(x < y, x, y),
    lambda x, y: np.where(x <= y, 1.0, y),
    lambda x, y: np.where(x > y, x, 0),
    lambda x, y: np.where(x >= 1.0, x, y),
    lambda x, y: np.where(x == 1.0, x, y),
    lambda x, y: np.where(x != 1, x, y),
    lambda x, y: np.where(1.0 > x, x, y),
    lambda x, y: np.where((x > 0) & (y > 0), x, y),
    lambda x, y: np.where((x > 0) | (y > 0), x, y),
    lambda x, y: np.where((x > 0) ^ (y > 0), x, y),
    lambda x, y: np.where(~(x > 0), x, y),
    lambda x, y: np.where(True & (x > 0), x, y),
    lambda x, y: (x > 0) * 2.0,
    lambda x, y: (x > 0) * y,
    lambda x, y: np.exp(x),
    lambda x, y: np.exp2(x),
    lambda x, y: np.log(np.abs(y)),
    lambda x, y: np.log2(np.absolute(y)),
    lambda x, y: np.tanh(x),
    lambda x, y: np.sqrt(np.fabs(x)),
    lambda x, y: np.floor(x),
    lambda x, y: np.rint(x),
    lambda x, y: np.round(x),
    lambda x, y: np.maximum(x, 0),
    lambda x, y: np.maximum(x, y),
    lambda x, y: np.minimum(np.float32(0.5), x),
    lambda x, y: np.clip(x, -1, 1),
    lambda x, y: np.square(x),
    lambda x, y: np.reciprocal(y),
    lambda x, y: np.power(x, 3),
    lambda x, y: np.negative(x),
    lambda x, y: np.where(np.logical_and(x > 0, y > 0), x, y),
    lambda x, y: np.where(np.logical_not(np.less(x, y)), x, y),
]


@pytest.mark.parametrize("function", OPERATORS)
def test_as_numpy(function: Callable[[Any, Any], Any]) -> None:
    with np.errstate(all="ignore"):
        expected = np.asarray(function(X, Y), np.float32)
    np.testing.assert_allclose(evaluate(function), expected, rtol=2e-6, atol=1e-7)


FUNCTIONS: list[tuple[Callable[[Any], Any], Callable[[Any], Any]]] = [
    (ag.exp, np.exp),
    (ag.exp2, np.exp2),
    (lambda x: ag.log(ag.abs(x) + 1), lambda x: np.log(abs(x) + 1)),
    (lambda x: ag.log2(ag.abs(x) + 1), lambda x: np.log2(abs(x) + 1)),
    (ag.tanh, np.tanh),
    (ag.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    (lambda x: ag.sqrt(ag.abs(x)), lambda x: np.sqrt(abs(x))),
    (lambda x: ag.rsqrt(ag.abs(x) + 1), lambda x: 1 / np.sqrt(abs(x) + 1)),
    (ag.floor, np.floor),
    (ag.round, np.round),
    (math.floor, np.floor),
    (round, np.round),
    (lambda x: ag.maximum(x, 0.5), lambda x: np.maximum(x, 0.5)),
    (lambda x: ag.minimum(0.5, x), lambda x: np.minimum(x, 0.5)),
    (lambda x: ag.where(x > 0, x, -1), lambda x: np.where(x > 0, x, -1)),
    (lambda x: ag.maximum(2, 3) * x, lambda x: 3 * x),
    (lambda x: ag.index("n") * x, lambda x: np.arange(6) * x),
    (lambda x: ag.where(ag.index("n") % 4 < 2, x, 0.0), lambda x: np.where(np.arange(6) % 4 < 2, x, 0)),
    (lambda x: ag.where(ag.index("n") // 2 == 1, x, 0.0), lambda x: np.where(np.arange(6) // 2 == 1, x, 0)),
    (lambda x: x / (ag.index("n") + 1), lambda x: x / np.arange(1, 7)),
    (lambda x: x + ag.reduce_sum(x, over="n"), lambda x: x + x.sum()),
    (lambda x: x - ag.reduce_max(x, over=("n",)), lambda x: x - x.max()),
    (lambda x: ag.softmax(x, over="n"), lambda x: np.exp(x) / np.exp(x).sum()),
    (lambda x: x - ag.logsumexp(x, over="n"), lambda x: x - np.log(np.exp(x).sum())),
    (lambda x: ag.contract(x, x, over="n") + x, lambda x: (x * x).sum() + x),
    (lambda x: ag.score(x, x, over="n") + ag.scale(x, 0.5), lambda x: (x * x).sum() + 0.5 * x),
    (lambda x: ag.weigh(ag.softmax(x, over="n"), x, over="n") + x, lambda x: (np.exp(x) / np.exp(x).sum() * x).sum() + x),
    (lambda x: x * x.extent("n"), lambda x: x * 6),
]


@pytest.mark.parametrize(("function", "expected"), FUNCTIONS)
def test_functions(function: Callable[[Any], Any], expected: Callable[[Any], Any]) -> None:
    np.testing.assert_allclose(evaluate(lambda x, y: function(x)), expected(X), rtol=3e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("function", "elements", "dtype"),
    [
        (lambda x, y: x + y, (F32, F64), "float64"),
        (lambda x, y: x + y, (F16, BF16), "float32"),
        (lambda x, y: x + y, (F16, F32), "float32"),
        (lambda x, y: x * y, (F32, I32), "float32"),
        (lambda x, y: x * y, (F32, I1), "float32"),
        (lambda x, y: x + y, (I32, I64), "int64"),
        (lambda x, y: x + y, (I8, I32), "int32"),
        (lambda x, y: x + 1, (I8, I8), "int8"),
        (lambda x, y: x + 1.5, (I8, F64), "float64"),
        (lambda x, y: x / y, (I32, I32), "float32"),
        (lambda x, y: x + 1, (F16, F16), "float16"),
        (lambda x, y: ag.exp(x), (I32, F64), "float64"),
        (lambda x, y: x < y, (F32, I32), "bool"),
        (lambda x, y: x & True, (I1, I1), "bool"),
        (lambda x, y: ag.contract(x, y, over="n"), (F16, F16), "float32"),
        (lambda x, y: ag.contract(x, y, over="n"), (BF16, F16), "float32"),
        (lambda x, y: ag.contract(x, y, over="n"), (F64, F32), "float64"),
        (lambda x, y: ag.reduce_sum(x, over="n") * 2.5, (BF16, BF16), "float32"),
        (lambda x, y: ag.softmax(x, over="n"), (F16, F16), "float32"),
        (lambda x, y: ag.weigh(x, y, over="n"), (F32, F64), "float64"),
        (lambda x, y: ag.index("n"), (F32, F32), "index"),
        (lambda x, y: ag.index("n") * x, (F32, F32), "float32"),
        (lambda x, y: ag.where(x > 0, 1.0, 0.0), (F64, F64), "float64"),
    ],
)
def test_element_types(function: Callable[[Any, Any], Any], elements: tuple[ElementType, ElementType], dtype: str) -> None:
    seen: list[str] = []

    def body(x: Any, y: Any) -> Any:
        result = function(x, y)
        seen.append(result.dtype)
        return result

    trace(body, x=elements[0], y=elements[1])
    assert seen == [dtype]


def test_output_has_the_type_of_the_first_float_input() -> None:
    func = trace(lambda m, x, y: ag.softmax(x + y, over="n"), m=I32, x=F16, y=F32)
    assert [v.element for v in func.outputs] == [F16]
    func = trace(lambda x: (x > 0, ag.index("n"), x), x=BF16)
    assert [v.element for v in func.outputs] == [I1, I64, BF16]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x * 1e300, "the number 1e+300 does not fit f32"),
        (lambda x: ag.index("n") * 2**70, f"the number {2**70} does not fit index"),
        (lambda x: x & (x > 0), "& | ^ ~ combine conditions, not f32"),
        (lambda x: ag.where(x, x, 0.0), "where: the condition must be true or false, not f32"),
        (lambda x: x**2.5, "** takes whole exponents up to 16, 0.5 and -0.5, or a positive number as its base"),
        (lambda x: x**x, "** takes whole exponents up to 16, 0.5 and -0.5, or a positive number as its base"),
        (lambda x: x + "1", "expected a traced value or a number, got str"),
        (lambda x: x + None, "expected a traced value or a number, got NoneType"),
        (lambda x: x * 1j, "expected a traced value or a number, got complex"),
        (lambda x: x + np.ones(6), "a numpy.ndarray of shape (6,) met a traced value"),
        (lambda x: np.ones(6) * x, "a numpy.ndarray of shape (6,) met a traced value"),
        (lambda x: ag.scale(x, x), "scale: by= must be a number, got a traced value"),
        (lambda x: ag.scale(x, math.nan), "the scale must be a finite number, not nan"),
        (lambda x: ag.reduce_sum(x, over="m"), "reduce_sum: x has no axis 'm'"),
        (lambda x: ag.reduce_sum(x, over=""), "reduce_sum: over= names no axis"),
        (lambda x: ag.reduce_sum(x, over="n n"), "reduce_sum: over= names axis n twice"),
        (lambda x: ag.contract(x, ag.reduce_sum(x, over="n"), over="n"), "contract: an operand has no axis 'n'"),
        (lambda x: ag.softmax(NUMBER, over="n"), "softmax: expected a traced value, got the number 1.0"),
        (lambda x: ag.index("m"), "index: no parameter of this program has an axis 'm'"),
        (lambda x: x.extent("m"), "extent: there is no axis 'm'"),
        (lambda x: x * 10**400, "the number given does not fit f32"),
        (lambda x: x**math.nan, "** takes whole exponents up to 16, 0.5 and -0.5, or a positive number as its base"),
        (lambda x: x ** (10**400), "** takes whole exponents up to 16, 0.5 and -0.5, or a positive number as its base"),
        (lambda x: math.inf**x, "** takes whole exponents up to 16, 0.5 and -0.5, or a positive number as its base"),
        (lambda x: ag.scale(x, 1e300), "the number 1e+300 does not fit f32"),
        (lambda x: ag.scale(x, 10**400), "the number given does not fit f32"),
        (lambda x: ag.scale(x, ANY["2"]), "scale: by= must be a number, got a str"),
        (lambda x: ag.softmax(x, over=ANY[1]), "softmax: over= takes names of axes, got 1"),
        (lambda x: ag.softmax(x, over=("n", ANY[1])), "softmax: over= takes names of axes, got ('n', 1)"),
        (lambda x: ag.index(ANY[0]), "index: expected the name of an axis, got 0"),
        (lambda x: ag.rename(x, n=ANY[3]), "rename: 3 is no axis name"),
        (lambda x: round(x, 2), "a traced value is rounded to whole numbers"),
        (lambda x: np.round(x, 2), "a traced value is rounded to whole numbers"),
    ],
)
def test_errors(function: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(ag.Error) as e:
        trace(lambda x: function(x), x=F32)
    assert str(e.value).splitlines()[0].split(": ", 1)[1] == message
    assert f"--> {__file__}:" in str(e.value)


def control(x: Any) -> Any:
    return x if x > 0 else -x


PYTHON: list[tuple[Callable[[Any], Any], str]] = [
    (control, "Python control flow on a traced value: use attngen.where"),
    (lambda x: -1 < x < 1, "Python control flow on a traced value: use attngen.where"),
    (lambda x: list(x), "a traced value cannot be iterated over"),
    (lambda x: len(x), "a traced value has no len()"),
    (lambda x: float(x), "a traced value is no number yet"),
    (lambda x: math.exp(x), "a traced value is no number yet"),
    (lambda x: int(x), "a traced value is no number yet"),
    (lambda x: x[0], "a traced value cannot be indexed or sliced"),
    (lambda x: x @ x, "@ does not say which axis is summed"),
    (lambda x: np.ones(6) @ x, "np.matmul does not work on traced values"),
    (lambda x: np.asarray(x), "a traced value has no elements yet, so it is no NumPy array"),
    (lambda x: np.sum(x), "np.sum does not work on traced values"),
    (lambda x: np.add.reduce(x), "np.add.reduce does not work on traced values"),
    (lambda x: np.sin(x), "np.sin does not work on traced values"),
    (lambda x: np.exp(x, where=x > 0), "np.exp takes no where= on a traced value"),
    (lambda x: np.where(x > 0), "np.where on a traced value needs what to take where true and where false: np.where(c, x, y)"),
]


@pytest.mark.parametrize(("function", "message"), PYTHON)
def test_what_a_value_without_elements_cannot_do(function: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(ag.Error) as e:
        trace(lambda x: function(x), x=F32)
    assert str(e.value).splitlines()[0] == f"error[program]: {message}"
    assert f"--> {__file__}:{function.__code__.co_firstlineno + (function is control)}" in str(e.value)


def test_the_alternative_is_named() -> None:
    with pytest.raises(ag.Error, match=r'help: use attngen\.reduce_sum\(x, over="j"\)'):
        trace(lambda x: np.sum(x), x=F32)
    with pytest.raises(AttributeError, match=r"a traced value has no attribute 'shape': use x\.extent"):
        trace(lambda x: x.shape, x=F32)
    with pytest.raises(AttributeError, match=r"a traced value has no attribute 'swim'$"):
        trace(lambda x: x.swim, x=F32)
    with pytest.raises(TypeError, match="unhashable"):
        trace(lambda x: {x}, x=F32)

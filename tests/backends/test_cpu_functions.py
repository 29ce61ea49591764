"""Vector functions of the CPU backend: error over their range, infinities, NaN; and reductions of every kind."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from attngen.backends import Emitted, get_backend
from attngen.backends.cpu.source import Writer
from attngen.backends.cpu.target import Target, find
from attngen.ir import elementwise as ew
from attngen.ir.func import Func
from attngen.ir.parser import parse
from attngen.ir.passes import tile
from attngen.ir.pipeline import run_pipeline
from attngen.ir.types import F32, F64, ElementType

CPU = get_backend("cpu")
PLAIN = Target("any", 512, 32)
"""As wide as AVX-512, without its instructions for exponents."""


def run(func: Func, target: Target, *arrays: Any) -> Any:
    low = run_pipeline(tile(func, x=1024), CPU.passes("")).func
    program = Writer(low, target).program()
    out = np.empty([len(arrays[0])] if func.outputs[0].names else [], func.outputs[0].element.numpy)
    CPU.build(Emitted(low, "", {"python": program.text}, payload=program))(arrays, [out])
    return out


def function(name: str, element: ElementType, n: int) -> Func:
    return parse(
        f'func @f(%a: tensor<x={n}, {element}> "x") -> (tensor<x={n}, {element}> "x") {{\n'
        f"  %y = nd.{name} %a : tensor<x={n}, {element}>\n  return %y\n}}\n"
    )


CASES = [
    (ew.Exp2, -125.0, 125.0, 1e-7, 1e-15),
    (ew.Exp, -86.0, 86.0, 1.2e-7, 1e-15),
    (ew.Tanh, -12.0, 12.0, 3e-7, 1e-15),
    (ew.Sigmoid, -80.0, 80.0, 3e-7, 1e-15),
    (ew.Log, 1e-30, 1e30, 1.5e-7, 5e-16),
    (ew.Log2, 1e-30, 1e30, 2e-7, 5e-16),
]


@pytest.mark.parametrize("target", [find(""), PLAIN, Target("any", 256, 16)], ids=["host", "plain", "256 bits"])
@pytest.mark.parametrize("element", [F32, F64], ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].name)
def test_relative_error(case: tuple[type[ew.Unary], float, float, float, float], element: ElementType, target: Target) -> None:
    cls, low, high, single, double = case
    kind = element.numpy
    if low > 0:
        x = np.concatenate([np.geomspace(low, high, 30_011), np.linspace(0.4, 2.5, 30_011)]).astype(kind)
    else:
        x = np.concatenate([np.linspace(low, high, 30_011), np.linspace(-1, 1, 30_011)]).astype(kind)
    got = run(function(cls.name[3:], element, len(x)), target, x)
    exact = x.astype(np.longdouble)
    want = 1 / (1 + np.exp(-exact)) if cls is ew.Sigmoid else np.asarray(cls.numpy(exact))
    zero = want == 0
    assert np.all(got[zero] == 0)
    assert float(np.max(np.abs(got[~zero] / want[~zero] - 1))) < (single if element is F32 else double)


@pytest.mark.parametrize("target", [find(""), PLAIN], ids=["host", "plain"])
@pytest.mark.parametrize("element", [F32, F64], ids=str)
@pytest.mark.parametrize("cls", [case[0] for case in CASES], ids=lambda cls: cls.name)
def test_special_values(cls: type[ew.Unary], element: ElementType, target: Target) -> None:
    tiny = element.tiny
    x = np.array([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, tiny / 8, 1e4, -1e4, tiny] * 3).astype(element.numpy)
    got = run(function(cls.name[3:], element, len(x)), target, x)
    with np.errstate(all="ignore"):
        want: Any = cls.numpy(x)
    np.testing.assert_allclose(got, want, rtol=3e-7, atol=tiny)


@pytest.mark.parametrize("kind", ["sum", "max", "min"])
@pytest.mark.parametrize("element", ["f32", "f64", "i64", "i32"])
def test_reductions(kind: str, element: str) -> None:
    if kind == "sum" and element[0] == "i":
        kind = "max"
    x = (np.random.default_rng(0).standard_normal((37, 53)) * 50 - 200).astype(ElementType(element).numpy)
    if element[0] == "f":
        x[3, 4] = math.nan
    for over, axis in (("y", 1), ("x", 0)):
        kept = "x" if over == "y" else "y"
        extent = {"x": 37, "y": 53}[kept]
        func = parse(
            f'func @f(%a: tensor<x=37, y=53, {element}> "x y") -> (tensor<{kept}={extent}, {element}> "{kept}") {{\n'
            f"  %y = nd.reduce %a kind {kind} over [{over}] acc {element} : tensor<{kept}={extent}, {element}>\n"
            "  return %y\n}\n"
        )
        low = run_pipeline(tile(func, **{kept: 16}), CPU.passes("")).func
        out: Any = np.empty(extent, x.dtype)
        CPU.build(CPU.emit(low, ""))([x], [out])
        np.testing.assert_allclose(out, getattr(np, kind)(x, axis=axis), rtol=1e-5)

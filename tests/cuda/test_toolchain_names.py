"""Names of functions and of their inputs, whatever they are, become names that Python and PTX take."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import attngen as ag
from attngen.backends.cuda.build import Built
from attngen.backends.cuda.emit import program
from attngen.backends.cuda.runtime.kernels import Kernels
from attngen.backends.cuda.target import find
from attngen.backends.cuda.toolchain import assembler
from attngen.ir.func import Func


@ag.program(x="i", y="i", out="i")
def added(x, y):
    return ag.exp(x) + y


@ag.program(x="i d", y="d e", out="i e")
def product(x, y):
    return ag.contract(x, y, over="d")


@cache
def func(tiles: bool) -> Func:
    """By tensor cores, or element by element."""
    target = "cuda:sm_80,emulated"
    if tiles:
        return ag.compile(product, x=(40, 16), y=(16, 24), dtype="float16", target=target).func
    return ag.compile(added, x=(40,), y=(40,), target=target).func


NAMES = (
    *("scaled", "my.own-sum", "größe", "2nd", "_", "", "a$", "lambda", "max", "cuda", "exp", "f32", "shared", "load_f16"),
    "WARP_SZ",
)
INPUTS = [("x", "y"), ("x.1", "x_1"), ("2", "-"), ("out0", "out"), ("def", "größe")]


@pytest.mark.parametrize("tiles", [False, True])
def test_kernels_have_names(tiles: bool) -> None:
    """What was a good name stays; the source defines a function of it that hides nothing that it calls."""
    found = {name: program(replace(func(tiles), name=name), find("sm_80")).entries[0] for name in NAMES}
    assert found["scaled"].name == "scaled" and found["my.own-sum"].name == "my_own_sum"
    for entry in found.values():
        assert re.fullmatch(r"[A-Za-z]\w*", entry.name, re.ASCII)
        scope = dict(entry.namespace())
        assert entry.name not in scope
        exec(entry.text, scope)
        assert callable(scope[entry.name])


@pytest.mark.parametrize("name", ["my.own-sum", "größe", "lambda", "cuda", "exp", "WARP_SZ"])
def test_every_tool_takes_the_names(name: str) -> None:
    made = program(replace(func(False), name=name), find("sm_80,emulated"))
    kernels = Kernels.compiled(made)
    assert assembler.cubin(kernels.ptx, made.target)
    x, y = np.random.default_rng(0).standard_normal((2, 40), np.float32)
    out = np.zeros_like(x)
    Built(kernels)([x, y], [out])
    np.testing.assert_allclose(out, np.exp(x) + y, rtol=1e-5)


@pytest.mark.parametrize("names", INPUTS)
@pytest.mark.parametrize("tiles", [False, True])
def test_inputs_have_names(names: tuple[str, ...], tiles: bool) -> None:
    before = func(tiles)
    params = tuple(replace(p, name=name) for p, name in zip(before.params, names, strict=True))
    (entry,) = program(replace(before, params=params), find("sm_80")).entries
    compile(entry.text, "kernel", "exec")

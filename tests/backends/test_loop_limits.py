"""`loop.for … from %first until %end`: which parts run, on every way to execute a function, whatever the limits are."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from attngen.backends import get_backend
from attngen.ir.diagnostics import IRError
from attngen.ir.interpreter import run
from attngen.ir.parser import parse
from attngen.ir.pipeline import run_pipeline
from attngen.ir.printer import print_func

LENGTH, STEP, BOUND = 53, 8, 64
LIMITED = f"""\
func @limited(%x: tensor<j=?<={BOUND}, f32> "j", %a: tensor<i64> "", %b: tensor<i64> "") -> (tensor<f32> "") {{
  %s = loop.parallel out (%dst) : (tensor<f32>) {{
    %zero = nd.constant value 0.0 element f32 : tensor<f32>
    %first = nd.cast %a to index : tensor<index>
    %end = nd.cast %b to index : tensor<index>
    %sum = loop.for %j: j = 0 to ?<={BOUND} step {STEP}LIMITS carry (%c = %zero) : (tensor<f32>) {{
      %t = tile.load %x, %j : tensor<j=?<={STEP}, f32>
      %r = nd.reduce %t kind sum over [j] acc f32 : tensor<f32>
      %d = nd.add %c, %r : tensor<f32>
      loop.yield %d
    }}
    %o = tile.store %sum, %dst : tensor<f32>
    loop.yield %o
  }}
  return %s
}}
"""
FORMS = {
    "": (False, False),
    " from %first": (True, False),
    " until %end": (False, True),
    " from %first until %end": (True, True),
}
VALUES = (-9, -8, -1, 0, 1, 7, 8, 9, 47, 48, 52, 53, 54, 60, 1000)


def expected(length: int, first: int, end: int) -> float:
    """Part p adds 2 ** p, so that the sum tells which parts ran."""
    return sum(2.0**p for p in {k // STEP for k in range(length) if first <= k < end})


@pytest.mark.parametrize("form", FORMS)
def test_the_parts_that_hold_a_coordinate_between_the_limits_run(form: str) -> None:
    func = parse(LIMITED.replace("LIMITS", form))
    assert print_func(func).count(form) and parse(print_func(func)) == func
    executables = []
    for name in ("cpu", "numpy"):
        backend = get_backend(name)
        lowered = run_pipeline(func, backend.passes("")).func
        executables.append(backend.build(backend.emit(lowered, "")))
    starts, ends = FORMS[form]
    for length, a, b in product((LENGTH, 48, 1), VALUES, VALUES):
        x = np.zeros(length, np.float32)
        x[::STEP] = 2.0 ** np.arange(len(x[::STEP]))
        want = expected(length, a if starts else 0, b if ends else length)
        limits = [np.array(n, np.int64) for n in (a, b)]
        assert run(func, x, *limits)[0] == want, (length, a, b)
        for executable in executables:
            out = np.full((), np.nan, np.float32)
            executable([x, *limits], [out])
            assert out == want, (length, a, b)


def test_a_loop_of_one_part_may_run_never() -> None:
    """`inline-single-trips` must not take a loop with limits for one that runs once."""
    text = (
        LIMITED.replace(f"?<={BOUND}", "5").replace("tensor<j=?<=8", "tensor<j=5").replace("LIMITS", " from %first until %end")
    )
    func = parse(text)
    backend = get_backend("cpu")
    executable = backend.build(backend.emit(run_pipeline(func, backend.passes("")).func, ""))
    x = np.ones(5, np.float32)
    for a, b, want in ((0, 5, 5), (4, 5, 5), (5, 9, 0), (3, 3, 0), (0, 0, 0), (2, 1, 0)):
        out = np.full((), np.nan, np.float32)
        executable([x, np.array(a), np.array(b)], [out])
        assert out == want == run(func, x, np.array(a), np.array(b))[0]


def test_a_limit_is_one_index() -> None:
    with pytest.raises(IRError, match="a loop begins and ends at one index, not tensor<i64>"):
        parse(LIMITED.replace("LIMITS", " until %b"))

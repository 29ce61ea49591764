"""Trips over empty parts are left out, full parts lose their mask; whatever the mask, the numbers stay the same."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import attngen as ag
from attngen.ir.build import sub
from attngen.ir.core import Op, Value, walk
from attngen.ir.diagnostics import IRError
from attngen.ir.elementwise import Select
from attngen.ir.func import Func
from attngen.ir.interpreter import Interpreter
from attngen.ir.loop import For, If
from attngen.ir.nd import Contract
from attngen.ir.passes import PIPELINE
from attngen.ir.pipeline import Result, register_pass, run_pipeline
from attngen.ir.rewrite import rewrite
from attngen.ir.types import F32, I32, TensorType
from attngen.tile_map import TileMap, tile_maps

I, J, STEP_I, STEP_J = 37, 53, 8, 16
DERIVE = PIPELINE.partition("tile")[0] + f"tile{{i={STEP_I} j={STEP_J}}},fuse-cascaded-reductions,specialize-mask,canonicalize"
Mask = Callable[..., Any]

MASKS: dict[str, Mask] = {
    "causal": lambda i, j: j <= i,
    "causal from the end": lambda i, j: j <= i + (J - I),
    "window": lambda i, j: (j <= i) & (i - j <= 9),
    "prefix": lambda i, j: (j < 20) | (j <= i),
    "block causal": lambda i, j: j // 8 <= i // 8,
    "dilated": lambda i, j: (i - j) % 2 == 0,
    "nothing": lambda i, j: j < i - 100,
    "everything": lambda i, j: j < i + 100,
    "far": lambda i, j: ~((j <= i + 5) & (j >= i - 5)),
    "distance": lambda i, j: abs(i - j) <= 9,
    "linear": lambda i, j: 2 * i - 3 * j + 10 >= 0,
    "two pieces": lambda i, j: (j >= 17) & ((j <= i) | (j >= 45)),
}


def program(mask: Mask) -> Any:
    @ag.program(q="i d", k="j d", v="j e", doc="i", key_doc="j", out=("i e", "i"))
    def masked(q: Any, k: Any, v: Any, doc: Any, key_doc: Any) -> Any:
        args = [ag.index("i"), ag.index("j"), doc, key_doc]
        s = ag.where(mask(*args[: mask.__code__.co_argcount]), ag.contract(q, k, over="d"), -math.inf)
        return ag.contract(ag.softmax(s, over="j"), v, over="j"), ag.logsumexp(s, over="j")

    return masked


def derive(mask: Mask, pipeline: str = DERIVE) -> Result:
    shapes = {"q": "i d", "k": "j d", "v": "j e", "doc": "i", "key_doc": "j"}
    extents = {"i": I, "j": J, "d": 4, "e": 3}
    types = {n: TensorType(tuple((a, extents[a]) for a in s.split()), I32 if "doc" in n else F32) for n, s in shapes.items()}
    return run_pipeline(program(mask).trace(types), pipeline, verify_each="run")


def arrays(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    floats = {n: rng.standard_normal(shape) for n, shape in {"q": (I, 4), "k": (J, 4), "v": (J, 3)}.items()}
    return floats | {"doc": np.sort(rng.integers(0, 4, I)), "key_doc": np.sort(rng.integers(0, 4, J))}


def keep(mask: Mask, x: dict[str, np.ndarray]) -> np.ndarray:
    args = [np.arange(I)[:, None], np.arange(J), x["doc"][:, None], x["key_doc"]]
    return np.broadcast_to(mask(*args[: mask.__code__.co_argcount]), (I, J))


def expected(kept: np.ndarray, x: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    s = np.where(kept, x["q"] @ x["k"].T, -np.inf)
    top = np.maximum(s.max(-1, keepdims=True), -1e300)
    e = np.exp(s - top)
    total = e.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        return np.where(total > 0, e / np.where(total > 0, total, 1), 0) @ x["v"], (np.log(total) + top)[:, 0]


def tiles(kept: np.ndarray) -> tuple[int, int, int]:
    """(empty, full, mixed) parts, counted by brute force."""
    parts = [kept[a : a + STEP_I, b : b + STEP_J] for a in range(0, I, STEP_I) for b in range(0, J, STEP_J)]
    empty, full = sum(not p.any() for p in parts), sum(bool(p.all()) for p in parts)
    return empty, full, len(parts) - empty - full


def executed(func: Func, x: dict[str, np.ndarray]) -> tuple[list[np.ndarray], int, int]:
    """(outputs, trips with a weighted sum, trips with a mask)."""
    trips = masks = 0

    def observe(op: Op, results: Any) -> None:
        nonlocal trips, masks
        trips += isinstance(op, Contract) and op.over == ("j",)
        masks += isinstance(op, Select) and "j" in op.result.names and op.result.element is F32

    return list(Interpreter(wide=True, observe=observe).run(func, *x.values())), trips, masks


def check(mask: Mask, func: Func, seed: int = 0) -> tuple[tuple[int, int, int], int, int]:
    x = arrays(seed)
    kept = keep(mask, x)
    outputs, trips, masks = executed(func, x)
    for got, want in zip(outputs, expected(kept, x), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-9)
    return tiles(kept), trips, masks


@pytest.mark.parametrize("name", MASKS)
def test_work_follows_the_mask(name: str) -> None:
    result = derive(MASKS[name])
    (empty, full, mixed), trips, masks = check(MASKS[name], result.func)
    assert any(isinstance(op, If) for op in result.func.walk())
    assert trips == full + mixed, "an empty part was visited, or another was not"
    assert masks == mixed, "a full part was masked"
    assert empty or name not in ("causal", "window", "nothing", "block causal")


def test_limits_of_the_loop_say_what_they_can() -> None:
    """(limited on the left, on the right, with a test inside) per mask."""
    found: dict[str, tuple[bool, bool, bool]] = {}
    for name, mask in MASKS.items():
        func = derive(mask).func
        (loop,) = [op for op in func.walk() if isinstance(op, For) and op.axis == "j"]
        found[name] = loop.first is not None, loop.end is not None, sum(isinstance(op, If) for op in walk(loop.body)) == 2
    window, until, test = (True, True, False), (False, True, False), (False, False, True)
    assert found == dict.fromkeys(MASKS, until) | {
        "distance": window,
        "window": window,
        "dilated": test,
        "far": test,
        "two pieces": (True, False, True),
    }


def test_a_loop_with_wrong_limits_is_caught() -> None:
    """Executing a small instance after every pass sees one trip too few."""

    @register_pass("end-too-early")
    def end_too_early(func: Func) -> Func:
        def rule(op: Op) -> tuple[Value, ...] | None:
            if not isinstance(op, For) or op.end is None:
                return None
            return dataclasses.replace(op, end=sub(op.end, op.step)).results

        return rewrite(func, rule)

    with pytest.raises(IRError, match=r"end-too-early.*changed the meaning"):
        derive(MASKS["causal"], DERIVE + ",end-too-early")


def test_documents_are_told_from_the_run_time_arrays() -> None:
    """Parts of sorted tables lie between their ends: other documents' keys are not visited."""

    def same_document(i: Any, j: Any, doc: Any, key_doc: Any) -> Any:
        return doc == key_doc

    func = derive(same_document).func
    for seed in range(5):
        (empty, full, mixed), trips, masks = check(same_document, func, seed)
        assert trips == full + mixed and masks == mixed and empty


def test_a_mask_of_floats_is_applied_everywhere_and_said_so() -> None:
    def loud(i: Any, j: Any) -> Any:
        return np.sin(0.3 * i) + np.cos(0.2 * j) > 0 if isinstance(i, np.ndarray) else ag.tanh(0.3 * i - 0.2 * j) > 0

    result = derive(loud)
    assert not any(isinstance(op, If) for op in result.func.walk())
    assert any("applied everywhere" in r.message for r in result.remarks)


def test_a_trip_that_counts_is_never_left_out() -> None:
    """Masked scores that still weigh something: Σ_j of where(keep, s, 1) changes on every trip."""

    @ag.program(q="i d", k="j d", out="i")
    def counted(q: Any, k: Any) -> Any:
        s = ag.where(ag.index("j") <= ag.index("i"), ag.contract(q, k, over="d"), 1.0)
        return ag.reduce_sum(ag.tanh(s), over="j")

    types = {"q": TensorType((("i", I), ("d", 4)), F32), "k": TensorType((("j", J), ("d", 4)), F32)}
    result = run_pipeline(counted.trace(types), DERIVE, verify_each="run")
    x = arrays()
    (got,) = Interpreter(wide=True).run(result.func, x["q"], x["k"])
    want = np.tanh(np.where(np.arange(J) <= np.arange(I)[:, None], x["q"] @ x["k"].T, 1)).sum(-1)
    np.testing.assert_allclose(got, want, atol=1e-9)
    assert any("no trip over j is left out" in r.message for r in result.remarks)


@st.composite
def masks(draw: st.DrawFn, depth: int = 3) -> tuple[str, Mask]:
    """A random mask expression, as text and as a function."""

    def number(d: int) -> str:
        kind = draw(st.integers(0, 8 if d else 2))
        small, divisor = draw(st.integers(-20, 20)), draw(st.integers(1, 9))
        if kind <= 2:
            return draw(st.sampled_from(["i", "j", "doc", "key_doc", str(small)]))
        a, b = number(d - 1), number(d - 1)
        forms = [
            f"({a} + {b})",
            f"({a} - {b})",
            f"({a} * {draw(st.integers(-3, 3))})",
            f"({a} // {divisor})",
            f"({a} % {divisor})",
            f"abs({a})",
        ]
        return forms[kind - 3]

    def truth(d: int) -> str:
        kind = draw(st.integers(0, 3 if d else 0))
        if kind == 0:
            predicate = draw(st.sampled_from(["<", "<=", ">", ">=", "==", "!="]))
            return f"({number(2)} + 0 * i {predicate} {number(2)} + 0 * j)"
        a, b = truth(d - 1), truth(d - 1)
        return [f"({a} & {b})", f"({a} | {b})", f"(~{a})"][kind - 1]

    text = truth(depth)
    return text, eval(f"lambda i, j, doc, key_doc: {text}", {})


def test_products_of_coordinates_are_no_scales() -> None:
    """fold-scale gathers factors of floats; integers have no range to keep them in."""
    check(mask := lambda i, j: (i * -2) * -1 <= j * 2, derive(mask).func)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(masks())
def test_any_mask(case: tuple[str, Mask]) -> None:
    """The map of tiles says which trips there are, and no trip that matters is missing."""
    text, mask = case
    result = derive(mask)
    (empty, full, mixed), trips, masked = check(mask, result.func)
    assert full + mixed <= trips <= empty + full + mixed, text
    for _, tiles in tile_maps(result.stages["fuse-cascaded-reductions"], arrays()):
        assert isinstance(tiles, TileMap) and (tiles.full + tiles.mixed, tiles.mixed) == (trips, masked), text

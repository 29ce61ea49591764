"""Programs that nobody named, by tensor cores where they fit and else element by element, in 16-bit floats against float64."""

from __future__ import annotations

from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest

import attngen as ag
from tests.derivation.programs import CASES, SHAPES, inputs

TARGET = "cuda:sm_80,emulated"
DTYPES = {"bfloat16": (ml_dtypes.bfloat16, 2.0**-8), "float16": (np.float16, 2.0**-11)}
DECLINED = {
    "two_moments": "0 columns",
    "talking_heads": "a loop runs inside of another",
    "log_weighted": "0 columns",
    "probabilities": "no products",
    "variance": "no products",
}
"""Why tensor cores do not work on a program."""


@pytest.mark.parametrize(("name", "dtype"), [(name, [*DTYPES][k % 2]) for k, name in enumerate(CASES)])
def test_program(name: str, dtype: str) -> None:
    case, (element, rounding) = CASES[name], DTYPES[dtype]
    arrays = cast(dict[str, Any], {n: x.astype(element) for n, x in inputs(name, seed=7).items()})
    shapes: dict[str, Any] = {n: SHAPES[n] for n in case.inputs}
    kernel = ag.compile(case.program, **shapes, dtype=dtype, target=TARGET)
    declined = [r.message for r in kernel.remarks if r.origin == "distribute" and r.message.startswith("declined")]
    assert bool(declined) == (name in DECLINED) and all(
        DECLINED[name] in message or "no products" in message for message in declined
    )
    found = kernel(**arrays)
    for got, want in zip(found if isinstance(found, tuple) else (found,), case.oracle(arrays), strict=True):
        # Operands of products and results are rounded.
        largest = float(np.max(np.abs(want), initial=0, where=np.isfinite(want)))
        np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=rounding, atol=rounding * largest + 1e-5)


@ag.program(q="h i d", k="h j d", v="h j e", gain="d", out="h i e")
def gained(q: ag.Tensor, k: ag.Tensor, v: ag.Tensor, gain: ag.Tensor) -> Any:
    return ag.contract(ag.softmax(ag.contract(q * (gain + 1), k, over="d"), over="j"), v, over="j")


@ag.program(q="i d", k="j d", v="i e", gain="j e", out="i j")
def summed(q: ag.Tensor, k: ag.Tensor, v: ag.Tensor, gain: ag.Tensor) -> Any:
    return ag.contract(q, k, over="d") + ag.contract(v, gain, over="e")


def test_tiles_that_no_part_cuts_are_padded_too() -> None:
    """They would be made once, around the grid. Of two products that are added, one starts from the other; what f16 holds
    already is not scaled."""
    rng = np.random.default_rng(0)
    shapes = {gained: ((2, 24, 20), (2, 40, 20), (2, 40, 8), (20,)), summed: ((600, 16), (40, 16), (600, 8), (40, 8))}
    for program, (q_shape, k_shape, v_shape, gain_shape) in shapes.items():
        arrays = [rng.standard_normal(shape).astype(np.float16) for shape in shapes[program]]
        kernel = ag.compile(program, q=q_shape, k=k_shape, v=v_shape, gain=gain_shape, dtype="float16", target=TARGET)
        assert not any(r.message.startswith("declined") for r in kernel.remarks)
        q, k, v, gain = (x.astype(np.float64) for x in arrays)
        scores = np.einsum("...id,...jd->...ij", q * (gain + 1) if program is gained else q, k)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out = weights @ v / weights.sum(-1, keepdims=True) if program is gained else scores + v @ gain.T
        np.testing.assert_allclose(np.asarray(kernel(*arrays), np.float64), out, rtol=2.0**-10, atol=1e-2)


def test_a_table_of_which_each_part_has_its_row() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((3, n, 16)).astype(np.float16) for n in (20, 30, 30))
    table = rng.standard_normal((3, 19)).astype(np.float32)
    got = ag.scaled_dot_product_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + table[h, (i + j) % 19], target=TARGET)
    scores = q.astype(np.float64) @ k.astype(np.float64).swapaxes(1, 2) / 4
    weights = np.exp(scores + table[:, (np.arange(20)[:, None] + np.arange(30)) % 19])
    want = weights @ v.astype(np.float64) / weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=2.0**-10, atol=2e-3)


@ag.program(q="i d", k="j d", v="j e", out="i e")
def cubed(q: ag.Tensor, k: ag.Tensor, v: ag.Tensor) -> Any:
    s: Any = ag.contract(q, k, over="d")
    return ag.contract(s * s * s, v, over="j")


def test_an_operand_that_half_precision_cannot_hold_is_scaled() -> None:
    """Scores to the third power reach 1e12 and 1e-20; each row is multiplied by a power of two of its own."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(shape) for shape in ((24, 32), (40, 32), (40, 8)))
    q *= np.geomspace(1e-4, 1e3, 24)[:, None]
    arrays = [x.astype(np.float16) for x in (q, k, v * 1e-2)]
    kernel = ag.compile(cubed, q=q.shape, k=k.shape, v=v.shape, dtype="float16", target=TARGET)
    assert any("scaled, each by a power of two" in r.message for r in kernel.remarks)
    q, k, v = (x.astype(np.float64) for x in arrays)
    want = (q @ k.T) ** 3 @ v
    got = np.asarray(kernel(*arrays), np.float64)
    held = np.abs(want).max(1) < 6e4
    size = (np.abs(q @ k.T) ** 3 @ np.abs(v)).max(1, keepdims=True)
    assert held.sum() > 12
    assert np.all(np.abs(got - want)[held] <= (2.0**-10 * size + 2.0**-11 * np.abs(want) + 2.0**-25)[held])

"""The examples say what the explanation of scaled dot-product attention says that the project started from."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> dict:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


def test_toy_sentence() -> None:
    """ "The cat sat": every step to two places."""
    module = load("four_steps")
    scores, scaled, weights, output = module["compute"](module["TOY"])
    np.testing.assert_array_equal(scores, [[1, 0, 1], [0, 1, 0], [1, 1, 1]])
    np.testing.assert_allclose(scaled, [[0.71, 0, 0.71], [0, 0.71, 0], [0.71, 0.71, 0.71]], atol=0.01)
    np.testing.assert_allclose(weights, [[0.40, 0.20, 0.40], [0.25, 0.50, 0.25], [0.33, 0.33, 0.33]], atol=0.01)
    np.testing.assert_allclose(output, [[3, 4]] * 3, atol=0.01)


def test_asymmetric_sentence() -> None:
    """ "bank river money": queries that look elsewhere give other outputs."""
    module = load("four_steps")
    scores, scaled, weights, output = module["compute"](module["MONEY"])
    np.testing.assert_allclose(scores, [[1, 0.2, 0.8], [0, 1, 0.2], [1, 0.7, 0.9]], atol=1e-6)
    np.testing.assert_allclose(scaled, [[0.71, 0.14, 0.57], [0, 0.71, 0.14], [0.71, 0.50, 0.64]], atol=0.01)
    np.testing.assert_allclose(weights, [[0.41, 0.23, 0.36], [0.24, 0.49, 0.28], [0.36, 0.30, 0.34]], atol=0.01)
    np.testing.assert_allclose(output, [[1.18, 1.05], [0.75, 1.73], [1.07, 1.23]], atol=0.01)


def test_rows_of_weights_sum_to_one() -> None:
    module = load("four_steps")
    for example in ("TOY", "MONEY"):
        np.testing.assert_allclose(module["compute"](module[example])[2].sum(axis=1), 1, atol=1e-6)


def test_large_scores() -> None:
    """exp(1000) overflows; relative to the maximum nothing does."""
    module = load("softmax_by_parts")
    np.testing.assert_allclose(module["stable"](module["SCORES"]), [[0.67, 0.24, 0.09]], atol=0.01)
    assert np.isnan(module["naive"](module["SCORES"])).any()


def test_dot_product_is_magnitude_times_cosine() -> None:
    program = load("similarity")["dot_and_cosine"]
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((5, 7)).astype(np.float32), rng.standard_normal((9, 7)).astype(np.float32)
    dot, cosine = program(a, b)
    lengths = np.linalg.norm(a, axis=1)[:, None] * np.linalg.norm(b, axis=1)
    np.testing.assert_allclose(dot, lengths * cosine, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.cos(np.arccos(np.clip(cosine, -1, 1))), (a @ b.T) / lengths, atol=1e-5)
    right_angle, opposite = program(np.array([[2, 0]], np.float32), np.array([[0, 3], [-3, 0]], np.float32))
    np.testing.assert_allclose((right_angle, opposite), [[[0, -6]], [[0, -1]]], atol=1e-6)


@pytest.mark.parametrize("d", [64, 128])
def test_unscaled_scores_spread_like_the_root_of_d(d: int) -> None:
    """Without the scale the softmax saturates, and its gradient vanishes."""
    s = load("why_scale")["spread"](d)
    assert s.deviation == pytest.approx(d**0.5, rel=0.05)
    assert s.largest[0] > 0.7 and s.largest[1] < 0.2
    assert s.gradient[0] < 0.15


def test_cost_grows_with_the_square_of_the_length_and_with_d() -> None:
    cost = load("cost")["cost"]
    (base, scratch), (twice, same), (wide, _) = cost(512, 32), cost(1024, 32), cost(512, 64)
    assert twice / base == pytest.approx(4, rel=0.01)
    assert wide / base == pytest.approx(2, rel=0.1)
    assert scratch == same


def test_one_shot_all_positions() -> None:
    """Projections and attention in one program: 6 tokens, d_model 4, d_k 3, d_v 4."""
    module = load("one_shot")
    arrays = module["example"]()
    x, wq, wk, wv = (a.astype(np.float64) for a in arrays.values())
    scores = (x @ wq) @ (x @ wk).T / np.sqrt(3)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    want = weights / weights.sum(axis=1, keepdims=True) @ (x @ wv)
    got = module["self_attention"](**arrays)
    assert got.shape == (6, 4)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


SHORTER = {"fused_against_unfused": ["256"], "masks_follow_work": ["--build"]}
"""Arguments with which those run that measure for long."""


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.stem)
def test_every_example_runs(path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(path), *SHORTER.get(path.stem, [])])
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out.strip()

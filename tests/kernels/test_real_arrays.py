"""Queries, keys and values of a trained model; the expected results were computed in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import attngen

DATA = Path(__file__).parents[1] / "data"
SENTENCES, LONG = (np.load(DATA / name) for name in ("minilm_layer3.npz", "minilm_layer5_long.npz"))
TARGETS = ["cpu", "numpy"]


@pytest.mark.parametrize("target", TARGETS)
def test_a_long_text(target: str) -> None:
    query, key, value = (LONG[name] for name in ("query", "key", "value"))
    out = attngen.scaled_dot_product_attention(query, key, value, scale=float(LONG["scale"]), target=target)
    assert np.max(np.abs(out - LONG["expected"])) < 2e-6


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("sentence, tokens", [(0, 5), (1, 11), (2, 23)])
def test_sentences_cut_to_their_tokens(target: str, sentence: int, tokens: int) -> None:
    assert SENTENCES["keep"][sentence].sum() == tokens
    query, key, value = (SENTENCES[name][sentence : sentence + 1, :, :tokens] for name in ("query", "key", "value"))
    out = attngen.scaled_dot_product_attention(query, key, value, target=target)  # views: nothing is copied
    assert np.max(np.abs(out - SENTENCES["expected"][sentence : sentence + 1, :, :tokens])) < 2e-6


def test_the_default_scale_is_that_of_the_model() -> None:
    assert float(LONG["scale"]) == pytest.approx(LONG["query"].shape[-1] ** -0.5)

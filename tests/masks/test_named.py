"""`attngen.masks`: each by its definition, in combinations, and at sizes at which no table of pairs could be made."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import numpy as np
import pytest

import attngen as ag
from attngen import masks
from attngen.ir.passes import PIPELINE
from attngen.ir.pipeline import run_pipeline
from attngen.sdpa import trace
from attngen.sdpa_options import read_options
from tests.masks.ways import WAYS, check

I, J = np.indices((9, 13))
IDS = np.array([0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3])
TWO = np.array([IDS, IDS[::-1]])
PAIRS = np.broadcast_to(False, (2, 1, 9, 13))

NAMED: dict[str, tuple[Any, Any]] = {
    "causal": (masks.causal(), J <= I),
    "causal, bottom right": (masks.causal(offset=4), J <= I + 4),
    "window": (masks.window(2, 1), (I - 2 <= J) & (J <= I + 1)),
    "window to the left": (masks.window(left=2, offset=1), J >= I - 1),
    "open window": (masks.window(), PAIRS[0, 0] | True),
    "prefix": (masks.prefix_lm(3), (J < 3) | (J <= I)),
    "prefix per entry": (masks.prefix_lm([3, 7]), (J < np.array([3, 7]).reshape(2, 1, 1, 1)) | (J <= I)),
    "blocks": (masks.block_causal(4), J // 4 <= I // 4),
    "dilated": (masks.dilated(3), (I - J) % 3 == 0),
    "documents": (masks.document(IDS), IDS[I] == IDS[J]),
    "documents per entry": (masks.document(TWO), (TWO[:, I] == TWO[:, J])[:, None]),
    "documents of keys": (masks.document(IDS[:9], kv_ids=IDS), IDS[I] == IDS[J]),
    "padding": (masks.padding([5, 0]), PAIRS | (J < np.array([5, 0]).reshape(2, 1, 1, 1))),
    "and": (
        masks.and_masks(masks.causal(), masks.document(IDS), masks.dilated(2)),
        (J <= I) & (IDS[I] == IDS[J]) & ((I - J) % 2 == 0),
    ),
    "or": (masks.or_masks(masks.causal(), masks.document(IDS)), (J <= I) | (IDS[I] == IDS[J])),
    "not": (masks.not_mask(masks.causal()), J > I),
    "nested": (
        masks.or_masks(masks.and_masks(masks.causal(), masks.window(2)), masks.not_mask(masks.block_causal(3))),
        (J <= I) & (J >= I - 2) | ~(J // 3 <= I // 3),
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMED)
def test_named_masks(way: str, normal: Any, name: str) -> None:
    """A mask by name is the boolean mask of its definition."""
    from tests.masks.ways import attend

    q, k, v = normal(2, 2, 9, 4), normal(2, 2, 13, 4), normal(2, 2, 13, 3)
    mask_mod, keep = NAMED[name]
    out, lse = attend(way, q, k, v, mask_mod=mask_mod)
    want, want_lse = attend("interpreter", q, k, v, attn_mask=np.ascontiguousarray(keep))
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(lse, want_lse, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("way", ["numpy", "cpu"])
def test_a_mask_built_for_a_longer_text(way: str, normal: Any) -> None:
    """U33: pytorch#136232, attention-gym#34. It is cut to the lengths of the call; a shorter one is an error."""
    q = normal(1, 1, 9, 4)
    ids = np.arange(4096) // 5
    check(way, q, q, q, mask_mod=lambda b, h, i, j: ids[i] == ids[j])
    with pytest.raises(ag.Error, match=r"ids of shape \(8,\) is too short: dimension 0 is indexed .* goes up to 8") as e:
        ag.scaled_dot_product_attention(q, q, q, mask_mod=masks.document(ids[:8]), target=way)
    assert __file__ in str(e.value)


def test_no_table_of_pairs_is_made() -> None:
    """U34: pytorch#134756, pytorch#151043, attention-gym#149. Tracing and deriving the loop takes the same at any length."""
    n = 96_000
    x = np.broadcast_to(np.float32(0), (1, 1, n, 8))
    ids = np.sort(np.random.default_rng(0).integers(0, 16, n))
    mods = {"mask_mod": masks.and_masks(masks.causal(), masks.document(ids))}
    tracemalloc.start()
    start = time.perf_counter()
    _, traced = trace((("query", x), ("key", x), ("value", x)), read_options(), (), mods)
    seconds = time.perf_counter() - start
    derived = run_pipeline(traced.func, PIPELINE).func
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000 and seconds < 0.5
    assert max(v.tensor.size for op in derived.walk() for v in op.results if v.names) <= 8 * n


HALF: Any = 1.5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: masks.causal(HALF), "causal: offset: expected a whole number, got 1.5"),
        (lambda: masks.window(-1), "window: expected a whole number of at least 0, or None for open, got -1"),
        (lambda: masks.block_causal(0), "block_causal: size: expected a whole number of at least 1, got 0"),
        (lambda: masks.document([0.5]), "document: ids: expected whole numbers, got float64"),
        (lambda: masks.padding([[1]]), "padding: lengths: expected 1 dimensions, got shape (1, 1)"),
    ],
)
def test_errors(make: Any, message: str) -> None:
    with pytest.raises(ag.Error) as e:
        make()
    assert str(e.value) == message

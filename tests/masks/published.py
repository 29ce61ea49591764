"""Modifications of attention that FlexAttention's users publish, written anew from what they compute.

Each is a function of the module `torch`, or of one that works alike, and gives (kind, modification).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

RNG = np.random.default_rng(7)
HEADS, LENGTH, BATCH = 4, 16, 2
DOCUMENTS = np.repeat([0, 1, 2], [5, 7, 4])
STARTS = np.array([0, 5, 12, 16])
BY_DISTANCE = RNG.standard_normal(2 * LENGTH).astype(np.float32)
BY_PAIR = RNG.standard_normal((LENGTH, LENGTH)).astype(np.float32)
BY_HEAD = RNG.standard_normal(HEADS).astype(np.float32)
BY_HEAD_AND_PAIR = RNG.standard_normal((HEADS, LENGTH, LENGTH)).astype(np.float32)

Make = Callable[[Any], tuple[str, Callable[..., Any]]]
ALL: dict[str, Make] = {}


def published(make: Make) -> Make:
    ALL[make.__name__] = make
    return make


def mask(f: Callable[..., Any]) -> tuple[str, Callable[..., Any]]:
    return "mask_mod", f


def score(f: Callable[..., Any]) -> tuple[str, Callable[..., Any]]:
    return "score_mod", f


@published
def causal(torch: Any) -> Any:
    return mask(lambda b, h, q, kv: q >= kv)


@published
def sliding_window(torch: Any) -> Any:
    return mask(lambda b, h, q, kv: (q >= kv) & (q - kv <= 4))


@published
def prefix_language_model(torch: Any) -> Any:
    prefix = torch.tensor([3, 9])
    return mask(lambda b, h, q, kv: (kv < prefix[b]) | (q >= kv))


@published
def documents(torch: Any) -> Any:
    ids = torch.tensor(DOCUMENTS)
    return mask(lambda b, h, q, kv: ids[q] == ids[kv])


@published
def causal_inside_documents(torch: Any) -> Any:
    ids, starts = torch.tensor(DOCUMENTS), torch.tensor(STARTS)

    def mod(b: Any, h: Any, q: Any, kv: Any) -> Any:
        own_q, own_kv = q - starts[ids[q]], kv - starts[ids[kv]]
        return (ids[q] == ids[kv]) & (own_q >= own_kv)

    return mask(mod)


@published
def neighbourhood_in_a_picture(torch: Any) -> Any:
    def mod(b: Any, h: Any, q: Any, kv: Any) -> Any:
        row, column = torch.clamp(q // 4, 1, 2), torch.clamp(q % 4, min=1, max=2)
        return (torch.abs(row - kv // 4) <= 1) & (torch.abs(column - kv % 4) <= 1)

    return mask(mod)


@published
def dilated(torch: Any) -> Any:
    return mask(lambda b, h, q, kv: (q - kv) % 3 == 0)


@published
def first_keys_and_window(torch: Any) -> Any:
    return mask(lambda b, h, q, kv: torch.logical_and(q >= kv, torch.logical_or(kv < 2, q - kv < 4)))


@published
def other_mask_for_some_heads(torch: Any) -> Any:
    return mask(lambda b, h, q, kv: (h < 2) & (q >= kv) | torch.logical_not(h < 2))


@published
def valid_keys(torch: Any) -> Any:
    lengths = torch.tensor([16, 11])
    return mask(lambda b, h, q, kv: kv < lengths[b])


@published
def alibi(torch: Any) -> Any:
    slopes = torch.exp2(torch.arange(1, HEADS + 1) * (-8.0 / HEADS))
    return score(lambda s, b, h, q, kv: s + slopes[h] * (kv - q))


@published
def alibi_from_the_head(torch: Any) -> Any:
    return score(lambda s, b, h, q, kv: s + torch.exp2((h + 1) * (-8.0 / HEADS)) * (kv - q))


@published
def soft_cap(torch: Any) -> Any:
    return score(lambda s, b, h, q, kv: torch.tanh(s / 2.0) * 2.0)


@published
def relative_bias(torch: Any) -> Any:
    bias = torch.tensor(BY_DISTANCE)
    return score(lambda s, b, h, q, kv: s + bias[q - kv + LENGTH])


@published
def bias_per_pair(torch: Any) -> Any:
    bias = torch.tensor(BY_PAIR)
    return score(lambda s, b, h, q, kv: s + bias[q, kv])


@published
def bias_per_head(torch: Any) -> Any:
    bias = torch.tensor(BY_HEAD)
    return score(lambda s, b, h, q, kv: s + 2 * bias[h])


@published
def bias_per_head_and_pair(torch: Any) -> Any:
    bias = torch.tensor(BY_HEAD_AND_PAIR)
    return score(lambda s, b, h, q, kv: s + bias[h, q, kv])


@published
def causal_in_the_scores(torch: Any) -> Any:
    return score(lambda s, b, h, q, kv: torch.where(q >= kv, s, -float("inf")))


@published
def distance(torch: Any) -> Any:
    return score(lambda s, b, h, q, kv: s - torch.abs(q - kv) * 0.1)


@published
def scores_clipped(torch: Any) -> Any:
    return score(lambda s, b, h, q, kv: torch.minimum(torch.maximum(s, s * 0.1), torch.full_like(s, 0.75)))


@published
def scale_per_head(torch: Any) -> Any:
    return score(lambda s, b, h, q, kv: torch.where(h % 2 == 0, s, s * 0.5))


@published
def other_documents_weigh_less(torch: Any) -> Any:
    ids = torch.tensor(DOCUMENTS)
    return score(lambda s, b, h, q, kv: torch.where(ids[q] == ids[kv], s, s - 5.0))

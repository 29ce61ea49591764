"""Attention as a program of four steps, built in."""

from __future__ import annotations

import math

from attngen import functions
from attngen.programs import program
from attngen.tensor import Tensor


@program(q="b h i d", k="b h j d", v="b h j e", out="b h i e")
def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q·kᵀ / √d)·v (Vaswani et al. 2017), in four steps: score, scale, softmax, weigh."""
    s = functions.score(q, k, over="d")
    s = functions.scale(s, 1 / math.sqrt(q.extent("d")))
    a = functions.softmax(s, over="j")
    return functions.weigh(a, v, over="j")

"""From token vectors to context vectors in one program: the three projections, then attention, for all positions at once.

python examples/one_shot.py
"""

from __future__ import annotations

import numpy as np

import attngen


@attngen.program(x="i m", wq="m d", wk="m d", wv="m e", out="i e")
def self_attention(x, wq, wk, wv):
    y = attngen.rename(x, i="j")  # the same tokens, as those that are looked at
    q = attngen.contract(x, wq, over="m")
    k = attngen.contract(y, wk, over="m")
    v = attngen.contract(y, wv, over="m")
    scores = attngen.contract(q, k, over="d") * wq.extent("d") ** -0.5
    return attngen.contract(attngen.softmax(scores, over="j"), v, over="j")


def example(seed: int = 0) -> dict[str, np.ndarray]:
    """6 tokens of 4 features, keys and queries of 3, values of 4."""
    rng = np.random.default_rng(seed)
    shapes = {"x": (6, 4), "wq": (4, 3), "wk": (4, 3), "wv": (4, 4)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def main() -> None:
    print(self_attention(**example()).round(3))


if __name__ == "__main__":
    main()

"""Score, scale, normalise, weigh: attention on three tokens, small enough to check by hand.

python examples/four_steps.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

import attngen

TOY = {  # "The cat sat"
    "query": [[1, 0], [0, 1], [1, 1]],
    "key": [[1, 0], [0, 1], [1, 0]],
    "value": [[1, 2], [3, 4], [5, 6]],
}
MONEY = {  # "bank river money"
    "query": [[1, 0], [0, 1], [1, 0.5]],
    "key": [[1, 0], [0.2, 1], [0.8, 0.2]],
    "value": [[2, 0], [0, 3], [1, 1]],
}


@attngen.program(q="i d", k="j d", v="j e", out=("i j", "i j", "i j", "i e"))
def four_steps(q, k, v):
    """All that happens on the way: scores, scaled scores, weights, output."""
    scores = attngen.score(q, k, over="d")
    scaled = attngen.scale(scores, q.extent("d") ** -0.5)
    weights = attngen.softmax(scaled, over="j")
    return scores, scaled, weights, attngen.weigh(weights, v, over="j")


def compute(example: Mapping[str, Sequence[Sequence[float]]]) -> tuple[np.ndarray, ...]:
    arrays = [np.asarray(example[name], np.float32) for name in ("query", "key", "value")]
    return four_steps(*arrays)


def main() -> None:
    for title, example in (("The cat sat", TOY), ("bank river money", MONEY)):
        print(f"\n{title}")
        for name, array in zip(("scores", "scaled", "weights", "output"), compute(example), strict=True):
            print(f"{name:8}", *(" ".join(f"{x:6.2f}" for x in row) for row in array), sep="\n  ")


if __name__ == "__main__":
    main()

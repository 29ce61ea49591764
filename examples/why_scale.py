"""Why scores are divided by √d_k: a sum of d_k products of unit variance has a standard deviation of √d_k. Unscaled, the
softmax of such scores is nearly one-hot, and its gradient nearly 0.

    python examples/why_scale.py
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import attngen


@attngen.program(q="i d", k="j d", out=("i j", "i j", "i j"))
def with_and_without(q, k):
    scores = attngen.score(q, k, over="d")
    return scores, attngen.softmax(scores, over="j"), attngen.softmax(scores * q.extent("d") ** -0.5, over="j")


@dataclass
class Spread:
    """deviation: of the unscaled scores. largest: the mean over rows of the largest weight. gradient: the mean over rows of
    w·(1 - w) at that weight, the derivative of a softmax by its winning score."""

    deviation: float
    largest: tuple[float, float]
    gradient: tuple[float, float]


def spread(d: int, n: int = 256, seed: int = 0) -> Spread:
    """(unscaled, scaled) for n random queries and keys of width d."""
    q, k = np.random.default_rng(seed).standard_normal((2, n, d)).astype(np.float32)
    scores, *weights = with_and_without(q, k)
    top = [w.max(axis=1) for w in weights]
    largest, gradient = ([float(x.mean()) for x in found] for found in (top, [t * (1 - t) for t in top]))
    return Spread(float(scores.std()), (largest[0], largest[1]), (gradient[0], gradient[1]))


def main() -> None:
    print("d_k   √d_k   deviation   largest weight      gradient there")
    print("                         unscaled  scaled    unscaled  scaled")
    for d in (16, 64, 128, 512):
        s = spread(d)
        row = (d, d**0.5, s.deviation, *s.largest, *s.gradient)
        print("{:3} {:6.1f} {:10.1f} {:10.2f} {:8.2f} {:10.3f} {:8.3f}".format(*row))


if __name__ == "__main__":
    main()

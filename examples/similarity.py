"""A dot product is magnitude times magnitude times the cosine of the angle between: direction decides the sign.

python examples/similarity.py
"""

from __future__ import annotations

import numpy as np

import attngen


@attngen.program(a="i d", b="j d", out=("i j", "i j"))
def dot_and_cosine(a, b):
    """The dot products, and the cosines that they come from."""
    dot = attngen.contract(a, b, over="d")
    lengths = attngen.sqrt(attngen.reduce_sum(a * a, over="d")) * attngen.sqrt(attngen.reduce_sum(b * b, over="d"))
    return dot, dot / lengths


def main() -> None:
    a = np.array([[2, 0]], np.float32)
    b = np.array([[3, 0], [3, 3], [0, 3], [-3, 3], [-3, 0]], np.float32)
    dot, cosine = dot_and_cosine(a, b)
    for row, d, c in zip(b, dot[0], cosine[0], strict=True):
        print(f"{a[0]} · {row} = {d:5.1f} = |a||b| · {c:5.2f}")


if __name__ == "__main__":
    main()

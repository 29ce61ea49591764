"""Why the row maximum is subtracted: exp(1000) is infinite, exp(1000 - 1000) is 1, and the weights are the same.

python examples/softmax_by_parts.py
"""

from __future__ import annotations

import numpy as np

import attngen

SCORES = np.array([[1000, 999, 998]], np.float32)


@attngen.program(s="i j", out="i j")
def stable(s):
    return attngen.softmax(s, over="j")


@attngen.program(s="i j", out="i j")
def naive(s):
    e = attngen.exp(s)
    return e / attngen.reduce_sum(e, over="j")


def main() -> None:
    print("naive ", naive(SCORES)[0])
    print("stable", stable(SCORES)[0].round(2))


if __name__ == "__main__":
    main()

"""Attention costs q_len · kv_len · d: twice the sequence is four times the work. Its scratch memory does not grow at all.

python examples/cost.py
"""

from __future__ import annotations

import attngen


def cost(n: int, d: int) -> tuple[int, int]:
    """(floating point operations, scratch bytes) of the kernel for n queries and n keys of width d."""
    report = attngen.compile(attngen.attention, q=(1, 1, n, d), k=(1, 1, n, d), v=(1, 1, n, d)).report()
    return report.flops, report.scratch_bytes


def main() -> None:
    print("     n     d      GFLOP   scratch KB")
    for n, d in ((1024, 32), (1024, 64), (2048, 64), (4096, 64)):
        flops, scratch = cost(n, d)
        print(f"{n:6} {d:5} {flops / 1e9:10.3f} {scratch / 1024:12.1f}")


if __name__ == "__main__":
    main()

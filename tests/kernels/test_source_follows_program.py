"""The emitted code comes from the IR: change a program a little, and the source changes there and nowhere else."""

from __future__ import annotations

import difflib
import math
from typing import Any

import attngen

GOLDEN = """\
-#   tile_ji = %1, tile_i = max over j of %1
+#   %2 = nd.mul %0, %0
+#   %3 = nd.mul %2, 0.00450842200277801
+#   %4 = nd.add %1, %3
+#   tile_ji = %4, tile_i = max over j of %4
"""
"""What `s + 0.1 * s * s` adds: %0 is Q·K, and the factors are 1/√32 and 0.1/32, each times log2(e)."""
SHAPES: dict[str, Any] = {"q": (1, 2, 150, 32), "k": (1, 2, 300, 32), "v": (1, 2, 300, 32)}


def build(extra: bool) -> attngen.Kernel:
    @attngen.program(q="b h i d", k="b h j d", v="b h j e", out="b h i e")
    def attention(q: Any, k: Any, v: Any) -> Any:
        s = attngen.contract(q, k, over="d") / math.sqrt(32)
        if extra:
            s = s + 0.1 * s * s
        return attngen.contract(attngen.softmax(s, over="j"), v, over="j")

    return attngen.compile(attention, **SHAPES, pipeline=None)


def changed(before: str, after: str) -> list[str]:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
    return [line for line in lines if line[0] in "+-" and line[:3] not in ("+++", "---")]


def test_a_step_on_the_scores_changes_the_score_chain_only() -> None:
    plain, extended = build(False), build(True)
    diff = changed(plain.stages["python"], extended.stages["python"])
    assert [line[0] + line[1:].strip() for line in diff] == GOLDEN.splitlines(), "\n".join(diff)


def test_another_tile_size_changes_the_loops() -> None:
    sources = [
        attngen.compile(
            attngen.attention,
            **SHAPES,
            pipeline="decompose-attn,canonicalize,fold-scale,hoist-invariant-factors,canonicalize,"
            f"tile{{b=1 h=1 i=64 j={j}}},fuse-cascaded-reductions,canonicalize",
        ).stages["python"]
        for j in (64, 96)
    ]
    assert f"range(0, 300, {64})" in sources[0] and f"range(0, 300, {96})" in sources[1]


def test_without_fusion_the_loops_stay_apart() -> None:
    pipeline = "decompose-attn,canonicalize,fold-scale,hoist-invariant-factors,canonicalize,tile{b=1 h=1 i=64 j=64}"
    apart = attngen.compile(attngen.attention, **SHAPES, pipeline=pipeline)
    fused = attngen.compile(attngen.attention, **SHAPES, pipeline=f"{pipeline},fuse-cascaded-reductions,canonicalize")
    loops = [kernel.stages["python"].count("range(0, 300, 64)") for kernel in (apart, fused)]
    assert loops == [3, 1]

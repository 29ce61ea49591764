"""attngen's kernels on a GPU beside those of PyTorch: flash attention, cuDNN's and FlexAttention's, timed in one run.

python examples/cuda_beside_torch.py [rounds]

In every round each implementation gets a turn of several calls, between two events of the GPU; the median of its turns counts.
bfloat16, no output is allocated in advance. A causal mask halves the operations that are counted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from ctypes import c_int
from datetime import date
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from typing import Any, NamedTuple

import attngen
from attngen.backends.cuda.runtime.driver import driver

ROUNDS, TURN = 20, 10
"""How many turns each gets, and calls of each turn."""

Calls = Mapping[str, Callable[[], Any]]


class Shape(NamedTuple):
    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    d: int
    causal: bool = False

    def __str__(self) -> str:
        return f"{','.join(map(str, self[:6]))}{' causal' if self.causal else ''}"

    @property
    def flops(self) -> float:
        return (2 if self.causal else 4) * self.batch * self.heads * self.q_len * self.kv_len * self.d


SHAPES = (
    *(Shape(4, 16, 16, 4096, 4096, d, causal) for d in (64, 128) for causal in (False, True)),
    Shape(16, 32, 8, 1, 8192, 128),
)


def why_not() -> str:
    """Why nothing can be measured here, or nothing."""
    if find_spec("torch") is None:
        return "torch is not installed"
    torch: Any = import_module("torch")
    return "" if torch.cuda.is_available() else f"torch {torch.__version__} finds no GPU"


def tensors(s: Shape, torch: Any) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    lengths = (s.heads, s.q_len), (s.kv_heads, s.kv_len), (s.kv_heads, s.kv_len)
    q, k, v = (torch.randn(s.batch, *n, s.d, dtype=torch.bfloat16, device="cuda") for n in lengths)
    return q, k, v


def calls(s: Shape, q: Any, k: Any, v: Any, torch: Any) -> Calls:
    """One call of each implementation, on the same tensors."""
    kinds, flex = import_module("torch.nn.attention"), import_module("torch.nn.attention.flex_attention")
    compiled: Any = torch.compile(flex.flex_attention)
    blocks: Any = None
    if s.causal:
        blocks = flex.create_block_mask(not_later, None, None, s.q_len, s.kv_len)

    def sdpa(backend: str) -> Callable[[], Any]:
        def call() -> Any:
            with kinds.sdpa_kernel(getattr(kinds.SDPBackend, backend)):
                attend = torch.nn.functional.scaled_dot_product_attention
                return attend(q, k, v, is_causal=s.causal, enable_gqa=s.heads != s.kv_heads)

        return call

    return {
        "attngen": lambda: attngen.scaled_dot_product_attention(q, k, v, is_causal=s.causal, target="cuda"),
        "flash": sdpa("FLASH_ATTENTION"),
        "cuDNN": sdpa("CUDNN_ATTENTION"),
        "FlexAttention": lambda: compiled(q, k, v, block_mask=blocks, enable_gqa=s.heads != s.kv_heads),
    }


def not_later(b: Any, h: Any, i: Any, j: Any) -> Any:
    return i >= j


def in_float32(s: Shape, q: Any, k: Any, v: Any, torch: Any) -> Any:
    """The first and the last head of the first batch entry, step by step."""
    heads = [0, s.heads - 1]
    queries, keys, values = q[0, heads].float(), *(x[0, [0, s.kv_heads - 1]].float() for x in (k, v))
    scores = queries @ keys.transpose(-1, -2) / s.d**0.5
    if s.causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
    return torch.softmax(scores, -1) @ values


def measure(given: Calls, right: Any, rounds: int, torch: Any) -> tuple[dict[str, float], dict[str, str]]:
    """Milliseconds of a call, by implementation; and why others have none."""
    refused: dict[str, str] = {}
    for name, call in given.items():
        try:
            found = call()
            error = float((found[0, [0, -1]].float() - right).abs().max())
            if not error < 0.02:
                refused[name] = f"wrong by {error:.1e}"
        except Exception as e:  # whatever a library raises for what it cannot do
            refused[name] = (str(e).strip() or type(e).__name__).splitlines()[0]
    turns: dict[str, list[float]] = {name: [] for name in given if name not in refused}
    for _ in range(rounds):
        for name, found in turns.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(TURN):
                given[name]()
            end.record()
            end.synchronize()
            found.append(begin.elapsed_time(end) / TURN)
    return {name: median(found) for name, found in turns.items()}, refused


def main(rounds: int) -> None:
    if why := why_not():
        print(f"not measured: {why}")
        return
    torch: Any = import_module("torch")
    version: int = driver().made("cuDriverGetVersion", c_int)
    libraries = f"torch {torch.__version__}, attngen {attngen.__version__}"
    print(
        f"{date.today()}, {torch.cuda.get_device_name()}, driver of CUDA {version // 1000}.{version % 1000 // 10}, {libraries}"
    )
    print(f"{'shape':28}{'':15}{'ms':>9}{'TFLOP/s':>10}{'ms / attngen':>14}")
    for shape in SHAPES:
        given = tensors(shape, torch)
        times, refused = measure(calls(shape, *given, torch), in_float32(shape, *given, torch), rounds, torch)
        for name, ms in times.items():
            ratio = f"{ms / times['attngen']:14.2f}" if "attngen" in times else ""
            print(f"{shape!s:28}{name:15}{ms:9.3f}{shape.flops / ms / 1e9:10.1f}{ratio}")
        for name, reason in refused.items():
            print(f"{shape!s:28}{name:15} not measured: {reason}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)

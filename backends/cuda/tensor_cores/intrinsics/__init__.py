"""What generated kernels call: each intrinsic is one op on a tile, written with an LLVM builder and inline PTX.

Importing this imports Numba; `Call` in `calls.py` describes an intrinsic without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attngen.backends.cuda.tensor_cores.calls import Call
from attngen.backends.cuda.tensor_cores.intrinsics import elementwise, hopper, matrix, memory, reductions
from attngen.backends.cuda.tensor_cores.intrinsics.emitter import cuda, types

MAKERS: Mapping[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        elementwise.elementwise,
        elementwise.spread,
        elementwise.again,
        reductions.reduce,
        reductions.reduce_warp,
        reductions.step,
        matrix.left_fragments,
        matrix.product,
        matrix.masked_step,
        matrix.finite,
        memory.shared_base,
        memory.barrier,
        memory.commit,
        memory.wait,
        memory.copy_rows,
        memory.copy_element,
        memory.load_tile,
        memory.load_one,
        memory.store_tile,
        memory.coordinates,
        memory.inside,
        memory.look_up,
        hopper.barrier_init,
        hopper.barriers_visible,
        hopper.barrier_expect,
        hopper.barrier_arrive,
        hopper.barrier_wait,
        hopper.copy_box,
        hopper.registers,
        hopper.warpgroup_product,
        hopper.warpgroup_wait,
        hopper.finite_words,
    )
}


def namespace(calls: Iterable[Call]) -> dict[str, Any]:
    """What a kernel's text uses, by name."""
    scope: dict[str, Any] = {"cuda": cuda, "f32": types.float32, "i32": types.int32, "i64": types.int64, "i1": types.boolean}
    scope |= {"inf": float("inf"), "nan": float("nan"), "min": min, "max": max}
    for call in calls:
        scope[call.name] = MAKERS[call.maker](call.name, *call.given)
    return scope

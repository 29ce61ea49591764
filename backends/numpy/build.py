"""From NumPy source to something callable."""

from __future__ import annotations

import hashlib
import linecache
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attngen.backends import Emitted, one
from attngen.ir.core import Op, Value, walk
from attngen.ir.func import Func
from attngen.ir.loop import Load
from attngen.ir.nd import Expand


class Program:
    """Satisfies `attngen.backends.Executable`; NumPy decides about threads itself."""

    def __init__(self, emitted: Emitted) -> None:
        func, text = emitted.func, emitted.text["python"]
        start = time.perf_counter()
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        file = f"<attngen {func.name} {digest}>"
        # With the text in linecache, a traceback through the generated code shows its lines.
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        entry, namespace = emitted.payload
        scope: dict[str, Any] = dict(namespace)
        exec(compile(text, file, "exec"), scope)
        self.function = scope[entry]
        self.scratch_bytes, self.temporary_bytes = memory(func)
        self.seconds: Mapping[str, float] = {"Python": time.perf_counter() - start}

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], threads: Callable[[], int] = one) -> None:
        with np.errstate(all="ignore"):
            self.function(*inputs, *outputs)

    def direct(self, places: Sequence[int], dtypes: Sequence[Any]) -> Callable[..., Any] | None:
        return None

    def stages(self) -> Mapping[str, str]:
        return {}


def memory(func: Func) -> tuple[int, int]:
    """Bytes of all tiles that the variables inside loops hold, and of whole tensors besides the outputs; views are free."""

    def held(op: Op) -> int:
        tensors = [] if isinstance(op, Load | Expand) else [r for r in op.results if r.names and r not in outputs]
        return sum(tensor.tensor.size * tensor.element.numpy.itemsize for tensor in tensors)

    outputs: set[Value] = set(func.outputs)
    inside = [op for top in func.body.ops for region in top.regions for op in walk(region)]
    # A store names the tensor it writes to, and a loop's results are its carried values or the tensors its body was given.
    scratch = sum(held(op) for op in inside if not op.regions and op.name != "tile.store")
    return scratch, sum(held(op) for op in func.body.ops)

"""attngen: a compiler for attention. Write the steps as array code; passes derive one fused kernel for the shapes asked for.

Everything is loaded when it is first used: `import attngen` imports none of numpy, networkx, numba and llvmlite.
"""

from __future__ import annotations

from importlib import import_module
from time import time as _time
from typing import TYPE_CHECKING

LOADED_AT = _time()
"""When this process began to load attngen: source files changed later are not those in memory."""

if TYPE_CHECKING:
    from attngen import backends, ir, masks
    from attngen.compiler import compile
    from attngen.four_steps import attention
    from attngen.functions import (
        abs,
        contract,
        exp,
        exp2,
        floor,
        index,
        log,
        log2,
        logsumexp,
        maximum,
        minimum,
        reduce_max,
        reduce_sum,
        rename,
        round,
        rsqrt,
        scale,
        score,
        sigmoid,
        softmax,
        sqrt,
        tanh,
        weigh,
        where,
    )
    from attngen.ir.diagnostics import Error
    from attngen.kernel import Kernel
    from attngen.kvcache import attention_with_kvcache
    from attngen.merging import merge
    from attngen.programs import Program, program
    from attngen.sdpa import scaled_dot_product_attention
    from attngen.specs import Spec, upto
    from attngen.tensor import Tensor
    from attngen.thread_count import get_num_threads, set_num_threads, threads

    __version__: str

# No module may have the name of something public: importing it would put the module in its place.
_HOME = {
    "Error": "attngen.ir.diagnostics",
    "Kernel": "attngen.kernel",
    "Program": "attngen.programs",
    "Spec": "attngen.specs",
    "Tensor": "attngen.tensor",
    "abs": "attngen.functions",
    "attention": "attngen.four_steps",
    "attention_with_kvcache": "attngen.kvcache",
    "compile": "attngen.compiler",
    "contract": "attngen.functions",
    "exp": "attngen.functions",
    "exp2": "attngen.functions",
    "floor": "attngen.functions",
    "get_num_threads": "attngen.thread_count",
    "index": "attngen.functions",
    "log": "attngen.functions",
    "log2": "attngen.functions",
    "logsumexp": "attngen.functions",
    "maximum": "attngen.functions",
    "merge": "attngen.merging",
    "minimum": "attngen.functions",
    "program": "attngen.programs",
    "reduce_max": "attngen.functions",
    "reduce_sum": "attngen.functions",
    "rename": "attngen.functions",
    "round": "attngen.functions",
    "rsqrt": "attngen.functions",
    "scale": "attngen.functions",
    "scaled_dot_product_attention": "attngen.sdpa",
    "score": "attngen.functions",
    "set_num_threads": "attngen.thread_count",
    "sigmoid": "attngen.functions",
    "softmax": "attngen.functions",
    "sqrt": "attngen.functions",
    "tanh": "attngen.functions",
    "threads": "attngen.thread_count",
    "upto": "attngen.specs",
    "weigh": "attngen.functions",
    "where": "attngen.functions",
}

__all__ = [
    "Error",
    "Kernel",
    "Program",
    "Spec",
    "Tensor",
    "__version__",
    "abs",
    "attention",
    "attention_with_kvcache",
    "backends",
    "compile",
    "contract",
    "exp",
    "exp2",
    "floor",
    "get_num_threads",
    "index",
    "ir",
    "log",
    "log2",
    "logsumexp",
    "masks",
    "maximum",
    "merge",
    "minimum",
    "program",
    "reduce_max",
    "reduce_sum",
    "rename",
    "round",
    "rsqrt",
    "scale",
    "scaled_dot_product_attention",
    "score",
    "set_num_threads",
    "sigmoid",
    "softmax",
    "sqrt",
    "tanh",
    "threads",
    "upto",
    "weigh",
    "where",
]


def __getattr__(name: str) -> object:
    if name in ("ir", "backends", "masks"):
        return import_module(f"attngen.{name}")
    if name == "__version__":
        value: object = _version()
    elif name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module 'attngen' has no attribute {name!r}")
    globals()[name] = value
    return value


def _version() -> str:
    metadata = import_module("importlib.metadata")
    try:
        return metadata.version("attngen")
    except metadata.PackageNotFoundError:
        return "0+unknown"  # a checkout that is on the path but not installed


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

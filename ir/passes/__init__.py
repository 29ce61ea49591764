"""The passes that every backend shares, and their order. Importing this package registers them."""

from __future__ import annotations

from attngen.ir.passes.canonicalize import canonicalize
from attngen.ir.passes.decompose_attn import decompose_attn
from attngen.ir.passes.fold_scale import fold_scale
from attngen.ir.passes.fuse_cascaded_reductions import fuse_cascaded_reductions
from attngen.ir.passes.hoist_invariant_factors import hoist_invariant_factors
from attngen.ir.passes.specialize_mask import specialize_mask
from attngen.ir.passes.split_reduction import split_reduction
from attngen.ir.passes.tile import tile
from attngen.ir.pipeline import ALIASES

PIPELINE = (
    "decompose-attn,canonicalize,fold-scale,hoist-invariant-factors,canonicalize,"
    "tile,fuse-cascaded-reductions,specialize-mask,canonicalize"
)
"""From four steps to one loop. `tile` without options chooses its sizes."""

ALIASES["default"] = PIPELINE

__all__ = [
    "PIPELINE",
    "canonicalize",
    "decompose_attn",
    "fold_scale",
    "fuse_cascaded_reductions",
    "hoist_invariant_factors",
    "specialize_mask",
    "split_reduction",
    "tile",
]

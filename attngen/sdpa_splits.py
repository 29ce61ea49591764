"""In how many parts a kernel reads the keys, side by side: more than one where a few long rows would leave threads idle."""

from __future__ import annotations

import math

from attngen.ir.passes import PIPELINE
from attngen.ir.types import UpTo, bound
from attngen.lowering import parallelism
from attngen.sdpa_options import Options
from attngen.sdpa_runtime import Form
from attngen.sdpa_shapes import Shape

LEAST_KEYS = 1024
"""Fewer keys in a part are not worth a second nest of loops."""
ROOMY = 16
"""Parts of a kernel for many lengths: how much of its longest one is in use, only a call knows."""


def split_pipeline(shape: Shape, options: Options, form: Form, target: str) -> str | None:
    """The passes; None for the common ones alone."""
    parts = options.splits or automatic(shape, form, target)
    return None if parts <= 1 else f"{PIPELINE},split-reduction{{into={parts}}}"


def automatic(shape: Shape, form: Form, target: str) -> int:
    """As many parts as keep all that works at the same time busy, if they are long enough."""
    groups = shape.kv_heads or 1
    block, at_once = parallelism(target, max(bound(form.q_len), 1) * ((shape.heads or 1) // groups))
    pieces = math.prod((*shape.batch, groups, -(-bound(form.q_len) // block)))
    longest = bound(form.kv_len) // LEAST_KEYS
    if pieces == 0 or pieces >= at_once:
        return 1
    return min(ROOMY if isinstance(form.kv_len, UpTo) else -(-at_once // pieces), max(longest, 1))

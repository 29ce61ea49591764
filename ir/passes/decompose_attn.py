"""decompose-attn: the four steps become small general ops. The only pass that knows what attention is, through its ops."""

from __future__ import annotations

from attngen.ir.attn import AttnOp
from attngen.ir.core import Op, Value
from attngen.ir.func import Func
from attngen.ir.pipeline import register_pass
from attngen.ir.rewrite import rewrite


@register_pass("decompose-attn", leaves_no=("attn.",))
def decompose_attn(func: Func) -> Func:
    """Replace each step of attention by its definition in `nd` ops.

    before: %a = attn.softmax %s over [j]
    after:  %e = nd.exp (%s - max(%m, LOWEST));  %a = %e / max(%l, TINY)
            with %m = nd.reduce %s kind max,  %l = nd.reduce %e kind sum

    LOWEST and TINY make an empty row come out as 0, so that no later pass needs a special case for it.
    """

    def rule(op: Op) -> Value | None:
        return op.decompose() if isinstance(op, AttnOp) else None

    return rewrite(func, rule)

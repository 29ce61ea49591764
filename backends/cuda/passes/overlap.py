"""overlap-products: a product that a loop does not carry is begun one trip ahead, while the trip before works on its own."""

from __future__ import annotations

import dataclasses

from attngen.backends.cuda.ops import Finite, Fragments, Mma, Stage
from attngen.backends.cuda.passes.grids import grids_of
from attngen.ir.core import Op, Value, walk
from attngen.ir.diagnostics import remark
from attngen.ir.func import Func
from attngen.ir.loop import For, trips
from attngen.ir.pipeline import register_pass
from attngen.ir.rewrite import rewrite


@register_pass("overlap-products")
def overlap_products(func: Func) -> Func:
    """Begin the first product of a trip during the trip before it, so that tensor cores work while the others compute
    exponentials. For warpgroups, whose products run by themselves until somebody waits.

    before: loop.for %j { %s = cuda.mma %q, %k over [d] … }
    after:  loop.for %j { %s = cuda.mma %q, %k over [d] … ahead true }

    Its left operand must not change in the loop, and nothing else may read the right one. (Shah et al. 2024, arXiv 2407.08608,
    overlaps within a warpgroup in the same way.)
    """
    found: set[Op] = set()
    for grid in grids_of(func):
        if grid.engine == "wgmma":
            for loop in (op for op in grid.body.ops if isinstance(op, For)):
                product = first_product(loop)
                if product is not None:
                    remark(f"the product over {', '.join(product.over)} runs one trip ahead", product.loc)
                    found.add(product)

    def rule(op: Op) -> Value | None:
        return dataclasses.replace(op, ahead=True).result if isinstance(op, Mma) and op in found else None

    return rewrite(func, rule) if found else func


def first_product(loop: For) -> Mma | None:
    """The product that can run ahead; nothing where the loop runs once."""
    if trips(loop.extent, loop.step) < 2:
        return None
    for op in loop.body.ops:
        if isinstance(op, Mma):
            plain = op.add is None and op.where is None and isinstance(op.lhs.op, Fragments) and op.lhs.op not in loop.body.ops
            here = isinstance(op.rhs.op, Stage) and op.rhs.op in loop.body.ops
            readers = [x for x in walk(loop.body) if isinstance(x, Mma | Finite) and op.rhs in x.operands]
            return op if plain and here and len(readers) == 1 else None
    return None

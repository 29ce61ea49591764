"""The opcode `cp`: the words after it say which of the asynchronous copies is meant."""

from __future__ import annotations

from attngen.backends.cuda.ptx import bulk, copies
from attngen.backends.cuda.ptx.decode import Decoder, Effect, instruction
from attngen.backends.cuda.ptx.mbarrier_ops import arrive_after_copies


@instruction("cp")
def cp(d: Decoder) -> Effect:
    """`cp.async…`; bulk copies are in `bulk`."""
    words = d.i.modifiers
    if words[:2] == ("async", "bulk"):
        if words[2:3] == ("prefetch",):
            d.modifiers.drop(*words)
            return lambda: None
        return {"commit_group": bulk.commit, "wait_group": bulk.wait}.get(words[2], bulk.copy)(d)
    if words[:2] == ("async", "commit_group"):
        return copies.commit(d)
    if words[:2] in (("async", "wait_group"), ("async", "wait_all")):
        return copies.wait(d)
    if words[:2] in (("async", "ca"), ("async", "cg")):
        return copies.start(d)
    if words[:3] == ("async", "mbarrier", "arrive"):
        return arrive_after_copies(d)
    raise d.modifiers.refused("the form")

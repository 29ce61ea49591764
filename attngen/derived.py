"""A function on its way to machine code: what the passes make of it, and the backend's text."""

from __future__ import annotations

import time
from functools import cached_property

from attngen.backends import Backend, Emitted
from attngen.ir.func import Func
from attngen.ir.pipeline import Pipeline, Result, VerifyEach, parse_pipeline, run_pipeline


class Derived:
    """Each step is made when it is first asked for: a kernel that was kept on disk needs none of them to be called.

    seconds: what the steps made so far took, by name.
    """

    def __init__(self, func: Func, steps: Pipeline, backend: Backend, variant: str, verify_each: VerifyEach) -> None:
        self.func, self.steps, self.backend, self.variant = func, steps, backend, variant
        self.verify_each: VerifyEach = verify_each
        self.seconds: dict[str, float] = {}

    @property
    def own_passes(self) -> set[str]:
        """The backend's passes."""
        return {step.name for step in parse_pipeline(self.backend.passes(self.variant)).steps}

    @cached_property
    def result(self) -> Result:
        """The final function, every stage, remarks."""
        start = time.perf_counter()
        made = run_pipeline(self.func, self.steps, verify_each=self.verify_each)
        self.seconds["passes"] = time.perf_counter() - start
        return made

    @cached_property
    def emitted(self) -> Emitted:
        func = self.result.func
        start = time.perf_counter()
        made = self.backend.emit(func, self.variant)
        self.seconds["emit"] = time.perf_counter() - start
        return made

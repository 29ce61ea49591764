"""The NumPy backend: a function as plain NumPy source, one line per op. The smallest backend, made to be copied.

Nothing is fast here; what it shows is the shape of a backend. `emit.py` turns a function into text, `build.py` makes the
text callable, and the object below gives the three steps their names.
"""

from __future__ import annotations

from collections.abc import Mapping

from attngen.backends import Emitted, Executable
from attngen.backends.numpy.build import Program
from attngen.backends.numpy.emit import Emitter
from attngen.ir.func import Func


class NumpyBackend:
    """Satisfies `attngen.backends.Backend`."""

    name = "numpy"

    def targets(self) -> Mapping[str, str]:
        return {"": "NumPy source, run by Python: slow, readable, every op and every element type"}

    def passes(self, target: str) -> str:
        return ""

    def emit(self, func: Func, target: str) -> Emitted:
        emitter = Emitter(func)
        text = emitter.text()
        return Emitted(func, target, {"python": text}, payload=(emitter.entry, emitter.namespace))

    def build(self, emitted: Emitted) -> Executable:
        return Program(emitted)


backend = NumpyBackend()

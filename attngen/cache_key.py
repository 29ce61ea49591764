"""What a kernel is kept under: a digest of everything that its code depends on, known before any code is made."""

from __future__ import annotations

import hashlib
import json

from attngen.backends import KeepsCode
from attngen.cache_file import SCHEMA
from attngen.cache_identity import identity
from attngen.cache_sources import NotKept, own_sources, package_sources
from attngen.derived import Derived
from attngen.ir.core import Op
from attngen.ir.func import Func
from attngen.ir.pipeline import PASSES


def kernel_key(derived: Derived) -> str:
    """The digest. With passes or ops from outside of attngen the passes run first, and the function that they made counts too.

    Raises NotKept where what the code depends on is not all known.
    """
    backend = derived.backend
    if not isinstance(backend, KeepsCode):
        raise NotKept(f"the backend {backend.name} keeps no code")
    parts = [
        f"attngen kernel {SCHEMA}",
        str(derived.func),
        f"{derived.steps}, checked: {derived.verify_each is not False}",
        json.dumps([backend.name, derived.variant, dict(backend.fingerprint(derived.variant))], sort_keys=True),
        own_sources(),
    ]
    if any(foreign(PASSES[step.name].function) for step in derived.steps.steps) or outside_ops(derived.func):
        final = derived.result.func
        parts += [str(final), *map(identity, outside_ops(derived.func, final))]
    if foreign(type(backend)):
        parts.append(package_sources(type(backend).__module__))
    made = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        made.update(len(data).to_bytes(8, "little") + data)
    return made.hexdigest()


def foreign(thing: object) -> bool:
    """Whether a function or class is from outside of attngen."""
    return not f"{getattr(thing, '__module__', '')}.".startswith("attngen.")


def outside_ops(*funcs: Func) -> list[type[Op]]:
    """The classes of ops from outside, in order of their names."""
    found = {type(op) for func in funcs for op in func.walk() if foreign(type(op))}
    return sorted(found, key=lambda cls: cls.name)

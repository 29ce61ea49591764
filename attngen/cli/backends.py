"""Backends for the command line: those that can be loaded, and why the others cannot."""

from __future__ import annotations

from attngen.backends import Backend, backend_names, get_backend


def loaded_backends() -> dict[str, Backend | ImportError]:
    """Every backend by name; loading one also registers its passes and ops."""
    found: dict[str, Backend | ImportError] = {}
    for name in backend_names():
        try:
            found[name] = get_backend(name)
        except ImportError as e:
            found[name] = e
    return found

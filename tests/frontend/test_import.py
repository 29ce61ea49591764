"""`import attngen` loads nothing that is heavy, and offers exactly its public names."""

from __future__ import annotations

import subprocess
import sys

import pytest

import attngen
from attngen.ir.diagnostics import Error

HEAVY = ("numpy", "networkx", "numba", "llvmlite")


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_import_is_light() -> None:
    assert python(f"import sys, attngen; print([m for m in {HEAVY} if m in sys.modules])") == "[]\n"


def test_import_is_fast() -> None:
    code = "import time; t = time.perf_counter(); import attngen; print(time.perf_counter() - t)"
    assert min(float(python(code)) for _ in range(5)) < 0.1


def test_tracing_and_the_numpy_target_need_no_numba_and_no_networkx() -> None:
    code = (
        "import sys, attngen as ag; ag.compile(ag.attention, q=(1, 1, 2, 2), k=(1, 1, 3, 2), v=(1, 1, 3, 2), target='numpy');"
    )
    assert python(code + "print([m for m in ('networkx', 'numba', 'llvmlite') if m in sys.modules])") == "[]\n"


def test_public_names() -> None:
    assert attngen.__all__ == sorted(attngen.__all__)
    for name in attngen.__all__:
        assert getattr(attngen, name) is not None
    assert set(attngen.__all__) <= set(dir(attngen))
    assert attngen.Error is Error and attngen.ir.__name__ == "attngen.ir"
    assert attngen.backends.__name__ == "attngen.backends"


def test_modules_do_not_hide_public_names() -> None:
    for name in attngen.__all__:
        value = getattr(attngen, name)
        assert name in ("ir", "backends", "masks") or type(value).__name__ != "module"


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="module 'attngen' has no attribute 'nothing'"):
        getattr(attngen, "nothing")  # noqa: B009  (a type checker would know)

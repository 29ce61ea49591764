"""A copy of the product's sources, and processes that use it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hygiene.tree import ROOT

CALL = """
import json, sys, time, warnings
import numpy as np
x = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
start = time.process_time()
import llvmlite.binding
library = time.process_time() - start
import attngen

@attngen.program(x="i j", out="i j")
def shares(x):
    return attngen.softmax(x, over="j")

def first(x, **options):
    kernel = attngen.compile(shares, x=x.shape, **options)
    return kernel, kernel(x)

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    kernel, y = first(x)
    seconds, origin, steps = time.process_time() - start, kernel.origin, dict(kernel.seconds)
    loaded = sorted({"numba", "networkx", "llvmlite"} & set(sys.modules))
    start = time.process_time()
    kernel, again = first(x)
    further = time.process_time() - start
assert np.array_equal(again, y)
right = bool(np.allclose(y, np.exp(x) / np.exp(x).sum(1, keepdims=True), atol=1e-6))
"""
"""A first call and a second one, which compiles again or finds the kernel of the first."""

TELL = """
print(json.dumps({
    "right": right, "origin": origin, "warnings": [str(w.message) for w in caught],
    "seconds": seconds, "steps": steps, "further": further, "loaded": loaded, "library": library,
}))
"""


@dataclass(frozen=True)
class Product:
    root: Path

    @staticmethod
    def copy(root: Path) -> Product:
        for name in ("attngen", "ir", "backends"):
            shutil.copytree(ROOT / name, root / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        return Product(root)

    def python(self, code: str, folder: Path | None, *args: str, **variables: str) -> str:
        """The output of a process that runs the code with this cache (None: the default one); it has to succeed."""
        env = {key: value for key, value in os.environ.items() if not key.startswith(("ATTNGEN_", "NUMBA_", "PYTHON"))}
        env |= {"PYTHONPATH": str(self.root), **({"ATTNGEN_CACHE_DIR": str(folder)} if folder else {}), **variables}
        command = [sys.executable, "-c", code, *args]
        done = subprocess.run(command, cwd=self.root, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def call(self, folder: Path | None, before: str = "", **variables: str) -> dict[str, Any]:
        """What `CALL` tells, in a process of its own. before: code that it runs first."""
        return json.loads(self.python(before + CALL + TELL, folder, **variables))

"""Exported libraries called from Python, in a process that has no attngen: strides, threads, checks, runtime extents."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attngen as ag
from attngen.ir.passes import PIPELINE
from tests.export.kernels import EXAMPLES
from tests.export.tools import needs, run

pytestmark = needs("cc")


def export(kernel: ag.Kernel, folder: Path, name: str = "kernel") -> None:
    kernel.export(folder / f"lib{name}.so")
    kernel.export(folder / f"{name}.py")


def alone(folder: Path, code: str) -> str:
    """What a fresh process prints that finds only the exported files and NumPy."""
    last = "assert not {m.partition('.')[0] for m in sys.modules} & {'attngen', 'numba', 'llvmlite'}"
    return run([sys.executable, "-c", f"import sys, numpy as np, kernel\n{code}\n{last}"], folder)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_process_without_attngen(name: str, tmp_path: Path) -> None:
    """Equal to the right result from arrays with any strides; the same bits for any number of threads."""
    example = EXAMPLES[name]
    export(example.kernel(), tmp_path)
    given = example.arrays()
    np.savez(tmp_path / "given.npz", *given.values())
    code = f"""
kernel.selftest()
given = list(np.load("given.npz").values())
found = kernel.{name}(*given)
found = found if isinstance(found, tuple) else (found,)
np.savez("found.npz", *found)
strided = [np.repeat(x, 2, axis=-1)[..., ::2] for x in given]
strided[0] = np.ascontiguousarray(strided[0][..., ::-1])[..., ::-1]
out = [np.empty(x.shape[::-1], x.dtype).T for x in found]
kernel.{name}(*strided, *out, threads=5)
assert all(np.array_equal(a, b) for a, b in zip(out, found))
"""
    alone(tmp_path, code)
    example.check(tuple(np.load(tmp_path / "found.npz").values()), given)


CALLS = {
    "NULL pointer": ("a.q = None", "a pointer is NULL"),
    "size": ("a.size -= 8", "is not that of this version of the struct"),
    "extent": ("a.k_extents[2] += 1", "an extent is not one that the kernel was compiled for"),
    "negative extent": ("a.out_extents[2] = -45", "an extent is not one that the kernel was compiled for"),
    "threads": ("a.threads = 0", "`threads` must be at least 1"),
    "workspace": ("a.workspace, a.workspace_bytes = a.q, 64", "less than attention_workspace_bytes(threads)"),
    "stride": ("a.out_strides[3] = 0", "an output has stride 0"),
}


def test_what_a_call_checks(tmp_path: Path) -> None:
    """Each mistake has a code of its own and leaves the output alone; then the same struct works."""
    export(EXAMPLES["attention"].kernel(), tmp_path)
    code = f"""
import copy, ctypes
lib = kernel.lib
lib.attention_workspace_bytes.restype = ctypes.c_size_t
def new():
    a = kernel.Arguments()
    lib.attention_init(ctypes.byref(a))
    for name, array in arrays.items():
        setattr(a, name, array.ctypes.data)
    return a
a = kernel.Arguments()
lib.attention_init(ctypes.byref(a))
arrays = {{n: np.ones(list(getattr(a, n + "_extents")), "f4") for n in ("q", "k", "v")}}
arrays["out"] = np.full((1, 2, 45, 36), 7, "f4")
seen = set()
assert lib.attention(None) == 1
for name, (change, message) in {CALLS!r}.items():
    a = new()
    exec(change)
    code = lib.attention(ctypes.byref(a))
    assert message in lib.attention_message(code).decode(), (name, code)
    assert np.all(arrays["out"] == 7)
    seen.add(code)
assert len(seen) == 6
a = new()
a.threads = 3
memory = np.empty(lib.attention_workspace_bytes(3) + 1, "u1")
memory[:] = 255
a.workspace, a.workspace_bytes = memory.ctypes.data + 1, memory.size - 1
assert lib.attention(ctypes.byref(a)) == 0
assert np.allclose(arrays["out"], 1)
assert lib.attention_message(-1) == lib.attention_message(99) == b"unknown code"
"""
    alone(tmp_path, code)


def test_runtime_extents(tmp_path: Path) -> None:
    shapes: dict[str, Any] = {"q": (2, ag.upto(40), 16), "k": (2, ag.upto(90), 16), "v": (2, ag.upto(90), 16)}

    @ag.program(q="h i d", k="h j d", v="h j e", out="h i e")
    def heads(q: ag.Tensor, k: ag.Tensor, v: ag.Tensor) -> ag.Tensor:
        return ag.contract(ag.softmax(ag.contract(q, k, over="d") / 4, over="j"), v, over="j")

    kernel = ag.compile(heads, **shapes)
    export(kernel, tmp_path)
    rng = np.random.default_rng(0)
    lengths = [(40, 90), (1, 1), (7, 33), (33, 64), (39, 89)]
    cases = [[rng.standard_normal((2, n, 16)).astype(np.float32) for n in (i, j, j)] for i, j in lengths]
    np.savez(tmp_path / "cases.npz", *[x for case in cases for x in case], *[kernel(*case) for case in cases])
    code = """
kernel.selftest()
x = list(np.load("cases.npz").values())
for n in range(5):
    assert np.array_equal(kernel.heads(*x[3 * n : 3 * n + 3], threads=2), x[15 + n])
for bad in ((41, 90, 90), (40, 91, 91), (40, 90, 89), (0, 3, 3), (3, 0, 0)):
    try:
        kernel.heads(*(np.zeros((2, n, 16), "f4") for n in bad))
    except RuntimeError as error:
        assert "an extent is not one" in str(error)
    else:
        raise AssertionError(bad)
"""
    alone(tmp_path, code)


def test_nests_that_hand_on_whole_tensors(tmp_path: Path) -> None:
    """Parts of the keys side by side, merged by a second nest: memory of the whole call, and an order among nests."""
    rng = np.random.default_rng(0)
    shapes = {"q": (1, 2, 45, 20), "k": (1, 2, 400, 20), "v": (1, 2, 400, 36)}
    given: dict[str, Any] = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    kernel = ag.compile(ag.attention, **given, pipeline=f"{PIPELINE},split-reduction{{into=3}}")
    assert kernel.report().temporary_bytes
    export(kernel, tmp_path)
    np.savez(tmp_path / "given.npz", *given.values(), kernel(**given))
    code = """
kernel.selftest()
*x, want = np.load("given.npz").values()
for threads in (1, 3, 300):
    assert np.array_equal(kernel.attention(*x, threads=threads), want)
"""
    alone(tmp_path, code)
    np.testing.assert_array_equal(kernel.njit(*given.values()), kernel(**given))


def test_tables_are_inputs_and_their_coordinates_are_checked(tmp_path: Path) -> None:
    table = np.arange(32, dtype=np.float32)

    @ag.program(x="i", shift="", out="i")
    def moved(x: ag.Tensor, shift: ag.Tensor) -> ag.Tensor:
        return x + table[ag.index("i") + shift]

    kernel = ag.compile(moved, x=(31,), shift=np.asarray(0))
    export(kernel, tmp_path)
    code = """
kernel.selftest()
x, table = np.ones(31, "f4"), np.arange(32, dtype="f4")
assert np.array_equal(kernel.moved(x, np.asarray(1), table), x + table[1:])
try:
    kernel.moved(x, np.asarray(2), table)
except RuntimeError as error:
    assert "a coordinate lies outside" in str(error)
else:
    raise AssertionError
"""
    alone(tmp_path, code)


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16])
def test_half_precision(dtype: Any, tmp_path: Path) -> None:
    dtype = np.dtype(dtype)
    example = EXAMPLES["attention"]
    given: dict[str, Any] = {name: x.astype(dtype) for name, x in example.arrays().items()}
    kernel = ag.compile(ag.attention, **given)
    export(kernel, tmp_path)
    bits = np.float16 if dtype == np.float16 else np.uint16
    np.savez(tmp_path / "given.npz", *(x.view(bits) for x in given.values()), kernel(**given).view(bits))
    alone(
        tmp_path,
        'kernel.selftest()\n*x, want = np.load("given.npz").values()\nassert np.array_equal(kernel.attention(*x), want)',
    )


def test_what_the_module_refuses(tmp_path: Path) -> None:
    export(EXAMPLES["attention"].kernel(), tmp_path)
    code = """
q, k, v = (np.zeros(s, "f4") for s in ((1, 2, 45, 20), (1, 2, 77, 20), (1, 2, 77, 36)))
frozen = np.zeros((1, 2, 45, 36), "f4")
frozen.flags.writeable = False
odd = np.zeros((1, 2, 45, 81), "u1")[..., :80].view("f4")
for args, message in (
    ((q.astype("f8"), k, v), "q: expected an array of float32 with 4 dimensions"),
    ((q[0], k, v), "q: expected an array of float32 with 4 dimensions, got float32 with 3"),
    ((k[:, :, :45], k, v, v[:, :, 2:47]), "out: shares memory with another array"),
    ((q, k, v, frozen), "out: expected a writable array of float32"),
    ((odd, k, v), "q: strides must be whole elements"),
):
    try:
        kernel.attention(*args)
    except (TypeError, ValueError) as error:
        assert message in str(error), error
    else:
        raise AssertionError(message)
"""
    alone(tmp_path, code)


def test_what_a_library_says_of_itself(tmp_path: Path) -> None:
    kernel = EXAMPLES["causal_alibi"].kernel()
    export(kernel, tmp_path)
    told = json.loads(
        alone(tmp_path, "import ctypes; f = kernel.lib.causal_alibi_info; f.restype = ctypes.c_char_p; print(f().decode())")
    )
    assert told == json.loads(alone(tmp_path, "print(kernel.INFO)"))
    assert told["attngen"] == ag.__version__ and told["pipelines"] == {"cpu": kernel.pipeline}
    assert told["function"].startswith("func @causal_alibi(") and len(told["ir_sha256"]) == 64

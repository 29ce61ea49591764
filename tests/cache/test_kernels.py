"""Kernels that are kept on disk, as another process meets them: the right result, whatever has become of the file."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attngen
from attngen.functions import mask
from tests.cache.product import CALL, Product

FIRST, NEXT = 0.25, 0.005
"""Seconds of processor time in which a process has the result of its first kernel, and of a further one. NumPy is loaded."""


@pytest.fixture
def own(kept: Path, tmp_path: Path) -> Path:
    """A folder of this test with a kernel that another process kept."""
    return shutil.copytree(kept, tmp_path / "own")


def only(folder: Path) -> Path:
    (file,) = folder.iterdir()
    return file


def test_a_fresh_process_needs_no_compiler(product: Product, own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither Numba nor networkx is loaded, and little time goes by. The best of several, since others may be busy."""
    told = [product.call(own) for _ in range(4)]
    assert all(t["right"] and t["origin"] == "read from the cache" and t["loaded"] == ["llvmlite"] for t in told)
    best = min(told, key=lambda t: t["seconds"])
    further = min(t["further"] for t in told)
    steps = {"LLVM's library": best["library"], **best["steps"]}
    shown = ", ".join(f"{name} {1e3 * spent:.1f}" for name, spent in steps.items())
    with capsys.disabled():
        sys.stdout.write(f"\nfirst kernel of a process {1e3 * best['seconds']:.0f} ms, further ones {1e3 * further:.1f} ms; ")
        sys.stdout.write(f"of the first in ms: {shown}\n")
    assert best["seconds"] < FIRST
    assert further < NEXT


def damages(data: bytes) -> list[bytes]:
    """Bytes flipped all over a file, and other lengths."""
    places = [*range(0, len(data), len(data) // 12), len(data) - 1]
    flipped = [data[:n] + bytes([data[n] ^ 0x10]) + data[n + 1 :] for n in places]
    return [b"", data[:1], data[: len(data) // 2], data[:-1], bytes(len(data)), data + b"\0", *flipped]


DAMAGED = f"""{CALL}
from pathlib import Path
from attngen.cache import open_cache
folder, samples = Path(sys.argv[1]), sorted(Path(sys.argv[2]).iterdir())
(file,) = folder.iterdir()
assert "numba" not in sys.modules and len(samples) > 15
for sample in samples:
    file.write_bytes(sample.read_bytes())
    assert open_cache().find(file.stem) is None, sample
for sample in samples[:: len(samples) // 3]:
    file.write_bytes(sample.read_bytes())
    for origin in "compiled and kept", "read from the cache":
        kernel, y = first(x)
        assert kernel.origin == origin and np.array_equal(y, again), (sample, kernel.origin)
assert [*folder.iterdir()] == [file] and not caught
"""


def test_a_damaged_file_is_never_loaded_and_is_replaced(product: Product, own: Path, tmp_path: Path) -> None:
    samples = tmp_path / "samples"
    samples.mkdir()
    for n, data in enumerate(damages(only(own).read_bytes())):
        (samples / f"{n:02}").write_bytes(data)
    product.python(DAMAGED, own, str(own), str(samples))


ALIKE = """
import numpy as np, attngen
from attngen import index, where
import sys, re

table = np.arange(5, dtype=np.float32)

@attngen.program(x="i j", y="j e", place="j", out=("i e", "i"))
def looked_up(x, y, place):
    s = where(index("j") <= index("i"), x + table[place], -np.inf)
    return attngen.contract(attngen.softmax(s, over="j"), y, over="j"), attngen.reduce_sum(s, over="j")

def compiled():
    n = attngen.upto(64)
    return attngen.compile(looked_up, x=(n, n), y=(n, 8), place=attngen.Spec((n,), "int64"))

def error(kernel):
    try:
        kernel(x, y, np.full(20, 7))
    except attngen.Error as e:
        return str(e)

x, y = np.random.default_rng(0).standard_normal((2, 20, 20)).astype(np.float32)
y, place = y[:, :8], np.arange(20) % 5
one, other = compiled(), compiled()
assert (one.origin, other.origin) == ("compiled and kept", "read from the cache")
assert all(np.array_equal(a, b) for a, b in zip(one(x, y, place), other(x, y, place), strict=True))
assert error(one) == error(other) and "lies outside 0 to 4" in error(other)
other = compiled()
assert "looked_up" in repr(other) and other.seconds.keys() == {"backend", "key", "reading", "loading"}
early = [name for name in one.stages if name not in ("llvm", "asm")]  # in which Numba counts what it has compiled
assert [other.stages[name] for name in early] == [one.stages[name] for name in early] and [*other.stages] == [*one.stages]
assert other.pipeline == one.pipeline and other.func == one.func
assert other.remarks == one.remarks
shown = [re.sub("made .*?(?=flops)", "", str(kernel.report()), flags=re.DOTALL) for kernel in (one, other)]
assert shown[0] == shown[1]
"""


def test_a_kernel_from_disk_is_like_the_one_that_was_kept(product: Product, tmp_path: Path) -> None:
    """Results, errors while it runs, stages, remarks and report; runtime extents, several nests of loops, tables."""
    product.python(ALIKE, tmp_path / "kernels")


SESSION = """
import code
session = code.InteractiveConsole()
for line in '''
import numpy as np, attngen
@attngen.program(x="i", out="i")
def twice(x):
    return x + x

kernel = attngen.compile(twice, x=(3,))
assert np.array_equal(kernel(np.ones(3, np.float32)), [2, 2, 2])
print(kernel.origin)
'''.splitlines():
    session.push(line)
"""


def test_code_that_was_typed_is_kept_and_files_do_not_grow(product: Product, tmp_path: Path) -> None:
    """From the prompt and from `-c`: the second process finds what the first one kept, and keeps nothing more."""
    origins = [product.python(SESSION, tmp_path / "kernels").strip() for _ in range(3)]
    assert origins == ["compiled and kept", "read from the cache", "read from the cache"]
    assert len(list((tmp_path / "kernels").iterdir())) == 1


def test_an_edited_pass_is_seen(product: Product, own: Path, tmp_path: Path) -> None:
    """Two processes before and after an edit of a helper that a pass imports."""
    changed = Product(shutil.copytree(product.root, tmp_path / "changed", symlinks=True))
    helper = changed.root / "ir" / "rewrite.py"
    helper.write_text(helper.read_text() + "\n# another line\n")
    assert product.call(own)["origin"] == "read from the cache"
    assert changed.call(own)["origin"] == "compiled and kept"


@attngen.program(q="b h i d", k="b h j d", v="b h j e", out="b h i e")
def masked(q: attngen.Tensor, k: attngen.Tensor, v: attngen.Tensor) -> attngen.Tensor:
    s = mask(attngen.score(q, k, over="d"), attngen.index("j") <= attngen.index("i"))
    return attngen.weigh(attngen.softmax(s, over="j"), v, over="j")


def test_the_order_of_a_types_axes_has_no_meaning_for_calls() -> None:
    """Passes may change it, but code that is kept, or called from elsewhere, knows only the function before the passes."""
    q, k, v = np.random.default_rng(3).standard_normal((3, 2, 3, 5, 4), np.float32)
    kernel = attngen.compile(masked, q=q, k=k, v=v)
    built = kernel._built  # pyright: ignore[reportPrivateUsage]
    assert built is not None
    derived = built.derived
    assert derived.func.outputs[0].names != derived.result.func.outputs[0].names
    backend: Any = derived.backend
    restored = backend.restore(derived.func, "", backend.save(built.executable), lambda: derived.emitted)
    out = np.full_like(q, np.nan)
    restored([q, k, v], [out])
    np.testing.assert_array_equal(out, kernel(q, k, v))
    np.testing.assert_array_equal(kernel.njit(q, k, v), out)

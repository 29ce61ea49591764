"""Several threads in one call, several calls at once, and processes that fork."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

import attngen
from attngen.backends import get_backend
from attngen.backends.cpu.pool import Pool
from attngen.thread_count import VARIABLE

SHAPES: dict[str, Any] = {"q": (2, 3, 200, 16), "k": (2, 3, 300, 16), "v": (2, 3, 300, 16)}


def arrays(seed: int = 0, **shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float32) for shape in (shapes or SHAPES).values()]


@attngen.program(q="b h i d", k="b h j d", v="b h j e", out=("b h i e", "b h i j"))
def two_results(q: Any, k: Any, v: Any) -> Any:
    """The weights are stored for the second nest to read."""
    weights = attngen.softmax(attngen.contract(q, k, over="d"), over="j")
    return attngen.contract(weights, v, over="j"), weights * 2.0


def results(kernel: Any, given: list[np.ndarray], threads: int) -> tuple[np.ndarray, ...]:
    found = kernel(*given, num_threads=threads)
    return found if isinstance(found, tuple) else (found,)


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> Any:
    for variable in (VARIABLE, "OMP_NUM_THREADS"):
        monkeypatch.delenv(variable, raising=False)
    yield
    attngen.set_num_threads(None)


@pytest.mark.parametrize("program", [attngen.attention, two_results])
def test_the_same_bits_with_any_number_of_threads(program: Any) -> None:
    kernel = attngen.compile(program, **SHAPES)
    given = arrays()
    want = results(kernel, given, 1)
    for threads in (2, 5):
        for _ in range(5):
            for got, expected in zip(results(kernel, given, threads), want, strict=True):
                np.testing.assert_array_equal(got, expected)


def test_runtime_extents_and_causal_masks() -> None:
    upto = attngen.upto
    kernel = attngen.compile(
        attngen.attention, q=(1, 3, upto(400), 16), k=(1, 3, upto(500), 16), v=(1, 3, upto(500), 16), pipeline=None
    )
    for i, j in ((400, 500), (65, 500), (333, 129), (1, 1)):
        given = arrays(i, q=(1, 3, i, 16), k=(1, 3, j, 16), v=(1, 3, j, 16))
        exact = attngen.scaled_dot_product_attention(*given, target="numpy")
        for threads in (1, 4):
            np.testing.assert_allclose(kernel(*given, num_threads=threads), exact, rtol=2e-5, atol=2e-6)
    given = arrays(3, q=(1, 2, 256, 16), k=(1, 2, 256, 16), v=(1, 2, 256, 16))
    one, three = (attngen.scaled_dot_product_attention(*given, is_causal=True, num_threads=n) for n in (1, 3))
    np.testing.assert_array_equal(one, three)


def test_nests_run_one_after_another() -> None:
    source = attngen.compile(two_results, **SHAPES).stages["python"]
    assert source.count("for part in range(first, last):") == source.count("if nest == ") > 1


def test_callers_at_once() -> None:
    kernel = attngen.compile(attngen.attention, **SHAPES)
    given = [arrays(n) for n in range(8)]
    want = [kernel(*x, num_threads=1) for x in given]
    wrong: list[int] = []
    barrier = threading.Barrier(8)

    def caller(n: int) -> None:
        barrier.wait(10)
        for _ in range(20):
            if not np.array_equal(kernel(*given[n], num_threads=3), want[n]):
                wrong.append(n)

    threads = [threading.Thread(target=caller, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and not any(thread.is_alive() for thread in threads)


FORK = """
import os, signal, sys, threading
import numpy as np
import attngen

x = np.random.default_rng(0).standard_normal((2, 3, 200, 16)).astype(np.float32)
kernel = attngen.compile(attngen.attention, q=x.shape, k=x.shape, v=x.shape)
want = kernel(x, x, x, num_threads=4)
busy = threading.Thread(target=lambda: [kernel(x, x, x, num_threads=4) for _ in range(200)])
busy.start()
for _ in range(5):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(0 if all(np.array_equal(kernel(x, x, x, num_threads=4), want) for _ in range(3)) else 1)
    assert os.waitpid(child, 0)[1] == 0
busy.join()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="processes do not fork here")
def test_a_forked_child_computes_and_ends() -> None:
    subprocess.run([sys.executable, "-c", FORK], check=True, timeout=60)


def test_the_interpreter_ends_while_threads_wait() -> None:
    code = FORK.partition("busy =")[0] + "import atexit; atexit.register(lambda: kernel(x, x, x, num_threads=4))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_pool_runs_every_part_once_and_inside_of_itself_inline() -> None:
    pool = Pool()
    ran: list[int] = []
    inner: list[tuple[int, int]] = []

    def run(first: int, last: int) -> None:
        time.sleep(0.001)
        ran.extend(range(first, last))
        if threading.current_thread().name.startswith("attngen"):
            pool.run(lambda a, b: inner.append((a, b)), 100, 1, 4)

    pool.run(run, 64, 1, 4)
    assert sorted(ran) == [*range(64)]
    assert inner and set(inner) == {(0, 100)}
    assert len(pool.threads) == 3
    shares: list[tuple[int, int]] = []
    pool.run(lambda a, b: shares.append((a, b)), 64, 10, 2)
    assert all(b - a >= 10 or a == 0 for a, b in shares) and sum(b - a for a, b in shares) == 64


def test_an_error_in_any_thread_reaches_the_caller() -> None:
    pool = Pool()

    def run(first: int, last: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise ValueError("of a helper")
        time.sleep(0.01)

    with pytest.raises(ValueError, match="of a helper"):
        for _ in range(100):
            pool.run(run, 8, 1, 2)
    done: list[tuple[int, int]] = []
    pool.run(lambda a, b: done.append((a, b)), 8, 1, 2)
    assert sum(b - a for a, b in done) == 8


def test_little_work_starts_no_thread() -> None:
    asked: list[int] = []

    def threads() -> int:
        asked.append(1)
        return 4

    for extent, times in ((4, 0), (200, 1)):
        shape = (1, 2, extent, 16)
        kernel = attngen.compile(attngen.attention, q=shape, k=shape, v=shape)
        x = arrays(q=shape)[0]
        built = get_backend("cpu").build(get_backend("cpu").emit(kernel.func, ""))
        built([x, x, x], [np.empty_like(x)], threads)
        assert len(asked) == times


def test_who_decides_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(12), raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert attngen.get_num_threads() == 12
    monkeypatch.setenv("OMP_NUM_THREADS", "9,2")
    assert attngen.get_num_threads() == 9
    monkeypatch.setitem(sys.modules, "torch", type("Torch", (), {"get_num_threads": staticmethod(lambda: 8)}))
    assert attngen.get_num_threads() == 8
    monkeypatch.setenv(VARIABLE, "11")
    assert attngen.get_num_threads() == 11
    attngen.set_num_threads(7)
    assert attngen.get_num_threads() == 7
    with attngen.threads(6):
        with attngen.threads(5):
            assert attngen.get_num_threads() == 5
        seen: list[int] = []
        other = threading.Thread(target=lambda: seen.append(attngen.get_num_threads()))
        other.start()
        other.join()
        assert attngen.get_num_threads() == 6 and seen == [7]
    assert attngen.get_num_threads() == 7
    attngen.set_num_threads(None)
    assert attngen.get_num_threads() == 11


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "2", True])
def test_errors(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = arrays(q=(1, 1, 4, 4))[0]
    kernel = attngen.compile(attngen.attention, q=x.shape, k=x.shape, v=x.shape)
    calls: list[tuple[str, Any]] = [
        ("n", lambda: attngen.set_num_threads(wrong)),
        ("n", lambda: attngen.threads(wrong)),
        ("num_threads", lambda: kernel(x, x, x, num_threads=wrong)),
        ("num_threads", lambda: attngen.scaled_dot_product_attention(x, x, x, num_threads=wrong)),
    ]
    for name, call in calls:
        with pytest.raises(attngen.Error) as e:
            call()
        assert str(e.value) == f"{name}: expected a whole number of at least 1 or None, got {wrong!r}"
    if wrong != "2":
        monkeypatch.setenv(VARIABLE, str(wrong))
        with pytest.raises(attngen.Error, match=f"{VARIABLE}: expected a whole number of at least 1, got '{wrong}'"):
            attngen.get_num_threads()


def test_no_input_can_be_named_like_the_argument() -> None:
    with pytest.raises(attngen.Error, match="a parameter cannot be named num_threads"):
        attngen.program(num_threads="i")(lambda num_threads: num_threads)

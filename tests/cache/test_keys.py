"""What a kernel is kept under: everything that its code depends on, and nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import attngen
from attngen import cache_sources, lowering
from attngen.backends.cpu import kept
from attngen.cache_identity import identity
from attngen.cache_key import kernel_key
from attngen.cache_sources import NotKept, check_unchanged, digest, own_roots
from attngen.derived import Derived
from attngen.ir.core import Op, Value
from attngen.ir.elementwise import Add, Unary
from attngen.ir.func import Func
from attngen.ir.passes import PIPELINE
from attngen.ir.pipeline import PASSES, Pipeline, parse_pipeline, register_pass
from attngen.ir.rewrite import rewrite
from attngen.programs import Program
from attngen.specs import input_types, read_input
from tests.cache.product import Product


def shares(x: Any) -> Any:
    return attngen.softmax(x, over="j")


def derived(
    program: Callable[..., Any] = shares,
    shape: tuple[int, ...] = (3, 4),
    *,
    layout: str = "i j",
    dtype: str = "float32",
    target: str = "cpu",
    pipeline: str = PIPELINE,
    verify_each: bool = True,
) -> Derived:
    made: Program = attngen.program(x=layout, out="i j")(program)
    func = made.trace(input_types(made.layouts, {"x": read_input(shape, dtype, "x")}))
    backend, variant = lowering.find_target(target)
    steps = (*parse_pipeline(pipeline).steps, *parse_pipeline(backend.passes(variant)).steps)
    return Derived(func, Pipeline(steps), backend, variant, verify_each)


@pytest.fixture(autouse=True)
def sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys here are of sources that nobody changes meanwhile."""
    monkeypatch.setattr("attngen.cache_key.own_sources", lambda: "sources")


def test_the_same_again_has_the_same_key_without_running_a_pass() -> None:
    first, second = derived(), derived()
    assert kernel_key(first) == kernel_key(second)
    assert set(first.seconds) == set()


def scaled(factor: float) -> Callable[..., Any]:
    return lambda x: attngen.softmax(x * factor, over="j")


def test_whatever_may_change_the_code_changes_the_key() -> None:
    """Shape, layout, element type, captured numbers (of equal source text), passes, options, checks and target."""
    ways = [
        derived(),
        derived(shape=(3, 5)),
        derived(shape=(4, 3), layout="j i"),
        derived(dtype="float64"),
        derived(scaled(2.0)),
        derived(scaled(3.0)),
        derived(pipeline=PIPELINE.replace("tile", "tile{i=1 j=4}", 1)),
        derived(pipeline=PIPELINE.replace("canonicalize,", "", 1)),
        derived(verify_each=False),
        derived(target="cpu:x86-64-v3"),
        derived(target="cpu:,vector_bits=128"),
    ]
    assert len({kernel_key(way) for way in ways}) == len(ways)


@pytest.mark.parametrize("known", ["processor", "features", "triple", "python", "llvmlite", "LLVM", "numba"])
def test_another_machine_or_compiler_has_other_keys(known: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that is copied to another machine holds nothing for it: no code runs on a processor it was not made for."""
    before, host = kernel_key(derived()), dict(kept.host())
    monkeypatch.setattr(kept, "host", lambda: {**host, known: "another"})
    assert kernel_key(derived()) != before


def test_settings_of_the_compiler_change_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = kernel_key(derived())
    monkeypatch.setenv("NUMBA_OPT", "0")
    assert kernel_key(derived()) != before


def test_any_edit_of_any_source_file_changes_the_key(product: Product) -> None:
    """An imported helper counts as much as the pass itself; so do a new file and a new name."""
    roots = tuple(str(product.root / name) for name in ("attngen", "ir", "backends"))
    seen = [digest(roots)]
    files = sorted(path for name in ("ir/passes", "backends/cpu") for path in (product.root / name).rglob("*.py"))
    assert len(files) > 30
    for path in files:
        text = path.read_bytes()
        path.write_bytes(text.replace(b"\n", b"\n\n", 1))
        seen.append(digest(roots))
        path.write_bytes(text)
    new = files[0].with_name("new.py")
    new.write_text("")
    seen.append(digest(roots))
    new.rename(files[0].with_name("other.py"))
    seen.append(digest(roots))
    files[0].with_name("other.py").unlink()
    assert len(set(seen)) == len(seen)
    assert digest(roots) == seen[0]


def test_every_module_of_the_product_counts() -> None:
    """The digest reads what a process imports, wherever the folders lie."""
    read = cache_sources.source_files(own_roots())
    for name in ("attngen.kernel", "attngen.ir.passes.tile", "attngen.backends.cpu.source", "attngen.backends.numpy.emit"):
        assert str(__import__(name, fromlist=["__file__"]).__file__) in read


def test_sources_that_changed_while_a_process_runs_keep_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in memory may be the old text or the new one."""
    check = check_unchanged
    monkeypatch.setattr(attngen, "LOADED_AT", 0.0)
    with pytest.raises(NotKept, match="was changed after this process had loaded attngen"):
        check()


def test_a_backend_that_saves_nothing_has_no_keys() -> None:
    with pytest.raises(NotKept, match="the backend numpy keeps no code"):
        kernel_key(derived(target="numpy"))


# ---- passes and ops from outside


@pytest.fixture
def dropping(request: pytest.FixtureRequest) -> Any:
    """A pipeline with a pass that drops the right side of a sum, if a captured number says so."""
    name = "test-drop"

    def register(number: int) -> str:
        def drop(func: Func) -> Func:
            def rule(op: Op) -> Value | None:
                return op.lhs if number and isinstance(op, Add) else None

            return rewrite(func, rule)

        PASSES.pop(name, None)
        register_pass(name)(drop)
        return f"{name},{PIPELINE}"

    request.addfinalizer(lambda: PASSES.pop(name, None))
    return register


def test_what_a_pass_from_outside_made_counts(dropping: Any) -> None:
    """Not its text: what it has captured, or read from anywhere, shows in the function that it made."""

    def program(x: Any) -> Any:
        return attngen.softmax(x + x, over="j")

    first, same, other = (kernel_key(derived(program, pipeline=dropping(number))) for number in (0, 0, 1))
    assert first == same != other
    assert kernel_key(derived(program)) not in (first, other)


def double(power: Any) -> type[Unary]:
    class Double(Unary):
        """An op that has captured a value."""

        numpy = staticmethod(lambda x: x * power)

    return Double


def test_an_op_from_outside_is_its_code_and_what_it_has_captured() -> None:
    values = (2, 3, 2.0, "2", (2,), np.float32(2), np.arange(2), np.arange(2.0), {"a": 2}, {2}, len, np.exp, max)
    texts = [identity(double(x)) for x in values]
    assert len(set(texts)) == len(values)
    assert texts == [identity(double(x)) for x in values]


def test_an_op_that_has_captured_who_knows_what_is_not_kept() -> None:
    for unknown in (iter([1]), (x for x in ()), np.array([object()])):
        with pytest.raises(NotKept, match="cannot be told from another"):
            identity(double(unknown))


def test_code_counts_not_where_it_stands() -> None:
    """The same text in another place of a file is the same; another operation is not."""

    def made(text: str) -> type[Unary]:
        scope: dict[str, Any] = {"Unary": Unary, "__name__": "outside"}
        exec(text, scope)
        return scope["Op1"]

    text = "class Op1(Unary):\n    numpy = staticmethod(lambda x: x * 2)\n"
    assert identity(made(text)) == identity(made(f"\n\n\n{text}"))
    assert identity(made(text)) != identity(made(text.replace("*", "+")))
    assert identity(made(text)) != identity(made(text.replace("2", "3")))


def test_identity_of_recursive_things_ends() -> None:
    @dataclasses.dataclass
    class Node:
        next: Any = None

    one = Node()
    one.next = one
    assert identity(one) == identity(one)

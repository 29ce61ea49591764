"""`attngen.compile`: inputs, targets, pipelines, and what a kernel tells about itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import attngen as ag
from attngen.backends import backend_names
from attngen.ir.pipeline import parse_pipeline
from attngen.kernel import Kernel
from attngen.lowering import find_target, with_own_passes

KNOWN = "float64, float32, float16, bfloat16, int64, int32, int8, bool"
SHAPES: dict[str, Any] = {"q": (1, 2, 37, 8), "k": (1, 2, 53, 8), "v": (1, 2, 53, 5)}


def reference(q: Any, k: Any, v: Any) -> Any:
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    p = np.exp(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]))
    return p / p.sum(-1, keepdims=True) @ v


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return ag.compile(ag.attention, target="numpy", pipeline=None, verify_each="run", **SHAPES)


def test_result(normal: Any, target: str) -> None:
    kernel = ag.compile(ag.attention, target=target, **SHAPES)
    arrays = {name: normal(*shape) for name, shape in SHAPES.items()}
    out = kernel(arrays["q"], v=arrays["v"], k=arrays["k"])
    assert out.shape == (1, 2, 37, 5) and out.dtype == np.float32
    np.testing.assert_allclose(out, reference(**arrays), rtol=1e-5, atol=1e-6)


def test_out_of_any_strides(normal: Any, target: str) -> None:
    kernel = ag.compile(ag.attention, dtype="float64", target=target, **SHAPES)
    arrays = {name: normal(*shape, dtype="float64") for name, shape in SHAPES.items()}
    buffer = np.full((5, 37, 4, 1), np.nan)
    out = buffer.transpose(3, 2, 1, 0)[:, ::-2]
    strided = [np.repeat(x, 3, axis=-1)[..., ::-1, 1::3] for x in arrays.values()]
    assert kernel(*(x[..., ::-1, :] for x in strided), out=out) is out
    np.testing.assert_allclose(out, reference(**arrays), rtol=1e-12, atol=1e-14)
    assert np.isnan(buffer.transpose(3, 2, 1, 0)[:, ::2]).all()


def test_several_outputs(normal: Any) -> None:
    @ag.program(x="i j", out=("i", "i j"))
    def both(x: Any) -> Any:
        return ag.reduce_max(x, over="j"), x * 2

    x = normal(5, 7)
    kernel = ag.compile(both, x=x, target="numpy")
    most, double = kernel(x)
    np.testing.assert_array_equal(most, x.max(1))
    np.testing.assert_array_equal(double, x * 2)
    out = np.empty((5, 7), np.float32)
    most, double = kernel(x, out=(None, out))
    assert double is out
    for wrong, message in ((out, "out: the program returns a tuple"), ((out,), "out: expected 2 arrays, got 1")):
        with pytest.raises(ag.Error, match=message):
            kernel(x, out=wrong)
    with pytest.raises(ag.Error, match=r"out\[1\]: shares memory with out\[0\]"):
        kernel(x, out=(out[:, 0], out))


def test_stages(kernel: Kernel) -> None:
    names = list(kernel.stages)
    assert names[:3] == ["input", "decompose-attn", "canonicalize"]
    assert "tile" in names and "canonicalize#2" in names and names[-1] == "python"
    assert kernel.stages["input"].count("attn.") == 4
    assert "attn." not in kernel.stages["decompose-attn"]
    assert "def attention(" in kernel.stages["python"]
    assert len(kernel.stages) == len(names)
    with pytest.raises(KeyError, match="the stages are input, decompose-attn"):
        kernel.stages["nothing"]


def test_the_pipeline_says_what_was_run(kernel: Kernel) -> None:
    steps = parse_pipeline(kernel.pipeline).steps
    (tile,) = [s for s in steps if s.name == "tile"]
    assert tile.options
    again = ag.compile(ag.attention, target="numpy", pipeline=kernel.pipeline, **SHAPES)
    assert again.func == kernel.func


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a,emulated"])
def test_a_pipeline_runs_again_as_it_is(target: str) -> None:
    """The backend's passes follow only where none of them is named, so that each can be left out."""
    shapes: dict[str, Any] = dict.fromkeys("qkv", (1, 1, 64, 64))
    kernel = ag.compile(ag.attention, dtype="float16", target=target, **shapes)
    again = ag.compile(ag.attention, dtype="float16", target=target, pipeline=str(kernel.pipeline), **shapes)
    assert again.pipeline == kernel.pipeline and again.func == kernel.func
    assert find_target(f" {target.replace(':', ' : ')} ") == find_target(target)
    last = kernel.pipeline.rpartition(",")[2]
    fewer = parse_pipeline(kernel.pipeline.removesuffix(f",{last}"))
    assert last == ("fuse-nests" if target == "cpu" else "overlap-products")
    assert with_own_passes(fewer, *find_target(target)) == fewer


def test_pipeline_given(normal: Any) -> None:
    text = "decompose-attn,canonicalize,fold-scale,hoist-invariant-factors,tile{b=1 h=1 i=8 j=16},fuse-cascaded-reductions"
    kernel = ag.compile(ag.attention, target="numpy", pipeline=text, verify_each="run", **SHAPES)
    assert kernel.pipeline == text
    arrays = {name: normal(*shape) for name, shape in SHAPES.items()}
    np.testing.assert_allclose(kernel(**arrays), reference(**arrays), rtol=1e-5, atol=1e-6)


def test_report(kernel: Kernel) -> None:
    report = kernel.report()
    assert report.flops == sum(op.flops for op in ag.attention.trace(input_types()).walk())
    assert report.bytes_moved == 4 * sum(math.prod(s) for s in (*SHAPES.values(), (1, 2, 37, 5)))
    assert report.scratch_bytes > 0 and report.temporary_bytes == 0
    assert [loop.axis for loop in report.loops] == ["b", "h", "i", "j"]
    assert [loop.kind for loop in report.loops] == ["parallel"] * 3 + ["for"]
    assert report.loops[-1].carried == 3
    assert {t.axis: t.step for t in report.tiles} == {loop.axis: loop.step for loop in report.loops}
    assert all(t.reason for t in report.tiles)
    assert report.roofline and report.roofline.limit in ("arithmetic", "memory") and report.roofline.seconds > 0
    text = str(report)
    assert max(map(len, text.splitlines())) <= 100
    for word in ("flops", "bytes", "scratch", "temporary", "loops", "tiles", "roofline", "assuming", f"{report.flops:,}"):
        assert word in text


def input_types() -> Any:
    from attngen.specs import Spec, input_types

    return input_types(ag.attention.layouts, {name: Spec(shape) for name, shape in SHAPES.items()})


def test_remarks_and_the_rest(kernel: Kernel) -> None:
    assert any(r.origin == "fuse-cascaded-reductions" for r in kernel.remarks)
    assert kernel.program is ag.attention and kernel.target == "numpy"
    assert kernel.func.level == "loop"
    assert repr(kernel).startswith("<attngen kernel attention(q: tensor<b=1, h=2, i=37, d=8, f32>, ")


def test_inputs_as_arrays_and_specs(normal: Any) -> None:
    program = ag.program(lambda x, y: x * y, x="i", y="i")
    kernel = ag.compile(program, x=normal(3, dtype="float64"), y=ag.Spec((3,), "int32"), target="numpy")
    out = kernel(np.array([1.5, 2, 3]), np.array([2, 3, 4], np.int32))
    assert out.tolist() == [3, 6, 12] and out.dtype == np.float64


def test_groups(normal: Any, target: str) -> None:
    @ag.program(q="b (g r) i d", k="b g j d", v="b g j e", out="b (g r) i e")
    def grouped(q: Any, k: Any, v: Any) -> Any:
        return ag.weigh(ag.softmax(ag.scale(ag.score(q, k, over="d"), 8**-0.5), over="j"), v, over="j")

    q, k, v = normal(2, 6, 7, 8), normal(2, 2, 9, 8), normal(2, 2, 9, 3)
    out = ag.compile(grouped, q=q, k=k, v=v, target=target)(q, k, v)
    np.testing.assert_allclose(out, reference(q, np.repeat(k, 3, 1), np.repeat(v, 3, 1)), rtol=1e-5, atol=1e-6)


def test_runtime_extents(normal: Any) -> None:
    shapes: dict[str, Any] = SHAPES | {"k": (1, 2, ag.upto(60), 8), "v": (1, 2, ag.upto(60), 5)}
    kernel = ag.compile(ag.attention, target="numpy", **shapes)
    for length in (60, 53, 1, 0):
        q, k, v = normal(1, 2, 37, 8), normal(1, 2, length, 8), normal(1, 2, length, 5)
        want = reference(q, k, v) if length else np.zeros((1, 2, 37, 5))
        np.testing.assert_allclose(kernel(q, k, v), want, rtol=1e-5, atol=1e-6)
    with pytest.raises(
        ag.Error, match=r"k: axis j has extent 61 in shape \(1, 2, 61, 8\) \(dimension 2\), expected at most 60"
    ):
        kernel(q, normal(1, 2, 61, 8), normal(1, 2, 61, 5))
    with pytest.raises(ag.Error, match=r"v: axis j has extent 4 in shape \(1, 2, 4, 5\) \(dimension 2\), expected 5"):
        kernel(q, normal(1, 2, 5, 8), normal(1, 2, 4, 5))


@pytest.mark.parametrize("zero", ["b", "h", "i", "j", "d", "e"])
def test_extents_of_zero(normal: Any, zero: str, target: str) -> None:
    extents = {"b": 2, "h": 2, "i": 3, "j": 4, "d": 2, "e": 3} | {zero: 0}

    @ag.program(q="b h i d", k="b h j d", v="b h j e", out=("b h i e", "b h i"))
    def program(q: Any, k: Any, v: Any) -> Any:
        s = ag.score(q, k, over="d")
        return ag.weigh(ag.softmax(s, over="j"), v, over="j"), ag.logsumexp(s, over="j")

    arrays = {n: normal(*(extents[a] for a in str(layout).split())) for n, layout in program.layouts.items()}
    out, lse = ag.compile(program, target=target, **arrays)(**arrays)
    assert out.shape == tuple(extents[a] for a in "bhie") and lse.shape == tuple(extents[a] for a in "bhi")
    if zero == "j":
        assert not out.any() and np.all(lse == -np.inf)
    if zero == "d":
        np.testing.assert_allclose(out, np.broadcast_to(arrays["v"].mean(-2, keepdims=True), out.shape), rtol=1e-5)
    if zero == "e":
        s = arrays["q"] @ arrays["k"].swapaxes(-1, -2)
        np.testing.assert_allclose(lse, np.log(np.exp(s).sum(-1)), rtol=1e-5)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"qq": (1, 2)}, "compile: @attention has no input 'qq'; did you mean q?"),
        ({"x": (1, 2)}, "compile: @attention has no input 'x'; its inputs are q, k, v"),
        ({"k": None}, "k: expected a shape, an attngen.Spec or a NumPy array, got NoneType"),
        ({"k": 5}, "k: expected a shape, an attngen.Spec or a NumPy array, got int"),
        ({"k": (1, 2, -3, 8)}, "k: an extent is a whole number of at least 0, got -3"),
        ({"k": (1, 2, 3.0, 8)}, "k: an extent is a whole number of at least 0, got 3.0"),
        ({"k": (1, 2, True, 8)}, "k: an extent is a whole number of at least 0, got True"),
        ({"k": (2, 53, 8)}, "k: the layout 'b h j d' has 4 dimensions, the shape (2, 53, 8) has 3"),
        (
            {"k": (1, 2, 53, 4)},
            "axis d has two extents: q has shape (1, 2, 37, 8), so d=8; k has shape (1, 2, 53, 4), so d=4. "
            "Their layouts are 'b h i d' and 'b h j d'",
        ),
        ({"k": np.zeros((1, 2, 53, 8), ">f4")}, "k: >f4 has the byte order of another machine; use its native form float32"),
        ({"k": np.zeros((1, 2, 53, 8), object)}, f"k: the element type object is not supported; known: {KNOWN}"),
        ({"dtype": "float31"}, f"dtype: the element type float31 is not supported; known: {KNOWN}"),
        ({"dtype": 7}, f"dtype: 7 is no element type; known: {KNOWN}"),
        ({"target": "cup"}, "target: there is no backend 'cup'; did you mean cpu?"),
        ({"target": "gpu"}, "target: there is no backend 'gpu'; did you mean cuda?"),
        ({"target": "CUDA:sm_80"}, "target: there is no backend 'CUDA'; did you mean cuda?"),
        ({"target": "nvidia"}, "target: there is no backend 'nvidia'; did you mean cuda?"),
        ({"target": "sm_90a"}, "target: there is no backend 'sm_90a'; did you mean cuda:sm_90a?"),
        (
            {"target": "cuda,emulated"},
            "target: there is no backend 'cuda,emulated'; options follow a variant: cuda:sm_90a,emulated",
        ),
        ({"target": "cuda:0"}, "target: cuda:0: cuda is the current GPU; devices are chosen by the arrays"),
        ({"target": None}, 'target: expected a name such as "cpu", got None'),
        ({"target": "numpy:fast"}, "target: numpy has no variant 'fast'; known: numpy"),
        ({"verify_each": "always"}, "verify_each: expected True, False or \"run\", got 'always'"),
        ({"verify_each": []}, 'verify_each: expected True, False or "run", got []'),
        ({"pipeline": 3}, "pipeline: expected passes as text, such as 'canonicalize,tile', got int"),
        ({"dtype": None}, f"dtype: expected an element type, got None; known: {KNOWN}"),
        (
            {"v": (1, 2, 53, 2**62)},
            f"v: no memory holds an array of tensor<b=1, h=2, j=53, e={2**62}, f32>; give smaller extents",
        ),
    ],
)
def test_errors(inputs: dict[str, Any], message: str) -> None:
    with pytest.raises(ag.Error) as e:
        given: dict[str, Any] = SHAPES | {"target": "numpy"} | inputs
        ag.compile(ag.attention, **given)
    assert str(e.value) == message


def test_any_axis_name_can_be_tiled_and_lengths_are_checked_with_and_without_execution() -> None:
    rows = ag.program(x="i func")(lambda x: ag.softmax(x, over="func"))
    x = np.arange(35, dtype=np.float32).reshape(5, 7)
    kernel = ag.compile(rows, x=x, target="numpy", verify_each="run")
    np.testing.assert_allclose(kernel(x).sum(axis=1), 1, rtol=1e-6)
    for check in (True, "run"):
        with pytest.raises(ag.Error, match="axis func: the length of a part must be at least 1, not 0"):
            ag.compile(rows, x=x, target="numpy", pipeline="decompose-attn,tile{func=0}", verify_each=check)


def test_more_errors() -> None:
    with pytest.raises(ag.Error, match=r"compile: give the shape of k and v, as k=\(…\); @attention takes q, k, v"):
        ag.compile(ag.attention, q=(1, 2, 37, 8))
    with pytest.raises(ag.Error, match=r"compile: test_more_errors is no program; decorate it with @attngen\.program"):
        ag.compile(test_more_errors)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ag.Error, match=r"there is no pass 'tiel'(.|\n)*did you mean tile"):
        ag.compile(ag.attention, pipeline="tiel", target="numpy", **SHAPES)
    with pytest.raises(ag.Error, match="upto: an extent is a whole number of at least 0, got -1"):
        ag.upto(-1)
    assert {"cpu", "numpy"} <= set(backend_names())


@pytest.mark.parametrize(
    ("q", "k", "message"),
    [
        ((6, 3), (3,), r"q has shape \(6, 3\), but its dimension \(g r\) of length 6 does not fit g=4 \(w has shape \(4,\)\)"),
        ((8, 3), (3, 1), r"k: the layout 'd' has 1 dimensions, the shape \(3, 1\) has 2"),
    ],
)
def test_group_errors(q: Any, k: Any, message: str) -> None:
    program = ag.program(lambda q, k, w: q, q="(g r) d", k="d", w="g")
    with pytest.raises(ag.Error, match=message):
        ag.compile(program, q=q, k=k, w=(4,), target="numpy")


def test_a_group_of_unknown_sizes() -> None:
    program = ag.program(lambda q: q, q="(g r) d")
    with pytest.raises(ag.Error) as e:
        ag.compile(program, q=(6, 2), target="numpy")
    assert str(e.value) == ("q: cannot tell g and r apart in the dimension (g r) of length 6; an input must give one of them")

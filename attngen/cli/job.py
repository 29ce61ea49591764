"""What `attngen run` works on: a traced program, arrays for it, and a judge that knows the right answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attngen import functions, reference
from attngen.cli.files import failed, load_module, read_arrays, read_text
from attngen.compiler import read_program
from attngen.ir.diagnostics import Error
from attngen.ir.func import Func
from attngen.ir.interpreter import Interpreter
from attngen.ir.parser import parse
from attngen.ir.resize import resize
from attngen.ir.types import ElementType, Layout, TensorType, bound
from attngen.ir.verify import verify
from attngen.kernel import Traced
from attngen.names import suggest
from attngen.programs import Program, program
from attngen.sdpa_options import check_scale, read_options
from attngen.sdpa_program import sdpa_program
from attngen.sdpa_shapes import Shape, check_inputs
from attngen.specs import DTYPES, Spec, array_dtype, input_types, show_shape
from attngen.tensor import Tensor

DEFAULT_SHAPE = (1, 8, 512, 512, 64)
INTERPRETER_LIMIT = 1 << 28
"""The most elements of a value that the interpreter is asked to hold for a check."""
SAMPLED_ROWS = 64
FRACTION_BITS = {ElementType.F64: 52, ElementType.F32: 23, ElementType.F16: 10, ElementType.BF16: 7}


@dataclass(frozen=True)
class Judgement:
    """The largest error of an output, what rounding explains, and what it was compared with."""

    error: float
    allowed: float
    against: str

    @property
    def passed(self) -> bool:
        return self.error <= self.allowed


Judge = Callable[[Sequence[np.ndarray]], list[Judgement]]


@dataclass(frozen=True)
class Job:
    """program: what the kernel is made from; inputs: arrays by name; judge: compares the outputs."""

    program: Callable[..., Any]
    traced: Traced
    inputs: Mapping[str, np.ndarray]
    judge: Judge


# ---------------------------------------------------------------- attention


def attention_job(shape: Sequence[int], heads_kv: int | None, dtype: str, seed: int, causal: bool = False) -> Job:
    """Random arrays of a shape b,h,q,kv,d[,dv]."""
    if len(shape) not in (5, 6):
        raise Error(f"--shape: expected b,h,q,kv,d or b,h,q,kv,d,dv, got {','.join(map(str, shape))}")
    b, h, q, kv, d, dv = (*shape, shape[4])[:6]
    groups = h if heads_kv is None else heads_kv
    shapes = {"query": (b, h, q, d), "key": (b, groups, kv, d), "value": (b, groups, kv, dv)}
    rng = np.random.default_rng(seed)
    arrays = {name: random_array(rng, s, DTYPES[dtype]) for name, s in shapes.items()}
    return attention_on(arrays, None, None, causal=causal)


def attention_from(file: str, dtype: str | None, causal: bool = False) -> Job:
    """The arrays of an .npz file: query, key, value, and optionally scale, expected and keep."""
    arrays = read_arrays(file)
    known = ("query", "key", "value", "scale", "expected", "keep")
    for name in arrays:
        if name not in known:
            raise Error(f"--inputs {file}: there is no input {name!r}; {suggest(name, known)}")
    for name in known[:3]:
        if name not in arrays:
            raise Error(
                f"--inputs {file}: {name} is missing; expected query, key and value, and optionally scale, expected and keep"
            )
    scale, expected, keep = (arrays.pop(name, None) for name in ("scale", "expected", "keep"))
    if keep is not None:
        shape = (arrays["query"].shape[:1] + arrays["key"].shape[-2:-1]) if arrays["query"].ndim == 4 else None
        if keep.dtype != bool or keep.shape != shape:
            wanted = f"{shape} (batch, kv_len)" if shape else "(batch, kv_len), with a query of 4 dimensions"
            raise Error(f"--inputs {file}: keep must be bool of shape {wanted}, got {keep.dtype} of shape {keep.shape}")
    if scale is not None and (scale.size != 1 or scale.dtype.kind not in "fiu" or not np.isfinite(scale.item())):
        raise Error(f"--inputs {file}: scale must be one finite number, got shape {scale.shape} of {scale.dtype}")
    if dtype is not None and arrays["query"].dtype.name != dtype:
        raise Error(f"--inputs {file}: query is {arrays['query'].dtype.name}, but --dtype says {dtype}; leave --dtype away")
    if causal and keep is not None:
        raise Error(f"--inputs {file}: has keep; leave --causal away")
    return attention_on(arrays, None if scale is None else float(scale.item()), expected, keep, causal)


def masked_program(scale: float) -> Program:
    """Attention where some keys of each batch entry do not count."""

    def masked_attention(query: Tensor, key: Tensor, value: Tensor, keep: Tensor) -> Tensor:
        scores = functions.mask(functions.scale(functions.score(query, key, over="d"), scale), keep)
        return functions.weigh(functions.softmax(scores, over="j"), value, over="j", where=keep)

    layouts = {"query": "b (g r) i d", "key": "b g j d", "value": "b g j e", "keep": "b j"}
    return program(masked_attention, **layouts, out="b (g r) i e")


def attention_on(
    arrays: Mapping[str, np.ndarray],
    scale: float | None,
    expected: np.ndarray | None,
    keep: np.ndarray | None = None,
    causal: bool = False,
) -> Job:
    query, key, value = (arrays[name] for name in ("query", "key", "value"))
    check_inputs(query, key, value, "BHSD")
    element = DTYPES[query.dtype.name]
    if keep is None:
        options = read_options(scale=scale, is_causal=causal, causal_alignment="top_left")
        traced = sdpa_program(Shape.of(query, key, "BHSD"), options, element.accumulator)
    else:
        traced = masked_program(query.shape[-1] ** -0.5 if scale is None else scale)
        arrays = {**arrays, "keep": keep}
    out_shape = (*query.shape[:-1], value.shape[-1])
    check_expected(expected, out_shape)
    check_scale(scale, element.accumulator)

    def judge(outputs: Sequence[np.ndarray]) -> list[Judgement]:
        length = query.shape[-2]
        sampled = math.prod(query.shape[:-1]) * key.shape[-2] > INTERPRETER_LIMIT and length > SAMPLED_ROWS
        rows = [n * (length - 1) // (SAMPLED_ROWS - 1) for n in range(SAMPLED_ROWS)] if sampled else list(range(length))
        right = reference.attention(query, key, value, scale, rows, keep, causal)
        allowed = reference.error_bound(query, key, value, scale, element.accumulator.numpy, FRACTION_BITS[element])
        against = f"attention in float64 NumPy{f', {SAMPLED_ROWS} of {length} rows of each head' if sampled else ''}"
        found = [Judgement(largest_error(outputs[0][..., rows, :], right), allowed, against)]
        if expected is not None:
            found.append(Judgement(largest_error(outputs[0], expected), 2 * allowed, "`expected` of the file"))
        return found

    return Job(traced, read_program(traced, dict(arrays), None), arrays, judge)


# ---------------------------------------------------------------- programs and IR files


def program_job(what: str, shapes: Mapping[str, tuple[int, ...]], file: str | None, dtype: str, seed: int) -> Job:
    """`PROGRAM.py:name` on arrays of given shapes, or on those of an .npz file named like its inputs."""
    path, _, name = what.rpartition(":") if ".py:" in what else (what, "", "")
    module = load_module(path)
    programs = {k: v for k, v in vars(module).items() if isinstance(v, Program)}
    if not name and len(programs) == 1:
        (name,) = programs
    if name not in programs:
        listed = ", ".join(programs) or "none; decorate a function with @attngen.program"
        close = f"; {suggest(name, programs, 'its programs are')}" if programs else f"; its programs: {listed}"
        raise Error(f"{path}: {f'there is no program {name!r}' if name else 'which program? write PROGRAM.py:name'}{close}")
    chosen = programs[name]
    arrays, expected = given_arrays(file, list(chosen.layouts))
    check_names(shapes, list(chosen.layouts))
    given: dict[str, Any] = {**{k: Spec(s, dtype) for k, s in shapes.items()}, **arrays}
    missing = [f"--shape {k}=…" for k in chosen.layouts if k not in given]
    if missing:
        raise Error(f"{path}:{name}: {' '.join(missing)} missing; its inputs are {', '.join(chosen.layouts)}")
    try:
        traced = read_program(chosen, given, dtype)
    except Error:
        raise
    except Exception as e:
        raise failed(f"{path}:{name}", e) from e
    return general_job(chosen, traced, arrays, expected, seed)


def ir_job(path: str, shapes: Mapping[str, tuple[int, ...]], file: str | None, seed: int) -> Job:
    """A function of an .ir file, at other extents if shapes are given."""
    func = parse(*read_text(path))
    verify(func)
    params = {p.name: (p.layout, v.tensor) for p, v in zip(func.params, func.args, strict=True)}
    arrays, expected = given_arrays(file, list(params))
    check_names(shapes, list(params))
    shapes = {**shapes, **{k: x.shape for k, x in arrays.items()}}
    if shapes and func.level == "tensor":
        layouts = {name: params[name][0] for name in shapes}
        types = input_types(layouts, {name: Spec(shape) for name, shape in shapes.items()})
        func = resize(func, {axis: extent for t in types.values() for axis, extent in t.axes})
        verify(func)
        params = {p.name: (p.layout, v.tensor) for p, v in zip(func.params, func.args, strict=True)}
    for name, shape in shapes.items():
        if shape != fixed_shape(*params[name]):
            raise Error(
                f"{name}: the shape is {shape}, but @{func.name} is already cut into loops for {fixed_shape(*params[name])}"
            )

    def program(*args: Any) -> Any:
        raise Error(f"@{func.name} was read from {path}; it has no Python function")

    outs = ("out",) if len(func.outputs) == 1 else tuple(f"out[{k}]" for k in range(len(func.outputs)))
    traced = Traced(func, tuple(params), params, outs, len(outs) != 1)
    return general_job(program, traced, arrays, expected, seed)


def given_arrays(file: str | None, names: Sequence[str]) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
    if file is None:
        return {}, None
    arrays = read_arrays(file)
    expected = arrays.pop("expected", None)
    for name in arrays:
        if name not in names:
            raise Error(f"--inputs {file}: there is no input {name!r}; {suggest(name, (*names, 'expected'))}")
    missing = [name for name in names if name not in arrays]
    if missing:
        raise Error(f"--inputs {file}: {' and '.join(missing)} missing")
    return arrays, expected


def check_names(shapes: Mapping[str, object], names: Sequence[str]) -> None:
    for name in shapes:
        if name not in names:
            raise Error(f"--shape {name}=…: there is no input {name!r}; {suggest(name, names, 'inputs:')}")


def check_expected(expected: np.ndarray | None, shape: tuple[int, ...]) -> None:
    if expected is None:
        return
    if expected.dtype.kind not in "fiub":
        raise Error(f"expected: the dtype must be a number, got {expected.dtype}")
    if expected.shape != shape:
        raise Error(f"expected: the shape is {expected.shape}, but the output has {shape}")


def general_job(
    program: Callable[..., Any], traced: Traced, arrays: Mapping[str, np.ndarray], expected: np.ndarray | None, seed: int
) -> Job:
    check_expected(expected, fixed_shape(traced.func.out_layouts[0], traced.func.outputs[0].tensor))
    rng = np.random.default_rng(seed)
    inputs = dict(arrays) or {
        n: random_array(rng, fixed_shape(layout, type), type.element) for n, (layout, type) in traced.inputs.items()
    }

    def judge(outputs: Sequence[np.ndarray]) -> list[Judgement]:
        found: list[Judgement] = []
        func = traced.func
        if largest_value(func) <= INTERPRETER_LIMIT:
            wanted = Interpreter(wide=True).run(func, *(inputs[name] for name in traced.sources))
            for k, (got, want, v) in enumerate(zip(outputs, wanted, func.outputs, strict=True)):
                found.append(
                    Judgement(largest_error(got, want), allowance(want, v.element), f"the interpreter in float64, output {k}")
                )
        if expected is not None:
            element = func.outputs[0].element
            found.append(Judgement(largest_error(outputs[0], expected), allowance(expected, element), "`expected` of the file"))
        return found

    return Job(program, traced, inputs, judge)


def fixed_shape(layout: Layout, type: TensorType) -> tuple[int, ...]:
    """The shape of an array; a runtime extent at its bound."""
    return tuple(math.prod(bound(type.extents[axis]) for axis in group) for group in layout.groups)


def random_array(rng: np.random.Generator, shape: tuple[int, ...], element: ElementType) -> np.ndarray:
    if math.prod(shape) * element.bytes >= 2**63:
        raise Error(f"--shape: no memory holds an array of shape {show_shape(shape)}; give smaller extents")
    if element.is_float:
        return rng.standard_normal(shape, np.float32).astype(array_dtype(element))
    return rng.integers(0, 2, shape).astype(element.numpy)


def largest_value(func: Func) -> int:
    return max((v.type.size for op in func.walk() for v in op.results if isinstance(v.type, TensorType)), default=0)


def allowance(want: np.ndarray, element: ElementType) -> float:
    """What rounding in a chain of operations may amount to, relative to the largest number."""
    numbers = np.abs(want[np.isfinite(want)].astype(np.float64)) if want.dtype.kind in "f" else np.zeros(0)
    share = {ElementType.F64: 1e-11, ElementType.F32: 1e-4, ElementType.F16: 4e-3, ElementType.BF16: 3e-2}.get(element, 0.0)
    return share * max(1.0, float(np.max(numbers, initial=0.0)))


def largest_error(got: np.ndarray, want: np.ndarray) -> float:
    """The largest absolute difference; infinite where one is finite and the other is not, or shapes differ."""
    if got.shape != want.shape:
        return math.inf
    a, b = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.all(np.isfinite(a[finite])):
        return math.inf
    return float(np.max(np.abs(a[finite] - b[finite]), initial=0.0))

"""score_mod and mask_mod: published ones, what they capture, and what they may not do."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import math
import weakref
from functools import partial
from typing import Any

import numpy as np
import pytest

import attngen as ag
from attngen import masks
from attngen.table import KERNELS
from tests.kernels.reference import attention as plain
from tests.masks import published, torch_like
from tests.masks.oracle import attention
from tests.masks.ways import WAYS, Attend, attend, check

TORCHES = ["torch_like", *(["torch"] if importlib.util.find_spec("torch") else [])]


def arrays(normal: Any) -> Any:
    b, h, n = published.BATCH, published.HEADS, published.LENGTH
    return normal(b, h, n, 8), normal(b, 2, n, 8), normal(b, 2, n, 8)


@pytest.mark.parametrize("name", published.ALL)
@pytest.mark.parametrize("torch", TORCHES)
def test_published_modifications_run_unchanged(normal: Any, torch: str, name: str) -> None:
    """Tensors captured, torch's functions used, grouped heads; judged element by element, and by torch where it is there."""
    kind, judge = published.ALL[name](torch_like)
    module = torch_like if torch == "torch_like" else importlib.import_module("torch")
    _, mod = published.ALL[name](module)
    q, k, v = arrays(normal)

    def judged(*args: Any) -> float:
        return float(judge(*args))

    given: dict[str, Any] = {kind: judged}
    want, want_lse = attention(q, k, v, **given)
    for way in WAYS:
        changed: dict[str, Any] = {kind: mod}
        out, lse = attend(way, q, k, v, **changed)
        np.testing.assert_allclose(out, want, rtol=1e-5, atol=4e-6)
        np.testing.assert_allclose(lse, want_lse, rtol=1e-5, atol=4e-6)
    if torch == "torch":
        np.testing.assert_allclose(by_flex_attention(module, kind, mod, q, k, v), want, rtol=1e-5, atol=4e-6)


def by_flex_attention(torch: Any, kind: str, mod: Any, *arrays: Any) -> Any:
    flex: Any = importlib.import_module("torch.nn.attention.flex_attention")
    given: dict[str, Any] = {kind: mod}
    if kind == "mask_mod":
        sizes = published.BATCH, published.HEADS, published.LENGTH, published.LENGTH
        given = {"block_mask": flex.create_block_mask(mod, *sizes, device="cpu")}
    return flex.flex_attention(*map(torch.tensor, arrays), enable_gqa=True, **given).numpy()


# ---------------------------------------------------------------- captured arrays

TABLE = np.linspace(-1, 1, published.LENGTH).astype(np.float32)


def test_numpy_arrays_from_everywhere(sdpa: Attend, normal: Any) -> None:
    """Closures, globals, defaults, partial arguments, attributes, lists, and functions that are called."""
    local = TABLE * 2

    class Shifted:
        def __init__(self) -> None:
            self.table = TABLE * 3

        def __call__(self, s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return s + self.table[i]

    def helper(i: Any) -> Any:
        return TABLE[i]

    def with_default(s: Any, b: Any, h: Any, i: Any, j: Any, table: Any = local) -> Any:
        return s + table[j]

    several = {"a": [local, (TABLE,)]}
    q, k, v = arrays(normal)
    for mod in (
        lambda s, b, h, i, j: s + local[j],
        lambda s, b, h, i, j: s + TABLE[j],
        lambda s, b, h, i, j: s + helper(j),
        lambda s, b, h, i, j: s + several["a"][0][j] + several["a"][1][0][j],
        with_default,
        partial(lambda table, s, b, h, i, j: s + table[j], local),
        Shifted(),
        Shifted().__call__,
    ):
        np.testing.assert_allclose(sdpa(q, k, v, score_mod=mod)[0], attention(q, k, v, score_mod=mod)[0], rtol=1e-5, atol=4e-6)


def test_what_is_captured_stays_as_it_is() -> None:
    table = TABLE.copy()

    def mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        assert isinstance(table, np.ndarray) and table.shape == (16,) and table[3].item() == table.tolist()[3]
        return s + table[j]

    x = np.zeros((1, 1, 16, 4), np.float32)
    ag.scaled_dot_product_attention(x, x, x, score_mod=mod, target="numpy")
    assert mod.__closure__ is not None and mod.__closure__[0].cell_contents is table and type(table) is np.ndarray


@pytest.mark.parametrize("way", ["numpy", "cpu"])
def test_equal_source_other_values(way: str, normal: Any) -> None:
    """N2: numba#6093. One kernel, and each call sees what its own modification has captured, as it is now."""
    q, k, v = arrays(normal)

    def make(table: Any) -> Any:
        return lambda s, b, h, i, j: s + table[j]

    KERNELS.reset()
    tables = [normal(16), normal(16)]
    for table in tables:
        check(way, q, k, v, score_mod=make(table))
    mod = make(tables[0])
    tables[0][:] = 1 - tables[0]
    check(way, q, k, v, score_mod=mod)
    assert len(KERNELS) == 1
    for number in (0.25, 0.5):
        check(way, q, k, v, score_mod=partial(lambda n, s, b, h, i, j: s * n, number))
    assert len(KERNELS) == 3


def test_the_table_of_kernels_keeps_no_captured_array(normal: Any) -> None:
    class Owned(np.ndarray[Any, Any]): ...

    q, k, v = arrays(normal)
    owner = normal(16).view(Owned)

    def make(table: Any) -> Any:
        return lambda s, b, h, i, j: s + 7 * table[j]

    ag.scaled_dot_product_attention(q, k, v, score_mod=make(np.asarray(owner)), target="numpy")
    alive = weakref.ref(owner)
    del owner
    gc.collect()
    assert alive() is None


def test_programs_of_ones_own_capture_too(normal: Any) -> None:
    table = normal(9)

    @ag.program(q="i d", k="j d", v="j e")
    def biased(q: Any, k: Any, v: Any) -> Any:
        s = ag.contract(q, k, over="d") + table[ag.index("j")]
        return ag.contract(ag.softmax(s, over="j"), v, over="j")

    q, k, v = normal(5, 4), normal(9, 4), normal(9, 3)
    kernel = ag.compile(biased, q=q, k=k, v=v, target="numpy", verify_each="run")
    for _ in range(2):
        want = attention(q[None, None], k[None, None], v[None, None], scale=1, bias=table)[0][0, 0]
        np.testing.assert_allclose(kernel(q, k, v), want, rtol=1e-5, atol=2e-6)
        np.testing.assert_allclose(biased(q, k, v), want, rtol=1e-5, atol=2e-6)
        table[:] = table[::-1].copy()


def test_a_whole_coordinate_needs_no_look_up(normal: Any) -> None:
    from attngen.sdpa import trace
    from attngen.sdpa_options import read_options

    ids, slopes, pairs = np.arange(40) // 7, normal(4), normal(2, 40, 40)
    q, k, v = arrays(normal)

    def mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return ag.where(ids[i] == ids[j], s * slopes[h], s) + pairs[b, i, j]

    _, traced = trace((("query", q), ("key", k), ("value", v)), read_options(), (), {"score_mod": mod})
    layouts = {p.name: str(p.layout) for p in traced.func.params}
    assert not any(op.name == "nd.gather" for op in traced.func.walk())
    expected = {"ids": "i", "ids_2": "j", "slopes": "(g r)", "pairs": "b0 i j"}
    assert {n: x for n, x in layouts.items() if n in expected} == expected
    check("numpy", q, k, v, score_mod=lambda s, b, h, i, j: s + pairs[b, i, j])


# ---------------------------------------------------------------- what they may not do

X: Any = np.zeros((1, 2, 5, 4), np.float32)
SHORT = np.zeros(4, np.float32)


@pytest.mark.parametrize(
    ("kind", "mod", "message"),
    [
        ("mask_mod", 3, "mask_mod: expected a function mask_mod(b, h, q_idx, kv_idx), got int"),
        ("mask_mod", lambda q, kv: q >= kv, "mask_mod: expected a function mask_mod(b, h, q_idx, kv_idx), got one of (q, kv)"),
        ("score_mod", lambda b, h, q, kv: b, "score_mod(score, b, h, q_idx, kv_idx), got one of (b, h, q, kv)"),
        (
            "score_mod",
            lambda s, b, h, q, kv: None,
            "score_mod returned a NoneType, expected a traced value; is there a return?",
        ),
        ("score_mod", lambda s, b, h, q, kv: q >= kv, "score_mod returned a condition, expected scores"),
        ("mask_mod", lambda b, h, q, kv: q - kv, "mask_mod returned numbers, expected a condition"),
        ("mask_mod", lambda b, h, q, kv: q >= kv and kv > 2, "Python control flow on a traced value: use attngen.where"),
        ("mask_mod", lambda b, h, q, kv: 0 <= q - kv < 3, "Python control flow on a traced value: use attngen.where"),
        ("score_mod", lambda s, b, h, q, kv: s + SHORT[kv], "SHORT of shape (4,) is too short: dimension 0 is indexed by"),
        ("score_mod", lambda s, b, h, q, kv: s + SHORT[b, kv], "SHORT of shape (4,) is indexed by 2 traced coordinates"),
        ("score_mod", lambda s, b, h, q, kv: s + SHORT[s], "SHORT, dimension 0: a coordinate must be a whole number, got f32"),
        ("score_mod", lambda s, b, h, q, kv: s + SHORT, "met a traced value"),
        ("score_mod", lambda s, b, h, q, kv: s.cumsum(), "a traced value has no attribute 'cumsum'"),
        ("score_mod", lambda s, b, h, q, kv: math.exp(s), "a traced value is no number yet"),
    ],
)
def test_errors(kind: str, mod: Any, message: str) -> None:
    """U33, U35: the line of the modification, and what to write instead."""
    with pytest.raises((ag.Error, AttributeError)) as e:
        ag.scaled_dot_product_attention(X, X, X, target="numpy", **{kind: mod})
    assert message in str(e.value)
    if callable(mod) and str(e.value).startswith("error["):
        assert f"{__file__}:" in str(e.value) and "lambda" in str(e.value)


@pytest.mark.parametrize("way", WAYS)
def test_a_coordinate_outside_of_its_table(way: str) -> None:
    table = np.zeros(7, np.float32)
    with pytest.raises(ag.Error, match="a coordinate along table_1 lies outside 0 to 6"):
        attend(way, X, X, X, score_mod=lambda s, b, h, q, kv: s + table[q + kv])


def test_number_of_masks() -> None:
    with pytest.raises(ag.Error, match="and_masks: expected at least one mask_mod"):
        masks.and_masks()
    wrong: Any = 3
    with pytest.raises(ag.Error, match="mask_mod: expected a function"):
        masks.or_masks(masks.causal(), wrong)


def test_a_captured_number_may_change_without_another_kernel() -> None:
    """The place of a decoding step, captured as an array without dimensions, as FlexAttention's examples do."""
    rng = np.random.default_rng(4)
    q = rng.standard_normal((1, 2, 1, 16), dtype=np.float32)
    k, v = (rng.standard_normal((1, 2, 64, 16), dtype=np.float32) for _ in range(2))
    before = len(KERNELS)
    for step in range(0, 60, 3):
        place = np.array(step)
        for mod in (lambda b, h, i, j, n=place: i + n >= j, lambda b, h, i, j, n=place: np.less_equal(j, n + i)):
            got = ag.scaled_dot_product_attention(q, k, v, mask_mod=mod)
            want = plain(q, k[:, :, : step + 1], v[:, :, : step + 1])[0]
            np.testing.assert_allclose(got, want, atol=2e-6, rtol=0)
    assert len(KERNELS) <= before + 2

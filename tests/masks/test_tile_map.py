"""Tile maps count, list and draw exactly what a kernel does with the tiles of a mask."""

from __future__ import annotations

import math
import re
import tracemalloc
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attngen
from attngen import masks
from attngen.cli import main
from attngen.tile_map import KINDS, TileMap

Q, KV, ROWS, KEYS = 150, 210, 8, 16
IDS = np.sort(np.random.default_rng(0).integers(0, 6, max(Q, KV)))
NAMED: dict[str, Callable[..., Any]] = {
    "causal": masks.causal(),
    "window": masks.window(30, 11, offset=20),
    "open window": masks.window(None, -0, offset=-40),
    "prefix": masks.prefix_lm(47),
    "block": masks.block_causal(20),
    "document": masks.document(IDS),
    "distance": lambda b, h, q, k: abs(q - k + 7) < 50,
    "dilated": masks.dilated(3),
    "causal documents": masks.and_masks(masks.causal(3), masks.document(IDS)),
    "either": masks.or_masks(masks.causal(-60), masks.not_mask(masks.causal(60))),
    "never": lambda b, h, q, k: (k < 10) & (k > q + 200),
    "chosen": lambda b, h, q, k: np.where(k < 48, q, 10) >= k,
    "cancelled": lambda b, h, q, k: (0 * abs(k)) * k >= q - 20,
    "of two integer types": lambda b, h, q, k: np.maximum(-IDS[q], IDS[k]) < np.where(q < 64, 3, IDS[q] + 1),
    "all": lambda b, h, q, k: True,
    "none": lambda b, h, q, k: False,
}


def kept(mask: Callable[..., Any]) -> np.ndarray:
    """The whole mask, from NumPy indices."""
    return np.broadcast_to(np.asarray(mask(0, 0, np.arange(Q)[:, None], np.arange(KV))), (Q, KV))


def kinds(table: np.ndarray) -> np.ndarray:
    """The kind of each tile, by looking at all of its elements."""
    cells = [[table[a : a + ROWS, b : b + KEYS] for b in range(0, KV, KEYS)] for a in range(0, Q, ROWS)]
    return np.array([[0 if not t.any() else 1 if t.all() else 2 for t in row] for row in cells])


def small(mask: Callable[..., Any]) -> TileMap:
    return masks.tile_map(mask, Q, KV, rows=ROWS, keys=KEYS)


@pytest.mark.parametrize("name", NAMED)
def test_counts_rows_and_picture_are_those_of_the_whole_mask(name: str) -> None:
    table = kept(NAMED[name])
    want, found = kinds(table), small(NAMED[name])
    assert (found.empty, found.full, found.mixed) == tuple(int((want == k).sum()) for k in range(3))
    assert found.tiles == want.size and found.pairs == table.size
    heights = np.minimum(ROWS, Q - np.arange(0, Q, ROWS))[:, None] * np.minimum(KEYS, KV - np.arange(0, KV, KEYS))
    assert found.pairs_left_out == int(heights[want == 0].sum())
    for k, row in enumerate(found.rows()):
        assert row.at == (k,) and row.runs[0].first == 0 and row.runs[-1].end == want.shape[1]
        assert [KINDS.index(run.kind) for run in row.runs for _ in range(run.first, run.end)] == want[k].tolist()
        assert all(a.kind != b.kind and a.end == b.first for a, b in zip(row.runs, row.runs[1:], strict=False))
    cells, n = found.picture(1000, 1000)
    assert n == 1 and np.array_equal(cells, want)
    cells, n = found.picture(5, 5)
    assert n == 4 and cells.shape == (5, 4)
    for (a, b), cell in np.ndenumerate(cells):
        part = want[a * n : a * n + n, b * n : b * n + n]
        assert cell == 2 or (part == cell).all(), "a cell claims more than its tiles hold"


def test_what_depends_on_batch_entries_is_counted_for_each() -> None:
    lengths = np.array([0, 100, KV])
    found = masks.tile_map(masks.padding(lengths), Q, KV, batch=3, heads=4, rows=ROWS, keys=KEYS)
    want = [kinds(np.broadcast_to(np.arange(KV) < n, (Q, KV))) for n in lengths]
    assert (found.empty, found.full, found.mixed) == tuple(sum(int((w == k).sum()) for w in want) for k in range(3))
    assert [a.name for a in found.axes] == ["b", "i", "j"] and found.repeats == 4
    cells, n = found.picture(5, 5)
    assert n == 4 and not cells.any(), "the picture is that of the first entry, which keeps nothing"
    assert [row.at for row in found.rows()][:: want[0].shape[0]] == [(0, 0), (1, 0), (2, 0)]


@attngen.program(q="i d", k="j d", v="j e", ids="i", own="j", out="i e")
def packed(q: Any, k: Any, v: Any, ids: Any, own: Any) -> Any:
    s = attngen.where(ids == own, attngen.contract(q, k, over="d"), -math.inf)
    return attngen.contract(attngen.softmax(s, over="j"), v, over="j")


def test_report_counts_what_the_arrays_tell() -> None:
    integers = attngen.Spec((Q,), "int64"), attngen.Spec((KV,), "int64")
    kernel = attngen.compile(packed, q=(Q, 8), k=(KV, 8), v=(KV, 4), ids=integers[0], own=integers[1], target="numpy")
    (unknown,) = kernel.report().masks
    assert unknown.tiles is None and unknown.needs == ("ids", "own") and "report(ids=…, own=…)" in str(unknown)
    report = kernel.report(ids=IDS[:Q], own=IDS[:KV])
    (known,) = report.masks
    tiles = known.tiles
    assert tiles is not None and known.axis == "j"
    i, j = (axis.step for axis in tiles.axes)
    want = masks.tile_map(masks.document(IDS[:Q], IDS[:KV]), Q, KV, rows=i, keys=j)
    assert (tiles.empty, tiles.full, tiles.mixed) == (want.empty, want.full, want.mixed) and tiles.empty
    assert known.flops_left_out == report.flops * tiles.pairs_left_out // tiles.pairs  # every operation is one of a pair
    assert max(map(len, str(report).splitlines())) <= 100
    with pytest.raises(attngen.Error, match="no input 'idz'; did you mean ids"):
        kernel.report(idz=IDS)


def test_runtime_extents_are_counted_at_their_bounds_or_as_given() -> None:
    @attngen.program(q="i d", k="j d", v="j e", out="i e")
    def causal(q: Any, k: Any, v: Any) -> Any:
        s = attngen.where(attngen.index("j") <= attngen.index("i"), attngen.contract(q, k, over="d"), -math.inf)
        return attngen.contract(attngen.softmax(s, over="j"), v, over="j")

    n = attngen.upto(1024)
    kernel = attngen.compile(causal, q=(n, 8), k=(n, 8), v=(n, 4), target="numpy")
    for arrays, length in (({}, 1024), ({"q": np.zeros((Q, 8), np.float32), "k": np.zeros((Q, 8), np.float32)}, Q)):
        (mask,) = kernel.report(**arrays).masks
        assert mask.tiles is not None and [a.extent for a in mask.tiles.axes] == [length, length]


def test_a_mask_of_floats_says_why_not() -> None:
    with pytest.raises(attngen.Error, match="nothing is known of a comparison of f32"):
        small(lambda b, h, q, k: attngen.tanh(0.1 * (q - k)) > 0)
    with pytest.raises(attngen.Error, match="it does not depend on kv_idx"):
        small(lambda b, h, q, k: q < 5)
    with pytest.raises(attngen.Error, match=r"nothing is known of nd\.mod"):  # rather than of what it is computed from
        small(lambda b, h, q, k: np.where(k >= q, k, 3) % -2 == 0)


LONG = 100_000
LARGE: dict[str, Callable[[], Any]] = {
    "causal": masks.causal,
    "window": lambda: masks.window(255, 0),
    "prefix": lambda: masks.prefix_lm(20_000),
    "block": lambda: masks.block_causal(1000),
    "document": lambda: masks.document(np.arange(LONG) // 1000),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_masks_take_no_memory(name: str) -> None:
    """As examples/masks_follow_work.py --build shows with times: some milliseconds and 2 MB for 100,000 × 100,000."""
    tracemalloc.start()
    try:
        found = masks.tile_map(LARGE[name](), LONG, LONG)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.tiles == -(-LONG // 32) * -(-LONG // 64) and peak < 10e6


# ---------------------------------------------------------------- the command


def show(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    code = main(["show", *args])
    out = capsys.readouterr()
    return code, out.out + out.err


def test_show_draws_text(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = show(capsys, "--mask", "window:20,0,document:40,100", "--shape", "1,2,100,160,64", "--tile", "i=16,j=32")
    lines = text.splitlines()
    ids = np.repeat([0, 1, 2], [40, 100, 20])
    found = masks.tile_map(masks.and_masks(masks.window(20, 0), masks.document(ids)), 100, 160, heads=2, rows=16, keys=32)
    assert code == 0 and lines[1] == str(found)
    drawn = [re.sub(r"(.)\1{3}", r"\1", line.split()[1]) for line in lines[2:-1]]
    assert drawn == ["".join("·█▒"[c] for c in row) for row in found.picture(99, 99)[0]]
    assert lines[-1].startswith("· empty   █ full   ▒ mixed")


@pytest.mark.parametrize("size", ["100000,100000", "1,70000", "3000,50", "40,40"])
def test_show_fits_the_screen(capsys: pytest.CaptureFixture[str], size: str) -> None:
    code, text = show(capsys, "--mask", "causal", "--mask", "block:64", "--shape", size)
    assert code == 0 and max(map(len, text.splitlines())) <= 100 and len(text.splitlines()) <= 52


def test_show_draws_a_picture(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "map.svg"
    assert show(capsys, "--mask", "causal", "--shape", "512,512", "--out", str(file))[0] == 0
    fills = [e.get("fill") for e in ElementTree.fromstring(file.read_text()) if e.tag.endswith("rect")]
    assert len(fills) == 16 * 3 - 4 + 3 and len(set(fills)) == 3


def test_show_draws_a_png_if_it_can(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "map.png"
    with monkeypatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda name: None)
        code, text = show(capsys, "--mask", "causal", "--out", str(file))
        assert code == 1 and "attngen[plot]" in text and not file.exists()
    pytest.importorskip("matplotlib")
    assert show(capsys, "--mask", "causal", "--out", str(file))[0] == 0
    assert file.read_bytes().startswith(b"\x89PNG")


def test_show_takes_a_mask_of_the_users_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def near(b, h, q_idx, kv_idx):\n    return abs(q_idx - kv_idx) < 50\n")
    code, text = show(capsys, "--mask", f"causal,{file}:near", "--shape", "300,300")
    assert code == 0 and str(masks.tile_map(masks.window(49, 0), 300, 300)) in text
    assert show(capsys, "--mask", f"{file}:far")[1].strip().endswith("has no 'far'")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--mask", "casual"), "there is no mask 'casual'; did you mean causal"),
        (("--mask", "window:1"), "--mask window:1: expected window:left,right[,offset], -1 is open"),
        (("--mask", "block:0"), "block_causal: size: expected a whole number of at least 1, got 0"),
        (("--mask", "document:5000,1"), "the lengths add up to 5,001, more than the 4,096 of --shape"),
        (("--mask", "padding:1,2"), "--mask padding: expected 1 numbers, one for each batch entry, got 2"),
        (("--mask", "causal", "--shape", "1,2,3"), "expected q,kv or b,h,q,kv,d, none of them 0, got 1,2,3"),
        (("--mask", "causal", "--tile", "d=3"), "the axes are i, of queries, and j, of keys"),
        (("--mask", "causal", "--out", "map.pdf"), "expected a name that ends in .svg or .png"),
    ],
    ids=str,
)
def test_show_refuses(capsys: pytest.CaptureFixture[str], args: tuple[str, ...], says: str) -> None:
    code, text = show(capsys, *args)
    assert code and says in " ".join(text.split())


def test_a_map_that_would_take_for_ever() -> None:
    with pytest.raises(attngen.Error, match=r"q_len 1000000000000 has more than 10000000 tiles of 32; give longer ones"):
        masks.tile_map(masks.causal(), 10**12, 10**12)

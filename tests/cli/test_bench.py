"""`attngen bench`: what it measures, prints, writes and refuses. No test here asks how fast anything is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import attngen
from attngen.backends.cpu.peak import multiply_adds, reading
from attngen.bench import SHAPES, Inputs, Shape, expected, make_inputs, prepare, relative_error
from attngen.bench_peers import prepare_numpy
from attngen.bench_rounds import Bench, Result, Timing
from attngen.bench_worker import COUNTS, Failed, Worker
from attngen.cli import main
from attngen.cli.bench_report import check_plot, entry, heading, plot, results_table
from attngen.reference import attention

ROOT = Path(__file__).parents[2]
QUICK = ["--seconds", "0.01", "--rounds", "2", "--against", "numpy"]
SMALL = [
    Shape("plain", 2, 2, 2, 5, 7, 4),
    Shape("wide", 1, 2, 2, 6, 6, 4, 3, dtype="f64"),
    Shape("grouped", 2, 6, 2, 9, 9, 8, causal=True),
]

PEERS = """
import numpy as np
from attngen.bench_peers import prepare_numpy

def doubled(spec, inputs, threads):
    call = prepare_numpy(spec, inputs, threads)
    return lambda: 2 * call()

def crashes(spec, inputs, threads):
    import os
    os._exit(7)

def raises(spec, inputs, threads):
    raise KeyError("no such thing")
"""

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "bench_test_peers.py").write_text(PEERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "bench_test_peers"


def timing(shape: Shape, **times: list[list[float]]) -> Timing:
    """Made up: the first name is the baseline, and `again` is its second turn."""
    again = Result("numpy again", rounds=times.pop("again"), error=0.0)
    results = [Result(name, rounds=rounds, error=0.0) for name, rounds in times.items()]
    return Timing(shape, results, results[0], again, 100.0, 10.0)


@pytest.mark.parametrize("shape", SMALL, ids=lambda s: s.name)
def test_expected_is_attention(shape: Shape) -> None:
    inputs = make_inputs(shape)
    right = expected(shape, inputs)
    for b in range(shape.B):
        for h in range(shape.Hq):
            key, value = (x[b, h * shape.Hkv // shape.Hq] for x in (inputs.k, inputs.v))
            for i in range(shape.Sq):
                seen = i + 1 if shape.causal else shape.Sk
                row = attention(inputs.q[b, h, i : i + 1], key[:seen], value[:seen])
                np.testing.assert_allclose(right[b, h, i], row[0], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("shape", SMALL, ids=lambda s: s.name)
def test_implementations_agree(shape: Shape) -> None:
    inputs = make_inputs(shape)
    right = expected(shape, inputs)
    before = attngen.get_num_threads()
    try:
        assert relative_error(prepare(shape, inputs, 1)(), right) < 1e-6
    finally:
        attngen.set_num_threads(None)
    assert attngen.get_num_threads() == before
    assert relative_error(prepare_numpy(shape, inputs, 1)(), right) < 1e-6
    assert relative_error(right[..., :-1], right) == float("inf")
    assert relative_error(np.where(right == right.max(), np.nan, right), right) == float("inf")


def spec(**more: object) -> SimpleNamespace:
    return SimpleNamespace(B=2, Hq=2, Hkv=2, Sq=6, Sk=6, D=4, dv=4, dtype="f32", **more)


@pytest.mark.parametrize(
    ("more", "seen"),
    [
        ({"causal": True, "window": 2}, lambda b, i, j: i - 2 < j <= i),
        ({"causal": False, "keypad": True, "lengths": lambda: [6, 3]}, lambda b, i, j: j < (6, 3)[b]),
        (
            {"causal": True, "docs": 2, "doc_ids": lambda: np.array([0, 0, 0, 0, 1, 1], np.int32)},
            lambda b, i, j: j <= i and (i < 4) == (j < 4),
        ),
        ({"causal": True, "prefix": 3}, lambda b, i, j: j <= i or j < 3),
    ],
    ids=["window", "keypad", "docs", "prefix"],
)
def test_prepare_serves_masks_of_other_benchmarks(more: dict[str, object], seen: object) -> None:
    assert callable(seen)
    inputs: Inputs = make_inputs(Shape("", 2, 2, 2, 6, 6, 4))
    try:
        out = prepare(spec(**more), inputs, 1)()
    finally:
        attngen.set_num_threads(None)
    for b, h, i in np.ndindex(2, 2, 6):
        keys = [j for j in range(6) if seen(b, i, j)]
        row = attention(inputs.q[b, h, i : i + 1], inputs.k[b, h, keys], inputs.v[b, h, keys])
        np.testing.assert_allclose(out[b, h, i], row[0], rtol=1e-5, atol=1e-6)


def test_counts() -> None:
    assert SHAPES["bert"].flops == 2 * 8 * 12 * 128 * 128 * 128
    assert SHAPES["gpt2-causal"].flops == 12 * 1024 * 1024 * 128
    assert SHAPES["dv-ne-dk"].flops == 2 * 16 * 1024 * 1024 * (192 + 128)
    assert SHAPES["decode-gqa"].bytes == 4 * (32 * 256 + 8 * 4096 * 256)
    assert SHAPES["bert-f16"].bytes * 2 == SHAPES["bert"].bytes


def test_peaks() -> None:
    """Only what holds on any machine: positive, and no slower in float32 than half as fast as in float64."""
    single, double = multiply_adds(4, 1, 0.02), multiply_adds(8, 1, 0.02)
    assert double > 0.1
    assert single > double / 2
    assert reading(1 << 18, 1, 0.02) > 0.1
    assert reading(100, 2, 0.01) > 0
    with pytest.raises(attngen.Error, match="4 or 8 bytes, got 2"):
        multiply_adds(2)


def test_verdict_needs_more_than_the_spread() -> None:
    t = timing(
        SMALL[0], numpy=[[1.0], [1.0]], again=[[1.1], [1.1]], attngen=[[0.95], [0.95]], quick=[[0.5], [0.8]], slow=[[2.0]]
    )
    assert t.spread == pytest.approx((0.1, 0.1))
    verdicts = [t.verdict(r) for r in t.results]
    assert verdicts == ["level", "level", "faster", "slower"]
    assert t.results[2].ratios(t.results[0]) == [2.0, 1.25]


def test_table_puts_the_fastest_first_and_says_why_one_is_missing() -> None:
    t = timing(SHAPES["bert"], numpy=[[2e-3]], again=[[2e-3]], attngen=[[1e-3]])
    t.results.append(Result("torch-sdpa", "refused", "it does not want to"))
    lines = results_table(t).splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["attngen", "numpy", "numpy", "torch-sdpa:"]
    rate = SHAPES["bert"].flops / 1e-3 / 1e9
    assert f"{rate:.1f}" in lines[2]
    assert "2.00" in lines[2]
    assert lines[-1] == "torch-sdpa: refused: it does not want to"


def test_large_shapes_are_set_beside_memory() -> None:
    shape = SHAPES["decode-gqa"]
    t = timing(shape, numpy=[[2e-3]], again=[[2e-3]])
    assert "% read" in results_table(t)
    t.memory_peak = shape.bytes / 1e-3 / 1e9
    assert "% DRAM" in results_table(t)
    assert results_table(t).splitlines()[2].split()[-2] == "50"
    assert entry(t)["results"][0]["memory_share_median"] == pytest.approx(0.5)
    assert f"memory at {t.memory_peak:.1f} GB/s" in heading(t)


def test_workers_say_what_failed(peers: str) -> None:
    with Worker(f"{peers}:crashes", 1) as worker, pytest.raises(Failed, match="exit code 7"):
        worker.prepare(SMALL[0])
    with Worker(f"{peers}:raises", 1) as worker, pytest.raises(Failed, match="KeyError"):
        worker.prepare(SMALL[0])
    with Worker(f"{peers}:nothing", 1) as worker, pytest.raises(Failed, match="nothing"):
        worker.prepare(SMALL[0])


def test_a_worker_times_calls_and_leaves_the_environment_alone() -> None:
    before = {name: os.environ.get(name) for name in COUNTS}
    with Worker("numpy", 1) as worker:
        assert {name: os.environ.get(name) for name in COUNTS} == before
        seconds, out = worker.prepare(SMALL[0])
        times, disturbed = worker.block(0.01)
    assert seconds > 0
    assert relative_error(out, expected(SMALL[0], make_inputs(SMALL[0]))) < 1e-6
    assert len(times) > 1
    assert min(times) > 0
    assert 0 <= disturbed <= 1
    assert not worker.process.is_alive()


def test_a_wrong_result_is_never_timed(peers: str) -> None:
    said: list[str] = []
    with Bench([f"{peers}:doubled", f"{peers}:crashes", "numpy"], 1, 2, 0.01, said.append) as bench:
        made = bench.run(SMALL[0])
    wrong, crashed, good = made.results
    assert (wrong.status, wrong.rounds) == ("wrong", [])
    assert crashed.status == "error"
    assert good.timed
    assert len(good.rounds) == 2
    assert made.baseline is good
    assert made.again is not None
    assert made.again.timed
    assert any("round 2 of 2" in text for text in said)


def test_command_in_a_process_of_its_own(tmp_path: Path) -> None:
    """Plain text of at most 100 columns on standard output, progress on standard error, and a file of figures."""
    file = tmp_path / "out.json"
    args = ["bench", "tiny", "--shape", "1,4,5,5,8", "--heads-kv", "2", "--causal", *QUICK, "--json", str(file)]
    done = subprocess.run([sys.executable, "-m", "attngen", *args], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "\x1b" not in done.stdout
    assert "numpy against itself" in done.stdout
    assert "preparing and checking attngen" in done.stderr
    assert "preparing" not in done.stdout
    made = json.loads(file.read_text())
    assert made["settings"]["threads"] == 1
    assert [s["name"] for s in made["shapes"]] == ["tiny", "1,4,5,5,8"]
    for shape in made["shapes"]:
        assert shape["baseline"] == "numpy"
        names = [r["implementation"] for r in shape["results"]]
        assert names == ["attngen", "numpy", "numpy again"]
        for r in shape["results"]:
            assert r["gflops_median"] == pytest.approx(shape["flops"] / r["median_s"] / 1e9)
            assert r["fma_share_min"] == pytest.approx(r["gflops_min"] / shape["fma_peak_gflops"])
            assert r["read_share_min"] == pytest.approx(shape["bytes"] / r["min_s"] / 1e9 / shape["read_peak_gbs"])
            assert r["calls"] == sum(map(len, r["rounds"]))
            assert r["error"] < 2e-5


def test_json_on_standard_output_is_json_alone(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "tiny", *QUICK, "--json", "-"]) == 0
    said = capfd.readouterr()
    assert json.loads(said.out)["shapes"][0]["name"] == "tiny"
    assert "against itself" in said.err


def test_list(capsys: Capture) -> None:
    assert main(["bench", "--list"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in SHAPES)
    assert "b=1 h=32 h_kv=8 q=1 kv=4096 d=128 f32" in said


@pytest.mark.parametrize(
    ("args", "words", "code"),
    [
        (["brt"], ["no shape 'brt'", "did you mean bert?"], 1),
        (["tiny", "--against", "nunpy"], ["no implementation 'nunpy'", "did you mean numpy?"], 1),
        (["--shape", "1,2,3"], ["--shape", "b,h,q,kv,d", "1,2,3"], 1),
        (["--shape", "1,2,0,3,4"], ["none of them 0"], 1),
        (["--shape", "1,x"], ["whole numbers"], 2),
        (["--shape", "1,4,3,3,8", "--heads-kv", "3"], ["--heads-kv 3", "4 heads"], 1),
        (["--shape", "1,4,3,5,8", "--causal"], ["--causal", "3 and 5"], 1),
        (["tiny", "--causal"], ["are for --shape"], 2),
        (["tiny", "--threads", "0"], ["--threads"], 2),
        (["tiny", "--rounds", "1"], ["--rounds"], 2),
        (["tiny", "--plot", "out.pdf"], ["out.pdf", ".png or .svg"], 1),
    ],
)
def test_refusals(capsys: Capture, args: list[str], words: list[str], code: int) -> None:
    assert main(["bench", *args]) == code
    said = capsys.readouterr().err
    assert "Traceback" not in said
    for word in words:
        assert word in said


def test_exit_code_is_about_attngen_alone(capsys: Capture, peers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["bench", "tiny", *QUICK, "--against", f"{peers}:doubled"]) == 0
    assert "bench_test_peers:doubled: wrong: error" in capsys.readouterr().out
    monkeypatch.setattr("attngen.cli.bench.OURS", f"{peers}:doubled")
    assert main(["bench", "tiny", *QUICK]) == 1


def test_plot_without_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(attngen.Error, match=r"attngen\[plot\]"):
        check_plot("out.png")


@pytest.mark.parametrize(("name", "start"), [("out.png", b"\x89PNG"), ("out.svg", b"<?xml")])
def test_plot(tmp_path: Path, name: str, start: bytes) -> None:
    pytest.importorskip("matplotlib")
    t = timing(SHAPES["bert"], numpy=[[2e-3], [3e-3]], again=[[2e-3], [2e-3]], attngen=[[1e-3], [1e-3]])
    file = tmp_path / name
    check_plot(str(file))
    plot([t, t], str(file))
    assert file.read_bytes().startswith(start)

"""`attngen run`: what it prints, what it refuses, and that it writes a file whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import attngen.cli.run
from attngen import reference
from attngen.cli import main
from attngen.cli.job import Job, Judgement

ROOT = Path(__file__).parents[2]
SMALL = ["--target", "numpy", "--shape", "1,2,9,11,4"]

PROGRAM = """
import attngen

@attngen.program(x="a i d", w="d e", out=("a i e", "a i"))
def projection(x, w):
    y = attngen.contract(x, w, over="d")
    return y, attngen.reduce_max(y, over="e")
"""

Capture = pytest.CaptureFixture[str]


def arrays(**changes: np.ndarray) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"query": (2, 4, 9, 6), "key": (2, 2, 11, 6), "value": (2, 2, 11, 5)}
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()} | changes


@pytest.fixture
def npz(tmp_path: Path) -> Callable[[dict[str, np.ndarray]], str]:
    def save(data: dict[str, np.ndarray]) -> str:
        np.savez(tmp_path / "in.npz", allow_pickle=True, **data)
        return str(tmp_path / "in.npz")

    return save


def fails(capsys: Capture, args: list[str], *words: str, code: int = 1) -> None:
    """The command ends with this code, says these words on standard error, and shows no traceback."""
    assert main(args) == code
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    for word in words:
        assert word in said.err, said.err


def test_without_arguments_it_compiles_verifies_and_times() -> None:
    """In a process of its own, as a user runs it: at most 20 lines of at most 100 plain columns."""
    done = subprocess.run([sys.executable, "-m", "attngen", "run"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 100
    assert "\x1b" not in done.stdout
    assert [line.split()[0] for line in lines if line[:1].strip()] == (
        "attngen shapes passes tiles loops error compile time speed scratch".split()
    )
    assert "fuse-cascaded-reductions" in done.stdout
    assert "GFLOP/s" in done.stdout


@pytest.mark.parametrize("shape", ["2,4,7,13,8", "1,1,1,1,1", "2,4,7,0,8", "1,2,0,5,3", "1,3,5,7,4,9"])
def test_shapes(capsys: Capture, shape: str) -> None:
    assert main(["run", "--target", "numpy", "--shape", shape]) == 0
    assert "error" in capsys.readouterr().out


def test_grouped_heads_dtype_tiles_and_stages(capsys: Capture) -> None:
    options = ["--shape", "1,4,9,11,4", "--heads-kv", "2", "--dtype", "float64", "--tile", "i=4,j=3", "--run-each"]
    assert main(["run", "--target", "numpy", *options, "--print-ir-after-all", "--remarks"]) == 0
    said = capsys.readouterr()
    assert "i=4" in said.out and "j=3" in said.out and "float64" in said.out
    assert "remark: tile: j: parts of 3 of 11" in said.out and max(map(len, said.out.splitlines())) <= 100
    assert "IR Dump After input" in said.err and "IR Dump After fuse-cascaded-reductions" in said.err


def test_one_stage(capsys: Capture) -> None:
    assert main(["run", *SMALL, "--stage", "python"]) == 0
    assert capsys.readouterr().out.startswith("import numpy as np\n")
    assert main(["run", *SMALL, "--stage", "all"]) == 0
    assert capsys.readouterr().out.split()[:2] == ["input", "decompose-attn"]
    fails(capsys, ["run", *SMALL, "--stage", "tiles"], "no stage 'tiles'", "known: input")


def test_inputs_and_out(capsys: Capture, tmp_path: Path, npz: Callable[[dict[str, np.ndarray]], str]) -> None:
    given = arrays(scale=np.array(0.3))
    right = reference.attention(given["query"], given["key"], given["value"], 0.3)
    out = tmp_path / "out.npz"
    file = npz({**given, "expected": right.astype(np.float32)})
    assert main(["run", "--target", "numpy", "--inputs", file, "--out", str(out)]) == 0
    assert "`expected` of the file" in capsys.readouterr().out
    with np.load(out) as saved:
        assert saved.files == ["output"]
        assert saved["output"].dtype == np.float32
        np.testing.assert_allclose(saved["output"], right, atol=2e-6)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.npz", "out.npz"]


def test_two_dimensions_and_strange_scales(capsys: Capture, npz: Callable[[dict[str, np.ndarray]], str]) -> None:
    flat = {name: x[0, 0] for name, x in arrays().items()}
    for scale in (0.0, -1.5, 1e30):
        assert main(["run", "--target", "numpy", "--inputs", npz(flat | {"scale": np.array(scale)})]) == 0, capsys.readouterr()


def test_a_wrong_output_is_reported_and_not_written(
    capsys: Capture, tmp_path: Path, npz: Callable[[dict[str, np.ndarray]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.npz"
    right = reference.attention(arrays()["query"], arrays()["key"], arrays()["value"])
    right[1, 2, 3, 4] += 1e-3
    fails(
        capsys,
        ["run", "--target", "numpy", "--inputs", npz(arrays(expected=right)), "--out", str(out)],
        "is wrong",
        "not written",
    )
    assert not out.exists()

    def planted(scores: np.ndarray, value: np.ndarray) -> np.ndarray:
        return np.zeros((len(scores), value.shape[1]))

    monkeypatch.setattr(reference, "one_head", planted)
    fails(capsys, ["run", *SMALL, "--out", str(out)], "is wrong")
    assert not out.exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"keep": np.ones((2, 12), bool)}, ("keep must be bool of shape (2, 11) (batch, kv_len)", "(2, 12)")),
        ({"keep": np.ones((2, 11))}, ("keep must be bool", "float64")),
        ({"vale": np.ones(3)}, ("no input 'vale'", "did you mean value?")),
        ({"scale": np.array(np.nan)}, ("scale must be one finite number",)),
        ({"scale": np.ones(2)}, ("scale must be one finite number",)),
        ({"expected": np.ones((2, 4, 9, 6))}, ("expected: the shape is (2, 4, 9, 6)", "(2, 4, 9, 5)")),
        ({"key": np.ones((2, 3, 11, 6), np.float32)}, ("kv_heads 2", "key has 3")),
        ({"key": np.ones((2, 2, 11, 7), np.float32)}, ("key: has d 7", "query has 6")),
        ({"value": np.ones((2, 2, 12, 5), np.float32)}, ("value: has kv_len 12",)),
        ({"value": np.ones((2, 2, 11, 5))}, ("value: has dtype float64",)),
        ({"query": np.ones((2, 4, 9, 6), ">f4")}, ("query: big-endian",)),
        ({"query": np.ones((2, 4, 9, 6), int)}, ("query: expected a float dtype",)),
        ({"query": np.ones(6, np.float32)}, ("query: expected at least 2 dimensions",)),
        ({"query": np.array([{}], object)}, ("cannot read query",)),
        ({"scale": np.array(1e300)}, ("scale: 1e+300 is not finite in f32",)),
        ({"expected": np.full((2, 4, 9, 5), "x")}, ("expected: the dtype must be a number, got <U1",)),
        ({"expected": np.ones((2, 4, 9, 5), complex)}, ("expected: the dtype must be a number, got complex128",)),
    ],
)
def test_inputs_that_are_refused(
    capsys: Capture, npz: Callable[[dict[str, np.ndarray]], str], changes: dict[str, np.ndarray], words: tuple[str, ...]
) -> None:
    fails(capsys, ["run", "--target", "numpy", "--inputs", npz(arrays(**changes))], *words)


def test_nan_and_infinity_are_compared_too(npz: Callable[[dict[str, np.ndarray]], str]) -> None:
    data = arrays()
    data["query"][0, 0, 0, 0], data["value"][1, 0, 0, 0] = np.nan, np.inf
    assert main(["run", "--target", "numpy", "--inputs", npz(data)]) == 0


def test_what_is_in_an_npz_but_no_array(capsys: Capture, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "in.npz", "w") as archive:
        archive.writestr("query", b"hello")
    fails(capsys, ["run", "--inputs", str(tmp_path / "in.npz")], "cannot read query: it is no array")


def test_a_missing_input(capsys: Capture, npz: Callable[[dict[str, np.ndarray]], str]) -> None:
    data = arrays()
    del data["value"]
    fails(capsys, ["run", "--inputs", npz(data)], "value is missing")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not a zip", b"hello"])
def test_files_that_are_no_npz(capsys: Capture, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.npz").write_bytes(content)
    fails(capsys, ["run", "--inputs", str(tmp_path / "bad.npz")], "bad.npz", ".npz file")
    fails(capsys, ["run", "--inputs", str(tmp_path / "none.npz")], "none.npz: No such file")
    np.save(tmp_path / "one.npy", np.ones(3))
    fails(capsys, ["run", "--inputs", str(tmp_path / "one.npy")], "one array without a name")


def test_an_output_that_cannot_be_written(capsys: Capture, tmp_path: Path) -> None:
    fails(capsys, ["run", *SMALL, "--out", str(tmp_path / "no" / "out.npz")], "cannot write", "No such file")
    fails(capsys, ["run", *SMALL, "--out", str(tmp_path)], "cannot write", "it is a directory")
    fails(capsys, ["run", *SMALL, "--out", ""], "cannot write", "the name is empty")
    assert list(tmp_path.iterdir()) == []


def test_an_output_is_written_through_links_and_pipes(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "link.npz").symlink_to(tmp_path / "real.npz")
    assert main(["run", *SMALL, "--out", str(tmp_path / "link.npz")]) == 0
    assert (tmp_path / "link.npz").is_symlink()
    assert np.load(tmp_path / "real.npz").files == ["output"]
    both = ["--inputs", str(tmp_path / "real.npz"), "--out", str(tmp_path / "link.npz")]
    fails(capsys, ["run", *both], "would overwrite --inputs", code=2)
    os.mkfifo(tmp_path / "pipe")
    end = os.open(tmp_path / "pipe", os.O_RDWR)  # so that neither end waits for the other
    assert main(["run", "--target", "numpy", "--shape", "1,1,2,2,2", "--out", str(tmp_path / "pipe")]) == 0
    assert os.read(end, 4) == b"PK\x03\x04"
    os.close(end)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.npz", "pipe", "real.npz"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--shape", "1,2,3,x,5"], ("whole numbers",)),
        (["--shape", "1,2,3,4,5", "--shape", "1,2,3,4,5"], ("once",)),
        (["--tile", "i"], ("AXIS=N",)),
        (["--tile", "i=4,i=8"], ("--tile i=… is given twice",)),
        (["--dtype", "float31"], ("float32",)),
        (["--heads-kv", "0"], ("heads-kv",)),
        (["--inputs", "a.npz", "--out", "./a.npz"], ("overwrite",)),
        (["--inputs", "a.npz", "--shape", "1,2,3,4,5"], ("leave --shape",)),
        (["p.py:f", "--shape", "1,2,3"], ("name=",)),
        (["p.txt"], ("PROGRAM.py:name",)),
        (["--frobnicate"], ("--frobnicate",)),
    ],
)
def test_usage_errors(capsys: Capture, args: list[str], words: tuple[str, ...]) -> None:
    fails(capsys, ["run", *args], *words, code=2)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--shape", "1,2,3,4"], ("expected b,h,q,kv,d", "1,2,3,4")),
        (["--shape", "1,2,3,4,0"], ("d is 0",)),
        (["--shape", "1,3,3,4,5", "--heads-kv", "2"], ("3 heads",)),
        (["--target", "nump"], ("no backend 'nump'", "did you mean numpy?")),
        (["--target", "numpy:x"], ("no variant 'x'",)),
        (["--pass-pipeline", "til"], ("no pass 'til'", "did you mean tile?")),
        (["--pass-pipeline", "tile{i=0}"], ("at least 1",)),
        (["--tile", "z=4"], ("there is no axis 'z'",)),
        (["--shape", f"1,1,1,1,{10**20}"], ("no memory holds an array of shape",)),
        (["--shape", "1,1,4000000000000000,4,4"], ("not enough memory",)),
        (["nothing.py:f"], ("nothing.py: no such file",)),
        (["nothing.ir"], ("nothing.ir: No such file",)),
    ],
)
def test_errors_in_the_input(capsys: Capture, args: list[str], words: tuple[str, ...]) -> None:
    fails(capsys, ["run", "--target", "numpy", *args], *words)


def test_a_program_and_its_ir(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(PROGRAM)
    shapes = ["--target", "numpy", "--shape", "x=2,30,8", "--shape", "w=8,5"]
    assert main(["run", f"{file}:projection", *shapes, "--out", str(tmp_path / "out.npz")]) == 0
    assert "the interpreter in float64, output 1" in capsys.readouterr().out
    with np.load(tmp_path / "out.npz") as saved:
        assert {name: saved[name].shape for name in saved.files} == {"output0": (2, 30, 5), "output1": (2, 30)}
    assert main(["run", str(file), *shapes, "--stage", "input"]) == 0
    text = tmp_path / "mine.ir"
    text.write_text(capsys.readouterr().out)
    assert main(["run", str(text), "--target", "numpy"]) == 0
    assert "x (2, 30, 8)" in capsys.readouterr().out
    assert main(["opt", str(text), "-p", "default", "-o", str(tmp_path / "loops.ir")]) == 0
    fails(capsys, ["run", str(tmp_path / "loops.ir"), "--tile", "i=3"], "is already cut into loops", code=2)
    assert main(["run", str(text), "--target", "numpy", "--shape", "x=3,4,5"]) == 0
    assert "x (3, 4, 5)  w (5, 5)" in capsys.readouterr().out
    fails(capsys, ["run", str(text), "--shape", "x=3,4"], "x: the layout 'a i d' has 3 dimensions")
    fails(capsys, ["run", str(text), "--shape", "y=3,4"], "no input 'y'")
    fails(capsys, ["run", f"{file}:projektion", *shapes], "did you mean projection?")
    fails(capsys, ["run", str(file), *shapes[:4]], "--shape w=… missing")


def test_a_program_that_fails_is_shown_with_its_line(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    traced = 'import attngen\n\n@attngen.program(x="i")\ndef f(x):\n    return 1 / 0\n'
    for text in ("def f():\n    return 1 / 0\n\nf()\n", traced):
        file.write_text(text)
        assert main(["run", f"{file}:f", "--shape", "x=3"]) == 1
        said = capsys.readouterr().err
        assert "return 1 / 0" in said and "ZeroDivisionError" in said and "bug in attngen" not in said
    file.write_text("raise SystemExit(3)\n")
    fails(capsys, ["run", f"{file}:f"], "mine.py ended the process (SystemExit: 3)")
    file.write_text(traced)
    fails(capsys, ["run", f"{file}:f"], "--shape x=… missing; its inputs are x")


def test_our_own_mistakes_are_called_bugs(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> Job:
        raise RuntimeError("no good")

    monkeypatch.setattr(attngen.cli.run, "attention_job", broken)
    assert main(["run"]) == 1
    said = capsys.readouterr().err
    assert "RuntimeError: no good" in said and "bug in attngen" in said


@pytest.mark.parametrize("args", [["list", "ops"], ["run", *SMALL, "--stage", "python"]])
def test_a_reader_that_goes_away(args: list[str]) -> None:
    """As in `attngen list ops | head -1`: no complaint."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as out:
        done = subprocess.run(
            [sys.executable, "-m", "attngen", *args], cwd=ROOT, stdout=out, stderr=subprocess.PIPE, check=False
        )
    assert done.stderr == b""
    assert done.returncode == 1


def test_passes_and_ops_of_a_backend_are_known(capsys: Capture, tmp_path: Path) -> None:
    """In a process that has loaded no backend before it reads a pipeline or IR with ops of one."""
    target, shape = ["--target", "cuda:sm_90a,emulated"], ["--shape", "1,1,64,64,64", "--dtype", "float16"]
    assert main(["run", *target, *shape, "--stage", "choose-fragments"]) == 0
    low = tmp_path / "low.ir"
    low.write_text(capsys.readouterr().out)
    assert "cuda.grid" in low.read_text()
    own = ["-p", "decompose-attn,canonicalize,tile-warpgroups,fuse-cascaded-reductions,canonicalize"]
    for what in ([str(low), "-p", "overlap-products"], [*shape, *own]):
        command = [sys.executable, "-m", "attngen", "run", *target, *what, "--stage", "input"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr


def test_a_judgement_passes_up_to_what_is_allowed() -> None:
    assert Judgement(1e-6, 1e-6, "").passed
    assert not Judgement(float("nan"), 1.0, "").passed


@pytest.mark.parametrize("target", ["cpu", "numpy"])
def test_keys_that_do_not_count(capsys: pytest.CaptureFixture[str], target: str) -> None:
    """The model's padded sentences: `keep` says which keys are real."""
    data = str(Path(__file__).parents[1] / "data" / "minilm_layer3.npz")
    assert main(["run", "--target", target, "--inputs", data]) == 0
    assert "`expected` of the file" in capsys.readouterr().out

"""`attngen opt` and `attngen list` beyond what the files in tests/opt show."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from attngen.cli import main
from attngen.ir.core import REGISTRY
from attngen.ir.pipeline import PASSES

Capture = pytest.CaptureFixture[str]

TEXT = """func @f(%x: tensor<i=7, j=53, f32> "i j") -> (tensor<i=7, f32> "i") {
  %m = nd.reduce %x kind max over [j] acc f32 : tensor<i=7, f32>
  return %m
}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "f.ir"
    path.write_text(TEXT)
    return path


def fails(capsys: Capture, args: list[str], *words: str, code: int = 1) -> None:
    assert main(args) == code
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    for word in words:
        assert word in said.err, said.err


def test_the_text_comes_back(capsys: Capture, file: Path) -> None:
    assert main(["opt", str(file)]) == 0
    assert capsys.readouterr().out == TEXT


def test_standard_input_and_errors_in_it(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(TEXT.replace("max", "mix").encode()))
    monkeypatch.setattr("sys.stdin", stdin)
    fails(capsys, ["opt"], "error[nd.reduce]: cannot reduce by mix", "<stdin>:2", "nd.reduce %x kind mix", "one of sum, max")


def test_a_pass_from_a_file(capsys: Capture, file: Path, tmp_path: Path) -> None:
    """What a pass experimenter does: the pass is an option, takes its own options, and is caught when it lies."""
    plugin = tmp_path / "mine.py"
    plugin.write_text(
        "from attngen.ir.build import binary, constant\n"
        "from attngen.ir.elementwise import Add\n"
        "from attngen.ir.nd import Reduce\n"
        "from attngen.ir.pipeline import register_pass\n"
        "from attngen.ir.rewrite import rewrite\n"
        "@register_pass('test-shift')\n"
        "def shift(func, *, by: float = 1.0):\n"
        "    '''Add a number to every maximum: wrong on purpose.'''\n"
        "    def rule(op):\n"
        "        return binary(Add, op.result, constant(by, op.acc)) if isinstance(op, Reduce) else None\n"
        "    return rewrite(func, rule)\n"
    )
    load = f"--load-pass-plugin={plugin}"
    try:
        assert main(["opt", str(file), load, "--test-shift=by=2.5"]) == 0
        assert "nd.constant value 2.5" in capsys.readouterr().out
        fails(capsys, ["opt", str(file), load, "--test-shift", "--run-each"], "error[pass test-shift]: changed the meaning")
        fails(capsys, ["opt", str(file), load, "--test-shift=of=1"], "has no option 'of'")
        assert main(["list", "passes"]) == 0
        assert "by: float = 1.0" in capsys.readouterr().out
    finally:
        del PASSES["test-shift"]


def test_usage_errors(capsys: Capture, file: Path) -> None:
    fails(capsys, ["opt", str(file), "-p", "tile", "--canonicalize"], "not both", code=2)
    fails(capsys, ["opt", str(file), "--print-ir-after=til"], "no pass 'til'", code=2)
    fails(capsys, ["opt", str(file), "--verify-each=maybe"], "true, false or run", code=2)
    fails(capsys, ["opt", str(file), "--tiles"], "--tiles", code=2)


@pytest.mark.parametrize(
    ("pipeline", "words"),
    [
        ("til", "did you mean tile?"),
        ("tile{j=x}", "option j must be int"),
        ("tile{j=8", "cannot read"),
        ("tile,", "ends in a comma"),
        ("canonicalize{j=8}", "has no option 'j'"),
    ],
)
def test_bad_pipelines(capsys: Capture, file: Path, pipeline: str, words: str) -> None:
    fails(capsys, ["opt", str(file), "-p", pipeline], words)


@pytest.mark.parametrize("flag", ["--verify-each", "--verify-each=0", "--no-verify-each", "--mlir-verify-each=run"])
def test_switches_take_values_as_in_mlir(file: Path, flag: str) -> None:
    assert main(["opt", flag, str(file), "-p", "canonicalize", "--no-remarks"]) == 0


def test_files(capsys: Capture, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.ir"
    assert main(["opt", str(file), "-o", str(out)]) == 0
    assert out.read_text() == TEXT
    fails(capsys, ["opt", str(tmp_path / "none.ir")], "none.ir: No such file")
    fails(capsys, ["opt", str(file), "-o", str(tmp_path / "no" / "out.ir")], "cannot write")
    (tmp_path / "latin.ir").write_bytes(b"func @\xff")
    fails(capsys, ["opt", str(tmp_path / "latin.ir")], "not UTF-8")
    file.write_text(TEXT.replace("max", "mix"))
    fails(capsys, ["opt", str(file), "-o", str(out)], "cannot reduce by mix")
    assert out.read_text() == TEXT
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f.ir", "latin.ir", "out.ir"]


def test_the_passes_of_a_target(capsys: Capture, file: Path) -> None:
    assert main(["opt", str(file), "-p", "default", "--target", "cuda:sm_90a", "--print-ir-after-all"]) == 0
    said = capsys.readouterr().err
    for name in ("tile-warpgroups", "canonicalize#3", "scale-late", "overlap-products"):
        assert f"IR Dump After {name} " in said


def test_lists(capsys: Capture) -> None:
    assert main(["list"]) == 0
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 100
    for name in (*PASSES, *(n for n, op in REGISTRY.items() if op.__module__.startswith("attngen.ir.")), "numpy", "cpu"):
        assert f"\n{name} " in said
    assert "AXIS: int" in said
    assert all(f"pipeline for {target}:\n" in said for target in ("cuda:sm_80", "cuda:sm_90a"))
    fails(capsys, ["list", "pases"], "'passes'", code=2)


def test_every_op_and_pass_has_a_summary(capsys: Capture) -> None:
    assert all(p.summary for p in PASSES.values())
    assert all((op.__doc__ or "").strip() for op in REGISTRY.values())


def test_help_and_version(capsys: Capture) -> None:
    for args in (["--help"], ["run", "-h"], ["opt", "--help"], ["list", "--help"]):
        assert main(args) == 0
        assert "attngen " in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("attngen ")
    fails(capsys, ["rum"], "No such command", code=2)
    assert main([]) == 2

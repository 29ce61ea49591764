"""What is said of kernels for GPUs: how they are launched and what they take, and nothing of speed where none is known."""

from __future__ import annotations

import pytest

import attngen as ag
from attngen.backends.cuda.build import Built
from attngen.backends.cuda.toolchain import assembler
from attngen.backends.cuda.toolchain.description import described
from attngen.cli import main
from attngen.ir.diagnostics import Error
from attngen.kernel import Kernel


def compiled(target: str, dtype: str) -> Kernel:
    return ag.compile(ag.attention, dtype=dtype, q=(1, 2, 150, 64), k=(1, 2, 96, 64), v=(1, 2, 96, 64), target=target)


@pytest.mark.parametrize(
    ("target", "dtype", "instruction"),
    [
        ("sm_80", "float16", "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 in "),
        ("sm_90a,emulated", "bfloat16", "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 in "),
        ("sm_80,emulated", "float64", "no instruction of the tensor cores"),
    ],
)
def test_a_report(target: str, dtype: str, instruction: str) -> None:
    report = compiled(f"cuda:{target}", dtype).report()
    launched, taken, instructions = report.launches
    rows = {t.axis: t.step for t in report.tiles}["i"]
    assert launched.startswith(f"attention: {2 * -(-150 // rows)} blocks (b=1 h=1 i={rows}) of ")
    assert f"{report.scratch_bytes:,} bytes of shared memory each" in launched
    assert "registers of each thread, 0 bytes spilled" in taken
    assert instructions.startswith(instruction)
    assert report.roofline is None and report.emulated == target.endswith("emulated")
    text = str(report)
    assert "intensity" in text and not any(word in text for word in ("GFLOP", "roofline", "per thread", "one core"))
    assert ("\ndeclined   its elements are computed one by one: " in text) == (dtype == "float64")
    assert ("speed      not measured: an interpreter" in text) == report.emulated


def test_what_was_kept_is_described_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    made = compiled("cuda:sm_80", "float16")
    assert made._built is not None
    executable, derived = made._built.executable, made._built.derived
    assert isinstance(executable, Built)
    again = Built.restored(derived.result.func, "sm_80", executable.saved(), lambda: derived.emitted)
    (line,) = described(again.kernels)
    assert line == made.report().launches[0]

    def missing() -> str:
        raise Error("there is no ptxas")

    monkeypatch.setattr(assembler, "ptxas", missing)
    assert len(described(executable.kernels)) == 2


def test_a_command_tells_no_time_of_an_interpreter(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--shape", "1,2,40,40,64", "--dtype", "bfloat16", "--causal", "--tile", "i=64"]
    assert main(["run", *options, "--target", "cuda:sm_80,emulated"]) == 0
    said = capsys.readouterr().out
    assert "time     not measured" in said and "speed" not in said and "scratch" not in said
    assert "tiles    b0=1  h=1  i=64" in said and "2 blocks (b0=1 h=1 i=64) of 128 threads" in said

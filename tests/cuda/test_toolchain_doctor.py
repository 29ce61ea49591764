"""`attngen doctor` on CUDA: what is there, what is not and what to type; nothing of it is required."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Generator
from ctypes import POINTER, c_int
from pathlib import Path
from typing import Any

import pytest

from attngen.backends import Unsupported
from attngen.backends.cuda.runtime import device, driver
from attngen.backends.cuda.toolchain import assembler, reports
from attngen.backends.cuda.toolchain import compiler as toolchain
from attngen.cli import main
from tests.cuda.fake_driver import FakeDriver


def found(capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    assert main(["doctor", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    return said["gpu"], {m["what"]: m for m in said["missing"]}


def test_a_toolchain(capsys: pytest.CaptureFixture[str]) -> None:
    gpu, missing = found(capsys)
    assert gpu["nvidia-nvvm"].startswith("13.0.")
    assert gpu["targets"].startswith("cuda:sm_80, sm_86")
    assert gpu["ptxas"].endswith("/ptxas") and gpu["nvdisasm"].endswith("/nvdisasm")
    assert not {"CUDA", "nvdisasm"} & set(missing)


def test_no_toolchain(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise toolchain.missing("numba-cuda is not installed")

    monkeypatch.setattr(toolchain, "numba_cuda", absent)
    monkeypatch.setattr(reports, "DISASSEMBLER", "nvdisasm-that-is-not-there")
    gpu, missing = found(capsys)
    assert gpu["targets"] == "none" and gpu["nvdisasm"] == "not found"
    assert "numba-cuda is not installed" in missing["CUDA"]["why"] and not missing["CUDA"]["required"]
    assert missing["CUDA"]["command"] == f"{sys.executable} -m pip install 'attngen[cuda]'"
    assert missing["nvdisasm"]["command"].endswith("pip install nvidia-cuda-nvdisasm")


def test_every_folder_that_was_searched_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also those that are not there, in which a program may be after it has been installed."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/somewhere/else")
    monkeypatch.setenv("CUDA_HOME", "/opt/cuda")
    folders = found(capsys)[0]["searched"].splitlines()
    assert folders[0].endswith("nvidia/cu13/bin") and folders[1:] == [str(tmp_path), "/somewhere/else", "/opt/cuda/bin"]


def test_no_driver(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise Unsupported("backend cuda", "there is no NVIDIA GPU here: the driver library is missing")

    monkeypatch.setattr(driver, "driver", absent)
    gpu, missing = found(capsys)
    assert gpu["driver"] == "not usable: there is no NVIDIA GPU here: the driver library is missing"
    assert "CUDA" not in missing


class TwoDevices(FakeDriver):
    """Says how many it has."""

    def __init__(self) -> None:
        super().__init__((9, 0), 232448, 13010, 2)
        self.cuDeviceGetCount = ctypes.CFUNCTYPE(c_int, POINTER(c_int))(self.count)

    def count(self, number: Any) -> int:
        number[0] = self.devices
        return 0


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    cached = (driver.driver, device.device)
    library = TwoDevices()
    monkeypatch.setattr(driver, "load", lambda: library)
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


@pytest.mark.usefixtures("two_devices")
def test_two_devices(capsys: pytest.CaptureFixture[str]) -> None:
    gpu, _ = found(capsys)
    assert gpu["driver"] == "of CUDA 13.1"
    for number in (0, 1):
        said = "Fake GPU (compute capability 9.0), 108 multiprocessors, 227 KB of shared memory for a block"
        assert gpu[f"GPU {number}"] == said


WITHOUT = """
import sys
for name in ("numba_cuda", "cuda", "cuda.bindings", "nvidia"):
    sys.modules[name] = None
import numpy as np, attngen as ag
from attngen.cli import main
from tests.cuda.fake_driver import FakeDriver
x = np.ones((1, 1, 8, 4), np.float32)
assert np.allclose(ag.scaled_dot_product_attention(x, x, x), x)
try:
    from attngen.backends.cuda.toolchain import compiler as toolchain
    toolchain.numba_cuda()
except ag.Error as e:
    print(e)
sys.exit(main(["list", "targets"]) or main(["doctor"]))
"""


def test_everything_else_works_without_it() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "pip install 'attngen[cuda]'" in done.stdout and "cuda:sm_90a" in done.stdout


def test_no_assembler(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for the interpreter of PTX can be made nevertheless."""

    def absent() -> None:
        raise toolchain.missing("there is no ptxas, which makes machine code")

    monkeypatch.setattr(assembler, "ptxas", absent)
    gpu, missing = found(capsys)
    assert gpu["targets"].startswith("cuda:sm_80") and gpu["ptxas"] == "not found"
    assert "there is no ptxas" in missing["CUDA"]["why"]

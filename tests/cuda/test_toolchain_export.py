"""Kernels for GPUs as files, and what is beside them: enough to launch them with nothing of attngen."""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import attngen as ag
from attngen import export, export_cuda
from attngen.backends.cuda import ptx
from attngen.backends.cuda.build import Built as Executable
from attngen.backends.cuda.runtime.kernels import Kernels
from attngen.backends.cuda.toolchain import reports
from attngen.cli import main
from attngen.kernel import Built, Traced
from tests.cuda import entries


def made(target: str) -> export.Compiled:
    """A kernel of the program written by hand."""
    variant = target.partition(":")[2]
    program = entries.program(variant)
    inputs = {p.name: (p.layout, v.tensor) for p, v in zip(program.func.params, program.func.args, strict=True)}
    traced = Traced(program.func, ("x", "y"), inputs, ("out",), False)
    executable = Executable(Kernels.compiled(program))
    return export.Compiled(target, traced, Built(cast(Any, None), executable, (0,), ("x", "y"), {}, ""))


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90a", "cuda:sm_80,emulated"])
def test_files(target: str, tmp_path: Path) -> None:
    kernel = made(target)
    for suffix in export_cuda.SUFFIXES:
        export.export([kernel], tmp_path / f"turned{suffix}")
    text = (tmp_path / "turned.ptx").read_text()
    assert [f.name for f in ptx.parse(text).entries()] == ["add", "turn"]
    assert set(reports.instructions((tmp_path / "turned.cubin").read_bytes())) == {"add", "turn"}
    about = [json.loads((tmp_path / f"turned{suffix}.json").read_text()) for suffix in export_cuda.SUFFIXES]
    assert about[0] == about[1]
    assert about[0]["target"] == target and about[0]["attngen"] == ag.__version__
    assert about[0]["function"].startswith("func @turned(%x: tensor<i=?<=512, f32>")
    assert about[0]["stride_unit"] == "bytes" and {"copyable", "most_blocks", "grid", "map"} < set(about[0]["help"])
    names = [(a["name"], a["role"], a["element"], a["axes"]) for a in about[0]["arrays"]]
    axes = [["i", [512]]]
    assert names == [
        ("x", "input", "f32", axes),
        ("y", "input", "f32", axes),
        ("out", "output", "f32", axes),
        ("", "temporary", "f32", axes),
    ]
    assert about[0]["kernels"][1] == {
        "name": "turn",
        "parameters": [{"kind": "address", "array": 3}, {"kind": "address", "array": 2}, {"kind": "length", "axis": "i"}],
        "grid": [{"axis": "i", "extent": [512], "step": 128}],
        "threads": 128,
        "shared_bytes": 512,
        "most_blocks": 0,
        "least_blocks_per_multiprocessor": 2,
    }


@pytest.mark.parametrize("length", [512, 200])
def test_launched_by_what_is_written(length: int, tmp_path: Path) -> None:
    """As another program would: it reads the two files, and gives each kernel what its parameters ask for."""
    file = tmp_path / "turned.ptx"
    export.export([made("cuda:sm_80")], file)
    text, about = file.read_text(), json.loads((tmp_path / "turned.ptx.json").read_text())
    x, y = np.random.default_rng(0).standard_normal((2, length), np.float32)
    arrays = [x, y, np.zeros_like(x), np.zeros_like(x)]
    assert len(arrays) == len(about["arrays"])
    for kernel in about["kernels"]:
        blocks = prod(-(-(length if isinstance(g["extent"], list) else g["extent"]) // g["step"]) for g in kernel["grid"])
        args = [arrays[p["array"]] if p["kind"] == "address" else length for p in kernel["parameters"]]
        ptx.run(text, kernel["name"], blocks, kernel["threads"], args, kernel["shared_bytes"])
    assert np.array_equal(arrays[2], entries.expected(x, y))


@pytest.mark.parametrize("suffix", [".so", ".o", ".s", ".h", ".py"])
def test_what_a_gpu_has_no_use_for(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"turned{suffix}"
    said = rf"turned{suffix}: a {suffix} file cannot hold a kernel for cuda:sm_80; write a .ptx or .cubin file"
    with pytest.raises(ag.Error, match=said):
        export.export([made("cuda:sm_80")], file)
    assert not file.exists()


@pytest.mark.parametrize("target", ["cpu", "numpy"])
@pytest.mark.parametrize("suffix", export_cuda.SUFFIXES)
def test_kernels_of_other_backends(suffix: str, target: str, tmp_path: Path) -> None:
    kernel = ag.compile(ag.attention, q=(1, 1, 8, 4), k=(1, 1, 8, 4), v=(1, 1, 8, 4), target=target)
    with pytest.raises(
        ag.Error, match=f"a {suffix} file cannot hold a kernel for {target}; compile for a GPU, such as target="
    ):
        kernel.export(tmp_path / f"kernel{suffix}")
    assert list(tmp_path.iterdir()) == []


def test_one_target_for_a_file(tmp_path: Path) -> None:
    kernels = [made("cuda:sm_80"), made("cuda:sm_90a")]
    with pytest.raises(ag.Error, match="is for one target, 2 are given"):
        export.export(kernels, tmp_path / "turned.ptx")


def test_kernels_keep_their_names(tmp_path: Path) -> None:
    with pytest.raises(
        ag.Error, match=r"name='mine' is for functions in C; kernels are named after the program, as .*ptx.json"
    ):
        export.export([made("cuda:sm_80")], tmp_path / "turned.ptx", name="mine")
    assert list(tmp_path.iterdir()) == []


def test_nothing_to_launch(tmp_path: Path) -> None:
    kernel = replace(made("cuda:sm_80"), built=None)
    with pytest.raises(ag.Error, match="has an axis of extent 0"):
        export.export([kernel], tmp_path / "turned.ptx")


@pytest.mark.parametrize(
    "args", [("-o", "k.so", "--target", "cuda:sm_90a"), ("-o", "k.ptx"), ("-o", "k.cubin", "--target", "cpu:x86-64-v3")]
)
def test_the_command_refuses_before_it_compiles(
    args: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attngen.cli.compile.build_kernel", None)
    assert main(["compile", *args]) != 0
    assert "cannot hold a kernel for" in capsys.readouterr().err


def test_the_command_takes_the_target_s_axes_for_those_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []

    def build(*_: object, pipeline: object, **__: object) -> None:
        given.append(str(pipeline))
        raise ag.Error("enough")

    monkeypatch.setattr("attngen.cli.compile.build_kernel", build)
    args = ("--shape", "1,2,600,600,64", "--dtype", "float16", "--causal", "--tile", "j=32", "-o", str(tmp_path / "k.ptx"))
    assert main(["compile", "--target", "cuda:sm_90a", *args]) != 0
    assert "tile-warpgroups{b0=1 h=1 i=128 j=32}" in given[0]


def test_what_tensor_maps_require(tmp_path: Path) -> None:
    """Files have no second version for arrays that no map can describe, and say so."""
    shapes = dict.fromkeys("qkv", (1, 2, 150, 64))
    said: dict[str, str | None] = {}
    for target in ("cuda:sm_90a", "cuda:sm_90"):
        kernel = ag.compile(ag.attention, **cast(Any, shapes), dtype="float16", target=f"{target},emulated")
        kernel.export(tmp_path / "kernel.ptx")
        about = json.loads((tmp_path / "kernel.ptx.json").read_text())
        said[target] = about.get("requires")
        kinds = {p["kind"] for k in about["kernels"] for p in k["parameters"]}
        assert ("map" in kinds) == ("requires" in about)
    assert said["cuda:sm_90"] is None and said["cuda:sm_90a"] is not None
    assert "q along d, k along d, v along e" in said["cuda:sm_90a"] and "cuda:sm_90" in said["cuda:sm_90a"]

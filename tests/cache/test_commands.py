"""`attngen cache` and `attngen doctor`."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from attngen.cli import main

COMMANDS = ("ls", "verify", "gc", "clear")


def said(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> str:
    """The output of a command; it fits the terminal, but for what a folder here is called."""
    assert main(args) == code
    text = "".join(capsys.readouterr()).replace(os.environ["ATTNGEN_CACHE_DIR"], "FOLDER")
    assert all(len(line) <= 100 for line in text.splitlines()), text
    return text


@pytest.fixture
def three(kept: Path, folder: Path) -> Path:
    """A cache with a kernel, a damaged file, and what a process left unfinished long ago."""
    shutil.copytree(kept, folder)
    (file,) = folder.iterdir()
    (folder / f"{'0' * 64}.kernel").write_bytes(file.read_bytes()[:-1])
    (folder / ".x.tmp").write_bytes(b"part")
    os.utime(folder / ".x.tmp", (0, 0))
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name[:4] for path in folder.iterdir())


@pytest.mark.parametrize("command", COMMANDS)
def test_without_a_folder_there_are_no_kernels(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "cache", command).startswith("no kernels: there is no folder FOLDER")
    assert not folder.exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_that_others_can_write_is_refused(command: str, three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = names(three)
    three.chmod(0o777)
    assert "can be written by other users" in said(capsys, "cache", command, code=1)
    assert names(three) == before


def test_ls(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    uses = [path.stat().st_mtime for path in three.iterdir()]
    text = said(capsys, "cache", "ls")
    assert "@shares for cpu" in text
    assert "x: tensor<i=3, j=4, f32>" in text
    assert "damaged: the checksum does not fit" in text
    assert "2 files" in text
    assert [path.stat().st_mtime for path in three.iterdir()] == uses  # to be looked at is not to be used


def test_verify(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "1 damaged" in said(capsys, "cache", "verify", code=1)
    (three / f"{'0' * 64}.kernel").unlink()
    assert "1 file, " in said(capsys, "cache", "verify")


def test_gc(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "removed 2 files" in said(capsys, "cache", "gc")
    assert len(names(three)) == 1
    said(capsys, "cache", "gc", "--unused-for", "1")
    assert len(names(three)) == 1
    (file,) = three.iterdir()
    os.utime(file, (0, time.time() - 2 * 86400))
    said(capsys, "cache", "gc", "--unused-for", "1")
    assert names(three) == []


def test_gc_to_a_size(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "cache", "gc", "--size", "1K")
    assert names(three) == []
    assert "expected a number of bytes" in said(capsys, "cache", "gc", "--size", "much", code=2)


def test_clear_asks(three: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    before = names(three)
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda text: "n")
    said(capsys, "cache", "clear", code=1)
    assert names(three) == before
    assert "removed 3 files" in said(capsys, "cache", "clear", "--yes")
    assert names(three) == []


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", [(), *((c,) for c in COMMANDS)])
def test_help_fits_and_shows_how(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert "attngen cache" in said(capsys, "cache", *command, "--help")


@pytest.fixture
def unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever works on the sources while tests run shall not be told that they have changed."""
    monkeypatch.setattr("attngen.cache_state.own_sources", lambda: "sources")


@pytest.mark.usefixtures("unchanged")
def test_doctor(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As text and as JSON: the same findings, and for each that is missing what to type."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("ATTNGEN_NUM_THREADS", raising=False)
    found = json.loads(said_whole(capsys, "doctor", "--json"))
    assert set(found) == {"versions", "processor", "cache", "threads", "tools", "gpu", "missing"}
    assert found["versions"]["numba"][0].isdigit()
    assert found["threads"]["used"].startswith("at most 1, from ")
    assert found["threads"]["OMP_NUM_THREADS"] == "1"
    assert str(folder) in found["cache"]["folder"]
    assert "kernels are kept: 0 files" in found["cache"]["state"]
    assert all(m["what"] and m["why"] and m["command"] and not m["required"] for m in found["missing"])
    assert list(folder.iterdir()) == []
    text = said(capsys, "doctor")
    assert all(title in text for title in ("versions\n", "processor\n", "cache\n", "threads\n", "tools\n"))


def said_whole(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(args) == 0
    return capsys.readouterr().out


def test_doctor_says_what_to_do(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that is wrong has a line at the end, and its command; what no kernel can do without sets the exit code."""
    folder.mkdir(mode=0o700)
    folder.chmod(0o777)
    monkeypatch.setenv("ATTNGEN_NUM_THREADS", "many")
    monkeypatch.setenv("PATH", "/nonexistent")
    assert main(["doctor", "--json"]) == 1
    missing = {m["what"]: m for m in json.loads(capsys.readouterr().out)["missing"]}
    assert missing["cache"]["command"] == f"chmod go-w {folder}"
    assert missing["threads"]["command"] == "unset ATTNGEN_NUM_THREADS"
    assert missing["threads"]["required"]
    assert "gcc" in missing["cc"]["command"]


def test_doctor_when_it_is_turned_off(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTNGEN_CACHE", "0")
    (cache,) = (m for m in json.loads(said_whole(capsys, "doctor", "--json"))["missing"] if m["what"] == "cache")
    assert "turned off by ATTNGEN_CACHE=0" in cache["why"]
    assert cache["command"] == "unset ATTNGEN_CACHE"
    assert not folder.exists()


def test_run_says_where_the_time_of_compiling_went(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(said_whole(capsys, "run", "--target", "numpy", "--shape", "1,1,4,4,4").split())
    for step in ("backend", "key", "passes", "emit", "Python"):
        assert f" {step} 0." in text
    assert "compiled, not kept: the cache is turned off" in text

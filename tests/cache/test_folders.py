"""Files and folders of the cache: whatever is in them, only what was written comes out, and only from a folder of one's own."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from attngen import cache_folder
from attngen.backends import Saved
from attngen.cache import Cache, cache_limit, read_size
from attngen.cache_file import Damaged, Entry, pack, unpack
from attngen.cache_folder import Folder
from attngen.ir.diagnostics import Error

KEY = "0123456789abcdef" * 4
ENTRY = Entry(KEY, {"name": "f"}, Saved(bytes(range(200)), {"extents": {"i": 3}, "nests": []}))


def test_what_is_packed_comes_out() -> None:
    assert unpack(pack(ENTRY), KEY) == ENTRY


def test_no_changed_byte_is_overlooked() -> None:
    data = pack(ENTRY)
    for place in range(len(data)):
        for bit in (0x01, 0x80):
            changed = bytearray(data)
            changed[place] ^= bit
            with pytest.raises(Damaged):
                unpack(bytes(changed), KEY)


def test_no_other_length_is_taken() -> None:
    data = pack(ENTRY)
    for wrong in (*(data[:n] for n in range(len(data))), data + b"\0"):
        with pytest.raises(Damaged):
            unpack(wrong, KEY)


def test_a_file_under_another_name_is_not_that_kernel() -> None:
    with pytest.raises(Damaged, match="another kernel"):
        unpack(pack(ENTRY), KEY[::-1])


def test_files_and_folder_are_for_the_owner_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        assert Cache(tmp_path / "a" / "kernels", 1 << 20).keep(ENTRY) == ""
    finally:
        os.umask(old)
    (file,) = (tmp_path / "a" / "kernels").iterdir()
    assert [path.stat().st_mode & 0o777 for path in (file.parent, file)] == [0o700, 0o600]


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong while a file is written, the old one stays, and nothing else is left."""
    with Folder(tmp_path) as folder:
        folder.write("x.kernel", b"old")
        for name in ("write", "fsync", "rename"):
            with monkeypatch.context() as patch:
                patch.setattr(os, name, failing)
                with pytest.raises(OSError, match="No space"):
                    folder.write("x.kernel", b"new")
            assert [p.name for p in tmp_path.iterdir()] == ["x.kernel"]
            assert folder.read("x.kernel") == b"old"


def failing(*args: object, **kwargs: object) -> None:
    raise OSError(28, "No space left on device")


def test_the_oldest_go_first_and_unfinished_files_after_a_while(tmp_path: Path) -> None:
    now = time.time()
    with Folder(tmp_path) as folder:
        for age, name in enumerate("abcd"):
            folder.write(f"{name}.kernel", bytes(100))
            os.utime(tmp_path / f"{name}.kernel", (0, now - 100 * (age + 1)))
        for name, age in ((".new.tmp", 10), (".old.tmp", cache_folder.ABANDONED + 10)):
            (tmp_path / name).write_bytes(b"part")
            os.utime(tmp_path / name, (0, now - age))
        folder.read("d.kernel")  # which makes it the one used last
        folder.sweep(250)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".new.tmp", "a.kernel", "d.kernel"]


def test_the_limit_holds(tmp_path: Path) -> None:
    size = len(pack(ENTRY))
    cache = Cache(tmp_path, 3 * size)
    for digit in "abcdef":
        assert cache.keep(Entry(digit * 64, ENTRY.about, ENTRY.saved)) == ""
    assert len(list(tmp_path.iterdir())) == 3
    assert cache.find("f" * 64)
    assert "more than ATTNGEN_CACHE_SIZE" in Cache(tmp_path, size - 1).keep(ENTRY)


def test_links_and_pipes_are_not_followed(tmp_path: Path) -> None:
    """What lies under the name of a kernel is a file of this folder, or nothing."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(pack(ENTRY))
    folder = tmp_path / "kernels"
    folder.mkdir(mode=0o700)
    place = folder / f"{KEY}.kernel"
    for make in (lambda: place.symlink_to(elsewhere), lambda: os.mkfifo(place, 0o600)):
        make()
        with pytest.warns(UserWarning, match="keeps no kernels") if place.is_symlink() else nullcontext():
            assert Cache(folder, 1 << 20).find(KEY) is None
        assert Cache(folder, 1 << 20).keep(ENTRY) == ""
        assert Cache(folder, 1 << 20).find(KEY) == ENTRY
        place.unlink()


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("1000", 1000), ("10K", 10 << 10), ("512M", 512 << 20), ("2 GiB", 2 << 30), ("3g", 3 << 30)]
)
def test_sizes(text: str, size: int) -> None:
    assert read_size(text) == size


def test_a_size_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNGEN_CACHE_SIZE", "much")
    with pytest.raises(Error, match=r"ATTNGEN_CACHE_SIZE: expected a number of bytes such as 512M or 2G, got 'much'"):
        cache_limit()

"""Folders that cannot be used: the result is right, nothing from them is loaded, and the user is told once.

Root may write anything, so that a child of root becomes another user first.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.cache.product import CALL, Product

ROOT = os.geteuid() == 0
NOBODY = 65534 if ROOT else os.geteuid()

CHILD = f"""{CALL}
import os
from pathlib import Path
from attngen import cache_state  # all that is needed is loaded: the other user may not read it
import platformdirs
from attngen.backends.cpu import kept
kept.host()
attngen.__version__
if os.geteuid() == 0:
    os.setgid({NOBODY})
    os.setuid({NOBODY})

def tell(name, folder):
    del os.environ["ATTNGEN_CACHE"]
    os.environ["ATTNGEN_CACHE_DIR"] = folder
    if not folder:
        os.environ["HOME"] = "/nonexistent/home"
    write = os.write
    if name == "full" and not json.loads(sys.argv[2]):
        def os_write(handle, data):
            raise OSError(28, "No space left on device")
        os.write = os_write
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        (kernel, y), (again, _) = first(x), first(x)
        state = cache_state.cache_state()
    os.write = write
    os.environ["ATTNGEN_CACHE"] = "0"
    assert np.allclose(y, np.exp(x) / np.exp(x).sum(1, keepdims=True), atol=1e-6)
    said = [str(w.message) for w in caught]
    return dict(first=kernel.origin, again=again.origin, said=said, problem=state.problem, advice=state.advice)

assert kernel.origin == "compiled, not kept: the cache is turned off"
print(json.dumps({{name: tell(name, folder) for name, folder in json.loads(sys.argv[1]).items()}}))
"""


@pytest.fixture(scope="module")
def told(product: Product, kept: Path) -> Iterator[dict[str, Any]]:
    """What a process has met in each kind of folder; where it makes sense, a good kernel lies in it."""
    with TemporaryDirectory() as top:
        root = Path(top)
        root.chmod(0o755)
        places = {name: root / name for name in ("good", "read only", "open", "foreign", "open file", "full", "locked")}
        for name, path in places.items():
            if name in ("full", "locked"):
                path.mkdir()
            else:
                shutil.copytree(kept, path)
            path.chmod(0o700)
        mounted = ROOT and mount(places["full"])
        if mounted:
            with (places["full"] / "much").open("wb", buffering=0) as file:
                while fits(file):
                    pass
        for name, path in places.items():
            for each in (path, *path.iterdir()):
                if ROOT and name != "foreign":
                    os.chown(each, NOBODY, NOBODY)
        places["read only"].chmod(0o500)
        places["locked"].chmod(0o500)
        places["open"].chmod(0o777)
        places["foreign"].chmod(0o755)
        (open_file,) = places["open file"].iterdir()
        open_file.chmod(0o666)
        folders = {name: str(path) for name, path in places.items()}
        if not ROOT:
            folders["foreign"] = "/usr"
        folders |= {"missing": f"{folders['locked']}/missing", "no home": ""}
        try:
            yield json.loads(product.python(CHILD, None, json.dumps(folders), json.dumps(mounted), ATTNGEN_CACHE="0"))
            assert open_file.stat().st_mode & 0o777 == 0o600
            assert not Path("/nonexistent").exists()
        finally:
            if mounted:
                subprocess.run(["umount", str(places["full"])], check=True)
            places["read only"].chmod(0o700)


def mount(path: Path) -> bool:
    """A device of 32 KiB, if this process may make one."""
    command = ["mount", "-t", "tmpfs", "-o", f"size=32k,mode=700,uid={NOBODY},gid={NOBODY}", "none", str(path)]
    return bool(shutil.which("mount")) and subprocess.run(command, capture_output=True, check=False).returncode == 0


def fits(file: Any) -> bool:
    try:
        return bool(file.write(bytes(1024)))
    except OSError:
        return False


READ = "read from the cache"
EXPECTED = {
    # kind of folder: where the first and the second kernel came from, what the problem is, what to do
    "good": (READ, READ, "", ""),
    "read only": (READ, READ, "Permission denied", "choose a folder that you can write"),
    "locked": ("not kept", "not kept", "Permission denied", "choose a folder that you can write"),
    "open": ("not kept", "not kept", "can be written by other users (its mode is 0777)", "chmod go-w"),
    "foreign": ("not kept", "not kept", "belongs to user 0", "choose a folder of your own"),
    "open file": ("compiled and kept", READ, "", ""),
    "full": ("not kept", "not kept", "No space left", "free some space"),
    "missing": ("not kept", "not kept", "Permission denied", "choose a folder that you can write"),
    "no home": ("not kept", "not kept", "there is no home folder", "choose a folder that you can write"),
}


@pytest.mark.parametrize("kind", EXPECTED)
def test_the_result_is_right_and_the_reason_is_told(kind: str, told: dict[str, Any]) -> None:
    first, again, problem, advice = EXPECTED[kind]
    found = told[kind]
    assert first in found["first"]
    assert again in found["again"]
    assert problem in found["problem"]
    assert advice in found["advice"]
    assert bool(problem) == bool(found["problem"])
    # A folder with all that is asked for needs no writing, and a bad file in a good folder is replaced.
    why = "can be written by other users (its mode is 0666)" if kind == "open file" else problem if first == "not kept" else ""
    assert len(found["said"]) == bool(why), found["said"]
    assert all(why in text and "attngen doctor" in text for text in found["said"])

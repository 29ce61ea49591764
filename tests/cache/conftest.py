"""What the tests of the cache share: a copy of the product that may be edited, and kernels that it has kept."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from attngen import cache
from tests.cache.product import Product


@pytest.fixture(scope="session")
def product() -> Iterator[Product]:
    """Nobody edits it meanwhile: sources that change while a process runs are reason enough to keep nothing. Every user can
    read it."""
    with TemporaryDirectory() as root:
        os.chmod(root, 0o755)
        yield Product.copy(Path(root))


@pytest.fixture(scope="session")
def kept(product: Product, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the kernel of `product.CALL` was kept, by a process of its own. To be copied, not changed."""
    folder = tmp_path_factory.mktemp("kept") / "kernels"
    assert product.call(folder)["origin"] == "compiled and kept"
    return folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache of this process, which is turned on."""
    path = tmp_path / "kernels"
    monkeypatch.setenv("ATTNGEN_CACHE", "1")
    monkeypatch.setenv("ATTNGEN_CACHE_DIR", str(path))
    cache.WARNED.clear()
    yield path
    cache.WARNED.clear()

"""Everything about the package is in pyproject.toml. This adds the one thing it cannot say: the archive keeps the symlinks."""

from __future__ import annotations

import os

from setuptools import setup
from setuptools.command.sdist import sdist


class WithLinks(sdist):
    """`attngen/ir` and `attngen/backends` lead to the folders at the top, so that tests run in an unpacked archive too."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        for name in ("ir", "backends"):
            os.symlink(os.path.join("..", name), os.path.join(base_dir, "attngen", name))


setup(cmdclass={"sdist": WithLinks})

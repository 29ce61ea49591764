"""Configuration of lit, which runs the `// RUN:` lines of the .ir files here. pytest starts it: see test_lit.py."""

import os
import sys

import lit.formats  # pyright: ignore[reportMissingTypeStubs]

config = globals()["config"]  # lit runs this file with `config` set
config.name = "attngen opt"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".ir"]
config.test_source_root = os.path.dirname(__file__)
config.test_exec_root = os.environ.get("ATTNGEN_LIT_OUTPUT", config.test_source_root)
root = os.path.dirname(os.path.dirname(config.test_source_root))
config.environment["PYTHONPATH"] = root
config.substitutions += [
    (r"\battngen\b", f"{sys.executable} -m attngen"),
    (r"\bFileCheck\b", f"{sys.executable} -m filecheck"),
]

"""A kernel as files for programs without Python: object code and assembly, a header, C source around it, a shared library.

The object code has one function, `void name_kernel(const int64_t *arguments)`. Around it goes C: `runtime.c`, the same for
every kernel, behind tables of what is special about one (`glue.py`) and the struct of its arguments (`header.py`).
"""

from __future__ import annotations

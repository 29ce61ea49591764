"""An interpreter of PTX in NumPy: runs kernels without a GPU, exactly as their text says, and checks them while they run.

All threads of a batch of blocks are one vector. `run` executes an entry on arrays and raises a `Defect` for races between
barriers, reads of unwritten shared memory, asynchronous data used before its wait, accesses out of bounds or misaligned,
divergence at warp-wide instructions, and deadlock. `lint` and `statistics` look at the text alone. What the interpreter does
not know it refuses by name (`Unsupported`).

Not modelled: time, caches, the weakness of memory between blocks, bank conflicts, the errors of approximate functions,
clusters of more than one block. Lanes of a warp that touch the same shared memory are taken to do so in program order. How
it works, and how to add an instruction, is in NOTES.md beside this file.

>>> import numpy as np
>>> text = '''.version 8.0
... .target sm_80
... .address_size 64
... .visible .entry twice(.param .u64 data) {
...     .reg .b32 %r<3>; .reg .b64 %d<3>;
...     ld.param.u64 %d1, [data]; mov.u32 %r1, %tid.x; mad.wide.u32 %d2, %r1, 4, %d1;
...     ld.global.u32 %r2, [%d2]; add.u32 %r2, %r2, %r2; st.global.u32 [%d2], %r2; ret;
... }'''
>>> data = np.arange(4, dtype=np.uint32)
>>> run(text, "twice", grid=1, block=4, args=[data]).instructions
7
>>> data.tolist()
[0, 2, 4, 6]
"""

from __future__ import annotations

from attngen.backends.cuda.ptx.errors import Defect, PtxError, Unsupported
from attngen.backends.cuda.ptx.launch import Run, run
from attngen.backends.cuda.ptx.lint import Facts, Finding, lint
from attngen.backends.cuda.ptx.parser import parse
from attngen.backends.cuda.ptx.statistics import statistics
from attngen.backends.cuda.ptx.tensormaps import TensorMap

__all__ = ["Defect", "Facts", "Finding", "PtxError", "Run", "TensorMap", "Unsupported", "lint", "parse", "run", "statistics"]

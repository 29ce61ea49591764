"""Tensor maps as parameters of a kernel by value.

Numba's kernels take numbers alone, so in their source a map is an address (u64). PTX lets a parameter be the map itself: 128
bytes in the memory of parameters, whose address the hardware takes. Nothing has to be copied to the device and kept there, and
no fence is needed, as it would be for a map in global memory.

before: .param .u64 f_param_0                        ld.param.u64 %rd1, [f_param_0];
after:  .param .align 64 .b8 f_param_0[128]          mov.b64 %rd1, f_param_0;  cvta.param.u64 %rd1, %rd1;
"""

from __future__ import annotations

import re

from attngen.backends.cuda.program import Entry, Map

BYTES, ALIGNMENT = 128, 64


def maps_by_value(text: str, entry: Entry) -> str:
    """The PTX of an entry, whose parameters have the names that NVVM gives them."""
    for number, parameter in enumerate(entry.parameters):
        if isinstance(parameter, Map):
            name = f"{entry.name}_param_{number}"
            text, found = re.subn(rf"\.param \.u64 {name}\b", f".param .align {ALIGNMENT} .b8 {name}[{BYTES}]", text)
            read = rf"ld\.param\.[ub]64\s+(%\w+), \[{name}\];"
            text = re.sub(read, rf"mov.b64 \1, {name}; cvta.param.u64 \1, \1;", text)
            assert found == 1 and not re.search(rf"\[{name}\b", text), f"{name} is read in an unknown way"
    return text

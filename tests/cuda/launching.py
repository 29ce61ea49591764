"""Small programs of the CUDA backend with PTX written by hand: what runs kernels is tested without what makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attngen.backends.cuda.program import Address, Copyable, Entry, Length, Map, Parameter, Part, Program, Stride, Workspace
from attngen.backends.cuda.runtime.kernels import Kernels
from attngen.backends.cuda.runtime.map_parameters import maps_by_value
from attngen.backends.cuda.target import find
from attngen.ir.parser import parse
from attngen.ir.types import ElementType, TensorType, UpTo

HEAD = ".version 9.0\n.target sm_80\n.address_size 64\n"
PTX_TYPES: dict[type[Parameter], str] = {Stride: ".s64", Length: ".s32", Copyable: ".s32"}


def signature(name: str, parameters: tuple[Parameter, ...]) -> str:
    """The head of a kernel; each parameter is read into a register: %p0, %p1, ... of 64 bits."""
    kinds = [PTX_TYPES.get(type(p), ".u64") for p in parameters]
    names = [f"{name}_param_{k}" for k in range(len(kinds))]
    declared = ", ".join(f".param {kind} {x}" for x, kind in zip(names, kinds, strict=True))
    loads = [
        f"ld.param{kind} %p{k}, [{x}];" if kind != ".s32" else f"ld.param.s32 %w{k}, [{x}]; cvt.s64.s32 %p{k}, %w{k};"
        for k, (x, kind) in enumerate(zip(names, kinds, strict=True))
    ]
    registers = f".reg .b64 %p<{len(kinds) + 1}>; .reg .b32 %w<{len(kinds) + 1}>; .reg .b64 %d<9>; .reg .b32 %r<9>;"
    return f"{HEAD}.visible .entry {name}({declared}) {{\n{registers} .reg .pred %q<3>;\n" + "\n".join(loads) + "\n"


COPY = """\
mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; mad.lo.u32 %r1, %r1, 32, %r2; cvt.u64.u32 %d1, %r1;
setp.ge.s64 %q1, %d1, %p6; @%q1 ret;
mov.u32 %r3, 0;
again: cvt.u64.u32 %d2, %r3;
mad.lo.s64 %d3, %d1, %p1, %p0; mad.lo.s64 %d3, %d2, %p2, %d3;
mad.lo.s64 %d4, %d1, %p4, %p3; mad.lo.s64 %d4, %d2, %p5, %d4;
ld.global.bBITS %TYPE, [%d3]; st.global.bBITS [%d4], %TYPE;
add.u32 %r3, %r3, 1; setp.lt.u32 %q2, %r3, COLUMNS; @%q2 bra again;
ret;
}
"""


def copy(
    element: ElementType, columns: int = 8, read: int = 0, target: str = "sm_80,emulated", shared_bytes: int = 0
) -> Kernels:
    """out[i, j] = x[i, j], for i below a runtime extent. read: how many columns the kernel copies, if not all."""
    func = parse(
        f'func @copy(%x: tensor<i=?<=4096, j={columns}, {element}> "i j") '
        f'-> (tensor<i=?<=4096, j={columns}, {element}> "i j") {{\n  return %x\n}}\n'
    )
    parameters: tuple[Parameter, ...] = tuple(p for k in (0, 1) for p in (Address(k), Stride(k, "i"), Stride(k, "j")))
    parameters += (Length("i"),)
    bits = 8 * element.bytes
    text = COPY.replace("BITS", str(bits)).replace("TYPE", "d5" if bits == 64 else "h" if bits == 16 else "r4")
    text = text.replace("COLUMNS", str(read or columns))
    head = signature("copy", parameters).replace(".reg .pred", ".reg .b16 %h; .reg .pred")
    entry = Entry("copy", "", dict, parameters, (Part("i", UpTo(4096), 32),), 32, shared_bytes)
    return made(Program(func, find(target), (entry,)), head + text)


def flags(axes: tuple[str, ...], shape: tuple[int, ...]) -> Kernels:
    """out[k] = whether rows of x along axis k can be copied 16 bytes at a time."""
    extents = ", ".join(f"{a}={n}" for a, n in zip(axes, shape, strict=True))
    func = parse(
        f'func @flags(%x: tensor<{extents}, f32> "{" ".join(axes)}", %y: tensor<n={len(axes)}, i64> "n") '
        f'-> (tensor<n={len(axes)}, i64> "n") {{\n  return %y\n}}\n'
    )
    parameters: tuple[Parameter, ...] = (Address(2), *(Copyable(0, axis) for axis in axes))
    stores = [f"st.global.s64 [%p0+{8 * k}], %p{k + 1};" for k in range(len(axes))]
    entry = Entry("flags", "", dict, parameters, (), 1, 0)
    return made(Program(func, find("sm_80,emulated"), (entry,)), signature("flags", parameters) + "\n".join(stores) + " ret; }")


def unwritten(parameter: Callable[[], Parameter], target: str = "sm_80,emulated") -> Kernels:
    """out[()] = the first four bytes of a temporary or workspace that nobody wrote."""
    func = parse('func @unwritten(%x: tensor<f32> "") -> (tensor<f32> "") {\n  return %x\n}\n')
    parameters = (Address(1), parameter())
    text = "ld.global.b32 %r1, [%p1]; st.global.b32 [%p0], %r1; ret; }"
    entry = Entry("unwritten", "", dict, parameters, (), 1, 0)
    program = Program(func, find(target), (entry,), (TensorType((("i", 4),), ElementType.F32),))
    return made(program, signature("unwritten", parameters) + text)


def made(program: Program, *ptx: str) -> Kernels:
    return Kernels(program, lambda: program, ptx, b"")


def workspace() -> Parameter:
    return Workspace(16)


def temporary() -> Parameter:
    return Address(2)


def numbered(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


TILE = """\
.shared .align 128 .b8 sh[512]; .shared .align 8 .b8 mb[8];
mov.u32 %r1, sh; mov.u32 %r2, 0; mov.u32 %r3, %tid.x; setp.eq.u32 %q1, %r3, 0;
@%q1 mbarrier.init.shared::cta.b64 [mb], 1;
bar.sync 0;
@%q1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [mb], 512;
@%q1 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], [%p0, {%r2, %r2}], [mb];
wait: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %q2, [mb], 0;
@!%q2 bra wait;
again: mad.lo.u32 %r4, %r3, 4, %r1; ld.shared.b32 %r5, [%r4]; mad.wide.u32 %d1, %r3, 4, %p1; st.global.b32 [%d1], %r5;
add.u32 %r3, %r3, 32; setp.lt.u32 %q2, %r3, 128; @%q2 bra again;
ret;
}
"""


def mapped(target: str) -> Kernels:
    """out[i, j] = x[i, j], both 8 by 16, by a tensor map. What none can describe goes another way, which writes nothing."""
    func = parse('func @tile(%x: tensor<i=8, j=16, f32> "i j") -> (tensor<i=8, j=16, f32> "i j") {\n  return %x\n}\n')
    parameters: tuple[Parameter, ...] = (Map(0, ("j", "i"), (16, 8), 0), Address(1))
    entry = Entry("tile", "", dict, parameters, (), 32, 0)
    program = Program(func, find(target), (entry,), (), lambda: program)
    found = made(program, maps_by_value(signature("tile", parameters).replace("sm_80", "sm_90a") + TILE, entry))
    found.without_maps = made(Program(func, find(target), (), ()))
    return found

"""Running an entry on NumPy arrays: `run`, and what it needs (arguments, batches of blocks)."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from attngen.backends.cuda.ptx.barriers import Barriers
from attngen.backends.cuda.ptx.bulk import BulkStores
from attngen.backends.cuda.ptx.copies import Copies
from attngen.backends.cuda.ptx.errors import PtxError, Unsupported
from attngen.backends.cuda.ptx.flight import Flights
from attngen.backends.cuda.ptx.instructions import decode
from attngen.backends.cuda.ptx.layout import Layout, three
from attngen.backends.cuda.ptx.machine import Machine
from attngen.backends.cuda.ptx.mbarriers import Mbarriers
from attngen.backends.cuda.ptx.memory import Global, Memories
from attngen.backends.cuda.ptx.parser import parse
from attngen.backends.cuda.ptx.program import Program, link
from attngen.backends.cuda.ptx.shadow import Shadow
from attngen.backends.cuda.ptx.syntax import Variable
from attngen.backends.cuda.ptx.tensormaps import SIZE, TensorMap
from attngen.backends.cuda.ptx.types import TYPES, Array

MOST_SHARED = 227 * 1024
"""Bytes of shared memory that a block can have on sm_90 (CUDA C++ Programming Guide, "Compute Capabilities")."""
LANES_AT_ONCE = 4096

Argument = Any
"""An array (its address is passed, and it is written in place), a `TensorMap` of one, a number, or bytes."""


@dataclass(frozen=True)
class Run:
    """What a run did. instructions: instructions executed, each counted once for all lanes that executed it together."""

    entry: str
    instructions: int
    blocks: int


def run(
    ptx: str,
    entry: str | None,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence[Argument] | Mapping[str, Argument],
    shared_bytes: int = 0,
    checks: bool = True,
    file: str = "<ptx>",
    limit: int | None = None,
    memory: Global | None = None,
) -> Run:
    """Run an entry of a PTX module.

    entry: its name, a part of it, or None if there is only one. args: one per parameter, in order or by the parameter's name;
    arrays stand for their address in global memory and are written in place, so they must be contiguous; a `TensorMap` fills
    a parameter of 128 bytes, or gives its address to one of 8. shared_bytes: dynamic shared memory. checks: look for races,
    unwritten shared memory and unfinished asynchronous copies as well; bounds, alignment, divergence and deadlock are always
    looked for. file: the name that errors use. limit: instructions, counted as in `Run`, after which to give up. memory: holds
    buffers whose addresses are among the numbers given.
    Raises PtxError for text that cannot be read, Unsupported for what the interpreter does not know, Defect for a finding.
    """
    program = linked(ptx, file, entry)
    heap = Global() if memory is None else memory
    given = named(program, args)
    params = np.zeros(program.sizes["param"], np.uint8)
    arrays: list[tuple[Array, int]] = []
    for var in program.entry.params:
        at = program.places[var.name].offset
        params[at : at + var.size] = np.frombuffer(passed(var, given[var.name], heap, arrays), np.uint8)
    addresses: dict[str, int] = {}
    for place in program.places.values():
        if place.space == "global":
            content = np.zeros(place.variable.size, np.uint8)
            content[: len(place.variable.initial)] = np.frombuffer(place.variable.initial, np.uint8)
            addresses[place.variable.name] = heap.add(place.variable.name, content).address
    data = heap.freeze()
    shared = program.sizes["shared"] + shared_bytes
    if shared > MOST_SHARED:
        raise PtxError(f"{shared} bytes of shared memory; a block can have {MOST_SHARED}")
    extent, threads = three("grid", grid), three("block", block)
    check_block(program, threads)
    count, batch = math.prod(extent), max(1, LANES_AT_ONCE // math.prod(threads))
    executed = 0
    for first in range(0, count, batch):
        layout = Layout(extent, threads, range(first, min(first + batch, count)))
        machine = build(program, layout, shared, params, heap, data, addresses, checks)
        decoded = [decode(machine, j) for j in range(len(program.code))]
        machine.run([x.effect for x in decoded], [x.control for x in decoded], None if limit is None else limit - executed)
        executed += machine.executed
    for array, address in arrays:
        start = address + int(heap.shifts[np.searchsorted(heap.starts, address, side="right") - 1])
        array.reshape(-1).view(np.uint8)[:] = data[start : start + array.nbytes]
    return Run(program.entry.name, executed, count)


@lru_cache(16)
def linked(ptx: str, file: str, entry: str | None) -> Program:
    """A text is often run several times."""
    return link(parse(ptx, file), entry)


def build(
    program: Program,
    layout: Layout,
    shared: int,
    params: Array,
    heap: Global,
    data: Array,
    addresses: dict[str, int],
    checks: bool,
) -> Machine:
    """A machine at its start."""
    memories = Memories(program, layout, shared, params, heap, data)
    if checks:
        memories.spaces["shared"].shadow = Shadow(layout, memories.stride, granule(program))
    machine = Machine(program, layout, memories, addresses)
    machine.barriers, machine.mbarriers = Barriers(machine), Mbarriers(machine)
    machine.copies, machine.bulk, machine.flights = Copies(machine), BulkStores(machine), Flights(machine)
    return machine


def granule(program: Program) -> int:
    """The width in bytes of the narrowest access that can reach shared memory, at most 16."""
    widths = [16]
    for i in program.code:
        words = set(i.modifiers)
        if i.opcode in ("ld", "st", "atom", "red", "ldu") and not words & {"global", "param", "const", "local"}:
            count = next((int(w[1:]) for w in ("v2", "v4", "v8") if w in words), 1)
            kind = i.modifiers[-1] if i.modifiers else ""
            widths.append(TYPES[kind].bytes * count if kind in TYPES else 1)
        elif i.opcode == "cp" and words & {"ca", "cg"}:
            widths.append(4)
        elif i.opcode == "mbarrier":
            widths.append(8)
    return min(widths)


def check_block(program: Program, block: tuple[int, int, int]) -> None:
    """What the entry demands of its blocks (PTX ISA, "Performance-Tuning Directives")."""
    demanded, most = program.entry.directives.get("reqntid"), program.entry.directives.get("maxntid")
    threads = math.prod(block)
    if demanded and (*demanded, 1, 1)[:3] != block:
        raise PtxError(f"{program.entry.name} demands blocks of {demanded} threads (.reqntid), not {block}")
    if math.prod(program.entry.directives.get("reqnctapercluster", ())) > 1:
        raise Unsupported(f"{program.entry.name} demands clusters of several blocks (.reqnctapercluster)", program.entry.loc)
    if threads > (math.prod(most) if most else 1024):
        raise PtxError(f"{program.entry.name} allows {math.prod(most) if most else 1024} threads a block, not {threads}")


def named(program: Program, args: Sequence[Argument] | Mapping[str, Argument]) -> dict[str, Argument]:
    """Arguments by the name of their parameter; missing ones at the end are errors, as are those too many."""
    names = [var.name for var in program.entry.params]
    if isinstance(args, Mapping):
        unknown = [str(n) for n in args if n not in names]
        found: dict[str, Argument] = {str(n): a for n, a in args.items()}
        missing = [n for n in names if n not in found]
        if unknown or missing:
            wrong = (f"{what}: {which}" for what, which in (("missing", missing), ("unknown", unknown)) if which)
            raise PtxError(f"parameters are {', '.join(names)}; {', '.join(wrong)}")
        return found
    if len(args) != len(names):
        raise PtxError(
            f"{program.entry.name} has {len(names)} parameters ({', '.join(names)}), {len(args)} arguments are given"
        )
    return dict(zip(names, args, strict=True))


def is_array(argument: Argument) -> bool:
    return isinstance(argument, np.ndarray) and argument.ndim > 0


def placed(name: str, array: Array, heap: Global, arrays: list[tuple[Array, int]]) -> int:
    """The address of an array, which is copied to global memory when it is met first."""
    for known, address in arrays:
        if known is array:
            return address
    buffer = heap.add(name, array.reshape(-1).view(np.uint8).copy())
    arrays.append((array, buffer.address))
    return buffer.address


def passed(var: Variable, argument: Argument, heap: Global, arrays: list[tuple[Array, int]]) -> bytes:
    """The bytes of a parameter."""
    t = TYPES[var.type]
    if is_array(argument):
        array: Array = argument
        if var.size != 8:
            raise PtxError(f"{var.name} has {var.size} bytes, which is no address; give a number instead of an array")
        if not array.flags.c_contiguous or not array.flags.writeable:
            raise PtxError(f"the array for {var.name} must be contiguous and writeable")
        return struct.pack("<Q", placed(var.name, array, heap, arrays))
    if isinstance(argument, TensorMap):
        encoded = argument.encode(placed(var.name, argument.array, heap, arrays))
        if var.size == SIZE:
            return encoded
        if var.size != 8:
            raise PtxError(f"{var.name} has {var.size} bytes; a tensor map needs {SIZE}, or 8 for its address")
        return struct.pack("<Q", heap.add(f"the tensor map {var.name}", np.frombuffer(encoded, np.uint8)).address)
    if isinstance(argument, (bytes, bytearray)):
        if len(argument) != var.size:
            raise PtxError(f"{var.name} has {var.size} bytes, {len(argument)} are given")
        return bytes(argument)
    if var.count != 1:
        raise PtxError(f"{var.name} has {var.size} bytes; give them as bytes")
    try:
        if t.kind == "f":
            return np.asarray(argument, t.numpy).tobytes()
        kind: Array = np.asarray(argument)
        if kind.dtype.kind == "f":
            if kind.dtype.itemsize != var.size and not isinstance(argument, float):
                raise PtxError(f"{var.name} has {var.size} bytes, the number given has {kind.dtype.itemsize}")
            return kind.astype(f"f{var.size}").tobytes()
        return (int(argument) & ((1 << (8 * var.size)) - 1)).to_bytes(var.size, "little")
    except (TypeError, ValueError):
        raise PtxError(f"{var.name} is .{var.type}; {argument!r} is neither a number nor an array") from None

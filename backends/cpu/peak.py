"""What this machine can do at most, measured: fused multiply-adds that need no memory, and reading that does no arithmetic."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import llvmlite.binding as untyped_binding  # pyright: ignore[reportMissingTypeStubs]
import llvmlite.ir as untyped_ir  # pyright: ignore[reportMissingTypeStubs]
import numpy as np

from attngen.backends.cpu.target import host
from attngen.ir.diagnostics import Error

ir: Any = untyped_ir
binding: Any = untyped_binding

CHAINS = 12
"""Independent chains of operations: more than the latency of one times how many start per cycle, and they fit 16 registers."""
STEPS = 200_000
"""Multiply-adds per chain in one call: about 0.2 ms."""
LOADS = 8
"""Vectors read in one turn of the loop."""
BYTES_PER_CALL = 1 << 22
"""How much one call reads at least: small buffers several times."""

INT = ir.IntType(64)
ZERO, ONE = ir.Constant(INT, 0), ir.Constant(INT, 1)


def multiply_adds(element_bytes: int, threads: int = 1, seconds: float = 0.1) -> float:
    """The most floating-point operations per second of these threads together, in units of 1e9; a multiply-add counts as two.

    element_bytes: 4 or 8.
    """
    if element_bytes not in (4, 8):
        raise Error(f"multiply_adds: expected elements of 4 or 8 bytes, got {element_bytes}")
    call = machine_code()[f"fma{element_bytes}"]
    operations = 2 * CHAINS * STEPS * host().width(element_bytes)
    return together([lambda: call(STEPS)] * threads, operations, seconds)


def reading(size: int, threads: int = 1, seconds: float = 0.1) -> float:
    """The most bytes per second, in units of 1e9, at which these threads read `size` bytes again and again, each its part.

    A size below that of a cache measures the cache.
    """
    call = machine_code()["read"]
    turn = LOADS * host().row_bytes
    part = max(size // threads // turn, 1) * turn
    times = max(1, BYTES_PER_CALL // part)
    # Room to begin at the start of a cache line; written, so that every page is memory of its own.
    buffers = [np.ones(part + 64, np.uint8) for _ in range(threads)]
    starts = [-(-x.ctypes.data // 64) * 64 for x in buffers]
    calls = [lambda start=start: call(start, part // turn, times) for start in starts]
    return together(calls, part * times, seconds)


def together(calls: Sequence[Callable[[], object]], amount: float, seconds: float) -> float:
    """Each call again and again in a thread of its own; the sum of the best rates, in units of 1e9 per second."""
    best = [0.0] * len(calls)
    begin = threading.Barrier(len(calls))

    def work(n: int) -> None:
        begin.wait()
        end = time.perf_counter() + seconds
        while not best[n] or time.perf_counter() < end:
            start = time.perf_counter()
            calls[n]()
            best[n] = max(best[n], amount / (time.perf_counter() - start))

    workers = [threading.Thread(target=work, args=(n,)) for n in range(1, len(calls))]
    for worker in workers:
        worker.start()
    work(0)
    for worker in workers:
        worker.join()
    return sum(best) / 1e9


@cache
def machine_code() -> dict[str, Callable[..., int]]:
    """The three functions, compiled for this machine as they are written: no optimization could drop or merge what they do."""
    module = ir.Module("peak")
    write_multiply_adds(module, "fma4", ir.FloatType(), host().width(4))
    write_multiply_adds(module, "fma8", ir.DoubleType(), host().width(8))
    write_reading(module)
    with suppress(RuntimeError):  # newer versions of llvmlite do it by themselves, and say so
        binding.initialize()
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    features = binding.get_host_cpu_features().flatten()
    triple = binding.Target.from_default_triple()
    machine = triple.create_target_machine(cpu=binding.get_host_cpu_name(), features=features, opt=3)
    engine = binding.create_mcjit_compiler(binding.parse_assembly(str(module)), machine)
    engine.finalize_object()
    ENGINES.append(engine)
    types = {"fma4": [ctypes.c_int64], "fma8": [ctypes.c_int64], "read": [ctypes.c_int64] * 3}
    return {
        name: ctypes.CFUNCTYPE(ctypes.c_int64, *arguments)(engine.get_function_address(name))
        for name, arguments in types.items()
    }


ENGINES: list[Any] = []
"""Owners of the machine code."""


def function(module: Any, name: str, count: int) -> tuple[Any, Any]:
    """A function of `count` integers that gives one, and a builder in its first block."""
    made = ir.Function(module, ir.FunctionType(INT, [INT] * count), name)
    return made, ir.IRBuilder(made.append_basic_block("entry"))


def loop(builder: Any, trips: Any, state: list[Any], body: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
    """body(index, state) gives the next state; at least one trip."""
    before, block = builder.block, builder.append_basic_block("loop")
    builder.branch(block)
    builder.position_at_end(block)
    index = builder.phi(INT)
    phis = [builder.phi(x.type) for x in state]
    following = body(index, phis)
    stepped = builder.add(index, ONE)
    for phi, first, later in zip((index, *phis), (ZERO, *state), (stepped, *following), strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(later, builder.block)
    after = builder.append_basic_block("after")
    builder.cbranch(builder.icmp_signed("<", stepped, trips), block, after)
    builder.position_at_end(after)
    return following


def write_multiply_adds(module: Any, name: str, element: Any, width: int) -> None:
    """name(steps): CHAINS chains of x = x·m + a, all different."""
    vector = ir.VectorType(element, width)
    made, builder = function(module, name, 1)
    fma = ir.Function(module, ir.FunctionType(vector, [vector] * 3), f"llvm.fma.v{width}{element.intrinsic_name}")

    def filled(value: float) -> Any:
        return ir.Constant(vector, [ir.Constant(element, value)] * width)

    def body(index: Any, state: list[Any]) -> list[Any]:
        return [builder.call(fma, [x, filled(0.75), filled(0.25)]) for x in state]

    chains = loop(builder, made.args[0], [filled(2.0 + n) for n in range(CHAINS)], body)
    total = chains[0]
    for x in chains[1:]:
        total = builder.fadd(total, x)
    builder.ret(builder.fptosi(builder.extract_element(total, ir.Constant(ir.IntType(32), 0)), INT))


def write_reading(module: Any) -> None:
    """read(address, turns, times): the sum of all vectors; a turn is LOADS of them."""
    width = host().vector_bits // 64
    vector = ir.VectorType(INT, width)
    made, builder = function(module, "read", 3)
    start, turns, times = made.args

    def turn(index: Any, state: list[Any]) -> list[Any]:
        first = builder.add(start, builder.mul(index, ir.Constant(INT, LOADS * host().row_bytes)))
        sums: list[Any] = []
        for n, x in enumerate(state):
            place = builder.inttoptr(builder.add(first, ir.Constant(INT, n * host().row_bytes)), ir.PointerType())
            sums.append(builder.add(x, builder.load(place, align=8, typ=vector)))
        return sums

    zeros = [ir.Constant(vector, [ZERO] * width)] * LOADS
    sums = loop(builder, times, zeros, lambda _, state: loop(builder, turns, state, turn))
    total = sums[0]
    for x in sums[1:]:
        total = builder.add(total, x)
    builder.ret(builder.extract_element(total, ir.Constant(ir.IntType(32), 0)))

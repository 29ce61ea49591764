"""From a generated program to object code: Numba compiles the loops to LLVM text, one LLVM function per kernel is put beside
it, and LLVM makes one object of both, with one entry and nothing of Python inside.

The entry is `void name(const int64_t *arguments)`; the arguments are those of `Program.arguments`, in order.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import linecache
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import llvmlite.binding as untyped  # pyright: ignore[reportMissingTypeStubs]

from attngen.backends import Unsupported
from attngen.backends.cpu.source import Program
from attngen.backends.cpu.target import start_llvm
from attngen.backends.cpu.vector import I64, POINTER, VOID, ll

llvm: Any = untyped

ENTRY = "attngen_entry"
LIBC = {"memcpy", "memmove", "memset"}
"""What LLVM makes of loops that copy; every process has them."""


@dataclass(frozen=True)
class MachineCode:
    """Object code, and the seconds that Numba and LLVM took to make it."""

    object: bytes
    entry: str
    seconds: Mapping[str, float]


def compile_program(program: Program, entry: str = ENTRY) -> MachineCode:
    """Object code for the program's target, which need not be this machine's."""
    start = time.perf_counter()
    loops = loops_text(program)
    front = time.perf_counter()
    module, machine = linked(program, loops, entry)
    code = machine.emit_object(module)
    return MachineCode(code, entry, {"Numba": front - start, "LLVM": time.perf_counter() - front})


def texts(program: Program, entry: str = ENTRY) -> dict[str, str]:
    """LLVM's text and the assembly of what `compile_program` makes."""
    module, machine = linked(program, loops_text(program), entry)
    return {"llvm": str(module), "asm": machine.emit_assembly(module)}


# ---- the loops, by Numba


@dataclass(frozen=True)
class Loops:
    """LLVM text of the generated function, and its name there."""

    text: str
    name: str


def numba(name: str) -> Any:
    """A module of Numba's, which takes a second to import: nothing else here needs it."""
    return importlib.import_module(f"numba.{name}")


def intrinsic(name: str, count: int, generate: Callable[[Any, Any, Sequence[Any]], Any]) -> Any:
    """A function of so many integers that Numba code can call: `generate(context, builder, values)` emits the call."""
    int64 = numba("types").int64

    def typed(typingctx: Any, *args: Any) -> Any:
        def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            return generate(context, builder, values)

        return int64(*[int64] * count), lower

    # An intrinsic takes the number of its arguments from its signature.
    names = ["typingctx", *(f"a{index}" for index in range(count))]
    parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names]
    typed.__name__ = typed.__qualname__ = name
    typed.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    return numba("extending").intrinsic(typed)


@lru_cache(1024)
def declared(name: str, count: int, returns: bool) -> Any:
    """A call of a kernel, whose LLVM function is made apart from Numba's. One that gives nothing gives 0.

    Numba keeps what it has seen for ever, so equal ones are the same one."""

    def generate(context: Any, builder: Any, values: Sequence[Any]) -> Any:
        module, full = builder.module, symbol(name)
        kind = ll.FunctionType(I64 if returns else VOID, [I64] * len(values))
        result = builder.call(module.globals.get(full) or ll.Function(module, kind, full), values)
        return result if returns else ll.Constant(I64, 0)

    return intrinsic(name, count, generate)


@cache
def comparisons() -> dict[str, Any]:
    """Numba's own are functions of other modules, compiled for this machine alone."""
    return {"min": intrinsic("min", 2, lesser), "max": intrinsic("max", 2, greater)}


def lesser(context: Any, builder: Any, values: Sequence[Any]) -> Any:
    return builder.select(builder.icmp_signed("<", *values), *values)


def greater(context: Any, builder: Any, values: Sequence[Any]) -> Any:
    return builder.select(builder.icmp_signed(">", *values), *values)


@cache
def as_written() -> Any:
    """Numba's keeper of LLVM modules, without passes of LLVM over what it gets: loops that call kernels gain nothing, and
    LLVM's library does not free what such passes use."""

    def leave(self: Any, module: Any) -> None:
        module.data_layout = self.codegen._data_layout

    return type("AsWritten", (numba("core.codegen").JITCodeLibrary,), {"_optimize_functions": leave})


def symbol(name: str) -> str:
    return f"attngen.{name}"


def loops_text(program: Program) -> Loops:
    """Numba's front end alone: types and LLVM text, nothing optimised, nothing loaded."""
    digest = hashlib.sha256(program.text.encode()).hexdigest()[:12]
    file = f"<attngen {program.name} {digest}>"
    # With the text in linecache, errors and profilers show its lines.
    linecache.cache[file] = (len(program.text), None, program.text.splitlines(keepends=True), file)
    scope: dict[str, Any] = {
        name: declared(name, len(kernel.arguments()), kernel.returns) for name, kernel in program.kernels.items()
    }
    scope |= comparisons()
    exec(compile(program.text, file, "exec"), scope)
    compiler, types = numba("core.compiler"), numba("types")
    flags = compiler.Flags()
    flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    flags.error_model = "numpy"
    with numba("core.compiler_lock").global_compiler_lock:
        target = numba("core.registry").cpu_target
        target.target_context.refresh()
        target.typing_context.refresh()
        signature = [types.int64] * len(program.arguments)
        contexts = target.typing_context, target.target_context
        library = as_written()(target.target_context.codegen(), program.name)
        made = compiler.compile_extra(*contexts, scope[program.name], signature, types.void, flags, {}, library)
        return Loops(library.get_llvm_str(), made.fndesc.mangled_name)


# ---- the kernels, and both together


def kernels_text(program: Program, loops: Loops, entry: str) -> str:
    """LLVM text of one function per kernel, and of the entry."""
    module = ll.Module("kernels")
    for name, kernel in program.kernels.items():
        kernel.build(module, symbol(name), program.target).linkage = "external"
    count = len(program.arguments)
    # Numba's functions return a status, and take the places of a result and of an exception first.
    inner = ll.Function(module, ll.FunctionType(ll.IntType(32), [POINTER, POINTER, *[I64] * count]), loops.name)
    outer = ll.Function(module, ll.FunctionType(VOID, [POINTER]), entry)
    b: Any = ll.IRBuilder(outer.append_basic_block("entry"))
    result, exception = b.alloca(POINTER), b.alloca(POINTER)
    places = [b.gep(outer.args[0], [ll.Constant(I64, n)], source_etype=I64) for n in range(count)]
    b.call(inner, [result, exception, *(b.load(place, typ=I64) for place in places)])
    b.ret_void()
    return str(module)


def linked(program: Program, loops: Loops, entry: str) -> tuple[Any, Any]:
    """LLVM's module for the target, and its code generator.

    None of LLVM's passes over modules runs either: the kernels are written as they should be."""
    start_llvm()
    machine = program.target.machine()
    # A context of its own, which is freed with the module.
    context = llvm.create_context()
    module = llvm.parse_assembly(kernels_text(program, loops, entry), context)
    module.link_in(llvm.parse_assembly(loops.text, context))
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    module.name = program.name
    # Numba numbers the functions of a process, in their names too; what is compiled twice should be the same.
    module.get_function(loops.name).name = symbol(program.name)
    for x in module.global_variables:
        x.name = symbol("environment") if x.name.startswith("_ZN08NumbaEnv") else x.name
    module.verify()
    for x in (*module.functions, *module.global_variables):
        if not x.is_declaration and x.name != entry:
            x.linkage = "internal"
    outside = {f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")} - LIBC
    if outside:
        raise Unsupported("cpu", f"@{program.name} would call {', '.join(sorted(outside))}, which the object lacks")
    return module, machine

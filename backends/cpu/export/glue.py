"""The C source around object code: tables of what is special about a kernel, then `runtime.c`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from importlib.resources import files

import numpy as np

from attngen.backends.cpu.build import WORTH
from attngen.backends.cpu.export.header import header
from attngen.backends.cpu.export.interface import Interface, Vector, Version
from attngen.backends.cpu.export.vectors import number
from attngen.ir.types import ElementType, UpTo, bound

ELEMENTS = ("f64", "f32", "f16", "bf16", "i64", "i32", "i8", "i1")
"""In the order of the enumeration in runtime.c."""

CHECKED = tuple(
    "popcnt sse4.2 avx2 fma bmi2 avx512f avx512bw avx512cd avx512dq avx512vl avx512ifma avx512vbmi avx512vbmi2 avx512vnni "
    "avx512bitalg avx512vpopcntdq".split()
)
"""Features that C compilers can ask an x86 processor for, of those that code may use. (Whatever has AVX2 has F16C.)"""


def glue(x: Interface) -> str:
    """C99 that stands alone: the header, the tables, and everything but the kernels themselves."""
    first = x.versions[0].program
    axes, views = list(x.axes), x.all_views
    group = max((len(g) for each in views for g in each.layout.groups), default=1)
    varying = [axes.index(n) for n in first.extents]
    splits = max((len(n.splits) for each in x.versions for n in each.program.nests), default=1)
    count = len(first.arguments)
    scratch = first.arguments.index("scratch")
    names = {
        "ARGUMENTS": f"{x.name}_args",
        "CALL": x.name,
        "INIT": f"{x.name}_init",
        "WORKSPACE_BYTES": f"{x.name}_workspace_bytes",
        "MESSAGE": f"{x.name}_message",
        "SELFTEST": f"{x.name}_selftest",
        "INFO": f"{x.name}_info",
        "INTEGERS": x.integers,
        "WORTH": f"{WORTH}.0",
    }
    numbers = {
        "ARRAYS": len(x.arrays),
        "AXES": max(len(axes), 1),
        "VIEWS": len(views),
        "READ": len(x.views),
        "GROUP": max(group, 1),
        "VARYING": len(varying),
        "LOOKUPS": len(first.lookups),
        "VERSIONS": len(x.versions),
        "VECTORS": len(x.vectors),
        "ARGUMENT_COUNT": count,
        "SCRATCH": scratch,
        "FIRST": count - 2,
        "LAST": count - 1,
    }
    halves = any(a.type.element is ElementType.F16 for a in x.arrays)
    table = (int(np.float16(number(byte)).view(np.uint16)) for byte in range(256)) if halves else (0,) * 256
    architecture = x.versions[0].program.target.architecture
    macro = {"arm64": "__aarch64__"}.get(architecture, f"__{architecture}__")
    return "\n".join(
        [
            header(x),
            "#include <math.h>\n#include <pthread.h>\n#include <stdlib.h>\n#include <string.h>\n",
            f'#ifndef {macro}\n#error "this kernel is for {architecture}: name another target when compiling it"\n#endif\n',
            "#define TEXT_(x) #x\n#define TEXT(x) TEXT_(x)",
            *(f"#define {name} {value}" for name, value in names.items()),
            f"\nenum {{ {', '.join(f'{name} = {value}' for name, value in numbers.items())} }};\n",
            STRUCTS.replace("MOST_AXES", str(max(len(each.type.axes) for each in views) or 1)).replace(
                "MOST_SPLITS", str(splits or 1)
            ),
            f"static const int64_t element_bytes[] = {braced(str(ElementType(e).bytes) for e in ELEMENTS)};",
            f"static const uint16_t halves[256] = {braced(map(str, table))};",
            f"static const Axis axes[AXES] = {braced(f'{{{bound(e)}, {isinstance(e, UpTo):d}}}' for e in x.axes.values())};",
            f"static const int varying[VARYING + 1] = {braced(map(str, [*varying, 0]))};",
            f"static const signed char groups[][GROUP] = {braced(dimensions(x, axes, max(group, 1)))};",
            f"static const Array arrays[ARRAYS] = {braced(arrays(x))};",
            f"static const View views[VIEWS] = {braced(view_rows(x, axes))};",
            *(version(each, n, x, axes) for n, each in enumerate(x.versions)),
            f"static const Version versions[VERSIONS] = {braced(version_row(one, n, x) for n, one in enumerate(x.versions))};",
            *(samples(each, n) for n, each in enumerate(x.vectors)),
            f"static const Vector vectors[VECTORS] = {braced(vector_row(each, n, axes) for n, each in enumerate(x.vectors))};",
            f"static const char info[] = {c_string(x.info)};\n",
            files("attngen.backends.cpu.export").joinpath("runtime.c").read_text(encoding="utf-8"),
        ]
    )


STRUCTS = """typedef struct { int64_t bound; int varies; } Axis;
/* rank, element type, whether it is written; where pointer, extents and strides lie in the struct of arguments */
typedef struct { int rank, element, output; size_t data, extents, strides; } Array;
/* An array as the kernel reads it. first: the first of its dimensions in `groups`, each of which holds some axes; order: the
   axes whose strides the kernel takes, in order. */
typedef struct { int array, first, axes; signed char order[MOST_AXES]; } View;
/* An axis of loops that is cut into parts: which one, if its extent varies, else -1; its largest extent. */
typedef struct { int axis; int64_t extent, step; } Split;
/* A nest of loops that several threads can share the parts of. */
typedef struct { double operations; int splits; Split split[MOST_SPLITS]; } Nest;
typedef struct {
    int (*runs_here)(void);
    void (*entry)(const int64_t *arguments);
    size_t scratch, temporary; /* bytes per thread, and for all */
    int nests;
    const Nest *nest;
} Version;
typedef struct { int array; int64_t index; double value, allowed; } Sample;
typedef struct { uint64_t seed; int64_t gap, threads, size[AXES]; const Sample *samples; int count; } Vector;
"""


def braced(items: Iterable[str]) -> str:
    """An initialiser, filled to lines."""
    lines = [""]
    for item in items:
        if len(lines[-1]) + len(item) > 110:
            lines.append("")
        lines[-1] += f" {item},"
    return "{" + "\n   ".join(lines).removesuffix(",") + " }"


def dimensions(x: Interface, axes: Sequence[str], width: int) -> list[str]:
    """The axes of each dimension of each view, filled up with -1."""
    rows = [[axes.index(n) for n in group] for each in x.all_views for group in each.layout.groups] or [[]]
    return [f"{{{', '.join(map(str, [*row, *[-1] * (width - len(row))]))}}}" for row in rows]


def arrays(x: Interface) -> list[str]:
    rows: list[str] = []
    for a in x.arrays:
        struct, rank = f"{x.name}_args", len(a.layout.groups)
        places = [f"offsetof({struct}, {a.name})"]
        places += [f"offsetof({struct}, {a.name}_{what})" if rank else "0" for what in ("extents", "strides")]
        rows.append(f"{{{rank}, {ELEMENTS.index(a.type.element.value)}, {a.output:d}, {', '.join(places)}}}")
    return rows


def view_rows(x: Interface, axes: Sequence[str]) -> list[str]:
    rows: list[str] = []
    first = 0
    for each in x.all_views:
        order = [axes.index(n) for n in each.layout.names]
        rows.append(f"{{{each.array}, {first}, {len(order)}, {{{', '.join(map(str, order or [0]))}}}}}")
        first += len(each.layout.groups)
    return rows


def version(each: Version, n: int, x: Interface, axes: Sequence[str]) -> str:
    """What is special about one target: its functions and nests."""
    target = each.program.target
    checked = [f for f in CHECKED if f in target.features and target.architecture == "x86_64"]
    calls = " && ".join(f'__builtin_cpu_supports("{f}")' for f in checked) or "1"
    start = "__builtin_cpu_init(); " if checked else ""
    nests: list[str] = []
    for nest in each.program.nests:
        splits = ", ".join(
            f"{{{axes.index(s.axis) if isinstance(s.extent, UpTo) else -1}, {bound(s.extent)}, {s.step}}}" for s in nest.splits
        )
        nests.append(f"{{{float(nest.flops)!r}, {len(nest.splits)}, {{{splits or '{-1, 1, 1}'}}}}}")
    return (
        f"extern void {x.entries[n]}(const int64_t *arguments);\n"
        f"static int runs_here_{n}(void) {{ {start}return {calls}; }} /* {each.target} */\n"
        f"static const Nest nests_{n}[] = {braced(nests)};"
    )


def version_row(each: Version, n: int, x: Interface) -> str:
    program = each.program
    return (
        f"{{runs_here_{n}, {x.entries[n]}, {program.scratch_bytes}, {program.temporary_bytes}, "
        f"{len(program.nests)}, nests_{n}}}"
    )


def samples(each: Vector, n: int) -> str:
    rows = (f"{{{s.array}, {s.index}, {c_number(s.value)}, {c_number(s.allowed)}}}" for s in each.samples)
    return f"static const Sample samples_{n}[] = {braced(rows)};"


def vector_row(each: Vector, n: int, axes: Sequence[str]) -> str:
    sizes = ", ".join(str(each.sizes[name]) for name in axes) or "1"
    return f"{{{each.seed}, {each.gap}, {each.threads}, {{{sizes}}}, samples_{n}, {len(each.samples)}}}"


def c_number(x: float) -> str:
    if math.isnan(x):
        return "NAN"
    return repr(x) if math.isfinite(x) else "INFINITY" if x > 0 else "-INFINITY"


def c_string(text: str) -> str:
    """Short literals, one after the other."""
    parts = [json.dumps(text[start : start + 90]).replace("?", "\\?") for start in range(0, len(text), 90)]
    return "\n    ".join(["", *parts])

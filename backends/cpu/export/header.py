"""The header: the struct of arguments, the functions, and what they expect."""

from __future__ import annotations

from attngen.backends.cpu.export.interface import Array, Interface

C_TYPE = {
    "f64": "double",
    "f32": "float",
    "f16": "uint16_t",
    "bf16": "uint16_t",
    "i64": "int64_t",
    "i32": "int32_t",
    "i8": "int8_t",
    "i1": "uint8_t",
}
MEANING = {"f16": "IEEE half precision", "bf16": "bfloat16", "i1": "0 or 1"}

FIELDS = ("size", "threads", "workspace", "workspace_bytes")
"""Fields of the struct that are no arrays."""

FIELDS_BESIDE = ("_extents", "_strides")
"""What the names of the fields that go with an array end in."""

CODES = (
    "OK",
    "NULL_POINTER",
    "BAD_SIZE",
    "BAD_EXTENT",
    "BAD_THREADS",
    "NO_MEMORY",
    "SMALL_WORKSPACE",
    "BAD_PROCESSOR",
    "BAD_INDEX",
    "BAD_STRIDE",
    "WRONG_RESULT",
)


def header(x: Interface) -> str:
    name, guard = x.name, f"ATTNGEN_{x.name.upper()}_H"
    codes = ",\n".join(f"    ATTNGEN_{code} = {number}" for number, code in enumerate(CODES))
    fields = "\n".join(field(array) for array in x.arrays)
    targets = ", ".join(each.target for each in x.versions)
    return f"""/* {name}: a kernel compiled by attngen for {targets}.

{chr(10).join(describe(x, array) for array in x.arrays)}

    {name}_args args;
    {name}_init(&args);
{chr(10).join(f"    args.{array.name} = ...;" for array in x.arrays)}
    int code = {name}(&args);
    if (code != ATTNGEN_OK) puts({name}_message(code));

   Link with -pthread -lm. Calls may run at the same time; a call keeps nothing but what it writes to the outputs. */
#ifndef {guard}
#define {guard}

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

#ifndef ATTNGEN_CODES
#define ATTNGEN_CODES
enum attngen_code {{
{codes}
}};
#endif

/* Extents are the lengths of an array's dimensions; strides are the elements from one to the next along each, and may be
   anything, negative or 0 (in an input) included. Nothing has to be aligned. Outputs overlap nothing. */
typedef struct {name}_args {{
    size_t size;            /* sizeof({name}_args) */
    int64_t threads;        /* At most so many threads work on the call, created and joined by it; 1: only the caller. */
    void *workspace;        /* NULL: the call allocates its memory and frees it. */
    size_t workspace_bytes; /* Otherwise at least {name}_workspace_bytes(threads); what is in it does not matter. */
{fields}
}} {name}_args;

/* Fills in size, threads = 1, the largest extents, and strides without gaps, last dimension fastest. Pointers are left NULL. */
void {name}_init({name}_args *args);

/* Computes the outputs: ATTNGEN_OK, or a code and, except for ATTNGEN_BAD_INDEX, outputs that were not touched. */
int {name}(const {name}_args *args);

size_t {name}_workspace_bytes(int64_t threads);

/* A code in words. */
const char *{name}_message(int code);

/* Computes examples whose results were known when the kernel was compiled: ATTNGEN_OK if this machine gets them right. */
int {name}_selftest(void);

/* What the kernel was made from and by, as JSON. */
const char *{name}_info(void);

#ifdef __cplusplus
}}
#endif
#endif
"""


def field(x: Array) -> str:
    const = "" if x.output else "const "
    pointer = f"    {const}{C_TYPE[x.type.element.value]} *{x.name};"
    rank = len(x.layout.groups)
    return pointer + (f"\n    int64_t {x.name}_extents[{rank}], {x.name}_strides[{rank}];" if rank else "")


def describe(x: Interface, array: Array) -> str:
    """`out: float [1][8][512][64], axes b h i e, written`."""
    element = array.type.element.value
    meaning = f" ({MEANING[element]})" if element in MEANING else ""
    shape = "".join(f"[{n}]" for n in x.extents(array)) or "one element"
    axes = f", axes {array.layout}" if array.layout.groups else ""
    return f"   {array.name}: {C_TYPE[element]}{meaning} {shape}{axes}{', written' if array.output else ''}"

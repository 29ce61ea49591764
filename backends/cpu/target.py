"""What a kernel is made for: width and number of the vector registers, instruction set, triple."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import llvmlite.binding as untyped  # pyright: ignore[reportMissingTypeStubs]

from attngen.backends import Unsupported

llvm: Any = untyped


@dataclass(frozen=True)
class Target:
    """A processor, as far as generated code depends on it.

    name: what LLVM calls the processor, where there is a triple: architecture and operating system. Without a triple code is
    made for this machine. needs: features without which the code must not run here.
    """

    name: str
    vector_bits: int
    vector_registers: int
    scales: bool = False
    """Whether it has AVX-512's instructions for exponents of floats."""
    triple: str = ""
    needs: tuple[str, ...] = ()

    @property
    def architecture(self) -> str:
        return (self.triple or llvm.get_process_triple()).partition("-")[0]

    @property
    def platform(self) -> str:
        """Architecture and operating system, which decide how functions are called and what object files look like."""
        return platform(self.triple or llvm.get_process_triple())

    @property
    def features(self) -> tuple[str, ...]:
        """Those without which code for it must not run."""
        return self.needs if self.triple else tuple(name for name, there in host_features().items() if there)

    @property
    def lanes(self) -> int:
        """Lanes of a vector of 4-byte elements: the most lanes any vector here has."""
        return self.vector_bits // 32

    @property
    def row_bytes(self) -> int:
        """What rows in scratch memory are padded to and aligned at."""
        return self.vector_bits // 8

    def width(self, element_bytes: int) -> int:
        """Lanes of a vector of such elements; those of less than 4 bytes are widened on the way in."""
        return self.vector_bits // 8 // max(element_bytes, 4)

    @property
    def row_counts(self) -> list[int]:
        """Rows of register tiles two vectors wide, the best first: its accumulators leave room for what they are made of."""
        most = 6 if self.vector_registers == 16 else 8
        return [most, *(n for n in (4, 2, 1) if n < most)]

    def has(self, feature: str) -> bool:
        """Whether its instruction set has a feature, by LLVM's name for it."""
        return feature in self.needs if self.triple else bool(host_features().get(feature))

    @property
    def fused(self) -> bool:
        """Whether it multiplies and adds with one rounding. Without that an `llvm.fma` would be a call into libm."""
        return self.has("fma") or self.has("neon")

    def why_not_here(self) -> str:
        """Why this machine cannot run such code; empty if it can."""
        here = platform(llvm.get_process_triple())
        if self.platform != here:
            return f"this machine is {here}, the code is for {self.platform}"
        missing = [name for name in self.needs if not host_features().get(name)]
        return f"this machine's processor lacks {', '.join(missing)}" if missing else ""

    def machine(self) -> Any:
        """LLVM's code generator for it. Position-independent, so that the same object can be loaded or linked."""
        start_llvm()
        here = not self.triple
        triple = self.triple or llvm.get_process_triple()
        return llvm.Target.from_triple(triple).create_target_machine(
            cpu=llvm.get_host_cpu_name() if here else self.name,
            features=llvm.get_host_cpu_features().flatten() if here else "",
            opt=3,
            reloc="pic",
            codemodel="small",
        )


def platform(triple: str) -> str:
    """`x86_64 linux`"""
    system = next((name for name in ("linux", "darwin", "windows") if name in triple), "an unknown system")
    return f"{triple.partition('-')[0]} {system}"


@cache
def start_llvm() -> None:
    """Every code generator that LLVM was built with."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()


@cache
def host_features() -> Mapping[str, bool]:
    return llvm.get_host_cpu_features()


@cache
def host() -> Target:
    """The machine this runs on."""
    features = host_features()
    if features.get("avx512f") and features.get("avx512vl"):
        return Target("", 512, 32, scales=bool(features.get("avx512dq")))
    if features.get("avx2") and features.get("fma"):
        return Target("", 256, 16)
    return Target("", 128, 32 if features.get("neon") else 16)


LINUX = "unknown-linux-gnu"
V2, V3 = ("sse4.2", "popcnt"), ("avx2", "fma", "bmi2", "f16c")
V4 = (*V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")

NAMED: Mapping[str, tuple[Target, str]] = {
    "x86-64-v2": (Target("x86-64-v2", 128, 16, triple=f"x86_64-{LINUX}", needs=V2), "128-bit vectors (SSE4.2)"),
    "x86-64-v3": (Target("x86-64-v3", 256, 16, triple=f"x86_64-{LINUX}", needs=V3), "AVX2 and FMA"),
    "x86-64-v4": (Target("x86-64-v4", 512, 32, scales=True, triple=f"x86_64-{LINUX}", needs=V4), "AVX-512"),
    "skylake-avx512": (
        Target("skylake-avx512", 512, 32, scales=True, triple=f"x86_64-{LINUX}", needs=V4),
        "AVX-512, scheduled for Intel's Skylake servers",
    ),
    "neoverse-n1": (Target("neoverse-n1", 128, 32, triple=f"aarch64-{LINUX}", needs=("neon",)), "64-bit Arm servers, NEON"),
    "apple-m1": (Target("apple-m1", 128, 32, triple="arm64-apple-darwin", needs=("neon",)), "Apple's M1 and later, NEON"),
}
"""Processors by LLVM's names for them: vector width, registers, operating system, and what each is."""

TARGETS: Mapping[str, str] = {"": "the processor of this machine", **{name: what for name, (_, what) in NAMED.items()}}

OVERRIDES = {"vector_bits": (128, 256, 512), "vector_registers": (16, 32)}
"""What `x86-64-v3,vector_bits=512` may change, and to what. LLVM splits vectors that are wider than its registers."""


def find(name: str) -> Target:
    """A target by name, with overrides behind commas: `x86-64-v3`, `x86-64-v3,vector_bits=512`, `,vector_bits=128`."""
    base, *changes = name.split(",")
    if base not in TARGETS:
        known = ", ".join(f"cpu:{n}" for n in NAMED)
        raise Unsupported("cpu", f"there is no target cpu:{name}", help=f"known: cpu (this machine), {known}")
    target = NAMED[base][0] if base else host()
    for change in changes:
        key, _, text = change.partition("=")
        if key not in OVERRIDES or text not in map(str, OVERRIDES[key]):
            choices = "; ".join(f"{key}={' or '.join(map(str, values))}" for key, values in OVERRIDES.items())
            raise Unsupported("cpu", f"cpu:{name}: cannot set {change!r}", help=f"a target may be followed by {choices}")
        # Instructions for exponents are those of 512-bit registers.
        target = replace(target, scales=target.scales and key != "vector_bits", **{key: int(text)})
    return target

"""What a kernel is made for: an architecture of NVIDIA GPUs, and what it offers to one block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from attngen.backends import Unsupported
from attngen.ir.diagnostics import Error


@dataclass(frozen=True)
class Target:
    """name: the architecture as PTX calls it; shared_bytes: the most shared memory one block can have; emulated: whether
    kernels run in the interpreter of PTX instead of on a device."""

    name: str
    shared_bytes: int
    about: str
    emulated: bool = False

    @property
    def capability(self) -> tuple[int, int]:
        digits = self.name.removeprefix("sm_").rstrip("a")
        return int(digits[:-1]), int(digits[-1])

    @property
    def suffix(self) -> str:
        """`a`, where instructions of just this architecture may be used."""
        return "a" if self.name.endswith("a") else ""

    @property
    def warpgroups(self) -> bool:
        """Whether it has Hopper's tensor copies and products of whole warpgroups."""
        return self.name == "sm_90a"


KB = 1024
KNOWN: Mapping[str, Target] = {
    t.name: t
    for t in (
        Target("sm_80", 163 * KB, "Ampere: A100"),
        Target("sm_86", 99 * KB, "Ampere: RTX 30, A40"),
        Target("sm_89", 99 * KB, "Ada: RTX 40, L4, L40"),
        Target("sm_90", 227 * KB, "Hopper, without its own instructions"),
        Target("sm_90a", 227 * KB, "Hopper: H100, H200"),
        Target("sm_100", 227 * KB, "Blackwell: B200, by the instructions of Ampere"),
        Target("sm_120", 99 * KB, "Blackwell: RTX 50, by the instructions of Ampere"),
    )
}

TARGETS: Mapping[str, str] = {
    "": "the NVIDIA GPU of this machine",
    **{name: t.about for name, t in KNOWN.items()},
}

DEFAULT = "sm_80"
"""What code is made for where only its shape matters: the oldest architecture."""


def find(variant: str) -> Target:
    """The target of `sm_90a` or `sm_80,emulated`. The empty name is this machine's GPU (`device.py` finds it)."""
    name, _, option = variant.partition(",")
    if option not in ("", "emulated"):
        raise Error(f"target: cuda:{variant}: unknown option {option!r}; there is `emulated`, to run in an interpreter of PTX")
    if not name:
        from attngen.backends.cuda.runtime.device import architecture

        name = architecture()
    if name not in KNOWN:
        raise Unsupported("cuda", f"there is no target {name!r}", help=f"one of {', '.join(KNOWN)}")
    return replace(KNOWN[name], emulated=bool(option))

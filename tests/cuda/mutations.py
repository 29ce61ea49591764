"""Small defects planted in the text of a kernel, one at a time: synchronisation taken away or made wrong, operands turned.

Each place is named by its instruction and the number of it among its like, in the order of the text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Statement:
    """One instruction of the text. guard: `@%p1 ` or empty; rest: its operands."""

    guard: str
    opcode: str
    rest: str
    start: int
    end: int


@dataclass(frozen=True)
class Mutant:
    """rule: what was done, such as `delete bar.sync`; number: to which of the places where that can be done."""

    rule: str
    number: int
    text: str

    @property
    def name(self) -> str:
        return f"{self.rule} #{self.number}"


STATEMENT = re.compile(
    r"(?P<guard>@!?[%\w]+\s+)?(?P<opcode>(?:bar|barrier|cp|mbarrier|fence|wgmma|ldmatrix)\.[\w.:]+)(?P<rest>[^;]*);"
)
DELETED = (
    *("bar.sync", "barrier.sync", "bar.warp.sync"),
    *("cp.async.wait_group", "cp.async.commit_group", "cp.async.bulk.tensor"),
    *("mbarrier.init", "mbarrier.arrive", "mbarrier.arrive.expect_tx"),
    *("fence.mbarrier_init", "fence.proxy.async"),
    *("wgmma.fence", "wgmma.commit_group", "wgmma.wait_group"),
)
"""Instructions that are left away, by how they begin."""


ALONE = re.compile(
    r"(?:\s|//[^\n]*|@%\w+\s+(?:mbarrier|fence|cp\.async\.bulk)\.[^;]*;|fence\.[^;]*;|(?:add|and|elect|mov|not|or|selp|setp|shl|xor|cvt|sub)\b[^;]*;|[{}]|\.reg\s[^;]*;)*"
)
"""Text in which at most one thread does anything to memory."""


def mutants(text: str) -> Iterator[Mutant]:
    """All of a text, in the order of their places."""
    count: Counter[str] = Counter()
    statements = list(STATEMENT.finditer(text))
    for k, found in enumerate(statements):
        s = Statement(found["guard"] or "", found["opcode"], found["rest"], found.start(), found.end())
        for rule, change in changes(s):
            mutated = text[: s.start] + change + text[s.end :]
            if rule in ("delete bar.sync", "delete barrier.sync"):
                if follows_its_like(text, statements[:k], s):
                    continue
                mutated = text[: s.start] + "".join(without(text, statements[k:]))
            yield Mutant(rule, count[rule], mutated)
            count[rule] += 1


def barrier(found: re.Match[str]) -> str:
    """Which one, if the instruction is a barrier of the block."""
    return found["opcode"] + found["rest"] if found["opcode"] in ("bar.sync", "barrier.sync") else ""


def follows_its_like(text: str, before: Sequence[re.Match[str]], s: Statement) -> bool:
    """Whether the same barrier stands before it, and between the two no more than one thread acts."""
    last = next((x for x in reversed(before) if barrier(x)), None)
    return last is not None and barrier(last) == s.opcode + s.rest and bool(ALONE.fullmatch(text, last.end(), s.start))


def without(text: str, rest: Sequence[re.Match[str]]) -> Iterator[str]:
    """The rest of the text without its first barrier, and without those that follow it as said above."""
    at = rest[0].end()
    for k, x in enumerate(rest[1:], 1):
        if barrier(x):
            if not follows_its_like(text, rest[:k], Statement("", x["opcode"], x["rest"], x.start(), x.end())):
                break
            yield text[at : x.start()]
            at = x.end()
    yield text[at:]


def changes(s: Statement) -> Iterator[tuple[str, str]]:
    """What is done to an instruction, and what then stands in its place."""
    begins = [x for x in DELETED if s.opcode == x or s.opcode.startswith(f"{x}.")]
    if begins:
        yield f"delete {max(begins, key=len)}", ""
    for rule, change in RULES.items():
        yield from ((f"{rule}{word}", text) for word, text in change(s))


Changes = Iterator[tuple[str, str]]
"""What is added to the name of the rule, and the new text."""


def wait_for_one_less(s: Statement) -> Changes:
    """`wait_group n` -> `wait_group n + 1`."""
    if s.opcode.startswith(("cp.async.wait_group", "cp.async.bulk.wait_group", "wgmma.wait_group")):
        kind = s.opcode.split(".")[0]
        yield f" {kind}", f"{s.guard}{s.opcode} {int(s.rest) + 1};"


def do_not_wait(s: Statement) -> Changes:
    """The predicate that the loop around a `try_wait` tests is true at once."""
    if s.opcode.startswith("mbarrier.try_wait"):
        yield "", f"{s.guard}setp.eq.u32 {s.rest.split(',')[0].strip()}, 0, 0;"


def flip_parity(s: Statement) -> Changes:
    if s.opcode.startswith("mbarrier.try_wait.parity"):
        *others, parity = s.rest.split(",")
        yield "", with_changed(s, f"xor.b32 changed, {parity}, 1;", ",".join(others))


def expect_other_bytes(s: Statement) -> Changes:
    if "expect_tx" in s.opcode:
        *others, size = s.rest.split(",")
        for more in (16, -16):
            yield f" {more:+}", with_changed(s, f"add.s32 changed, {size}, {more};", ",".join(others))


def expect_other_arrivals(s: Statement) -> Changes:
    if s.opcode.startswith("mbarrier.init"):
        *others, count = s.rest.split(",")
        for more in (1, -1):
            yield f" {more:+}", with_changed(s, f"add.s32 changed, {count}, {more};", ",".join(others))


def turn_matrix(s: Statement) -> Changes:
    """`ldmatrix.trans` -> `ldmatrix`; each of the last bits of `wgmma`, which say that a and b are stored transposed."""
    if s.opcode.startswith("ldmatrix") and ".trans" in s.opcode:
        yield " ldmatrix", f"{s.guard}{s.opcode.replace('.trans', '')}{s.rest};"
    if s.opcode.startswith("wgmma.mma_async"):
        words = s.rest.split(",")
        in_registers = s.rest.count("{") == 2
        for k, word in ((-1, " wgmma b"),) if in_registers else ((-2, " wgmma a"), (-1, " wgmma b")):
            turned = [*words]
            turned[k] = f" {1 - int(words[k])}"
            yield word, f"{s.guard}{s.opcode}{','.join(turned)};"


def with_changed(s: Statement, compute: str, others: str) -> str:
    """The instruction with the register `changed` as its last operand."""
    return f"{{ .reg .b32 changed; {compute} {s.guard}{s.opcode}{others}, changed; }}"


RULES: dict[str, Callable[[Statement], Changes]] = {
    "wait_group n + 1": wait_for_one_less,
    "do not wait": do_not_wait,
    "flip parity": flip_parity,
    "expected bytes": expect_other_bytes,
    "expected arrivals": expect_other_arrivals,
    "turn": turn_matrix,
}

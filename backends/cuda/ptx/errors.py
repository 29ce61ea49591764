"""What the interpreter raises: text it cannot read, instructions it does not know, defects it found while running."""

from __future__ import annotations

from attngen.ir.diagnostics import Error, Loc


class PtxError(Error):
    """Something wrong with PTX text or with how it was launched. The text starts with the file and the line."""

    def __init__(self, message: str, loc: Loc | None = None) -> None:
        super().__init__(f"{loc}: {message}" if loc is not None and loc.line else message)
        self.message, self.loc = message, loc or Loc()


class Unsupported(PtxError):
    """An instruction, a modifier or a directive that the interpreter does not know. Nothing is skipped silently."""


class Defect(PtxError):
    """What a check found in a running program.

    kind: race, unwritten, async, bounds, alignment, divergence, deadlock or mbarrier.
    thread: which thread met it; address: the byte address, in its state space; instruction: the text of the line.
    """

    def __init__(
        self, kind: str, why: str, loc: Loc, *, instruction: str = "", thread: str = "", address: int | None = None
    ) -> None:
        where = [f"by {thread}"] * bool(thread) + ([f"address {address:#x}"] if address is not None else [])
        lines = [f"{kind}: {why}", ", ".join(where), f"at `{shorten(instruction)}`" if instruction else ""]
        super().__init__("\n  ".join(filter(None, lines)), loc)
        self.kind, self.why, self.thread, self.address, self.instruction = kind, why, thread, address, instruction


def shorten(text: str, width: int = 92) -> str:
    """One line of at most `width` characters."""
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"

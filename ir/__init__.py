"""attngen.ir: the language. Types with named axes, ops, text, verifier, interpreter, rewriting and passes."""

from __future__ import annotations

if __name__ != "attngen.ir":
    raise ImportError("import attngen.ir: a second copy named ir would have classes of its own")

"""The format of a file that keeps a kernel: `attngen` and a zero byte, the schema, a SHA-256 of all that follows, then how
long the facts are, the facts as JSON, and the object code. Whole numbers are little-endian, 4 bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attngen.backends import Saved

MAGIC = b"attngen\0"
SCHEMA = 1
"""Counted up when the format or the meaning of the facts changes."""

NUMBER = 4
HEAD = len(MAGIC) + NUMBER + hashlib.sha256().digest_size


class Damaged(Exception):
    """A file is not what was written; the message says in which way."""


@dataclass(frozen=True)
class Entry:
    """What is kept of a kernel. key: what it was compiled from, as a digest; about: what people see of it in a list."""

    key: str
    about: Mapping[str, str]
    saved: Saved


def pack(entry: Entry) -> bytes:
    facts = json.dumps({"key": entry.key, "about": dict(entry.about), "facts": dict(entry.saved.facts)}).encode()
    payload = number(len(facts)) + facts + entry.saved.code
    return MAGIC + number(SCHEMA) + hashlib.sha256(payload).digest() + payload


def unpack(data: bytes, key: str) -> Entry:
    """The entry of this key. Raises Damaged if the bytes are anything else."""
    if not data:
        raise Damaged("the file is empty")
    if not data.startswith(MAGIC):
        raise Damaged("the file does not begin as a kernel does")
    if data[len(MAGIC) : len(MAGIC) + NUMBER] != number(SCHEMA):
        raise Damaged("the file has the format of another version")
    payload = data[HEAD:]
    if hashlib.sha256(payload).digest() != data[len(MAGIC) + NUMBER : HEAD]:
        raise Damaged("the checksum does not fit")
    length = int.from_bytes(payload[:NUMBER], "little")
    try:
        read: Any = json.loads(payload[NUMBER : NUMBER + length])
        found, about, facts = read["key"], dict(read["about"]), dict(read["facts"])
    except (LookupError, TypeError, ValueError):
        raise Damaged("the facts are not those of a kernel") from None
    if found != key:
        raise Damaged("the file holds another kernel than its name says")
    return Entry(key, about, Saved(payload[NUMBER + length :], facts))


def number(n: int) -> bytes:
    return n.to_bytes(NUMBER, "little")

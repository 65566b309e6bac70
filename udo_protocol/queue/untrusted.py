"""Checked reads of keys that an operator may write: most keys of its slot (access.py). Their content is not trusted.

Unexpected content raises SlotBroken, which names the key, what was expected and what came. The error concerns one deployment: a caller
that reads for several reports it for that one and continues with the others.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from udo_protocol.errors import SlotBroken
from udo_protocol.queue.connection import BEYOND, Arg, Connection, ReplyError

# Whole numbers up to this one are exact in Lua and in JSON and fit the fields of all messages.
MOST = (1 << 53) - 1
# Longer than any number; no more bytes are read.
NUMBER_BYTES = 32
_SHOWN_CHARACTERS = 60
_LATEST_S = 253_402_300_799  # the end of the year 9999
_HOLDS = {"GET": "a string", "GETRANGE": "a number", "SCARD": "a set", "ZRANGE": "a sorted set"}
_HOLDS |= dict.fromkeys(("LLEN", "LRANGE", "LPOP"), "a list")
# Default bound of one read, enough for everything shown to users. A caller that may read more passes its own.
LOOK_BYTES = 16 << 20
# The bound of a read of state: more than a server can hold.
STATE_BYTES = 1 << 40


def broken(key: str, expected: str, came: object) -> SlotBroken:
    """The error for this key: `came` instead of `expected`."""
    text = bytes(came).decode("utf-8", "replace") if isinstance(came, (bytes, bytearray)) else str(came)
    short = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}... ({len(text)} characters)"
    return SlotBroken(f"key {key} is broken: expected {expected}, it holds {short!r}")


@contextmanager
def reading(key: str, expected: str) -> Iterator[None]:
    """Raise SlotBroken for errors in the block, which interprets the content of `key`."""
    try:
        yield
    except ReplyError as e:
        if not str(e).startswith("WRONGTYPE"):
            raise
        raise SlotBroken(f"key {key} is broken: expected {expected}, it holds another type") from None
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as e:
        raise broken(key, expected, f"{type(e).__name__}: {e}") from None


def read(conn: Connection, *commands: Sequence[Arg], most_bytes: int = LOOK_BYTES) -> list[Any]:
    """The replies to one transaction of commands, whose second word is the key. SlotBroken if they exceed `most_bytes` in total."""
    conn.send_transaction(commands)
    with conn.at_most(most_bytes):
        replies = conn.receive_outcomes(len(commands))
    for command, reply in zip(commands, replies, strict=True):
        if reply is BEYOND or (isinstance(reply, list) and any(r is BEYOND for r in reply)):
            raise SlotBroken(f"key {command[1]!s} is broken: it holds more than the {most_bytes} bytes that are looked at")
        if isinstance(reply, ReplyError):
            with reading(str(command[1]), _HOLDS.get(str(command[0]), "a hash")):
                raise reply
    return replies


def number(value: Any, key: str, default: int = 0, least: int = 0) -> int:
    """A reply as a whole number of at least `least`; `default` if the key or field is absent."""
    if value is None or (isinstance(value, bytes) and not value):
        return default
    try:
        found = int(value)
    except (ValueError, TypeError, OverflowError):
        raise broken(key, "a whole number", value) from None
    if not least <= found <= MOST:
        raise broken(key, f"a whole number of {least} to {MOST}", value)
    return found


def measure(value: Any, key: str) -> float:
    """A reply as a count or time: finite and not negative."""
    try:
        found = float(value)
    except (ValueError, TypeError, OverflowError):
        found = math.nan
    if not 0 <= found <= MOST:
        raise broken(key, f"a number of 0 to {MOST}", value)
    return found


def moment(value: Any, key: str) -> float:
    """A reply as a time in seconds since 1970, at most the end of the year 9999."""
    if (found := measure(value, key)) > _LATEST_S:
        raise broken(key, "seconds since 1970", value)
    return found


def document(value: Any, key: str) -> dict[str, Any]:
    """A reply as a JSON object."""
    with reading(key, "a JSON object"):
        found = json.loads(bytes(value))
    if not isinstance(found, Mapping):
        raise broken(key, "a JSON object", value)
    return dict(found)

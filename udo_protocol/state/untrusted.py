"""Reads of what an operator may have written. Its instance's user may write most keys of its slot (access.py): nothing there is trusted.

What is not as it should be is SlotBroken, which names the key, what was expected and what came. It concerns one deployment:
who reads for several says so of that one and goes on with the others.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from udo_protocol.errors import SlotBroken
from udo_protocol.queue.connection import BEYOND, Arg, Connection, ReplyError

# Numbers up to here are exact in Lua and in JSON, and fit every message that they are passed on in.
MOST = (1 << 53) - 1
# Longer than any number; who wrote more is not sent it back whole.
NUMBER_BYTES = 32
_SHOWN_CHARACTERS = 60
_LATEST_S = 253_402_300_799  # the end of the year 9999
_HOLDS = {"GET": "a string", "GETRANGE": "a number", "SCARD": "a set", "ZRANGE": "a sorted set"}
_HOLDS |= dict.fromkeys(("LLEN", "LRANGE", "LPOP"), "a list")
# Of what is looked at for people, in all. What may be larger says so where it is read.
LOOK_BYTES = 16 << 20
# State itself, for who reads it whole: as much as a server can hold.
STATE_BYTES = 1 << 40


def broken(key: str, expected: str, came: object) -> SlotBroken:
    """What to raise."""
    text = bytes(came).decode("utf-8", "replace") if isinstance(came, (bytes, bytearray)) else str(came)
    short = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}... ({len(text)} characters)"
    return SlotBroken(f"key {key} is broken: expected {expected}, it holds {short!r}")


@contextmanager
def reading(key: str, expected: str) -> Iterator[None]:
    """Whatever goes wrong in here with what was read means that `key` does not hold what is expected."""
    try:
        yield
    except ReplyError as e:
        if not str(e).startswith("WRONGTYPE"):
            raise
        raise SlotBroken(f"key {key} is broken: expected {expected}, it holds another type") from None
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as e:
        raise broken(key, expected, f"{type(e).__name__}: {e}") from None


def read(conn: Connection, *commands: Sequence[Arg], most_bytes: int = LOOK_BYTES) -> list[Any]:
    """The replies of one transaction of commands whose second word is the key, of up to `most_bytes` together."""
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
    """A whole number of a reply; `default` for what is absent."""
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
    """A count or time: finite, not negative."""
    try:
        found = float(value)
    except (ValueError, TypeError, OverflowError):
        found = math.nan
    if not 0 <= found <= MOST:
        raise broken(key, f"a number of 0 to {MOST}", value)
    return found


def moment(value: Any, key: str) -> float:
    """A time in seconds since 1970 that calendars know."""
    if (found := measure(value, key)) > _LATEST_S:
        raise broken(key, "seconds since 1970", value)
    return found


def document(value: Any, key: str) -> dict[str, Any]:
    """A JSON object."""
    with reading(key, "a JSON object"):
        found = json.loads(bytes(value))
    if not isinstance(found, Mapping):
        raise broken(key, "a JSON object", value)
    return dict(found)

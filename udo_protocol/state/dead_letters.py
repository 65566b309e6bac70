"""Dead letters: events that an operator failed on, stored with the reason. Their content, names and form on the state server.

A slot has two hashes, name -> letter: `dead` holds final letters, `pending` those of keyed attempts that have not ended and may still be
undone. Only the slot's owner adds to them.
"""

from __future__ import annotations

import base64
import hashlib
import json
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, fields
from typing import NamedTuple, Self

from udo_protocol.errors import SlotBroken
from udo_protocol.queue import untrusted
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.keys import SlotKeys

FAIL, DEAD_LETTER = "fail", "dead-letter"
POLICIES = (FAIL, DEAD_LETTER)
DEAD, PENDING = "dead", "pending"  # the two hashes
# Hash of keyed letters that are to be processed again: name -> '', or the epoch of an ENDed attempt that has processed it. They are removed
# at the END of a later epoch, because until then another attempt at the same epoch has to process them too.
REPLAY = "replay"
_ID_BYTES = 6
# The JSON types of a letter's fields.
_JSON: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (int, float), "bool": (bool,), "bytes": (str,)}


class KeyedName(NamedTuple):
    """The name of a keyed event: its attempt and its position. The key group tells which later attempt replaces this one.

    The partition does not: a query that is restarted with another number of partitions sends the group from another partition.
    """

    session: str
    epoch: int
    group: int
    run: int
    attempt: int
    number: int  # the frame's number in its lane
    row: int

    def __str__(self) -> str:
        return "|".join(map(str, ("k", *self)))


class LaneName(NamedTuple):
    """The name of a stateless event: lane and position. `seq`, in the log of queue server run `run_id`, tells whether it was answered."""

    lane: str
    run_id: str
    seq: int
    number: int
    row: int

    def __str__(self) -> str:
        return "|".join(map(str, ("s", *self)))


def parse_name(text: str) -> KeyedName | LaneName:
    """Inverse of str(). Sessions and lanes may contain any character."""
    kind, _, rest = text.partition("|")
    if kind == "k":
        session, *numbers = rest.rsplit("|", 6)
        return KeyedName(session, *map(int, numbers))
    lane, run_id, *numbers = rest.rsplit("|", 4)
    return LaneName(lane, run_id, *map(int, numbers))


@dataclass(frozen=True)
class Letter:
    """One bad event and its error."""

    operator: str  # name@version
    instance: str
    session: str
    epoch: int
    partition: int
    attempt: int
    lane: str
    number: int
    row: int
    at: float  # seconds since 1970
    code: str
    reason: str
    traceback: str
    event: str  # JSON
    arrow: bytes  # IPC stream of one row; empty for a timer
    timer: bool = False
    replays: int = 0

    def encode(self) -> bytes:
        """As JSON, with the Arrow bytes in base64."""
        return json.dumps({**asdict(self), "arrow": base64.b64encode(self.arrow).decode()}, ensure_ascii=False).encode()

    @classmethod
    def decode(cls, data: bytes | bytearray) -> Self:
        """Inverse of `encode`; fields that a later version has added are ignored. ValueError if `data` is not a letter."""
        found = json.loads(bytes(data))
        known = {f.name: found[f.name] for f in fields(cls) if f.name in found}
        for name, value in known.items():
            kind = cls.__annotations__[name]
            if type(value) not in _JSON[kind]:
                raise ValueError(f"{name} is {value!r:.60}, expected {kind}")
            if kind == "str":
                value.encode()  # JSON can contain unpaired surrogates
        untrusted.moment(known["at"], "at")
        return cls(**{**known, "arrow": base64.b64decode(found["arrow"])})

    @classmethod
    def unreadable(cls, error: SlotBroken) -> Self:
        """A placeholder for a letter that cannot be read, so that it is listed and can be dropped."""
        none = dict.fromkeys((f.name for f in fields(cls) if f.default is MISSING), "")
        numbers = dict.fromkeys(("epoch", "partition", "attempt", "number", "row"), 0)
        return cls(**{**none, **numbers, "at": 0.0, "code": error.code, "reason": str(error), "event": "null", "arrow": b""})  # type: ignore[arg-type]


def letter_id(keys: SlotKeys, name: str) -> str:
    """The id that users see: 12 hexadecimal digits, a hash of the letter's name."""
    return hashlib.blake2b(f"{keys}{name}".encode(), digest_size=_ID_BYTES).hexdigest()


def count(state: Connection, keys: SlotKeys) -> int:
    """The number of letters of a slot, including those of attempts that have not ended."""
    return sum(untrusted.read(state, *(("HLEN", key) for key in (keys.dead, keys.pending))))


def move(state: Connection, source: SlotKeys, target: SlotKeys) -> None:
    """Move the letters of a slot that is being removed to another slot. `run_id` is cleared, since `seq` is of the former slot's log."""
    for here, there in ((source.dead, target.dead), (source.pending, target.pending)):
        flat = state.call("HGETALL", here)
        for text, data in zip(flat[::2], flat[1::2], strict=True):
            # A field that is not a letter is removed with the slot.
            with suppress(SlotBroken), untrusted.reading(here, "names of dead letters"):
                name = parse_name(bytes(text).decode())
                state.call("HSET", there, str(name._replace(run_id="") if isinstance(name, LaneName) else name), data)

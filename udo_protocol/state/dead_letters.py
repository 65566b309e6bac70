"""Dead letters: events that an operator failed on, kept with the reason. What one is, its name, and its form on the state server.

A slot keeps them in two hashes, name -> letter: `dead` holds those that count, `pending` those of keyed attempts that have
not ended, which may yet be taken back. Only the slot's owner adds to either.
"""

from __future__ import annotations

import base64
import hashlib
import json
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, fields
from typing import NamedTuple, Self

from udo_protocol.errors import SlotBroken
from udo_protocol.queue.connection import Connection
from udo_protocol.state import untrusted

FAIL, DEAD_LETTER = "fail", "dead-letter"
POLICIES = (FAIL, DEAD_LETTER)
DEAD, PENDING = "dead", "pending"  # the two hashes
KEPT = "savepoint:rollback:"  # in front of all three: as they were before an update that can still be rolled back (rewinding.py)
# Keyed letters that are to be sent again: name -> '' or, once an attempt that did it has ENDed, its epoch. They go with the END
# of a later epoch: until then another attempt at the same one has to see them again.
REPLAY = "replay"
_ID_BYTES = 6
# What a field of a letter is in JSON.
_JSON: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (int, float), "bool": (bool,), "bytes": (str,)}


class KeyedName(NamedTuple):
    """A keyed event is named by its attempt and by where it stood; its key group says which later attempt replaces that one.

    The partition does not: a query restarted with another number of partitions sends the same group from another one.
    """

    session: str
    epoch: int
    group: int
    run: int
    attempt: int
    number: int  # of the frame in its lane
    row: int

    def __str__(self) -> str:
        return "|".join(map(str, ("k", *self)))


class LaneName(NamedTuple):
    """A stateless event is named by its lane; `seq` of the log of the queue server run `run_id` tells whether it was answered."""

    lane: str
    run_id: str
    seq: int
    number: int
    row: int

    def __str__(self) -> str:
        return "|".join(map(str, ("s", *self)))


def parse_name(text: str) -> KeyedName | LaneName:
    """The inverse of str(); sessions and lanes may hold any character."""
    kind, _, rest = text.partition("|")
    if kind == "k":
        session, *numbers = rest.rsplit("|", 6)
        return KeyedName(session, *map(int, numbers))
    lane, run_id, *numbers = rest.rsplit("|", 4)
    return LaneName(lane, run_id, *map(int, numbers))


@dataclass(frozen=True)
class Letter:
    """One bad event, and what went wrong."""

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
        """JSON, the Arrow bytes in base64."""
        return json.dumps({**asdict(self), "arrow": base64.b64encode(self.arrow).decode()}, ensure_ascii=False).encode()

    @classmethod
    def decode(cls, data: bytes | bytearray) -> Self:
        """The inverse; what a later version has added is left out. ValueError for what is no letter."""
        found = json.loads(bytes(data))
        known = {f.name: found[f.name] for f in fields(cls) if f.name in found}
        for name, value in known.items():
            kind = cls.__annotations__[name]
            if type(value) not in _JSON[kind]:
                raise ValueError(f"{name} is {value!r:.60}, expected {kind}")
            if kind == "str":
                value.encode()  # JSON can hold halves of characters
        untrusted.moment(known["at"], "at")
        return cls(**{**known, "arrow": base64.b64decode(found["arrow"])})

    @classmethod
    def unreadable(cls, error: SlotBroken) -> Self:
        """Stands for one that cannot be read, so that it is seen and can be dropped."""
        none = dict.fromkeys((f.name for f in fields(cls) if f.default is MISSING), "")
        numbers = dict.fromkeys(("epoch", "partition", "attempt", "number", "row"), 0)
        return cls(**{**none, **numbers, "at": 0.0, "code": error.code, "reason": str(error), "event": "null", "arrow": b""})  # type: ignore[arg-type]


def letter_id(prefix: str, name: str) -> str:
    """A short id for people: 12 hexadecimal digits of a letter's name."""
    return hashlib.blake2b((prefix + name).encode(), digest_size=_ID_BYTES).hexdigest()


def count(state: Connection, prefix: str) -> int:
    """How many letters a slot has, those of attempts that have not ended included."""
    return sum(untrusted.read(state, *(("HLEN", prefix + kind) for kind in (DEAD, PENDING))))


def move(state: Connection, source: str, target: str) -> None:
    """A slot goes, what it could not process stays: in another one, whose log knows nothing of it."""
    for kind in (DEAD, PENDING):
        flat = state.call("HGETALL", source + kind)
        for text, data in zip(flat[::2], flat[1::2], strict=True):
            with suppress(SlotBroken), untrusted.reading(source + kind, "names of dead letters"):  # what is none goes with the slot
                name = parse_name(bytes(text).decode())
                state.call("HSET", target + kind, str(name._replace(run_id="") if isinstance(name, LaneName) else name), data)

"""The format of the state server's keys: a number in a key of its own; keys of an earlier release are converted to this one's format.

They are converted before any instance reaches the server, one transaction for each step. The same transaction notes the step, so after a
crash at any point the next start goes on from there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import quote

import structlog

from udo_protocol.errors import Unavailable
from udo_protocol.queue.connection import Arg, Connection, ReplyError
from udo_protocol.queue.keys import FORMAT as FORMAT_KEY
from udo_protocol.queue.keys import MIGRATED
from udo_protocol.state.pieces import PiecePlace, entry

_log = structlog.get_logger()
# 1: no number is stored. 2: manifests name pieces. 3: runs have the number of their plan. 4: the undo of a group may be a number of its
# changes, and no release before reads that. To raise it: docs/contributing.md.
FORMAT = 4
_KEY = re.compile(rb"(udo:[^:]+:\d+:)(.+)", re.DOTALL)
# Keys of format 1 that only running instances of that release can use. A rollback needs the input since then, which was lost with its
# queue server.
_OBSOLETE = re.compile(rb"(?:kept|changelog|logged|readers|reading|follower)$|(?:kept|journal):", re.DOTALL)


def bring_up(state: Connection) -> int:
    """Convert the server's keys to this release's format; return the format they had. Unavailable if that is a later release's."""
    stored = bytes(state.call("GET", FORMAT_KEY) or b"1").decode("utf-8", "replace")
    if not stored.isdecimal() or int(stored) > FORMAT:
        raise Unavailable(
            f"the state server's file is of format {stored}, written by a later release; expected at most {FORMAT}. Start that release, "
            "or restore the file of this one from a backup"
        )
    if int(stored) < FORMAT:
        for done in upgraded(state, int(stored)):
            _log.info("stored state brought into the present format", key=done, format=FORMAT)
    return int(stored)


def upgraded(state: Connection, stored: int) -> Iterator[str]:
    """Carry out the steps from format `stored` to this one, one transaction each; yield the key that each has changed."""
    slots = [m.groups() for key in sorted(state.call("KEYS", "udo:*")) if (m := _KEY.fullmatch(bytes(key)))]
    changes = {b"runs": _runs} if stored < 3 else {}
    if stored == 1:
        changes[b"m"] = _manifest
        if obsolete := [prefix + name for prefix, name in slots if _OBSOLETE.match(name)]:
            state.call("UNLINK", *obsolete)
    for prefix, name in slots:
        kind, _, session = name.partition(b":")
        change = changes.get(kind)
        if change is None or state.call("SISMEMBER", MIGRATED, prefix + name):
            continue
        key = (prefix + name).decode("utf-8", "replace")
        try:
            commands = change(state, prefix, session)
        except (ReplyError, ValueError) as e:  # an operator may have written anything there; its slot says that the key is broken
            _log.warning("stored state is not of the expected form", key=key, error=str(e))
            continue
        state.transaction([*commands, ["SADD", MIGRATED, prefix + name]])
        yield key
    state.transaction([["SET", FORMAT_KEY, FORMAT], ["DEL", MIGRATED]])


def _manifest(state: Connection, prefix: bytes, session: bytes) -> list[list[Arg]]:
    """`meta` becomes `piece changes base_bytes change_bytes meta`. Values keep their keys, if `session:group` may name a piece."""
    commands: list[list[Arg]] = []
    flat = state.call("HGETALL", prefix + b"m:" + session)
    for number, meta in zip(map(int, flat[::2]), flat[1::2], strict=True):
        piece = f"{quote(session, safe='')}:{number}"
        was, now = session + b":%d" % number, piece.encode()
        base_bytes, changes = state.call("STRLEN", prefix + b"g:" + was), state.call("LRANGE", prefix + b"d:" + was, 0, -1)
        place = PiecePlace(piece, len(changes), base_bytes, sum(map(len, changes)))
        for kind, there in ((b"g:", base_bytes), (b"d:", changes)):
            if there and was != now:  # a piece's name has no spaces
                commands.append(["RENAME", prefix + kind + was, prefix + kind + now])
        commands.append(["HSET", prefix + b"m:" + session, number, entry(place, bytes(meta))])
    return commands


def _runs(state: Connection, prefix: bytes, session: bytes) -> list[list[Arg]]:
    """`order call`, or `order planned_ms call` by the clock of some driver, becomes `order 0 call`: before every plan still to come."""
    key = prefix + b"runs:" + session
    flat = state.call("HGETALL", key)
    found = [(run, bytes(value).split(b" ")) for run, value in zip(flat[::2], flat[1::2], strict=True)]
    return [["HSET", key, run, parts[0] + b" 0 " + parts[-1]] for run, parts in found]

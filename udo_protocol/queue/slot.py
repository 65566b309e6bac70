"""The node manager's operations on a slot: tokens and promotion, counters, status, schemas, readiness, removal.

A function of udo_protocol/lua on the server takes every decision; this file and its siblings (lane_end.py, slot_reader.py,
checkpoints.py) send the payload, name the outcome and wait. Two servers take part: `queue` holds the log and the answers,
`state` the tokens and durable values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from udo_protocol.errors import Fenced, ProtocolError
from udo_protocol.formats.schema import from_ipc, schema_id
from udo_protocol.limits import FRAME_TIMES_MS, MESSAGE_CHARS, MOST_KEY_GROUPS
from udo_protocol.queue import untrusted
from udo_protocol.queue.connection import Connection, as_int
from udo_protocol.queue.keys import SlotKeys

# Lanes checked in one step: usually more than a node's tasks, and one small reply.
_ABANDONED_AT_A_TIME = 256
# Counters of an instance, and the times of a frame inside the operator (udo_runtime.stats).
COUNTERS = ("events_in", "events_out", "frames", "errors", "dead_letters", "retries", "busy_s", "p50_ms", "p99_ms", "bytes_in", "bytes_out")
# For an operator in a process of its own: how many of its processes have ended, the pid of the current one (0: none), and how the last
# one ended, as text (read_process_end).
PROCESS_ENDS, PROCESS_PID, PROCESS_END = "process_ends", "process_pid", "process_end"
# The number of frames in each bucket: those that took at most this bound and more than the one before.
TIMES = tuple(f"within_{bound:g}_ms" for bound in FRAME_TIMES_MS)
# For a keyed operator also its events by key group (read_group_events).
GROUP_EVENTS = "groups"
_GROUP_BYTES = 8


@dataclass(frozen=True, slots=True)
class SlotStats:
    """A slot's counters; depth counts frames not yet answered."""

    base: int
    emitted: int
    owner: int
    depth_frames: int
    retained_bytes: int
    lanes: int


# The files of the server functions; each may use those before it.
_FUNCTIONS = ("base", "log", "state", "moving", "changelog")


def lua_source() -> str:
    """The server functions, as one text."""
    from importlib.resources import files  # for the node manager only: each instance imports this module

    return "\n".join((files("udo_protocol") / "lua" / f"{name}.lua").read_text("utf-8") for name in _FUNCTIONS)


def install(conn: Connection) -> None:
    """Load the function library on a server; both servers need it before the first client connects."""
    conn.call("FUNCTION", "LOAD", "REPLACE", lua_source())


def uses(queue: Connection, keys: SlotKeys, session: str, lane: str) -> None:
    """Note that a lane of this keyed session is being opened, for `users`."""
    queue.call("FCALL", "udo_uses", 1, keys.prefix, session, lane)


def users(queue: Connection, keys: SlotKeys, session: str) -> tuple[list[str], int]:
    """The session's open lanes, and when one was last opened, in ms since 1970 (0: not known)."""
    (flat,) = untrusted.read(queue, ("ZRANGE", keys.used(session), 0, -1, "WITHSCORES"))
    lanes = [bytes(lane).decode() for lane in flat[::2]]
    if not lanes:
        return [], 0
    there = queue.transaction([("EXISTS", keys.lane(lane)) for lane in lanes])
    return [lane for lane, n in zip(lanes, there, strict=True) if n], int(flat[-1])


def close_abandoned(queue: Connection, keys: SlotKeys) -> list[str]:
    """Close lanes whose producer's connection is gone, e.g. because its process was killed; returns their names.

    Checks a few hundred lanes picked at random; later calls check the others.
    """
    (some,) = untrusted.read(queue, ("SRANDMEMBER", keys.lanes, _ABANDONED_AT_A_TIME))
    lanes = [bytes(lane) for lane in some]
    clients = untrusted.read(queue, *(("HGET", keys.lane(lane.decode("utf-8", "replace")), "client") for lane in lanes))
    bound = {lane: untrusted.number(client, keys.lane("*")) for lane, client in zip(lanes, clients, strict=True) if client}
    if not bound:
        return []
    # Read after the lanes: a lane whose connection is not listed has lost it. The server never reuses an id.
    listed = bytes(queue.call("CLIENT", "LIST", "ID", *sorted(set(bound.values()))))
    alive = {int(line.split()[0].partition(b"=")[2]) for line in listed.splitlines() if line}
    gone = [lane for lane, client in bound.items() if client not in alive]
    for lane in gone:
        queue.call("FCALL", "udo_close", 1, keys.prefix, lane)
    return [lane.decode("utf-8", "replace") for lane in gone]


def next_token(state: Connection, keys: SlotKeys) -> int:
    """A token newer than all earlier ones."""
    return int(state.call("INCR", keys.tokens))


def promote(state: Connection, queue: Connection, keys: SlotKeys, token: int, between: Callable[[], None] | None = None) -> int:
    """Make `token` the owner, on the state server first. Returns `emitted`; Fenced if a newer token owns the slot.

    `between` runs while no instance can make a checkpoint: the former owner no longer, the new one not yet.
    """
    for conn in (state, queue):
        with untrusted.reading(keys.emitted, "a number"):
            status, value = conn.call("FCALL", "udo_promote", 1, keys.prefix, token)
        if status == b"FENCED":
            raise Fenced(f"token {token} is older than the owner {value} of {keys}")
        if between is not None and conn is state:
            between()
    return untrusted.number(value, keys.emitted)


def slot_stats(queue: Connection, keys: SlotKeys) -> SlotStats:
    """Counters of a slot; SlotBroken if its keys are not as the functions of udo_protocol/lua keep them, or contradict each other."""
    numbers = [("GETRANGE", key, 0, untrusted.NUMBER_BYTES) for key in (keys.base, keys.emitted, keys.owner, keys.retained_bytes)]
    lists = [("LLEN", keys.log), ("LLEN", keys.sizes)]
    sets = [("SCARD", key) for key in (keys.lanes, keys.parked, keys.waiting)]
    found = untrusted.read(queue, *numbers, *lists, *sets)
    base = untrusted.number(found[0], keys.base, 1, 1)
    emitted = untrusted.number(found[1], keys.emitted)
    size, (length, sizes, lanes) = untrusted.number(found[3], keys.retained_bytes), found[4:7]
    tail = base + length - 1
    if sizes != length:
        raise untrusted.broken(keys.log, f"{sizes} frames, as {keys.sizes} says", f"{length} frames")
    if not base - 1 <= emitted <= tail:
        raise untrusted.broken(keys.emitted, f"a number of {base - 1} to {tail}, by the frames of the log", emitted)
    if bool(size) != bool(length):
        raise untrusted.broken(keys.retained_bytes, f"the size of {length} frames", size)
    return SlotStats(base, emitted, as_int(found[2] or None), tail - emitted, size, lanes)


def open_lanes(queue: Connection, slots: Sequence[SlotKeys]) -> list[int]:
    """The number of lanes of each of these slots."""
    return untrusted.read(queue, *(("SCARD", keys.lanes) for keys in slots))


def owner(queue: Connection, keys: SlotKeys) -> int:
    """The owner's token, which no operator can write; 0 if the slot never had an owner."""
    return as_int(queue.call("GET", keys.owner))


def last_emitted(queue: Connection, keys: SlotKeys) -> int:
    """The number of the last answered frame, which shows whether the slot makes progress."""
    key = keys.emitted
    with untrusted.reading(key, "a number"):
        return untrusted.number(queue.call("GET", key), key)


def set_status(queue: Connection, keys: SlotKeys, why: Mapping[str, Any] | None) -> None:
    """Set why the slot does not serve (code, message, ...), or None: it serves. Wakes waiting producers, which read it."""
    queue.call("FCALL", "udo_status", 1, keys.prefix, "" if why is None else json.dumps(why))


def slot_status(queue: Connection, keys: SlotKeys) -> dict[str, Any] | None:
    """Why the slot does not serve, or None while it does."""
    text = queue.call("GET", keys.status)
    return None if text is None else json.loads(bytes(text))


def failed_lanes(queue: Connection, keys: SlotKeys) -> set[str]:
    """Lanes with a frame that was answered with an error on behalf of a keyed operator."""
    return {bytes(lane).decode("utf-8", "replace") for lane in queue.call("SMEMBERS", keys.failed)}


def store_schema(queue: Connection, keys: SlotKeys, schema_ipc: bytes) -> bytes:
    """Register a schema on the slot and return its id."""
    identity = schema_id(schema_ipc)
    queue.call("SET", keys.schema(identity), schema_ipc)
    return identity


def stored_schema(queue: Connection, keys: SlotKeys, identity: bytes) -> pa.Schema:
    """The schema of that id; ProtocolError if it is not registered."""
    data = stored_schema_ipc(queue, keys, identity)
    if data is None:
        raise ProtocolError(f"a frame names schema {identity.hex()}, which is not registered on {keys}")
    if schema_id(data) != identity:
        raise ProtocolError(f"what is registered on {keys} as schema {identity.hex():.40} is another one")
    return from_ipc(data)


def stored_schema_ipc(queue: Connection, keys: SlotKeys, identity: bytes) -> bytes | None:
    """The schema registered under that id, as IPC bytes; None if there is none."""
    with untrusted.reading(f"{keys}schema:{identity.hex()}", "a schema"):
        data = queue.call("GET", keys.schema(identity))
    return None if data is None else bytes(data)


def drop_slot(state: Connection, queue: Connection, keys: SlotKeys) -> None:
    """Remove every key of a slot from both servers."""
    pattern = f"{SlotKeys.parse(keys.prefix)}*"
    for conn in (state, queue):
        cursor: bytes | str = "0"
        while True:
            cursor, found = conn.call("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)
            if found:
                conn.call("UNLINK", *found)
            if cursor == b"0":
                break


# Abilities that instances of earlier releases lack; an instance reports them when it has loaded. 3: it reads groups whose undo is a number,
# or -1.
MOVES_GROUPS = "moves groups 3"
# It reads key groups of another node ahead of their move, from a copy.
READS_COPIES = "reads copies"
ABILITIES = (MOVES_GROUPS, READS_COPIES)


def report_ready(queue: Connection, keys: SlotKeys, instance: str, report: Mapping[str, Any]) -> None:
    """Report, once, to the node manager that the instance loaded or why it could not."""
    key = keys.ready(instance)
    queue.transaction([("RPUSH", key, json.dumps(report)), ("PEXPIRE", key, 600_000)])


def ready(queue: Connection, keys: SlotKeys, instance: str, wait_ms: int) -> dict[str, Any] | None:
    """Wait for an instance's report; None if it does not come in time."""
    key = keys.ready(instance)
    with untrusted.reading(key, "a list of reports"), queue.at_most(untrusted.LOOK_BYTES):
        reply = queue.call("BLPOP", key, f"{wait_ms / 1000:.3f}", timeout_s=wait_ms / 1000 + queue.default_timeout_s)
    return None if reply is None else untrusted.document(reply[1], key)


def read_stats(queue: Connection, keys: SlotKeys, instance: str) -> dict[str, float]:
    """An instance's counters (udo_runtime.stats); empty if it has reported none."""
    key = keys.stats(instance)
    wanted = (*COUNTERS, *TIMES, PROCESS_ENDS, PROCESS_PID)
    (values,) = untrusted.read(queue, ("HMGET", key, *wanted))
    return {name: untrusted.measure(value, key) for name, value in zip(wanted, values, strict=True) if value is not None}


def read_process_end(queue: Connection, keys: SlotKeys, instance: str) -> str:
    """How the last process of an operator in a process of its own ended, with its last lines of output; '' if none has ended."""
    key = keys.stats(instance)
    (found,) = untrusted.read(queue, ("HGET", key, PROCESS_END))
    return bytes(found or b"").decode("utf-8", "replace")[:MESSAGE_CHARS]


def read_group_events(queue: Connection, keys: SlotKeys, instance: str) -> bytes:
    """A keyed instance's numbers of events per key group from 0 on, 8 bytes each, little-endian; empty if it has reported none."""
    key = keys.stats(instance)
    (found,) = untrusted.read(queue, ("HGET", key, GROUP_EVENTS))
    packed = bytes(found or b"")
    if len(packed) % _GROUP_BYTES or len(packed) > _GROUP_BYTES * MOST_KEY_GROUPS:
        raise untrusted.broken(key, f"{_GROUP_BYTES} bytes for each key group", f"{len(packed)} bytes")
    return packed

"""Replicas of a keyed slot on other nodes: the log of its owner's writes, and the nodes that must hold it before an END is answered.

While the slot has replicas, the commands of each transaction of its owner that changes state are appended to its **replication log**
(`replog`, a stream) in the same transaction. A replica executes them on its own state server under a prefix of its own, so that its keys
are in the form from which an owner starts. By asking for the entries after its position (node_manager/replicas) it acknowledges those
before. Node-wide keys and those of the queue server are not replicated: they are lost with a node as they are with its
queue server.

The key `replicas` holds the version of the placement by which the slot is replicated, the log's name, and the nodes that are `required`:
a checkpoint counts as durable when all of these hold it. Only the node manager writes the key, as the registry decides. `replicated`
has, for each node, the entry up to which it holds the log, and pins that keep the log for copies under way. Positions are stream ids.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import msgpack

from udo_protocol.errors import ProtocolError, Unavailable
from udo_protocol.queue import untrusted
from udo_protocol.queue.backoff import LinearBackoff
from udo_protocol.queue.connection import Arg, Connection, ReplyError
from udo_protocol.queue.durable import synced
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.state.dead_letters import DEAD, PENDING, REPLAY

START = "0-0"
# Bytes of commands in one entry of the stream; a larger transaction has several entries, the last of which is marked `whole`.
_ENTRY_BYTES = 8 << 20
# Entries sent to a reader at once.
_ENTRIES = 16
# Keys that are useless on another node: they refer to the log of this node's queue server, and to the disk of this node.
_OF_THE_NODE = frozenset(("ckpt", "riding", "cut", "homes"))
# The commands by which owners, and the node managers of their nodes, write the other keys in transactions; and these keys.
_WRITES = frozenset(("SET", "DEL", "HSET", "HSETNX", "HDEL", "RPUSH", "PEXPIRE"))
_KINDS = ("m:", "g:", "d:", "runs:")
NAMES = frozenset(("sessions", DEAD, PENDING, REPLAY))
# Pauses between checks whether the replicas hold an entry: they need two round trips between hosts and a sync of a disk.
_LOOK_INCREMENT_US, _LOOK_CEILING_US = 100, 2_000
_PIN = "pin:"
# A write is repeated if the replicas have changed in the meantime.
_TRIES = 5


@dataclass(frozen=True)
class Replicas:
    """A slot's replicas, as the node manager configured them. `named`: nodes that may read the log; `required`: those that must hold it."""

    version: int
    log: str
    named: tuple[str, ...]
    required: tuple[str, ...]

    def document(self) -> str:
        """The JSON text that is stored."""
        return json.dumps({"version": self.version, "log": self.log, "named": self.named, "required": self.required})


class LoggedWrites(NamedTuple):
    """An entry of the log. `token`: the owner's, 0 if the node manager wrote. `whole`: it is the last entry of its transaction."""

    position: str
    commands: list[list[bytes]]
    token: int
    whole: bool


@dataclass(frozen=True)
class ReplicaName:
    """The identity of a replica: its slot, node and disk."""

    deployment: str
    made: int
    place: int
    node: str
    disk: str


def order(position: str) -> tuple[int, int]:
    """A position in the log as comparable numbers: milliseconds, and the entry's number within the millisecond."""
    ms, _, seq = position.partition("-")
    return int(ms), int(seq)


# -- the owner's part --------------------------------------------------------------------------------------------------


def logging(keys: SlotKeys, token: int, writes: Iterable[Sequence[Arg]]) -> list[list[Arg]]:
    """The commands that append these writes to the log, to be run in the same transaction."""
    parts: list[list[bytes]] = [[]]
    size = 0
    for write in writes:
        if is_of_the_node(_key(write).removeprefix(keys.prefix)):
            continue
        if size > _ENTRY_BYTES:
            parts.append([])
            size = 0
        packed = msgpack.packb([_bytes(arg) for arg in write])
        parts[-1].append(packed)
        size += len(packed)
    appending: list[list[Arg]] = []
    for at, part in enumerate(parts, 1):
        fields: list[Arg] = ["whole" if at == len(parts) else "part", token]
        for command in part:
            fields += ["w", command]
        appending.append(["XADD", keys.replog, "*", *fields])
    return appending


def write(state: Connection, keys: SlotKeys, writes: Sequence[Sequence[Arg]]) -> list[Any]:
    """Run these commands of a node manager in one transaction, logged if the slot has replicas; returns their replies."""
    require_writes(keys, writes)
    for _ in range(_TRIES):
        state.send([("WATCH", keys.replicas), ("EXISTS", keys.replicas)])
        _, replicated = state.reply(), state.reply()
        steps = [*writes, *(logging(keys, 0, writes) if replicated else ())]
        state.send([("MULTI",), *steps, ("EXEC",)])
        replies = [state.reply() for _ in range(len(steps) + 2)]
        for r in replies[-1] or ():
            if isinstance(r, ReplyError):
                raise r
        if replies[-1] is not None:
            return list(replies[-1][: len(writes)])
    raise Unavailable(f"the replicas of {keys} changed {_TRIES} times while it was written")


def require_writes(keys: SlotKeys, commands: Iterable[Sequence[Arg]]) -> None:
    """`require_write` for each command of a transaction that calls no function: a replica that is added later would stop at any other."""
    for command in commands:
        if command[0] != "FCALL":
            require_write(str(command[0]), str(command[1]), keys)


def require_write(command: str, key: str, keys: SlotKeys) -> None:
    """ProtocolError unless replicas execute, or skip, such a command on this key of the slot."""
    name = key.removeprefix(keys.prefix)
    if command not in _WRITES or not key.startswith(keys.prefix) or not (is_of_the_state(name) or is_of_the_node(name)):
        raise ProtocolError(f"{command:.20} of {name!r:.100} is no write of a slot's owner")


def is_of_the_state(name: str) -> bool:
    """Whether a copy of the slot has this key."""
    return name in NAMES or name.startswith(_KINDS)


def is_of_the_node(name: str) -> bool:
    """Whether the key is useless on another node. Savepoints are for rollbacks, and replicas do not keep them."""
    return name in _OF_THE_NODE or name.startswith("savepoint:")


def _key(write: Sequence[Arg]) -> str:
    return str(write[3] if write[0] == "FCALL" else write[1])


def _bytes(arg: Arg) -> bytes:
    if isinstance(arg, str):
        return arg.encode()
    if isinstance(arg, int):
        return b"%d" % arg
    if isinstance(arg, (list, tuple)):
        return b"".join(map(bytes, arg))
    return bytes(memoryview(cast(Any, arg)))  # also a large reply, which is an Arrow buffer


def lacking(state: Connection, keys: SlotKeys, position: str = "") -> tuple[str, list[str]]:
    """(position, nodes): the required nodes that do not hold the log up to that position; '': up to its end."""
    found, held, last = untrusted.read(
        state,
        ("GET", keys.replicas),
        ("HGETALL", keys.replicated),
        ("XREVRANGE", keys.replog, "+", "-", "COUNT", 1),
        most_bytes=untrusted.STATE_BYTES,
    )
    if found is None:
        return position or START, []
    if not position:
        position = bytes(last[0][0]).decode() if last else START
    by_node = {bytes(n).decode(): bytes(p).decode() for n, p in zip(held[::2], held[1::2], strict=True)}
    wanted = order(position)
    required = _parsed(found).required
    return position, [node for node in required if node not in by_node or order(by_node[node]) < wanted]


def lag_bytes(state: Connection, keys: SlotKeys) -> int | None:
    """The approximate size of the log that not all of its readers hold yet; None if the slot has no replicas."""
    there, size = state.transaction([("EXISTS", keys.replicas), ("MEMORY", "USAGE", keys.replog)])
    return int(size or 0) if there else None


def await_held(state: Connection, keys: SlotKeys, between: Callable[[], None]) -> None:
    """Wait until all required nodes hold everything written so far. `between` is called between checks, and ends the wait by
    raising."""
    position, missing = lacking(state, keys)
    backoff = LinearBackoff(_LOOK_INCREMENT_US, _LOOK_CEILING_US)
    while missing:
        between()
        backoff.pause()
        _, missing = lacking(state, keys, position)


# -- the node manager of the owner ---------------------------------------------------------------------------------------


def replicas(state: Connection, keys: SlotKeys) -> Replicas | None:
    """The slot's configured replicas; None if it has none."""
    found = state.call("GET", keys.replicas)
    return None if found is None else _parsed(found)


def _parsed(found: bytes) -> Replicas:
    known = json.loads(bytes(found))
    return Replicas(int(known["version"]), str(known["log"]), tuple(known["named"]), tuple(known["required"]))


def configure(state: Connection, keys: SlotKeys, version: int, counted: Collection[str], joining: Mapping[str, int]) -> None:
    """Configure the replicas by that version of the placement: `counted` nodes, and `joining` ones, each with the version that named
    it. Durable when it returns.

    A node that was given up and named again since the last configuration has to copy the slot: it may have removed its copy.
    """
    old = replicas(state, keys)
    if old is not None and old.version >= version:
        return
    named = tuple(sorted({*counted, *joining}))
    if not named:
        if old is not None:
            _durable(state, [("DEL", keys.replicas, keys.replicated, keys.replog)])
        return
    again = {node for node, since in joining.items() if old is not None and node in old.named and since > old.version}
    kept = [node for node in (old.required if old else ()) if node in joining and node not in again]
    required = tuple(sorted({*counted, *kept}))
    new = Replicas(version, old.log if old else secrets.token_hex(8), named, required)
    writes: list[Sequence[Arg]] = [("SET", keys.replicas, new.document())]
    gone = [field for node in (old.named if old else ()) if node not in named or node in again for field in (node, _PIN + node)]
    if gone:
        writes.append(("HDEL", keys.replicated, *gone))
    _durable(state, writes)


def require(state: Connection, keys: SlotKeys, node: str) -> None:
    """Require from now on that the node holds all writes before an END is answered. Durable when it returns."""
    old = replicas(state, keys)
    if old is not None and node in old.named and node not in old.required:
        new = replace(old, required=tuple(sorted((*old.required, node))))
        _durable(state, [("SET", keys.replicas, new.document())])


def acknowledge(state: Connection, keys: SlotKeys, node: str, position: str) -> bool:
    """Note that the node holds the log up to that position, and trim entries that all nodes hold.

    False if the log was not kept for the node: it was not a replica for a while, and has to copy the slot again.
    """
    if state.call("HMGET", keys.replicated, node, _PIN + node) == [None, None]:
        return False
    state.transaction([("HSET", keys.replicated, node, position), ("HDEL", keys.replicated, _PIN + node)])
    held = state.call("HVALS", keys.replicated)
    lowest = min((bytes(p).decode() for p in held), key=order)
    ms, seq = order(lowest)
    state.call("XTRIM", keys.replog, "MINID", f"{ms}-{seq + 1}")
    return True


def pin(state: Connection, keys: SlotKeys, node: str) -> None:
    """Keep all later entries of the log for a copy that is about to be made."""
    last = state.call("XREVRANGE", keys.replog, "+", "-", "COUNT", 1)
    state.call("HSET", keys.replicated, _PIN + node, bytes(last[0][0]) if last else START)


def entries(state: Connection, keys: SlotKeys, after: str, wait_ms: int) -> list[LoggedWrites]:
    """The entries after that position; waits for them for up to `wait_ms`."""
    found = state.call(
        *("XREAD", "COUNT", _ENTRIES, "BLOCK", wait_ms, "STREAMS", keys.replog, after),
        timeout_s=wait_ms / 1000 + state.default_timeout_s,
    )
    logged = []
    with untrusted.reading(keys.replog, "writes of the slot's owner"):
        for position, fields in found[0][1] if found else ():
            names, values = fields[::2], fields[1::2]
            token = int(values[0])
            commands = [[bytes(arg) for arg in msgpack.unpackb(v)] for n, v in zip(names, values, strict=True) if n == b"w"]
            logged.append(LoggedWrites(bytes(position).decode(), commands, token, bytes(names[0]) == b"whole"))
    return logged


def _durable(state: Connection, writes: Sequence[Sequence[Arg]]) -> None:
    state.transaction(writes)
    synced(state, "a change of replicas")

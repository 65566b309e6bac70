"""Names of all keys on the queue and state servers. All keys of a slot start with `udo:{deployment}:{slot}:`.

| key              | server       | type   | content                                                         |
|------------------|--------------|--------|-----------------------------------------------------------------|
| `in`             | queue        | list   | the log: frames not yet trimmed, oldest first                   |
| `sizes`          | queue        | list   | `size number lane` of each frame of `in`, same order            |
| `bytes`          | queue        | int    | sum of the sizes in `sizes`: the retained bytes                 |
| `base`           | queue        | int    | sequence number of the first frame of `in`; absent = 1          |
| `emitted`        | queue        | int    | sequence number of the last answered frame; absent = 0          |
| `owner`          | queue, state | int    | token of the only instance that may answer or checkpoint        |
| `tokens`         | state        | int    | last token handed out; tokens only grow                         |
| `route`          | queue        | hash   | `v` version of the routing table, `table` its JSON; `cut`: number of |
|                  |              |        | a move's frame; `frame`, `told`: the node manager's last frame, and how many it has written |
| `pins`           | queue        | hash   | pin id -> `seq:expiry_ms`: the trim stops before `seq`          |
| `parked`         | queue        | set    | readers that wait on their doorbell                             |
| `lanes`          | queue        | set    | the open lanes, and some that are no longer open                |
| `waiting`        | queue        | set    | standbys that wait for their promotion                          |
| `bell:{reader}`  | queue        | list   | doorbell of one reader, length <= 1                             |
| `lane:{lane}`    | queue        | hash   | `last` number accepted; `parked` = 1 while its producer waits;  |
|                  |              |        | `client`: id of the connection with whose end the lane ends     |
| `out:{lane}`     | queue        | list   | answers for that lane, in order                                 |
| `failed`         | queue        | set    | keyed: lanes that the node manager failed; replay skips them    |
| `newest:{part}`  | queue        | string | newest label seen of (session, call, partition), keyed only     |
| `used:{session}` | queue        | zset   | lane -> when it was opened, ms: the users of a keyed session    |
| `schema:{id}`    | queue        | string | Arrow IPC schema of that id                                     |
| `ready:{inst}`   | queue        | list   | one JSON report of an instance: it loaded, or failed to         |
| `stats:{inst}`   | queue        | hash   | counters of an instance (see udo_runtime.stats)                 |
| `mirrors`        | queue        | string | `instance bound until_ms` of each comparing one; leases from the node manager |
| `served:{inst}`  | queue        | list   | `first last count bytes`, answers: copies for that instance     |
| `servedbytes:{inst}` | queue    | int    | bytes of answers in `served:{inst}`                             |
| `compared:{inst}`| queue        | string | JSON: the results of a comparing instance so far                |
| `differ:{inst}`  | queue        | list   | JSON of examples not fetched yet                                |
| `status`         | queue        | string | JSON: why the slot does not serve; absent while it serves       |
| `behind`         | queue        | string | set while a ready standby still has to try answered frames: not a good time to promote |
| `turning`        | queue        | string | set while an epoch ends (turns.py): not a good time to promote  |
| `ckpt`           | state        | string | `seq run_id`: last frame that durable state covers, and the queue server's run |
| `riding`         | state        | list   | lane, answer ...: durable answers that may not be emitted yet   |
| `sessions`       | state        | hash   | session -> its record (udo_runtime.durable.sessions)                     |
| `runs:{session}` | state        | hash   | run id -> `order plan call`                                     |
| `homes`          | state        | hash   | session -> `version home|stored|former`: its relation to this node |
| `groups`         | state        | string | JSON: the group map (group_map.py); first slot only; absent: even |
| `moving`         | state        | string | JSON: key groups that are being moved (moving.py); first slot only |
| `taken`          | state        | int    | version of the last move that brought groups from another node (carrying.py) |
| `taking:*`       | state        | any    | `{copy}:...`: copies of the keys that such a move brings, or is going to bring (carrying.py) |
| `cut`            | state        | hash   | session -> `seq run_id`: dropped or replaced after that frame   |
| `m:{session}`    | state        | hash   | manifest: key group -> where its values lie, label, END flag, undo ... (pieces.py) |
| `g:{piece}`      | state        | string | base: values of a key group at its last compaction: [keys, values] |
| `d:{piece}`      | state        | list   | changes of that key group since its base, in the same form      |
| `changelog`      | state        | stream | an entry for each checkpoint, while there are readers (changelog.py) |
| `logged`         | state        | int    | bytes of the changelog so far: the id of its last entry         |
| `readers`        | state        | hash   | reader -> `position until_ms`; below 0: it has to load again    |
| `reading`        | state        | string | present while there may be readers: the owner watches it        |
| `replicas`       | state        | string | JSON: which nodes hold a copy, or are to (replication.py); absent: none |
| `replicated`     | state        | hash   | node -> position in `replog` up to which it holds it; `pin:node` |
| `replog`         | state        | stream | the owner's writes, while there are replicas                    |
| `replica`        | state        | hash   | only in a copy: the `log` and `position` that it holds (replica_copies.py) |
| `savepoints`     | state        | hash   | savepoint -> `made until_ms held_bytes` (savepoints.py)         |
| `savepoint:*`    | state        | hashes | `{name}`: info, ckpt; `{name}:...`: its sessions, manifests and dead letters |
|                  |              |        | `moved-{v}`, `adopted-{v}`: groups on their way in a move; `moved-{v}:told`: |
|                  |              |        | a list that its owner pushes to when it has handed over (moving.py) |
| `dead`           | state        | hash   | name -> dead letter (udo_protocol.state.dead_letters)                 |
| `pending`        | state        | hash   | dead letters of keyed attempts that have not ended              |
| `replay`         | state        | hash   | keyed: name -> '' to be sent again, or the epoch that sent it   |

Node-wide on the state server: `udo:incarnation` (this server's identity; changes if its file is lost), `udo:format` (the format of its
keys; absent = 1), `udo:replicas` (the number of each slot's copy, node_manager/replicas/copies.py), `udo:replica-numbers` (the last number
given out) and, during the migration from an older format, `udo:migrated` (set: keys that are done). Node-wide on the queue server:
`udo:heartbeat` (the node manager lives; expires after the grace period) and `udo:warm:{inst}` (list: hands a warm instance its assignment).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from udo_protocol.errors import Conflict

HEARTBEAT = "udo:heartbeat"
INCARNATION = "udo:incarnation"
FORMAT = "udo:format"
MIGRATED = "udo:migrated"
REPLICAS = "udo:replicas"
REPLICA_NUMBERS = "udo:replica-numbers"

# Without wildcards, which would give access to other slots, and in the one form that a number has.
_PREFIX = re.compile(r"udo:([^:*?\[\]\\\s]+):(0|[1-9][0-9]*):")


class _Key:
    """A key by its name below the prefix."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, keys: StateKeys, _: type[StateKeys]) -> str:
        return keys.prefix + self._name


class _KeyOf:
    """A key of each lane, instance, session or piece, by the name of its kind below the prefix."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __get__(self, keys: StateKeys, _: type[StateKeys]) -> Callable[[str], str]:
        start = f"{keys.prefix}{self._kind}:"
        return lambda name: start + name


@dataclass(frozen=True)
class StateKeys:
    """The keys of state, which a savepoint repeats below a prefix of its own. The table above says what each holds."""

    prefix: str

    sessions = _Key("sessions")
    manifest = _KeyOf("m")
    dead = _Key("dead")
    pending = _Key("pending")
    replay = _Key("replay")

    def __str__(self) -> str:
        return self.prefix

    def named(self, name: str) -> str:
        """The key of that name, e.g. one that another node sent."""
        return f"{self.prefix}{name}"


class PieceKeys(StateKeys):
    """The keys of state with its pieces and savepoints."""

    base_of = _KeyOf("g")
    changes_of = _KeyOf("d")
    savepoints = _Key("savepoints")
    savepoint_info = _KeyOf("savepoint")

    def savepoint(self, name: str) -> StateKeys:
        """The keys of a savepoint; for an empty name those of the state itself."""
        return StateKeys(f"{self.savepoint_info(name)}:") if name else self


class CopyKeys(PieceKeys):
    """The keys of a copy of key groups that come from another node (carrying.py). What is copied ahead of the move has a manifest and
    records of its own, of which the slot gets none."""

    sessions = _Key("ahead:sessions")
    manifest = _KeyOf("ahead:m")


@dataclass(frozen=True, init=False)
class SlotKeys(PieceKeys):
    """The keys of one slot, all of them below its prefix. The functions of udo_protocol/lua get the prefix itself as their key."""

    deployment: str
    number: int

    log = _Key("in")
    sizes = _Key("sizes")
    retained_bytes = _Key("bytes")
    base = _Key("base")
    emitted = _Key("emitted")
    owner = _Key("owner")
    tokens = _Key("tokens")
    route = _Key("route")
    parked = _Key("parked")
    lanes = _Key("lanes")
    waiting = _Key("waiting")
    bell = _KeyOf("bell")
    lane = _KeyOf("lane")
    out = _KeyOf("out")
    failed = _Key("failed")
    used = _KeyOf("used")
    ready = _KeyOf("ready")
    stats = _KeyOf("stats")
    mirrors = _Key("mirrors")
    served = _KeyOf("served")
    served_bytes = _KeyOf("servedbytes")
    compared = _KeyOf("compared")
    differ = _KeyOf("differ")
    status = _Key("status")
    behind = _Key("behind")
    turning = _Key("turning")

    checkpoint = _Key("ckpt")
    riding = _Key("riding")
    runs = _KeyOf("runs")
    homes = _Key("homes")
    groups = _Key("groups")
    moving = _Key("moving")
    taken = _Key("taken")
    cut = _Key("cut")
    changelog = _Key("changelog")
    logged = _Key("logged")
    readers = _Key("readers")
    reading = _Key("reading")
    replicas = _Key("replicas")
    replicated = _Key("replicated")
    replog = _Key("replog")
    replica = _Key("replica")

    def __init__(self, deployment: str, number: int) -> None:
        for name, value in (("prefix", f"udo:{deployment}:{number}:"), ("deployment", deployment), ("number", number)):
            object.__setattr__(self, name, value)

    @classmethod
    def parse(cls, prefix: str) -> SlotKeys:
        """The keys of the slot with this prefix. Conflict if it is not a slot's, or has wildcards."""
        if not (found := _PREFIX.fullmatch(prefix)):
            raise Conflict(f"expected a slot prefix like 'udo:fraud:0:', got {prefix!r}")
        return cls(found[1], int(found[2]))

    def schema(self, identity: bytes) -> bytes:
        """The key of the schema with that id; as bytes, since the id is not text."""
        return f"{self.prefix}schema:".encode() + identity

    def of_mirror(self, instance: str) -> list[str]:
        """All keys of one comparing instance."""
        kinds = (self.served, self.served_bytes, self.compared, self.differ, self.stats, self.ready, self.bell)
        return [key(instance) for key in kinds]

    def taking(self, copy: str) -> CopyKeys:
        """The keys of the copy of that name, of what comes from another node in a move."""
        return CopyKeys(f"{self.prefix}taking:{copy}:")


def warm(instance: str) -> str:
    """The list on which a warm instance waits for its assignment."""
    return f"udo:warm:{instance}"

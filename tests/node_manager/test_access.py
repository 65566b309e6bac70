"""Access rules of the two servers: an instance's user reaches its slot's keys with its commands, and nothing else."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import signal
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from node_manager.manager import Manager
from node_manager.servers import access
from node_manager.servers.embedded import Servers
from node_manager.settings import NodeSettings
from tests.conftest import wait_until
from tests.node_manager.conftest import Daemon, Lane, add
from tests.support.attempt import Attempt
from udo_protocol.errors import Conflict, UdoError, Unauthorized
from udo_protocol.formats.schema import to_ipc
from udo_protocol.queue import access as rules
from udo_protocol.queue import keys, lane_end, slot, slot_reader
from udo_protocol.queue.connection import Connection, Login, ReplyError
from udo_protocol.queue.frame import ANSWER, DATA, Header, encode
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.state import changelog, checkpoints
from udo_protocol.state.changelog import LoggedCheckpoint

MINE, OTHER = SlotKeys("mine", 0), SlotKeys("other", 0)
_attempts = itertools.count(10)
COUNT = """
from udo_runtime import Operator
class Run(Operator):
    def process(self, event, ctx):
        ctx.state["n"] = ctx.state.get("n", 0) + 1
        yield {"b": ctx.state["n"]}
"""


@dataclass
class Node:
    """Both servers without a node manager, with an instance `i1` of slot MINE and a warm one `i2`."""

    servers: Servers
    logins: dict[str, Login]
    opened: contextlib.ExitStack

    def connect(self, user: str, role: str = "queue") -> Connection:
        login = {"manager": self.servers.users.manager, "lane": self.servers.lanes(MINE), **self.logins}.get(user)
        return self.opened.enter_context(contextlib.closing(Connection(str(self.servers.socket(role)), login=login)))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    home = tmp_path_factory.mktemp("h")
    settings = NodeSettings(home, "n")
    settings.prepare()
    servers = Servers(settings, lambda role: None)
    try:
        servers.start()
        logins = {name: Login(name, servers.admit("queue", name, rules.warm(name))) for name in ("i1", "i2")}
        logins["c1"] = Login("c1", servers.admit("queue", "c1", rules.comparing(MINE, "c1")))
        servers.widen("state", "c1", rules.reading(MINE))
        servers.widen("state", "i1", rules.state(MINE))
        servers.widen("queue", "i1", rules.queue(MINE, "i1"))
        with contextlib.ExitStack() as opened:
            yield Node(servers, logins, opened)
    finally:
        servers.stop()


@pytest.fixture
def node(running: Node) -> Node:
    for role in ("queue", "state"):
        running.connect("manager", role).call("FLUSHALL")
    return running


def refused(conn: Connection, *command: str | int) -> None:
    with pytest.raises(ReplyError, match=r"NOPERM|ACL failure|not allowed"):
        conn.call(*command)


@pytest.mark.parametrize("role", ["queue", "state"])
def test_nobody_gets_in_without_a_password(node: Node, role: str) -> None:
    with pytest.raises(Unauthorized, match="authentication required"):
        node.connect("nobody", role)
    with pytest.raises(Unauthorized, match="authentication failed for user default"):
        Connection(str(node.servers.socket(role)), login=Login("default", ""))  # type: ignore[arg-type]
    with pytest.raises(Unauthorized, match="authentication failed for user manager"):
        Connection(str(node.servers.socket(role)), login=Login("manager", node.logins["i1"].password))  # type: ignore[arg-type]


@pytest.mark.parametrize("role", ["queue", "state"])
@pytest.mark.parametrize(
    "command",
    [
        "FLUSHALL", "FLUSHDB", "CONFIG GET *", "CONFIG SET dir /", "KEYS *", "SCAN 0", "RANDOMKEY", "ACL LIST", "ACL WHOAMI",
        "ACL SETUSER i1 ~* +@all", "DEBUG SLEEP 0", "SHUTDOWN NOSAVE", "SCRIPT FLUSH", "EVAL return 1 0", "FUNCTION DELETE udo",
        "FUNCTION LIST", "CLIENT LIST", "CLIENT KILL USER manager", "MONITOR", "SAVE", "BGREWRITEAOF", "REPLICAOF x 1", "MODULE LIST",
        "SWAPDB 0 1", "SELECT 1", "PUBLISH x y", "SUBSCRIBE x", "DUMP x", "MIGRATE h 1 k 0 1", "LATENCY RESET", "SLOWLOG GET",
    ],
)  # fmt: skip
def test_an_instance_has_no_command_that_concerns_the_server(node: Node, role: str, command: str) -> None:
    refused(node.connect("i1", role), *command.split())


def test_an_instance_reaches_no_other_slots_keys(node: Node) -> None:
    manager, mine = node.connect("manager"), node.connect("i1")
    manager.call("SET", f"{OTHER}emitted", 5)
    manager.call("RPUSH", f"{OTHER}in", "secret")

    refused(mine, "GET", f"{OTHER}emitted")
    refused(mine, "LRANGE", f"{OTHER}in", 0, -1)
    refused(mine, "SET", f"{OTHER}emitted", 9)
    refused(mine, "DEL", f"{OTHER}in")
    refused(mine, "BLPOP", keys.warm("i2"), 1)
    refused(mine, "FCALL", "udo_emit", 1, OTHER.prefix, 1, 1, 1, 1, 1, 1, 0)
    refused(mine, "FCALL", "udo_park", 1, OTHER.prefix, "i1", 1, 1, "parked")
    refused(mine, "SET", keys.HEARTBEAT, 1)
    assert mine.call("EXISTS", keys.HEARTBEAT) == 0
    assert manager.call("GET", f"{OTHER}emitted") == b"5"


# Slots of other deployments, and other slots, whose names begin or end alike.
@pytest.mark.parametrize(
    "other", [OTHER.prefix, "udo:mine:1:", "udo:mine:00:", "udo:mine2:0:", "udo:min:0:", "udo:mine:0:0:", "udo:mine:0"]
)
@pytest.mark.parametrize("user", ["i1", "c1", "lane"])
def test_nobody_reaches_a_slot_of_a_neighbouring_name(node: Node, user: str, other: str) -> None:
    roles = ["queue"] if user == "lane" else ["queue", "state"]
    for role in roles:
        node.connect("manager", role).call("RPUSH", f"{other}in", "secret")
        conn = node.connect(user, role)
        for name in ("in", "out:l1", "lane:l1", "bell:l1", "schema:x", "m:s", "dead", ""):
            refused(conn, "LRANGE", f"{other}{name}", 0, -1)
            refused(conn, "RPUSH", f"{other}{name}", "x")
            refused(conn, "DEL", f"{other}{name}")
    refused(node.connect(user), "FCALL", "udo_open", 1, other, "l9", 1000, "s", "schema", 1)


@pytest.mark.parametrize(
    ("user", "role", "names"),
    [
        ("i1", "queue", ["stats:i2", "ready:i2", "compared:i1", "differ:i1", "newest:x", "used:s", "lanes", "mirrors", "ckpt", "invented"]),
        ("c1", "queue", ["stats:i1", "bell:i1", "out:l1", "lane:l1", "compared:i1", "in", "emitted", "base", "parked", "invented"]),
        ("c1", "state", ["cut", "ckpt", "m:s", "g:1.1", "d:1.1", "dead", "sessions", "savepoints", "savepoint:rollback", "invented"]),
        ("i1", "state", ["runs:s", "homes", "cut", "tokens", "owner", "groups", "moving", "invented"]),
        ("lane", "queue", ["owner", "emitted", "base", "pins", "mirrors", "stats:i1", "ready:i1", "used:s", "waiting", "invented"]),
    ],
)
def test_a_neighbouring_key_of_its_own_slot_cannot_be_written(node: Node, user: str, role: str, names: list[str]) -> None:
    manager, conn = node.connect("manager", role), node.connect(user, role)
    for name in names:
        refused(conn, "DEL", f"{MINE}{name}")
        refused(conn, "SET", f"{MINE}{name}", "x")
        assert manager.call("EXISTS", f"{MINE}{name}") == 0


def test_who_only_reads_the_changelog_appends_nothing(node: Node) -> None:
    conn = node.connect("c1", "state")
    refused(conn, "XADD", f"{MINE}changelog", "9-0", "entry", "x")
    assert changelog.join(conn, MINE, "c1") == 0
    changelog.hold(conn, MINE, "c1", 0)
    conn.call(*changelog.appending(MINE, LoggedCheckpoint(b"x", [])))
    assert changelog.read(conn, MINE, "c1", 0)[0] == []
    conn.call(*changelog.leaving(MINE, "c1"))


def test_every_rule_names_a_key_of_the_table() -> None:
    rows = re.findall(r"^\| (`.+?`) *\|", keys.__doc__ or "", re.MULTILINE)
    names = {re.sub(r"\{\w+\}", "*", name) for row in rows for name in re.findall(r"`([^`]+)`", row)}
    names |= {re.sub(r"(:\*)+", ":*", name) for name in names} | {re.sub(r"\*$", "i", name) for name in names} | {""}
    found = [rule for build in (rules.queue, rules.comparing) for rule in build(MINE, "i")]
    found += [*rules.state(MINE), *rules.reading(MINE), *rules.letters(MINE), *rules.lanes(MINE)]

    for pattern in (rule.removeprefix("%R").removeprefix("~") for rule in found if "~" in rule):
        assert pattern in (keys.HEARTBEAT, keys.warm("i")) or pattern.removeprefix(MINE.prefix) in names, pattern


def test_an_instance_cannot_make_itself_the_owner_nor_change_the_route(node: Node) -> None:
    queue, state = node.connect("i1"), node.connect("i1", "state")
    for conn in (queue, state):
        refused(conn, "SET", f"{MINE}owner", 99)
        refused(conn, "DEL", f"{MINE}owner")
        refused(conn, "FCALL", "udo_promote", 1, MINE.prefix, 99)
        assert conn.call("GET", f"{MINE}owner") is None
    refused(queue, "HSET", f"{MINE}route", "v", 1)
    refused(state, "INCR", f"{MINE}tokens")
    refused(queue, "SET", f"{MINE}status", "{}")


def test_an_instance_and_a_lane_do_all_that_the_protocol_asks_of_them(node: Node) -> None:
    manager, state = node.connect("manager"), node.connect("manager", "state")
    token = slot.next_token(state, MINE)
    slot.promote(state, manager, MINE, token)
    lane = lane_end.LaneEnd(node.connect("lane"), MINE, "l1")
    lane.open(b"schema")
    for n, body in ((1, b"x"), (2, b"y" * 40_000)):  # small and large frames travel differently
        frame = [*encode(Header(lane="l1", number=n, kind=DATA, schema=b"s" * 8)), b""]
        assert lane.push(n, n - 1, frame).status is lane_end.Push.ACCEPTED, body

    assert lane.push(2, 1, []).status is lane_end.Push.DUPLICATE
    assert (slot.last_emitted(lane.conn, MINE), lane.status(), lane.collect(0)) == (0, None, [])
    queue = node.connect("i1")
    reader = slot_reader.SlotReader(queue, MINE, "i1", token)
    assert reader.park(1, 1000)
    assert len(reader.read(1).frames) == 2
    assert reader.sender(2) == ("l1", 2)
    reader.pin(1, 1000)
    reader.pin(1, 0)
    large = encode(Header(lane="l1", number=2, kind=ANSWER, trace=b"z" * 40_000))
    assert reader.emit(1, [("l1", encode(Header(lane="l1", number=1, kind=ANSWER)))], trim=False) is slot_reader.Emit.EMITTED
    assert reader.emit(2, [("l1", large)], trim=False) is slot_reader.Emit.EMITTED
    assert reader.trim(2) is slot_reader.Emit.TRIMMED
    slot.report_ready(queue, MINE, "i1", {"ok": True})
    identity = slot.store_schema(queue, MINE, to_ipc(pa.schema([("a", pa.int64())])))
    assert slot.stored_schema(queue, MINE, identity).names == ["a"]
    assert slot.failed_lanes(queue, MINE) == set()
    assert slot.ready(manager, MINE, "i1", 1000) == {"ok": True}
    assert [f.header.number for f in lane.collect(1000)] == [1, 2]

    durable = node.connect("i1", "state")
    writes = [("HSET", f"{MINE}m:s", 1, b"m"), ("SET", f"{MINE}g:s:1", b"g"), ("RPUSH", f"{MINE}d:s:1", b"d")]
    covers = checkpoints.Checkpoint(2, queue.run_id, [("l1", b"a")])
    assert checkpoints.checkpoint(checkpoints.OwnedState(durable, MINE, token), covers, 2, writes) is slot_reader.Emit.STORED
    assert checkpoints.load_checkpoint(durable, MINE).seq == 2
    lane.close()


def test_a_warm_instance_may_wait_for_its_assignment_and_nothing_else(node: Node) -> None:
    manager, warm = node.connect("manager"), node.connect("i2")
    manager.call("SET", f"{MINE}emitted", 1)

    refused(warm, "GET", f"{MINE}emitted")
    refused(warm, "BLPOP", keys.warm("i1"), 1)
    refused(warm, "RPUSH", keys.warm("i2"), "x")
    with pytest.raises(Unauthorized):
        node.connect("i2", "state")
    manager.call("RPUSH", keys.warm("i2"), "assignment")

    assert warm.call("BLPOP", keys.warm("i2"), 1) == [keys.warm("i2").encode(), b"assignment"]


def test_a_lane_can_neither_read_state_nor_answer(node: Node) -> None:
    lane = node.connect("lane")
    for command in ("FLUSHALL", "KEYS *", "ACL LIST", "CONFIG GET *", f"SET {MINE}owner 9", f"GET {keys.warm('i2')}"):
        refused(lane, *command.split())
    refused(lane, "FCALL", "udo_promote", 1, MINE.prefix, 9)
    with pytest.raises(Unauthorized):
        node.connect("lane", "state")


def test_a_prefix_that_is_a_pattern_opens_nothing() -> None:
    for prefix in ("udo:*:0:", "udo:a:0:*", "udo:", "udo:a b:0:", "udo:?:0:", "udo:a:00:"):
        with pytest.raises(Conflict, match="expected a slot prefix"):
            SlotKeys.parse(prefix)
    for deployment in ("*", "a b", "?", "a\\", "a:0"):
        with pytest.raises(Conflict, match="expected a slot prefix"):
            rules.queue(SlotKeys(deployment, 0), "i")
        with pytest.raises(Conflict):
            rules.state(SlotKeys(deployment, 0))


def _users(home: Path, role: str) -> set[str]:
    with contextlib.closing(access.connect(home, role)) as conn:  # type: ignore[arg-type]
        return {bytes(u).decode() for u in conn.call("ACL", "USERS")}


def test_passwords_are_in_nobody_elses_sight(daemon: Daemon, lane: Callable[..., Lane]) -> None:
    daemon.deploy(add(1))
    assert lane().ask(1) == 2
    secrets = json.loads((daemon.home / "servers" / "access.json").read_text())

    with contextlib.closing(access.connect(daemon.home, "queue")) as conn:
        hashes = set(re.findall(r"#([0-9a-f]{64})", " ".join(bytes(line).decode() for line in conn.call("ACL", "LIST"))))

    assert hashlib.sha256(secrets["manager"].encode()).hexdigest() in hashes
    assert len(hashes) >= 3, "the lanes' and the instances' come on top"
    assert stat.S_IMODE((daemon.home / "servers" / "access.json").stat().st_mode) == 0o600
    for p in daemon.processes():
        words = re.findall(r"[A-Za-z0-9_-]{32,}", " ".join(p.cmdline()) + repr(p.environ()))
        assert not {hashlib.sha256(w.encode()).hexdigest() for w in words} & hashes, p
    owner = daemon.slot().instance
    assert not (daemon.home / "instances" / owner / ".password").exists()
    assert not any(s in daemon.log() for s in secrets.values())


def test_a_password_of_lanes_opens_for_an_hour_or_two_and_who_is_logged_in_stays_so(manager: Manager) -> None:
    servers, hours, opened = manager.servers, [500_000], contextlib.ExitStack()
    servers.users.clock = lambda: hours[0] * access.LANE_PASSWORD_S

    def enter(login: Login) -> Connection:
        return opened.enter_context(contextlib.closing(Connection(str(servers.socket("queue")), login=login)))

    with opened:
        first, logins = servers.lanes(MINE), []
        lasting = enter(first)
        for _ in range(2):
            hours[0] += 1
            logins.append(servers.lanes(MINE))
            enter(logins[-1])
        assert len({login.password for login in (first, *logins)}) == 3
        assert len({login.user for login in (first, *logins)}) == 1
        enter(logins[0])
        with pytest.raises(Unauthorized):
            enter(first)
        assert lasting.call("EXISTS", f"{MINE}lane:l") == 0


def test_users_come_and_go_with_their_instances(daemon: Daemon, lane: Callable[..., Lane]) -> None:
    daemon.deploy(add(1))
    first = daemon.slot().instance
    assert first in _users(daemon.home, "queue")
    assert first not in _users(daemon.home, "state"), "a stateless operator needs no user there"

    os.kill(daemon.slot().pid, signal.SIGKILL)

    wait_until(lambda: first not in _users(daemon.home, "queue"), 20, "the user of a dead instance to go")
    daemon.api.undeploy("d")
    live = {p.name for p in (daemon.home / "instances").iterdir()}
    wait_until(lambda: _users(daemon.home, "queue") - live == {"default", "manager"}, 20, "no user but those of warm instances")


def test_a_keyed_instance_goes_on_when_a_server_was_lost_and_after_the_manager_was_killed(daemon: Daemon) -> None:
    daemon.deploy(COUNT, entry="op:Run", key=["a"])
    assert Attempt.at_node(daemon.api, "d", "s", 0, 1).run([1, 2, 1]) == [1, 1, 2]

    daemon.kill()
    daemon.start()
    assert Attempt.at_node(daemon.api, "d", "s", 1, 2).run([1]) == [3]
    for epoch, role in ((2, "state"), (3, "queue")):
        before = next(s for s in daemon.api.status().servers if s.role == role)
        os.kill(before.pid, signal.SIGKILL)
        wait_until(lambda b=before, r=role: _replaced(daemon, r, b.run_id), 20, f"another {role} server")  # type: ignore[misc]
        assert daemon.slot().instance in _users(daemon.home, role) or role == "queue"
        wait_until(lambda e=epoch: _counts(daemon, e), 30, "the count to go on")  # type: ignore[misc]


def _replaced(daemon: Daemon, role: str, run_id: str) -> bool:
    return any(s.role == role and s.run_id != run_id for s in daemon.api.status().servers) and daemon.slot().state == "owner"


def _counts(daemon: Daemon, epoch: int) -> bool:
    """Attempt the epoch, as Spark does again and again while the slot comes back; return whether it counted."""
    try:
        with contextlib.closing(Attempt.at_node(daemon.api, "d", "s", epoch, next(_attempts))) as attempt:
            return attempt.run([1]) == [epoch + 2]
    except (UdoError, AssertionError):
        return False

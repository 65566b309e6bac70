"""One operator against its node: garbage in the keys that it may write never affects others, and the broken key is named."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from node_manager.servers import access
from node_manager.servers.binaries import Role
from node_manager.trials.mirrors import _findings
from tests.conftest import bound, wait_until
from tests.node_manager.conftest import Daemon, Lane, add, put_image
from udo_protocol.errors import LaneExpired, OperatorError, SlotBroken, UdoError
from udo_protocol.queue import keys
from udo_protocol.queue.connection import Connection, ReplyError
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.state.dead_letters import DEAD

pytestmark = pytest.mark.long

Open = Callable[..., Lane]
MINE = SlotKeys("mine", 0).prefix
KEYED = """
from udo_runtime import Operator
class Run(Operator):
    def process(self, event, ctx):
        yield {"b": event["a"]}
"""
WAITS = """
import time
from udo_runtime import operator
@operator
def run(batch):
    time.sleep(batch.column("a").to_pylist()[0])
    return {"b": batch.column("a")}
"""
DIES = """
import os
from udo_runtime import operator
@operator
def run(batch):
    if batch.column("a").to_pylist()[0]:
        os._exit(3)
    return {"b": batch.column("a")}
"""
# Breaks its slot's input key with the credentials of its own process, which it finds on the stack.
BREAKS = """
import sys, threading, time
from udo_runtime import operator
from udo_protocol.queue.connection import Connection
def spoil():
    while True:
        frame = sys._current_frames()[threading.main_thread().ident]
        while frame and not isinstance(found := frame.f_locals.get("conn"), Connection):
            frame = frame.f_back
        if frame:
            own = Connection(found.path, login=found.login)
            own.call("DEL", "udo:mine:0:in")
            own.call("SET", "udo:mine:0:in", "x")
            own.close()
        time.sleep(0.02)
threading.Thread(target=spoil, daemon=True).start()
@operator
def run(batch):
    return {"b": batch.column("a")}
"""
# Things that an operator could leave in a key; each is the command sent after DEL.
GARBAGE: dict[str, tuple[str, ...]] = {
    "text": ("SET", "garbage"),
    "beyond int64": ("SET", "99999999999999999999"),
    "negative": ("SET", "-5"),
    "not a number": ("SET", "nan"),
    "not text": ("SET", b"\xff\xfe"),  # type: ignore[dict-item]
    "deep JSON": ("SET", "[" * 50_000),
    "list": ("RPUSH", "x", "1"),
    "set": ("SADD", "x"),
    "hash of text": ("HSET", "events_in", "x", "s1", "x", "info", "x", "7", "x"),
    "hash of numbers": ("HSET", "events_in", "1e400", "s1", '{"last_ended": 1e400, "run": -1, "bytes": "x", "at": 1e15}', "info", "{}"),
    "nothing": (),
}


# For each type of key, the kinds of garbage that its readers can tell apart; values of any other type are all the same to them (WRONGTYPE).
STRINGS = ("text", "beyond int64", "negative", "not a number", "not text", "deep JSON", "list", "nothing")
TOLD_APART: dict[str, tuple[str, ...]] = {
    "string": STRINGS,
    "int": STRINGS,
    "list": ("text", "list", "nothing"),
    "set": ("text", "set", "nothing"),
    "zset": ("text", "set", "nothing"),
    "stream": ("text", "list", "nothing"),
    "hash": ("text", "hash of text", "hash of numbers", "nothing"),
    "hashes": ("text", "hash of text", "hash of numbers", "nothing"),
}


def writable(conn: Connection, instance: str, role: Role) -> dict[str, str]:
    """Return key -> type of the keys in the table in keys.py that this instance may write on this server."""
    found = {f"{MINE}junk": "string", MINE: "string", keys.warm(instance): "list"}
    for line in (keys.__doc__ or "").splitlines():
        if (row := re.match(r"\| (`.+`) *\| *([a-z, ]+?) *\| *([a-z]+) *\|", line)) and role in row[2]:
            for name in re.findall(r"`([^`]+)`", row[1]):
                key = MINE + re.sub(r"\{(inst|reader)\}", instance, name).replace("{n}", "7").replace("*", "m:s1")
                found[re.sub(r"\{\w+\}", "s1", key)] = row[3]
    return {k: kind for k, kind in found.items() if bytes(conn.call("ACL", "DRYRUN", instance, "DEL", k)) == b"OK"}


def put(conn: Connection, key: str, garbage: str) -> None:
    """Replace the key by this garbage."""
    conn.call("DEL", key)
    if command := GARBAGE[garbage]:
        conn.call(command[0], key, *command[1:])


@contextlib.contextmanager
def servers(daemon: Daemon) -> Iterator[dict[Role, Connection]]:
    """Open connections to both servers as the manager."""
    with (
        contextlib.closing(access.connect(daemon.home, "queue")) as queue,
        contextlib.closing(access.connect(daemon.home, "state")) as state,
    ):
        yield {"queue": queue, "state": state}


def metrics(daemon: Daemon) -> list[float]:
    """Return every value at the metrics endpoint."""
    with urllib.request.urlopen(daemon.api.status().metrics_address, timeout=bound(10)) as reply:
        return [s.value for f in text_string_to_metric_families(reply.read().decode()) for s in f.samples]


def look_at_everything(daemon: Daemon) -> None:
    """Check that calls about all deployments answer, and that they tell the truth about the neighbour."""
    slots = {s.deployment: s for s in daemon.api.status().slots}
    assert slots["neighbour"].state == "owner", slots["neighbour"]
    assert {s.deployment for s in daemon.api.stats().slots} == {"mine", "neighbour"}
    assert all(map(math.isfinite, metrics(daemon)))
    daemon.api.sessions()
    list(daemon.api.dead_letters())


def look_at_the_broken_one(daemon: Daemon) -> None:
    """Check that each call answers, or fails with an error that is meant for people."""
    calls: list[Callable[[], object]] = [
        lambda: daemon.api.sessions("mine"),
        lambda: list(daemon.api.dead_letters("mine")),
        lambda: list(daemon.api.export_state("mine", "s1")),
        lambda: list(daemon.api.record("mine", 0.05)),
    ]
    for call in calls:
        try:
            call()
        except UdoError as e:
            assert type(e) is not UdoError, e  # unexpected errors arrive as a bare UdoError


def owner(daemon: Daemon, name: str = "mine") -> str:
    """Wait for a serving instance; return its name."""
    wait_until(lambda: bool(daemon.slot(name).instance), 40, f"an owner of {name}")
    return str(daemon.slot(name).instance)


@pytest.fixture
def neighbours(daemon: Daemon) -> Daemon:
    """`mine` keeps state and dead letters, so it may write every kind of key; `neighbour` is innocent."""
    config = json.dumps({"policy": "dead-letter"})
    daemon.deploy(KEYED, name="mine", config_json=config, input={"a": "int64"}, output={"b": "int64"}, key=["a"], entry="op:Run")
    digest = put_image(daemon.home, add(1), name="u")
    daemon.api.deploy("neighbour", "u", "1", digest)
    return daemon


def test_no_key_that_an_operator_may_write_hides_anything_of_its_neighbours(neighbours: Daemon, lane: Open) -> None:
    caller, first = lane("neighbour"), owner(neighbours)
    with servers(neighbours) as conns:
        mine = [(conn, key, kind) for role, conn in conns.items() for key, kind in writable(conn, first, role).items()]
        assert len(mine) > 25, mine
        for n, garbage in enumerate(GARBAGE):
            for conn, key, _ in (each for each in mine if garbage in TOLD_APART[each[2]]):
                serves = neighbours.slot("mine").instance  # the owner is replaced again and again
                put(conn, key.replace(first, serves or first), garbage)
                look_at_everything(neighbours)
            look_at_the_broken_one(neighbours)
            assert caller.ask(n) == n + 1


@pytest.mark.parametrize("garbage", ["beyond int64", "list", "hash of numbers"])
def test_a_manager_that_starts_on_broken_keys_serves_all_the_same(neighbours: Daemon, lane: Open, garbage: str) -> None:
    caller, instance = lane("neighbour"), owner(neighbours)
    neighbours.kill()
    with servers(neighbours) as conns:
        for role, conn in conns.items():
            for key in writable(conn, instance, role):
                put(conn, key, garbage)

    neighbours.start()

    look_at_everything(neighbours)
    assert caller.ask(1) == 2
    with pytest.raises(UdoError):  # broken state is not thrown away by mistake
        neighbours.api.undeploy("mine")
    neighbours.api.undeploy("mine", drop_state=True)
    assert [s.deployment for s in neighbours.api.status().slots] == ["neighbour"]


@pytest.mark.parametrize(
    ("key", "garbage"),
    [("emitted", "text"), ("base", "beyond int64"), ("in", "text"), ("in", "nothing"), ("emitted", "beyond int64"), ("parked", "list")],
)
def test_a_broken_log_is_named_and_begins_anew_and_its_lanes_learn_it(daemon: Daemon, lane: Open, key: str, garbage: str) -> None:
    daemon.deploy(WAITS, name="mine")
    caller, pid = lane("mine"), daemon.slot("mine").pid
    caller.send([600])

    with servers(daemon) as conns:
        put(conns["queue"], MINE + key, garbage)

    wait_until(lambda: daemon.slot("mine").state == "broken" and MINE + key in daemon.slot("mine").last_error, 10, "the key to be named")
    with pytest.raises((LaneExpired, ReplyError), match="removed|WRONGTYPE"):
        while True:
            caller.end.collect(1000)
    wait_until(lambda: daemon.slot("mine").pid not in (0, pid), 20, "another owner")
    again = lane("mine")
    assert again.ask(0) == 0
    wait_until(lambda: daemon.slot("mine").state == "owner", 10, "that it is as it was")


def test_a_lane_that_is_opened_on_a_broken_log_waits_for_its_repair(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(WAITS, name="mine")
    assert lane("mine").ask(0) == 0
    with servers(daemon) as conns:
        put(conns["queue"], MINE + "emitted", "text")
    assert lane("mine").ask(0) == 0


@pytest.mark.parametrize(
    "text",
    ["x", "[]", '{"seen": "5"}', '{"frames": 1e400}', '{"looks": -1}', '{"first_error": "x"}', '{"first_error": {}}', '{"events": true}'],
)
def test_what_a_comparing_instance_claims_to_have_found_is_checked(text: str) -> None:
    with pytest.raises(SlotBroken, match="key k is broken"):
        _findings(text.encode(), "k")


@pytest.mark.short
def test_a_keyed_slot_goes_on_with_the_state_of_its_last_checkpoint(neighbours: Daemon) -> None:
    owner(neighbours)
    with servers(neighbours) as conns:
        state, queue = conns["state"], conns["queue"]
        state.call("SET", f"{MINE}ckpt", f"7 {queue.run_id}")
        state.call("HSET", f"{MINE}sessions", "s1", json.dumps({"last_ended": 3, "run": 1, "keys": 1, "bytes": 9, "at": 1.0, "failed": []}))
        put(queue, f"{MINE}emitted", "text")
        wait_until(lambda: "emitted" in neighbours.slot("mine").last_error, 10, "the key to be named")
        wait_until(lambda: b"7 " not in bytes(state.call("GET", f"{MINE}ckpt"))[:2], 20, "a log that begins anew")
        owner(neighbours)

        seq, run = bytes(state.call("GET", f"{MINE}ckpt")).decode().split()
        emitted, base = (int(x) for x in queue.call("MGET", f"{MINE}emitted", f"{MINE}base"))

    assert (int(seq), run, base) == (emitted, queue.run_id, emitted + 1)
    assert [(s.session, s.last_ended) for s in neighbours.api.sessions("mine").sessions] == [("s1", 3)]


def test_an_operator_that_breaks_its_slot_again_and_again_is_restarted_ever_later(daemon: Daemon) -> None:
    daemon.deploy(BREAKS, name="mine")
    wait_until(lambda: daemon.slot("mine").restarts >= 6, 60, "six restarts")

    began = time.monotonic()
    wait_until(lambda: daemon.slot("mine").restarts >= 8, 60, "two more")

    assert time.monotonic() - began > 3.0  # 1.6 s and 3.2 s at least
    wait_until(lambda: "next try in" in daemon.slot("mine").last_error, 30, "status to say when it is tried again")
    found = daemon.slot("mine")
    assert (found.state, f"{MINE}in" in found.last_error) == ("broken", True)


def test_a_session_list_names_what_cannot_be_read_and_a_dead_letter_that_is_none_can_be_dropped(neighbours: Daemon) -> None:
    owner(neighbours)
    with servers(neighbours) as conns:
        put(conns["state"], f"{MINE}sessions", "hash of numbers")
        conns["state"].call("HSET", MINE + DEAD, "no name", "no letter")

    (listed,) = neighbours.api.sessions().sessions
    assert (listed.deployment, f"{MINE}sessions" in listed.broken) == ("mine", True)
    with pytest.raises(SlotBroken, match=f"{MINE}sessions"):
        neighbours.api.sessions("mine")
    (letter,) = neighbours.api.dead_letters()
    assert (letter.code, MINE + DEAD in letter.reason) == ("slot_broken", True)
    assert neighbours.api.drop_dead_letters("mine", [letter.id]) == 1


def test_an_operator_that_dies_of_every_event_says_so_until_it_answers_one(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(DIES)
    for k in range(3):
        caller = lane("d", f"try{k}")
        caller.send([1])
        assert caller.receive(60).header.failure.code == OperatorError.code

    found = daemon.slot()
    assert (found.state, "exit status 3, on the last 3 frames" in found.last_error) == ("failing", True), found.last_error

    assert lane("d").ask(0, 40) == 0
    wait_until(lambda: daemon.slot().state == "owner", 10, "that it is well")


@pytest.mark.short
def test_an_owner_that_broke_its_counters_and_dies_is_replaced(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(add(1), name="mine")
    found = daemon.slot("mine")
    with servers(daemon) as conns:
        put(conns["queue"], f"{MINE}stats:{found.instance}", "list")
        broken = daemon.slot("mine")
        os.kill(found.pid, signal.SIGKILL)

    assert (broken.state, f"{MINE}stats:{found.instance}" in broken.last_error) == ("broken", True)
    wait_until(lambda: (daemon.slot("mine").state, daemon.slot("mine").restarts) == ("owner", 1), 20, "the next owner")
    assert lane("mine").ask(1) == 2


def test_what_an_operator_blows_up_is_read_past_and_costs_the_manager_no_memory(neighbours: Daemon) -> None:
    instance, manager = owner(neighbours), psutil.Process(neighbours.process.pid)
    with servers(neighbours) as conns:
        queue, state = conns["queue"], conns["state"]
        # An owner writes its first counters soon after its start, which would undo the damage.
        wait_until(lambda: queue.call("EXISTS", f"{MINE}stats:{instance}") == 1, 10, "the owner's counters")
        before = manager.memory_info().rss
        big = bytearray(150 << 20)
        queue.call("HSET", f"{MINE}stats:{instance}", "events_in", big)
        state.call("HSET", f"{MINE}sessions", "s1", big)
        del big
        grown = 0
        for _ in range(3):
            look_at_everything(neighbours)
            grown = max(grown, manager.memory_info().rss - before)
        found = {s.deployment: s for s in neighbours.api.status().slots}
        broken = [s.broken for s in neighbours.api.sessions().sessions if s.broken]

    assert "stats" in found["mine"].last_error and "is broken: it holds more than" in found["mine"].last_error
    assert any("sessions is broken: it holds more than" in text for text in broken)
    assert grown < 75 << 20

"""A home of an earlier release is converted to this one's format at the first start, or refused with a remedy."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from node_manager import home_format, proc
from node_manager.manager import Manager
from node_manager.servers import access, state_format
from node_manager.servers.binaries import find_server, server_args
from node_manager.servers.embedded import ROLES, Servers
from node_manager.settings import NodeSettings
from tests.conftest import bound, wait_until
from tests.node_manager.conftest import Daemon, Lane
from tests.support.attempt import Attempt
from tests.support.fake_driver import FakeDriver
from tests.support.keyed_node import COUNT, KEYED
from tests.support.selection import long
from udo_protocol.errors import ServerLost, Unavailable
from udo_protocol.queue import keys
from udo_protocol.queue.connection import Connection

LAST_1 = "format1_last.tar.xz"
HOMES = sorted(p.name for p in (Path(__file__).parent / "homes").glob("*.tar.xz"))
ALONE = ("--session-idle-s", "0")


def unpacked(archive: str, home: Path) -> Path:
    with tarfile.open(Path(__file__).parent / "homes" / archive) as t:
        t.extraction_filter = getattr(tarfile, "data_filter", None)  # type: ignore[attr-defined]  # not in Python 3.11.0 to 3.11.3
        t.extractall(home.parent)
    return (home.parent / "home").rename(home)


@pytest.mark.parametrize("archive", [HOMES[0], *map(long, HOMES[1:])])
def test_a_home_of_an_earlier_release_goes_on_where_it_stopped(home_daemon: Daemon, archive: str) -> None:
    unpacked(archive, home_daemon.home)
    numbers = itertools.count(100)

    def run(session: str, epoch: int, events: list[int], run: str = "r1") -> list[int]:
        return Attempt.at_node(home_daemon.api, "d", session, epoch, next(numbers), run).run(events)

    home_daemon.start(*ALONE)
    assert {s.session: s.last_ended for s in home_daemon.api.sessions("d").sessions} == {"q1": 5, "moved": 7, "two words": 7}
    (letter,) = home_daemon.api.dead_letters("d", whole=True)
    assert json.loads(letter.event) == {"a": 13}
    assert run("q1", 6, [1, 1, 2], "r2") == [7, 8, 4]  # its first attempt had not ended
    assert run("moved", 8, [1, 2, 3, 4]) == [102, 202, 2, 1]
    assert run("two words", 8, [4]) == [42]
    lane = Lane(home_daemon.api, "s")
    assert lane.ask(21) == 42
    lane.conn.close()

    home_daemon.stop()
    home_daemon.start(*ALONE)
    assert run("q1", 7, [1, 5], "r3") == [9, 2]  # a new run of the query
    assert run("two words", 9, [4, 4]) == [43, 44]
    with contextlib.closing(access.connect(home_daemon.home, "state")) as state:
        assert state.call("GET", keys.FORMAT) == b"%d" % state_format.FORMAT
        assert state.call("KEYS", "udo:d:0:kept*") == []


@contextlib.contextmanager
def serving(home: Path) -> Iterator[Connection]:
    """Run a state server on the files of this home; it is killed at the end."""
    socket = home / "s"
    process = subprocess.Popen(server_args(find_server()[0], "state", home / "servers" / "state", socket))
    try:

        def answers() -> bool:
            with contextlib.suppress(ServerLost), contextlib.closing(Connection(str(socket))) as state:
                return bool(state.call("PING"))
            return False

        wait_until(answers, 10, "state server")
        with contextlib.closing(Connection(str(socket))) as state:
            yield state
    finally:
        process.kill()
        process.wait()
        socket.unlink(missing_ok=True)


def content(state: Connection) -> dict[bytes, object]:
    """Return all keys with their values."""
    read = {b"string": "GET", b"hash": "HGETALL", b"list": "LRANGE", b"set": "SMEMBERS"}
    found: dict[bytes, object] = {}
    for key in state.call("KEYS", "*"):
        kind = read[bytes(state.call("TYPE", key))]
        value = state.call(kind, key, *((0, -1) if kind == "LRANGE" else ()))
        found[bytes(key)] = sorted(map(bytes, value)) if isinstance(value, list) else bytes(value)
    return found


@pytest.mark.parametrize("archive", HOMES)
def test_a_start_that_was_killed_at_any_step_is_finished_by_the_next(home: Path, archive: str) -> None:
    homes = (unpacked(archive, home.parent / f"h{n}") for n in itertools.count())
    with serving(next(homes)) as state:
        before = content(state)
        stored = int(bytes(state.call("GET", keys.FORMAT) or b"1"))
        steps = list(state_format.upgraded(state, stored))
        wanted = content(state)
        runs = {bytes(r).split(b" ", 1)[1] for s in ("moved", "q1", "two words") for r in state.call("HVALS", f"udo:d:0:runs:{s}")}
    with_runs = {"udo:d:0:runs:moved", "udo:d:0:runs:q1", "udo:d:0:runs:two words"}
    assert {s for s in steps if ":runs:" in s} == (with_runs if stored < 3 else set())
    assert runs == {b"0 c"}, "before every plan that the registry numbers"
    if stored == 1:
        assert {s for s in steps if ":m:" in s} == {"udo:d:0:m:moved", "udo:d:0:m:q1", "udo:d:0:m:two words"}
        assert wanted[b"udo:d:0:m:q1"] != before[b"udo:d:0:m:q1"]
    assert wanted[b"udo:format"] == b"%d" % state_format.FORMAT
    assert not [k for k in wanted if b"kept" in k or b"two words:" in k or k == b"udo:migrated"]
    for killed_after in range(len(steps) + 1):
        interrupted = next(homes)
        with serving(interrupted) as state:
            assert list(itertools.islice(state_format.upgraded(state, stored), killed_after)) == steps[:killed_after]
            half = content(state)
        with serving(interrupted) as state:
            assert content(state) == half
            assert state_format.bring_up(state) == stored
            assert content(state) == wanted
            assert state_format.bring_up(state) == state_format.FORMAT
            assert content(state) == wanted


def test_a_step_that_was_cut_short_on_the_disk_is_done_again(home: Path) -> None:
    unpacked(LAST_1, home)
    with serving(home) as state:
        list(itertools.islice(state_format.upgraded(state, 1), 2))
    file = home / "servers" / "state" / "appendonlydir" / "appendonly.aof.1.incr.aof"
    file.write_bytes(file.read_bytes()[:-10])  # within the EXEC of the second step
    wanted = NodeSettings(home, "n1")
    wanted.prepare()
    running = Servers(wanted, lambda _: None)
    try:
        running.start()
        with contextlib.closing(running.connect("state")) as state:
            found = state.call("HVALS", "udo:d:0:m:q1")
            assert found and all(re.match(rb"q1:\d \d+ \d+ \d+ ", bytes(entry)) for entry in found)
            assert state.call("GET", keys.FORMAT) == b"%d" % state_format.FORMAT
    finally:
        running.stop()


def test_a_session_whose_keys_its_operator_broke_stays_as_it_is_and_the_others_are_brought_up(home: Path) -> None:
    with serving(unpacked(LAST_1, home)) as state:
        state.transaction([["SET", "udo:broken:0:m:q1", "no hash"], ["HSET", "udo:broken:0:m:q2", "no number", "x"]])
        assert state_format.bring_up(state) == 1
        assert state.call("GET", "udo:broken:0:m:q1") == b"no hash"
        assert state.call("HGETALL", "udo:broken:0:m:q2") == [b"no number", b"x"]
        assert state.call("HGET", "udo:d:0:m:q1", 1).startswith(b"q1:1 ")


def test_a_format_of_a_later_release_is_refused_and_nothing_is_touched(home: Path) -> None:
    unpacked(LAST_1, home)
    (home / "format.json").write_text('{"format": 7}')
    with pytest.raises(Unavailable, match=r"is of format 7, written by a later release; expected at most 2. Start it with that release"):
        home_format.convert(home)
    (home / "format.json").write_text("{")
    with pytest.raises(Unavailable, match=r"format.json is damaged: expected .*restore it from a backup"):
        home_format.convert(home)
    with serving(home) as state:
        state.call("SET", keys.FORMAT, 7)
        before = content(state)
        with pytest.raises(Unavailable, match="the state server's file is of format 7"):
            state_format.bring_up(state)
        assert content(state) == before


@pytest.mark.long
def test_what_still_runs_of_an_earlier_release_is_left_alone_until_it_is_stopped(home_daemon: Daemon) -> None:
    home_daemon.start(*ALONE)
    home_daemon.deploy(COUNT, **KEYED)
    assert Attempt.at_node(home_daemon.api, "d", "q1", 0, 1).run([1]) == [1]
    home_daemon.kill()
    (home_daemon.home / "format.json").unlink()  # as an earlier release leaves it
    left = {p.pid for p in home_daemon.processes()}
    instances = {r["handle"]["data"]["pid"] for r in home_daemon.records()}
    again = Daemon(home_daemon.home).start(*ALONE, wait=False)
    assert again.process is not None and again.process.wait(bound(30)) == 1
    log = again.log()
    assert "servers of an earlier release still run" in log and "Stop them with udo down" in log
    assert left <= {p.pid for p in home_daemon.processes()} and not (home_daemon.home / "format.json").exists()

    for pid in instances:
        os.killpg(pid, signal.SIGSTOP)  # so that it does not notice the end of its servers
    for role in ROLES:
        record = json.loads((home_daemon.home / "servers" / f"{role}.json").read_text())
        psutil.Process(record["process"]["pid"]).send_signal(signal.SIGTERM)
        wait_until(lambda r=record: not proc.alive(proc.ProcessId(**r["process"])), 10, "end of a server")  # type: ignore[misc]
    home_daemon.start(*ALONE)
    assert not instances & {r["handle"]["data"]["pid"] for r in home_daemon.records()}  # it would write in its own release's format
    assert Attempt.at_node(home_daemon.api, "d", "q1", 1, 2).run([1]) == [2]


@pytest.mark.parametrize("damaged", ["", '{"deployments": [', "[]"])
@pytest.mark.parametrize(("name", "remedy"), [("wanted.json", "Restore it from a backup"), ("placements.json", "Remove it while")])
def test_a_home_whose_deployments_cannot_be_read_is_refused_and_stays_as_it_is(home: Path, name: str, remedy: str, damaged: str) -> None:
    """Without this file it would serve nothing, or its own slots as if there were no others."""
    settings = NodeSettings(home, "n")
    settings.prepare()
    (home / name).write_text(damaged)
    with pytest.raises(Unavailable, match=f"{name} is damaged: expected a JSON object. {remedy}"):
        Manager(settings, None, FakeDriver()).lock_home()
    assert (home / name).read_text() == damaged

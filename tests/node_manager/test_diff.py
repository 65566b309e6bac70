"""A diff on real servers: the new version answers beside the serving one, differences are reported, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator

import pytest

from node_manager.servers import access
from tests.conftest import patience, wait_until
from tests.node_manager.conftest import Daemon, Lane, add, put_image
from tests.support.diffs import Running
from udo_protocol.errors import OperatorError, SchemaError, UdoError
from udo_protocol.queue.connection import Connection

pytestmark = pytest.mark.long

Open = Callable[..., Lane]
# The new version in the tests below: b = a + 1, with exceptions.
ODD = """
from udo_runtime import operator
@operator
def run(batch):
    a = batch.column("a").to_pylist()
    if -1 in a: raise ValueError("no negative event")
    if -2 in a: import os; os._exit(9)
    if -3 in a: return {"b": [1]}
    return {"b": [x + 1 + (x == 13) for x in a]}
"""


@pytest.fixture
def queue(daemon: Daemon) -> Iterator[Connection]:
    """A connection to the daemon's queue server."""
    conn = access.connect(daemon.home, "queue")
    yield conn
    conn.close()


def comparing(queue: Connection) -> str:
    """Return the name of the instance that compares."""
    return bytes(queue.call("GET", "udo:d:0:mirrors")).split()[0].decode()


def left(queue: Connection) -> set[str]:
    """Return the kinds of keys of a diff that are on the server."""
    names = {bytes(k).removeprefix(b"udo:d:0:").partition(b":")[0].decode() for k in queue.call("KEYS", "udo:d:0:*")}
    return names & {"mirrors", "served", "servedbytes", "compared", "differ", "pins"}


def test_a_diff_tells_what_differs_and_changes_no_answer(daemon: Daemon, lane: Open, queue: Connection) -> None:
    daemon.deploy(add(1))
    caller = lane()
    diff = Running(daemon, put_image(daemon.home, ODD, version="2"), for_s=3 * patience()).begun()

    assert [caller.ask(i) for i in range(10)] == [i + 1 for i in range(10)]
    for frame in ([12, 13, 14], [1, -1, 2], [-3, 5]):
        caller.send(frame)
        assert caller.values(caller.receive()) == [a + 1 for a in frame]
    report = diff.seen(13).end()

    assert report["outcome"] == "different"
    assert (report["frames"], report["equal"], report["different"], report["missed"]) == (13, 10, 3, 0)
    assert (report["errors_new"], report["errors_served"], report["row_counts_different"]) == (1, 0, 1)
    assert report["columns"] == {"b": 1} and report["rows"] == 18
    assert "no negative event" in report["first_error"]["traceback"] and json.loads(report["first_error"]["event"]) == {"a": -1}
    assert report["served_by"] == {"1": 13} and (report["version"], report["serving_version"]) == ("2", "1")
    assert report["p99_ms"] > 0 and set(report["serving"]) == {"p50_ms", "p99_ms"}
    told = [(e["columns"], e["event"], e["served"], e["new"]) for e in diff.examples]
    assert told[0] == (["b"], {"a": 13}, {"b": 14}, {"b": 15})
    assert told[1] == ([], {"a": -1}, None, None) and "no negative event" in diff.examples[1]["why"]
    assert "2 rows served, 1 rows of the new version" in diff.examples[2]["why"]
    assert not left(queue)
    assert (daemon.slot().version, daemon.slot().diff) == ("1", "")


def test_an_equal_version_is_found_equal_also_where_both_fail(daemon: Daemon, lane: Open) -> None:
    serving = ODD.replace("x + 1 + (x == 13)", "x + 1")
    daemon.deploy(serving)
    good, bad = lane(), lane()
    diff = Running(daemon, put_image(daemon.home, serving + "# another text\n", version="2"), for_s=3 * patience()).begun()

    assert daemon.slot().diff.startswith("t@2: ")
    for i in range(50):
        good.send([i, 13])
    for _ in range(50):
        good.receive()
    bad.send([-1])
    bad.receive()
    report = diff.seen(51).end()

    assert (report["outcome"], report["frames"], report["different"]) == ("equal", 51, 0)
    assert (report["errors_served"], report["errors_new"]) == (1, 1)
    assert diff.examples == []


def test_a_diff_without_events_says_that_it_compared_nothing(daemon: Daemon) -> None:
    daemon.deploy(add(1))
    report = Running(daemon, put_image(daemon.home, add(2), version="2"), for_s=0.2).end()
    assert (report["outcome"], report.get("frames", 0)) == ("nothing", 0)


def test_a_version_that_dies_of_a_frame_is_told_and_the_serving_one_answers_on(daemon: Daemon, lane: Open, queue: Connection) -> None:
    daemon.deploy(add(1))
    caller = lane()
    diff = Running(daemon, put_image(daemon.home, ODD, version="2")).begun()

    caller.send([-2])

    assert caller.values(caller.receive()) == [-1]
    report = diff.end()
    assert report["outcome"] == "different" and "exit status 9" in report["died"]
    assert caller.ask(1) == 2 and not left(queue)


def test_a_version_slower_than_the_bound_allows_loses_frames_and_holds_up_nobody(daemon: Daemon, lane: Open, queue: Connection) -> None:
    # With 1 MiB of log, copies may take 256 KiB: the new version hangs on the first frame while 4 MB pass.
    daemon.deploy(add(1), config_json=json.dumps({"limits": {"retained_bytes": 1 << 20}}))
    caller = lane()
    flag = daemon.home / "run" / "go"
    slow = "import pathlib, time\n" + add(1).replace(
        "    return", f"    while not pathlib.Path({str(flag)!r}).exists(): time.sleep(0.01)\n    return"
    )
    diff = Running(daemon, put_image(daemon.home, slow, version="2"), for_s=60).begun()

    for _ in range(100):
        caller.send(list(range(5000)))
        assert len(caller.values(caller.receive())) == 5000
        assert int(queue.call("GET", "udo:d:0:bytes")) <= 1 << 20
        assert int(queue.call("GET", f"udo:d:0:servedbytes:{comparing(queue)}") or 0) <= (1 << 18) + 50_000
    flag.touch()
    caller.send([1])
    caller.receive()
    wait_until(lambda: diff.reports[-1].get("missed", 0) > 0, 20, "the loss to be noticed")
    daemon.api.undeploy("d")  # this ends the diff, too
    report = diff.end()

    assert report["missed"] + report["frames"] == 101 and report["missed"] > 50
    assert report["different"] == 0


def test_what_cannot_be_compared_is_refused_before_anything_starts(daemon: Daemon, queue: Connection) -> None:
    daemon.deploy(add(1))
    other = put_image(daemon.home, add(2), version="2", output={"c": "int64"})
    broken = put_image(daemon.home, "import no_such_module\n", version="3")
    keyed = "from udo_runtime import Operator\nclass run(Operator):\n    def process(self, event, ctx): yield {'b': 1}\n"
    for digest, error, why in (
        (other, SchemaError, "column 'b'"),
        (broken, OperatorError, "no_such_module"),
        (put_image(daemon.home, keyed, version="4", key=("a",)), SchemaError, "key: the state is kept by nothing"),
    ):
        with pytest.raises(error, match=why):
            list(daemon.api.diff("d", "", digest, for_s=1))
    first = daemon.api.diff("d", "", put_image(daemon.home, add(5), version="5"), for_s=60)
    next(first)
    second = Running(daemon, put_image(daemon.home, add(6), version="6"), for_s=0.2)
    assert second.end()["outcome"] == "nothing"  # while the first one runs
    first.close()  # type: ignore[attr-defined]
    wait_until(lambda: not left(queue), 20, "the end of the diff whose caller has left")
    assert daemon.slot().version == "1"


def test_a_comparing_instance_may_answer_nobody(daemon: Daemon, queue: Connection) -> None:
    daemon.deploy(add(1))
    diff = Running(daemon, put_image(daemon.home, add(2), version="2")).begun()
    name = comparing(queue)

    assert bytes(queue.call("ACL", "DRYRUN", name, "LRANGE", "udo:d:0:in", "0", "1")) == b"OK"
    for command in (("RPUSH", "udo:d:0:out:x", "1"), ("SET", "udo:d:0:owner", "9"), ("SET", "udo:d:0:emitted", "9")):
        reply = queue.call("ACL", "DRYRUN", name, *command)
        assert b"no permissions" in bytes(reply), reply
    daemon.api.undeploy("d")
    diff.end()


@pytest.mark.parametrize("victim", ["standby", "owner", "manager"])
def test_whatever_is_killed_during_a_diff_the_answers_go_on_and_nothing_stays(
    daemon: Daemon, lane: Open, queue: Connection, victim: str
) -> None:
    daemon.deploy(add(1))
    caller, before = lane(), daemon.slot()
    diff = Running(daemon, put_image(daemon.home, add(1) + "# again\n", version="2"), for_s=4 * patience()).begun()
    assert caller.ask(1) == 2

    record = daemon.home / "handles" / f"{comparing(queue)}.json"
    if victim == "manager":
        daemon.kill()
        assert [caller.ask(i) for i in range(20)] == [i + 1 for i in range(20)]
        daemon.start()
        assert daemon.slot().instance == before.instance
        wait_until(lambda: isinstance(diff.error, UdoError), 20, "the caller of the diff to be told")
        assert not record.exists()
    else:
        pid = json.loads(record.read_text())["handle"]["data"]["pid"] if victim == "standby" else before.pid
        os.kill(pid, signal.SIGKILL)
        assert [caller.ask(i, 30) for i in range(20)] == [i + 1 for i in range(20)]
        assert bool(diff.end()["died"]) == (victim == "standby")
    assert not left(queue)
    assert caller.ask(5) == 6

"""A node with a real registry: it pulls the wanted versions, reports back, and from then on works without the registry."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import wait_until
from tests.node_manager.conftest import Daemon, add
from tests.registry.conftest import FakeNode, start
from tests.support.attempt import Attempt
from tests.support.cluster import Cluster
from tests.support.keyed_node import COUNT, KEYED
from tests.support.lanes import opened
from tests.support.migrated import MIGRATED
from tests.support.selection import long
from udo_protocol.errors import Conflict, NodeAway, NotFound, SchemaError


def test_a_deployment_made_at_the_registry_answers_on_the_node(cluster: Cluster) -> None:
    cluster.deploy(add(1), env={"X": "1"}, limits={"read_frames": 4})

    assert cluster.lane().ask(1) == 2
    wait_until(lambda: [n["live"] for n in cluster.client.nodes()] == [True], 10, "node to be live")


def test_an_update_at_the_registry_goes_through_both_phases_and_back(cluster: Cluster) -> None:
    cluster.deploy(add(1))
    lane = cluster.lane()
    cluster.push("2", add(100))
    wait_until(lambda: bool(cluster.client.nodes()), 10, "first heartbeat")

    steps = list(cluster.client.update("d", "2"))

    assert steps[-1]["phase"] == "done", steps
    assert {"ready", "answering"} <= {s["phase"] for s in steps}
    assert lane.ask(1) == 101
    assert list(cluster.client.rollback("d"))[-1]["phase"] == "done"
    assert lane.ask(1) == 2


def test_an_update_that_does_not_load_fails_with_the_traceback_and_the_old_version_serves(cluster: Cluster) -> None:
    cluster.deploy(add(1))
    lane = cluster.lane()
    cluster.push("2", "import no_such_module\n")
    cluster.push("3", add(2), output={"c": "int64"})

    last = list(cluster.client.update("d", "2"))[-1]

    assert last["phase"] == "failed" and "no_such_module" in last["detail"]
    assert lane.ask(1) == 2
    with pytest.raises(SchemaError):
        list(cluster.client.update("d", "3"))


CONFIGURED = """
import os
from udo_runtime import operator
plus = int(os.environ["A"]) + int(os.environ.get("B", "0")) + len(os.environ["S"]) + int(open("f").read())
@operator
def run(batch):
    return {"b": [a + plus for a in batch.column("a").to_pylist()]}
"""


def test_an_update_changes_variables_secrets_and_files_and_all_others_stay(cluster: Cluster) -> None:
    cluster.deploy(CONFIGURED, env={"A": "100", "B": "10"}, secrets={"S": "xx"}, files={"f": b"1000"})
    lane, client = cluster.lane(), cluster.client
    assert lane.ask(0) == 1112

    def update(config: dict[str, Any]) -> dict[str, Any]:
        return list(client.update("d", "1", config=config))[-1]

    assert update({"env": {"A": "200"}, "files": {"f": b"2000"}})["phase"] == "done"
    assert lane.ask(0) == 2212, "the same lane is answered with the new values"
    failed = update({"env": {"A": "no number"}, "secrets": {"S": "yyy"}})
    assert failed["phase"] == "failed" and "no number" in failed["detail"]
    assert lane.ask(0) == 2212, "what cannot be loaded changes nothing"
    assert update({"env": {"B": None}, "secrets": {"S": "yyyy"}})["phase"] == "done"
    assert lane.ask(0) == 2204
    with pytest.raises(NotFound, match="no variable 'B' to remove; there are: A"):
        update({"env": {"B": None}})

    cluster.node.stop()
    cluster.start_node()
    assert cluster.lane().ask(0) == 2204, "and over a restart of the node"
    assert client.deployment("d")["env"] == {"A": "200"}
    assert "yyyy" not in str(client.audit("d")) and "file f" in str(client.audit("d"))


@pytest.mark.long
def test_a_rollback_changes_the_version_and_not_the_values(cluster: Cluster) -> None:
    cluster.deploy(CONFIGURED, env={"A": "100"}, secrets={"S": "xx"}, files={"f": b"1000"})
    cluster.push("2", CONFIGURED.replace("a + plus", "a + plus + 50_000"))
    lane, client = cluster.lane(), cluster.client
    assert list(client.update("d", "2", config={"env": {"A": "200"}, "files": {"f": b"2000"}}))[-1]["phase"] == "done"
    assert lane.ask(0) == 52202
    assert list(client.rollback("d"))[-1]["phase"] == "done"
    assert lane.ask(0) == 2202
    assert client.deployment("d")["version"] == "1" and client.deployment("d")["env"] == {"A": "200"}


@pytest.mark.long
def test_a_rollback_to_a_narrower_version_is_allowed(cluster: Cluster) -> None:
    cluster.deploy(add(1))
    wide = 'from udo_runtime import operator\n@operator\ndef run(batch):\n    return {"b": batch.column("a"), "c": batch.column("a")}\n'
    cluster.push("2", wide, output={"b": "int64", "c": "int64"})
    assert list(cluster.client.update("d", "2"))[-1]["phase"] == "done"

    assert list(cluster.client.rollback("d"))[-1]["phase"] == "done"

    assert cluster.lane().ask(1) == 2


def test_a_registry_that_is_away_stops_nothing_not_even_a_restart_of_the_node(cluster: Cluster) -> None:
    cluster.deploy(add(1))
    lane = cluster.lane()
    url = cluster.registry.url
    cluster.registry.stop()

    assert lane.ask(1) == 2
    assert cluster.node.stop() == 0
    cluster.start_node(url)
    assert cluster.lane().ask(1) == 2

    # When the registry is back, the node follows it again.
    cluster.registry = start(cluster.data, "--listen", url.removeprefix("http://"))
    cluster.client = cluster.registry.client()
    cluster.push("2", add(100))
    wait_until(lambda: [n["live"] for n in cluster.client.nodes()] == [True], 30, "node to be live again")
    assert list(cluster.client.update("d", "2"))[-1]["phase"] == "done"
    wait_until(lambda: cluster.node.slot().version == "2", 30, "version 2")


@pytest.mark.long
def test_a_node_that_comes_back_after_an_update_it_missed_catches_up(cluster: Cluster) -> None:
    cluster.deploy(add(1))
    cluster.push("2", add(100))
    cluster.node.kill()
    missed_by_n1(cluster, "2")

    cluster.start_node()

    wait_until(lambda: cluster.state() == ("answering", "2"), 30, "node to catch up")
    assert cluster.lane().ask(1) == 101


def missed_by_n1(cluster: Cluster, version: str) -> None:
    """Update to `version` with n0, a fake node that checks nothing, as the only node."""
    cluster.client.leave("n1")
    with FakeNode(cluster.client, "n0"):
        assert list(cluster.client.update("d", version))[-1]["phase"] == "done"


@pytest.mark.long
def test_a_version_that_a_node_missed_is_checked_before_it_owns_anything_there(cluster: Cluster) -> None:
    """No instance is left when the node comes back: it starts the former version, and tries the new one beside it."""
    node = cluster.node
    go = node.home / "run" / "go"  # the one directory of the node that an operator sees
    waits = f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)\n"
    go.touch()
    cluster.push("1", waits + COUNT, **KEYED)
    cluster.client.deploy("d", "t", "1")
    wait_until(lambda: cluster.state() == ("answering", "1"), 30, "version 1 to answer")
    assert Attempt.at_node(node.api, "d", "q", 0, 1).run([1, 1]) == [1, 2]
    raises = MIGRATED.replace("return {'m': old['n']}", "raise ValueError('nobody has seen that')")
    two = cluster.push("2", raises, **KEYED, state_version=1, migrates_from=[0])
    cluster.stop_dead()
    missed_by_n1(cluster, "2")

    go.unlink()
    cluster.start_node()
    wait_until((node.home / "images" / two.replace(":", "-")).exists, 30, "the node to have heard of version 2")
    go.touch()

    wait_until(lambda: cluster.state() == ("failed", "2"), 60, "the refusal's report")
    (told,) = cluster.client.deployment("d")["nodes"]
    assert "nobody has seen that" in told["detail"] and "t@1 continues to serve on this node" in told["detail"]
    assert Attempt.at_node(node.api, "d", "q", 1, 2).run([1]) == [3]
    assert node.slot().version == "1"
    assert [line for line in node.log().splitlines() if "event='owner'" in line and "t@1" in line]
    assert not [line for line in node.log().splitlines() if "event='owner'" in line and "t@2" in line]


def test_a_deployment_removed_at_the_registry_is_removed_from_the_node_and_a_local_one_is_not(cluster: Cluster) -> None:
    cluster.deploy(add(1))
    cluster.node.deploy(add(5), name="local", version="9")  # type: ignore[misc]

    cluster.client.undeploy("d")

    def gone() -> bool:
        return [s.deployment for s in cluster.node.api.status().slots] == ["local"]

    wait_until(gone, 20, "undeploy")
    with pytest.raises(NotFound):
        opened(cluster.node.api, "d", "l")


@pytest.mark.long
def test_an_operator_that_does_not_load_is_reported_with_its_traceback(cluster: Cluster) -> None:
    cluster.push("1", "import no_such_module\n")
    cluster.client.deploy("d", "t", "1")

    wait_until(lambda: cluster.state()[0] == "failed", 30, "failure report")

    node = cluster.client.deployment("d")["nodes"][0]
    assert "no_such_module" in node["detail"] and node["error_code"] == "operator"


def test_a_registry_that_took_the_node_for_gone_is_told_of_all_deployments_again(cluster: Cluster) -> None:
    """As after a restore of the registry, or if a former node with this name was still known when this one reported."""
    cluster.deploy(add(1))
    cluster.push("2", "import no_such_module\n")
    cluster.client.deploy("broken", "t", "2")

    def states() -> dict[str, list[str]]:
        return {name: [n["state"] for n in cluster.client.deployment(name)["nodes"]] for name in ("d", "broken")}

    told = {"d": ["answering"], "broken": ["failed"]}
    wait_until(lambda: states() == told, 30, "both to be reported")
    [node] = [n["node"] for n in cluster.client.nodes()]
    before = cluster.node.slot().instance
    cluster.client.leave(node)
    assert states() == {"d": [], "broken": []}
    wait_until(lambda: states() == told, 30, "both to be reported again")
    assert cluster.node.slot().instance == before


@pytest.mark.long
def test_a_second_node_of_a_name_takes_no_part_and_is_told_of_the_first_and_one_that_lost_its_disk_takes_over(
    cluster: Cluster,
) -> None:
    cluster.deploy(add(1))
    top = Path(tempfile.mkdtemp(prefix="udo-"))
    second = Daemon(top / "h")
    try:
        second.start("--registry", cluster.registry.url, "--token-file", str(cluster.data / "token"))
        first = f"{socket.gethostname()}:{cluster.node.home}"
        said = f"is there already, at {first}/node.sock; the one that asks now at {socket.gethostname()}:{second.home}"
        wait_until(lambda: said in second.log(), 30, "the refusal of its heartbeat, with both addresses")
        assert not second.api.status().slots
        with pytest.raises(NodeAway, match="not told yet by its registry what it is to serve: a node named .* is there already"):
            opened(second.api, "d", "too early", wait_ms=0)
        assert [n["address"] for n in cluster.client.nodes()] == [f"{first}/node.sock"]
        assert second.stop() == 0
        assert [n["live"] for n in cluster.client.nodes()] == [True] and cluster.lane().ask(1) == 2
        second.start("--registry", cluster.registry.url, "--token-file", str(cluster.data / "token"))
        cluster.stop_dead()  # for good: its name is free once it counts as away
        assert opened(second.api, "d", "a task that waits", wait_ms=60_000).version == "1"
        wait_until(lambda: cluster.state() == ("answering", "1") and bool(second.api.status().slots), 60, "the second to take over")
        assert second.stop() == 0
    finally:
        for process in second.processes():
            process.kill()
        shutil.rmtree(top)
    cluster.start_node()


def test_an_operator_whose_files_are_lost_on_the_node_comes_back_after_a_crash_and_is_deployed_again(cluster: Cluster) -> None:
    cluster.deploy(add(1))
    lane = cluster.lane()
    assert lane.ask(1) == 2
    (code,) = cluster.node.home.glob("images/*/code/op.py")
    code.unlink()
    os.kill(cluster.node.slot().pid, signal.SIGKILL)
    wait_until(code.exists, 30, "them to be fetched again")  # for the next owner: a child of the killed one may answer until it ends
    assert lane.ask(2) == 3
    cluster.client.undeploy("d")
    wait_until(lambda: not cluster.node.api.status().slots, 30, "the deployment to be gone")
    code.unlink()
    cluster.deploy(add(1))
    assert cluster.lane().ask(4) == 5


def test_an_epoch_is_bound_by_the_registry(cluster: Cluster) -> None:
    cluster.deploy(add(1))
    first = opened(cluster.node.api, "d", "a", session="s", epoch=1, pin_epoch=True)
    cluster.push("2", add(100))
    list(cluster.client.update("d", "2"))

    again = opened(cluster.node.api, "d", "b", session="s", epoch=1, pin_epoch=True)
    later = opened(cluster.node.api, "d", "c", session="s", epoch=2, pin_epoch=True)

    assert (first.version, again.version, later.version) == ("1", "1", "2")


def test_what_the_registry_manages_is_not_changed_behind_its_back(cluster: Cluster) -> None:
    cluster.deploy(add(1))
    api, digest = cluster.node.api, cluster.push("2", add(100))

    with pytest.raises(Conflict, match="managed by the registry .*udo undeploy d"):
        api.undeploy("d")
    step = list(api.update("d", "2", digest))[-1]

    assert (step.phase, step.error_code) == ("failed", "conflict")
    assert cluster.lane().ask(1) == 2


@pytest.mark.long
def test_an_operator_that_loads_at_a_later_try_is_reported_as_answering(cluster: Cluster) -> None:
    flag = cluster.node.home / "run" / "model"  # the one directory of the node that an operator sees
    source = f"import pathlib\nassert pathlib.Path({str(flag)!r}).exists(), 'no model yet'\n" + add(1)
    cluster.push("1", source)
    cluster.client.deploy("d", "t", "1")
    wait_until(lambda: cluster.state()[0] == "failed", 30, "failure report")

    flag.touch()

    wait_until(lambda: cluster.state()[0] == "answering", 40, "later report")
    assert cluster.lane().ask(1) == 2


DIES_OF_EVENTS = """
import os
from udo_runtime import operator
@operator
def run(batch):
    if batch.column("a").to_pylist()[0]:
        os._exit(7)
    return {"b": batch.column("a")}
"""


@pytest.mark.long
def test_the_registry_says_of_an_operator_that_dies_of_its_first_event_that_it_fails_until_it_answers(cluster: Cluster) -> None:
    cluster.deploy(DIES_OF_EVENTS)
    lane = cluster.lane()
    lane.send([1])
    assert "exit status 7" in lane.receive(60).header.failure.message

    wait_until(lambda: cluster.state() == ("failing", "1"), 20, "the registry to know that it fails")
    (node,) = cluster.client.deployment("d")["nodes"]
    assert re.search(r"exit status 7, on the last frame; restarts \d+", node["detail"]), node

    assert cluster.lane().ask(0) == 0
    wait_until(lambda: cluster.state() == ("answering", "1"), 20, "the registry to know that it answers")
    (node,) = cluster.client.deployment("d")["nodes"]
    assert node["detail"] == ""


@pytest.mark.parametrize("away", [long(False), True])
def test_a_deployment_that_takes_the_name_of_a_removed_one_has_none_of_its_state(cluster: Cluster, away: bool) -> None:
    """Also if the node never saw the removal of the former one."""
    keyed(cluster)
    if away:
        cluster.node.stop()
    cluster.client.undeploy("d", drop_state=True)
    cluster.client.deploy("d", "t", "1")
    if away:
        cluster.start_node()

    wait_until(lambda: cluster.state() == ("answering", "1"), 30, "the second one to answer")
    assert not cluster.node.api.sessions("d").sessions


@pytest.mark.long
def test_a_deployment_from_before_there_were_numbers_keeps_its_state_and_takes_its_number(cluster: Cluster) -> None:
    keyed(cluster)
    cluster.node.stop()
    wanted = cluster.node.home / "wanted.json"
    (record,) = json.loads(wanted.read_text())["deployments"]
    assert record.pop("made") > 0
    wanted.write_text(json.dumps({"deployments": [record]}))
    cluster.start_node()

    wait_until(lambda: json.loads(wanted.read_text())["deployments"][0].get("made"), 30, "its number")
    assert Attempt.at_node(cluster.node.api, "d", "q", 1, 2).run([1]) == [3]


def keyed(cluster: Cluster) -> None:
    """Make a deployment that has counted two events."""
    cluster.push("1", COUNT, **KEYED)
    cluster.client.deploy("d", "t", "1")
    wait_until(lambda: cluster.state() == ("answering", "1"), 30, "version 1 to answer")
    assert Attempt.at_node(cluster.node.api, "d", "q", 0, 1).run([1, 1]) == [1, 2]

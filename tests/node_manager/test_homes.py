"""Two real nodes with one registry: a keyed session with state on one node never begins empty on the other."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import pytest

from node_manager.homes import Homes, SessionRequest
from node_manager.servers import access
from node_manager.servers.binaries import find_server
from tests.conftest import Servers, require, wait_until
from tests.node_manager.conftest import Daemon
from tests.registry.conftest import Running, image, start
from tests.support.attempt import Attempt
from tests.support.keyed_node import COUNT, KEYED
from udo_protocol.errors import Conflict, NotFound, StateElsewhere, Unavailable
from udo_protocol.proto import node_manager_pb2 as pb
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.registry.api import Registry

pytestmark = pytest.mark.long

_sessions = itertools.count()


class Two:
    """A registry and nodes a and b, with the counter deployed as `d`."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.registry: Running = start(top / "registry")
        self.url = self.registry.url
        self.client: Registry = self.registry.client()
        (top / "a").mkdir()
        (top / "b").mkdir()
        self.a, self.b = Daemon(top / "a" / "h"), Daemon(top / "b" / "h")
        image("t", "1", COUNT, **KEYED).push(self.client, top)
        self.client.deploy("d", "t", "1")
        self.start(self.a)
        self.start(self.b)
        self._attempts = itertools.count(1)

    def start(self, node: Daemon) -> None:
        """Start it, or start it again; wait until it answers for the deployment."""
        name = node.home.parent.name
        arguments = ["--registry", self.url, "--token-file", str(self.top / "registry" / "token"), "--session-idle-s", "0"]
        node.start("--node", name, *arguments)
        wait_until(lambda: any(s.deployment == "d" and s.state == "owner" for s in node.api.status().slots), 60, f"d on {name}")

    def lose(self, node: Daemon) -> None:
        """Replace the node by a new one with its name and an empty disk."""
        node.stop()
        shutil.rmtree(node.home)
        self.start(node)

    def attempt(self, node: Daemon, session: str, epoch: int, run: str = "r1", **asked: bool) -> Attempt:
        """Open an attempt of a task at that session's epoch on that node."""
        return Attempt.at_node(node.api, "d", session, epoch, next(self._attempts), run, **asked)

    def counts(self, node: Daemon, session: str, epoch: int, **asked: bool) -> list[int]:
        """Run a whole epoch there, with two events of key 1; return the counts."""
        return self.attempt(node, session, epoch, **asked).run([1, 1])

    def home(self, session: str) -> str:
        """Return the session's home, as the registry knows it."""
        return "".join(m["node"] for m in self.client.group_maps("d") if m["session"] == session)

    def exported(self, node: Daemon, session: str, *, replace: bool = False) -> Iterator[pb.StatePart]:
        """Export the session; yield it as an import."""
        for part in list(node.api.export_state("d", session)):
            if part.HasField("header"):
                part.header.replace = replace
            yield part

    def back(self) -> None:
        """Start the registry again if it was stopped; wait until it has heard from both nodes."""
        if self.registry.process.poll() is not None:
            self.registry = start(self.top / "registry", "--listen", self.url.removeprefix("http://"))
            self.client = self.registry.client()
        self.both_live()

    def both_live(self) -> None:
        """Wait until the registry has heard from both nodes."""
        wait_until(lambda: {n["node"] for n in self.client.nodes() if n["live"]} == {"a", "b"}, 30, "both nodes to be live")

    def close(self) -> None:
        for node in (self.a, self.b):
            if node.process is not None and node.process.poll() is None:
                node.stop()
        self.registry.stop()


@pytest.fixture(scope="module")
def two() -> Iterator[Two]:
    try:
        find_server(os.environ.get("UDO_SERVER"))
    except Unavailable as e:
        require("queue server", str(e))
    with tempfile.TemporaryDirectory(prefix="udo-") as top:
        made = Two(Path(top))
        try:
            yield made
        finally:
            made.close()


@pytest.fixture
def session() -> str:
    """The name of a session that no other test uses."""
    return f"q{next(_sessions)}"


@pytest.mark.short
def test_a_session_that_began_on_one_node_is_refused_on_another_with_what_to_do(two: Two, session: str) -> None:
    """If each node began its own session, the second one would count from 1 again."""
    assert two.counts(two.a, session, 0) == [1, 2]

    for epoch, asked in ((0, {}), (1, {}), (1, {"start_empty": True})):
        with pytest.raises(StateElsewhere) as refused:
            two.attempt(two.b, session, epoch, **asked)
        told = (session, "'d'", f"epoch {epoch}", "on node a", "sent to node b", "store=", "executors on one node", "udo state release")
        assert [part for part in told if part not in str(refused.value)] == []

    assert two.counts(two.a, session, 1) == [3, 4]
    assert two.home(session) == "a"


def test_whoever_asks_first_is_the_home_and_a_query_restarted_elsewhere_is_refused(two: Two, session: str) -> None:
    assert two.counts(two.b, session, 0) == [1, 2]

    with pytest.raises(StateElsewhere, match="on node b"):
        two.attempt(two.a, session, 1, run="r2")

    assert two.attempt(two.b, session, 1, run="r3").run([1]) == [3]


def test_known_sessions_need_no_registry_and_new_ones_wait_for_it(two: Two, session: str) -> None:
    """Also over a restart of the node manager."""
    assert two.counts(two.a, session, 0) == [1, 2]
    two.registry.stop()
    try:
        two.a.kill()
        two.start(two.a)
        assert two.counts(two.a, session, 1) == [3, 4]
        with ThreadPoolExecutor(2) as pool:
            new, known_elsewhere = pool.submit(two.counts, two.a, session + "-new", 0), pool.submit(two.attempt, two.b, session, 2)
            two.back()
            assert new.result() == [1, 2]
            with pytest.raises(StateElsewhere):
                known_elsewhere.result()
    finally:
        two.back()


def test_without_a_registry_a_new_session_is_not_begun_and_the_error_says_why(servers: Servers) -> None:
    class Away:
        def claim(self, *_: str, **__: bool) -> NoReturn:
            raise Unavailable("the registry at http://r does not answer")

        release = claim

    asked, state = SessionRequest("d", "q", epoch=0), servers.state()
    for maps, why in (
        (Away(), "only the registry knows whether its state lies elsewhere: the registry at"),
        (None, "which has no registry"),
    ):
        with pytest.raises(Unavailable, match=f"session q of 'd' .epoch 0. is new on node n, .*{why}"):
            Homes("n", maps, servers.state).require(state, SlotKeys("d", 0), asked)
    assert state.call("EXISTS", "udo:d:0:homes") == 0


def test_with_a_store_any_node_may_serve_and_without_it_none_does_afterwards(two: Two, session: str) -> None:
    for node in (two.a, two.b, two.a):
        two.attempt(node, session, 1, stored=True, start_empty=True).close()

    for node in (two.a, two.b):
        with pytest.raises(StateElsewhere, match="with a store on several nodes.*the same store= as before"):
            two.attempt(node, session, 2)


def test_a_store_that_only_one_node_has_used_may_be_left_out_there(two: Two, session: str) -> None:
    two.attempt(two.a, session, 0, stored=True).close()

    assert two.counts(two.a, session, 0) == [1, 2]
    with pytest.raises(StateElsewhere, match="on node a"):
        two.attempt(two.b, session, 1)


def test_a_session_that_began_without_a_store_does_not_begin_empty_elsewhere_with_one(two: Two, session: str) -> None:
    assert two.counts(two.a, session, 0) == [1, 2]

    with pytest.raises(StateElsewhere, match="on node a"):
        two.attempt(two.b, session, 1, stored=True, start_empty=True)
    two.attempt(two.b, session, 1, stored=True).close()  # it then looks in the store for the state


@pytest.mark.short
def test_a_batch_job_may_run_on_both_nodes_and_a_retry_on_either(two: Two, session: str) -> None:
    """Each group comes from one partition, and a retry sends all of its events again: it begins empty on either node."""
    first = two.attempt(two.a, session, 0, run="")
    first.send([1, 1])
    assert len(first.frames()) == 1
    first.close()  # the task dies
    assert two.attempt(two.b, session, 0, run="").run([1, 1, 2]) == [1, 2, 1]
    assert two.attempt(two.a, session, 0, run="").run([1, 1, 2]) == [1, 2, 1]
    assert two.home(session) == ""


@pytest.mark.short
def test_a_session_moves_by_export_drop_and_import(two: Two, session: str) -> None:
    assert two.counts(two.a, session, 0) == [1, 2]
    parts = list(two.exported(two.a, session))
    with pytest.raises(StateElsewhere, match="on node a: drop it there before it is imported on node b"):
        two.b.api.import_state(iter(parts))

    two.a.api.drop_state("d", session)
    assert two.home(session) == ""
    two.b.api.import_state(iter(parts))

    assert two.home(session) == "b"
    assert two.counts(two.b, session, 1) == [3, 4]
    with pytest.raises(StateElsewhere, match="on node b"):
        two.attempt(two.a, session, 2)


def test_a_released_home_that_comes_back_does_not_serve_what_is_old(two: Two, session: str) -> None:
    """The registry has to tell the node, which would not ask by itself."""
    assert two.counts(two.a, session, 0) == [1, 2]
    parts = list(two.exported(two.a, session))
    two.both_live()
    with pytest.raises(Conflict, match="node a, the home of session .* is live"):
        two.client.release("d", session)
    two.a.kill()
    two.client.leave("a")

    two.client.release("d", session)
    two.b.api.import_state(iter(parts))
    assert two.counts(two.b, session, 1) == [3, 4]
    two.start(two.a)

    def old() -> bool:
        with contextlib.closing(access.connect(two.a.home, "state")) as state:
            return bytes(state.call("HGET", "udo:d:0:homes", session)) == b"0 former"

    wait_until(old, 30, "node a to learn that its state is old")
    with pytest.raises(StateElsewhere, match="on node b"):
        two.attempt(two.a, session, 1)
    two.b.api.drop_state("d", session)
    with pytest.raises(StateElsewhere, match="was released, and node a still has its state from before"):
        two.attempt(two.a, session, 1)
    two.a.api.import_state(two.exported(two.a, session, replace=True))
    assert two.counts(two.a, session, 1) == [3, 4]


def test_a_node_that_lost_its_disk_is_not_the_home_any_more(two: Two, session: str) -> None:
    """Also in the middle of the first epoch, when some keys have begun and nothing else would show the loss."""
    two.attempt(two.a, session, 0, groups=[1]).run([1])
    two.lose(two.a)

    with pytest.raises(StateElsewhere, match="node a, which has lost its disk.*udo state release"):
        two.attempt(two.a, session, 0, groups=[2])

    two.client.release("d", session, force=True)
    assert two.counts(two.a, session, 0) == [1, 2]


def test_what_is_deployed_on_one_node_only_needs_no_registry(two: Two, session: str) -> None:
    for node in (two.a, two.b):
        node.deploy(COUNT, name="alone", version="9", **KEYED)
        assert Attempt.at_node(node.api, "alone", session, 0, 1).run([1, 1]) == [1, 2]
        node.api.undeploy("alone", drop_state=True)


def test_homes_go_with_their_deployment_and_unknown_ones_are_not_released(two: Two, session: str) -> None:
    """Last in this file: a deployment of the same name begins anew."""
    assert two.counts(two.a, session, 0) == [1, 2]
    with pytest.raises(NotFound, match="has no home"):
        two.client.release("d", "nobody")

    two.client.undeploy("d", drop_state=True)
    wait_until(lambda: not [s for n in (two.a, two.b) for s in n.api.status().slots], 30, "d to go")
    two.client.deploy("d", "t", "1")

    assert two.client.group_maps("d") == []


def test_two_nodes_that_ask_at_once_do_not_both_become_the_home(two: Two) -> None:
    def claim(node: str) -> list[Any]:
        return [two.client.claim("d", f"at-once-{i}", node, "x")["node"] for i in range(20)]

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(claim, ("a", "b"))
    assert first == second

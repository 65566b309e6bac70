"""The node manager as its callers see it: deployments, lanes, updates, status."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from node_manager.servers import access
from tests.conftest import bound
from tests.node_manager.conftest import Daemon, Lane, add, put_image
from tests.support.lanes import opened
from udo_protocol.errors import Conflict, NotFound, OperatorError, SchemaError
from udo_protocol.formats.schema import parse_schema, to_ipc

Open = Callable[..., Lane]


def test_a_deployed_operator_answers(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(add(1))

    assert lane().ask(41) == 42


def test_an_update_takes_over_without_the_lane_noticing(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(add(1))
    caller = lane()
    assert caller.ask(1) == 2
    digest = put_image(daemon.home, add(100), version="2")

    steps = list(daemon.api.update("d", "2", digest))

    assert [s.phase for s in steps] == ["pulling", "starting", "ready", "answering", "done"]
    assert caller.ask(1) == 101
    assert daemon.slot().version == "2"


def test_the_same_deployment_again_changes_nothing_and_another_operator_is_refused(daemon: Daemon) -> None:
    digest = daemon.deploy(add(1))
    first = daemon.slot().instance
    daemon.api.deploy("d", "t", "1", digest)
    assert daemon.slot().instance == first
    other = put_image(daemon.home, add(2), version="2")

    with pytest.raises(Conflict, match="udo update d"):
        daemon.api.deploy("d", "t", "2", other)


@pytest.mark.long
def test_an_unknown_deployment_names_the_near_ones(daemon: Daemon) -> None:
    daemon.deploy(add(1), name="fraud")

    with pytest.raises(NotFound, match="did you mean: fraud"):
        opened(daemon.api, "frau", "l")


@pytest.mark.long
def test_events_that_do_not_fit_are_refused_when_the_lane_opens(daemon: Daemon) -> None:
    daemon.deploy(add(1))

    with pytest.raises(SchemaError, match="column 'a': expected int64, got string"):
        opened(daemon.api, "d", "l", input_schema=to_ipc(parse_schema({"a": "string"})))


def test_environment_secrets_and_files_reach_the_operator_and_secrets_nobody_else(daemon: Daemon, lane: Open) -> None:
    source = """
import os
from udo_runtime import operator
@operator
def run(batch):
    text = os.environ["PLACE"] + os.environ["KEY"] + open("model/m.txt").read()
    return {"b": [len(text)] * batch.num_rows}
"""
    config = {"env": {"PLACE": "here"}, "secrets": {"KEY": "topsecret"}, "files": {"model/m.txt": "YWJj"}}
    daemon.deploy(source, config_json=json.dumps(config))

    assert lane().ask(0) == len("heretopsecretabc")
    assert "topsecret" not in daemon.log() + str(daemon.api.status())
    assert (daemon.home / "wanted.json").stat().st_mode & 0o077 == 0


def test_the_deployments_are_written_to_disk_only_when_they_have_changed(daemon: Daemon) -> None:
    daemon.deploy(add(1))

    def written(slots: int) -> tuple[int, int]:
        daemon.api.scale("d", slots)
        found = (daemon.home / "wanted.json").stat()
        return found.st_ino, found.st_mtime_ns

    two = written(2)
    assert written(2) == two
    assert written(1) != two


@pytest.mark.long
def test_a_pinned_version_has_a_slot_of_its_own_and_is_not_updated(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(add(1))
    pinned = lane("d@1")
    assert pinned.ask(1) == 2
    digest = put_image(daemon.home, add(100), version="2")
    list(daemon.api.update("d", "2", digest))

    assert pinned.ask(1) == 2
    assert lane("d").ask(1) == 101
    assert lane(f"d@{digest}").ask(1) == 101


def test_all_lanes_of_an_epoch_meet_the_same_version(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(add(1))
    first = lane(session="s", epoch=7, pin_epoch=True)
    digest = put_image(daemon.home, add(100), version="2")
    list(daemon.api.update("d", "2", digest))

    later, next_epoch = lane(session="s", epoch=7, pin_epoch=True), lane(session="s", epoch=8, pin_epoch=True)

    assert (first.ask(1), later.ask(1), next_epoch.ask(1)) == (2, 2, 101)


def test_an_undeployed_operator_is_gone_with_all_its_keys(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(add(1))
    caller = lane()
    caller.ask(1)

    daemon.api.undeploy("d")

    with contextlib.closing(access.connect(daemon.home, "queue")) as queue:
        assert queue.call("KEYS", "udo:d:*") == []
    assert not daemon.api.status().slots
    with pytest.raises(NotFound):
        opened(daemon.api, "d", "l")


def test_an_operator_for_another_python_is_refused_by_name(daemon: Daemon) -> None:
    with pytest.raises(OperatorError, match="packaged for cp27 .* this node runs cp3"):
        daemon.deploy(add(1), python_tag="cp27")


INTERRUPTED = """
import sys
import grpc._channel
from udo_protocol.node.api import connect_node
def interrupted(*_):
    raise KeyboardInterrupt
grpc._channel._run_channel_spin_thread = interrupted  # as by Ctrl-C at this moment
try:
    list(connect_node(sys.argv[1]).logs("d"))
except BaseException as e:
    print(type(e).__name__)
"""


def test_a_command_that_is_interrupted_just_as_it_begins_to_read_a_stream_ends(daemon: Daemon) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(daemon.home / "node.sock")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=bound(30), check=True)
    assert done.stdout.split() in (["NotFound"], ["KeyboardInterrupt"])

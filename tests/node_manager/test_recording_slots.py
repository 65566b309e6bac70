"""A recording of a deployment with several slots: each slot's input and state, replayed in a process of its own, as it was served."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Shell
from tests.conftest import bound, wait_until
from tests.support.cluster import Cluster
from tests.support.keyed_slots import COUNT, Oracle, counted, deploy, events
from tests.support.recording import Recorder, replayed
from udo_cli import recorder
from udo_protocol.errors import Unavailable, UsageError
from udo_protocol.formats.recording_file import Recording
from udo_protocol.proto import node_manager_pb2 as pb

KEYED: dict[str, Any] = {"entry": "op:run", "input": {"a": "int64"}, "output": {"b": "int64"}, "key": ["a"]}
# Answers with the number of events that this process has had.
SEEN = """
from udo_runtime import operator
seen = 0
@operator
def run(batch):
    global seen
    first, seen = seen, seen + batch.num_rows
    return {"b": list(range(first, seen))}
"""
SLOTS = [0, 1000, 1001]


def emitted(c: Cluster) -> int:
    """The sum of the slots' last answered frames."""
    return sum(s.emitted for s in c.node.api.status().slots if s.deployment == "d")


def of_epoch(rows: list[dict[str, Any]], epoch: int) -> list[int]:
    return sorted(row["b"] % 1000 for row in rows if row["__udo_epoch"] == epoch)


def test_a_keyed_query_over_several_slots_replays_to_the_answers_that_were_served(
    cluster: Cluster, udo: Shell, local: Callable[..., Path], tmp_path: Path
) -> None:
    job, oracle, orders, operator = deploy(cluster), Oracle(), random.Random(1), local(COUNT.format(version=1), **KEYED)
    for epoch in range(2):
        assert counted(job.epoch(epoch, batches := events(orders))) == oracle.epoch(batches)
    recording = Recorder(cluster.node.api, "d", tmp_path / "r", slots=SLOTS)
    served = []
    for epoch in range(2, 4):
        served.append(counted(job.epoch(epoch, batches := events(orders))))
        assert served[-1] == oracle.epoch(batches)
    recording.stop(emitted(cluster))

    assert [(slot.header["slot"], slot.made.sessions, slot.made.gaps) for slot in recording.made] == [(n, 1, []) for n in SLOTS]
    with Recording(tmp_path / "r") as found:
        assert [slot.name for slot in found.slots] == [f"n1:{n}" for n in SLOTS]
    outcome, rows = replayed(udo, operator, tmp_path / "r")
    assert [of_epoch(rows, epoch) for epoch in (2, 3)] == [sorted(answers) for answers in served]
    assert {row["__udo_slot"] for row in rows} == {f"n1:{n}" for n in SLOTS}
    assert [(e["epoch"], e["answers"], e["errors"]) for e in outcome["epochs"]] == [(n, len(a), 0) for n, a in enumerate(served, 2)]
    _, last = replayed(udo, operator, tmp_path / "r", "--epoch", "3")
    assert of_epoch(last, 3) == sorted(served[1]) and len(last) == len(served[1])


@pytest.mark.long
def test_where_key_groups_move_the_two_slots_recordings_end_and_the_others_go_on(
    cluster: Cluster, udo: Shell, local: Callable[..., Path], tmp_path: Path
) -> None:
    job, oracle, orders = deploy(cluster), Oracle(), random.Random(2)
    recording = Recorder(cluster.node.api, "d", tmp_path / "r", slots=SLOTS)
    assert counted(job.epoch(0, batches := events(orders))) == oracle.epoch(batches)
    groups = [s.groups for s in cluster.node.api.status().slots][0]
    for _ in cluster.node.api.move_groups("d", [int(groups.partition("-")[0])], 1000, "", 60):
        pass
    answers = counted(job.epoch(1, batches := events(orders)))
    assert answers == oracle.epoch(batches)
    staying = [slot for slot in cluster.node.api.status().slots if slot.slot == 1001][0]
    recording.stop(staying.emitted)  # at least
    ends = {slot.header["slot"]: slot.made for slot in recording.made}
    assert ends[0].reason == ends[1000].reason == "key groups were moved to other slots or from there"
    assert ends[1001].last_seq == staying.emitted
    outcome, rows = replayed(udo, local(COUNT.format(version=1), **KEYED), tmp_path / "r")
    assert outcome["errors"] == 0 and of_epoch(rows, 0)
    there = of_epoch([row for row in rows if row["__udo_slot"] == "n1:1001"], 1)
    assert there and not set(there) - set(answers)


def test_each_slot_is_replayed_in_a_process_of_its_own_and_the_command_records_them_all(
    cluster: Cluster, udo: Shell, local: Callable[..., Path], tmp_path: Path
) -> None:
    cluster.deploy(SEEN, slots=2)
    lanes = [cluster.lane(), cluster.lane()]
    recording = Recorder(cluster.node.api, "d", tmp_path / "r", slots=[0, 1000])
    served = sorted([lane.ask(0) for lane in lanes for _ in range(3)])
    recording.stop(emitted(cluster))
    assert served == sorted([0, 1, 2] * 2), "each lane is in another slot"
    operator = local(SEEN, entry="op:run", input={"a": "int64"}, output={"b": "int64"})
    outcome, rows = replayed(udo, operator, tmp_path / "r")
    assert sorted(row["b"] for row in rows) == served and outcome["frames"] == 6

    udo.env["UDO_NODE"] = str(cluster.node.home / "node.sock")
    nothing = udo("record", "d", "--for", "100ms", "-o", tmp_path / "all", "--json").json
    assert [(slot["slot"], slot["frames"]) for slot in nothing["slots"]] == [(0, 0), (1000, 0)]
    one = udo("record", "d", "--for", "100ms", "--slot", "n1:1000", "-o", tmp_path / "one")
    assert "slot 1000 on node n1" in one.err and "slot 0 on" not in one.err
    with Recording(tmp_path / "one") as found:
        assert [slot.name for slot in found.slots] == ["n1:1000"]
    assert "no slot 7; it has n1:0, n1:1000" in udo("record", "d", "--for", "1s", "--slot", "7", "-o", tmp_path / "x", code=3).err
    with pytest.raises(UsageError, match="expected the number of one"):
        next(cluster.node.api.record("d", 1))


def test_slots_that_come_during_a_recording_are_named(cluster: Cluster, udo: Shell, tmp_path: Path) -> None:
    cluster.deploy(SEEN)
    node, file = cluster.node.home / "node.sock", tmp_path / "r"
    command = udo.command("record", "d", "--for", "1h", "-o", file, "--json", "--node", node)
    cli = subprocess.Popen(command, env=udo.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert cli.stderr is not None
    while "Ctrl-C ends it" not in cli.stderr.readline():
        assert cli.poll() is None
    cluster.client.scale("d", 2)
    wait_until(lambda: len(cluster.node.api.status().slots) == 2, 30, "the second slot")
    cli.send_signal(signal.SIGINT)
    said = json.loads(cli.communicate(timeout=bound(30))[0])
    assert [slot["slot"] for slot in said["slots"]] == [0] and said["slots_missed"] == ["n1:1000"]


def begun(slot: int) -> pb.RecordPart:
    return pb.RecordPart(header=pb.RecordHeader(deployment="d", node="n", slot=slot, manifest_json="{}", config_json="{}"))


def test_a_slot_whose_node_goes_away_keeps_what_it_has_and_the_others_go_on(tmp_path: Path) -> None:
    gone = threading.Event()

    def lost() -> Iterator[pb.RecordPart]:
        yield begun(0)
        yield pb.RecordPart(frames=pb.RecordFrames(first_seq=7, frames=[b"one"]))
        gone.set()
        raise Unavailable("the node is gone")

    def other() -> Iterator[pb.RecordPart]:
        yield begun(1)
        assert gone.wait(bound(20))
        time.sleep(0.3)  # the recording has seen the other one's end by now
        yield pb.RecordPart(frames=pb.RecordFrames(first_seq=3, frames=[b"two", b"three"]))
        yield pb.RecordPart(end=pb.RecordEnd(reason="it is over"))

    made = recorder.write(tmp_path / "r", "d", [lost(), other()], lambda _: None, lambda _: None, lambda: False)
    assert [(slot.made.frames, slot.made.reason) for slot in made] == [(1, "the node is gone"), (2, "it is over")]
    with Recording(tmp_path / "r") as found:
        assert [list(slot.frames()) for slot in found.slots] == [[(7, b"one")], [(3, b"two"), (4, b"three")]]


@pytest.mark.parametrize("error", [Unavailable("the node is gone"), ZeroDivisionError("unexpected")])
@pytest.mark.parametrize("begins", [False, True])
def test_what_one_slots_stream_raises_ends_the_recording_with_it(tmp_path: Path, error: Exception, begins: bool) -> None:
    def parts(slot: int, error: Exception | None) -> Iterator[pb.RecordPart]:
        if begins or error is None:
            yield begun(slot)
        if error is not None:
            raise error
        while True:  # the state at the start does not arrive
            time.sleep(0.01)
            yield pb.RecordPart(session=pb.RecordSession(session="q", record_json="{}"))

    with pytest.raises(type(error), match=str(error)):
        recorder.write(tmp_path / "r", "d", [parts(0, None), parts(1, error)], lambda _: None, lambda _: None, lambda: False)
    assert list(tmp_path.iterdir()) == []

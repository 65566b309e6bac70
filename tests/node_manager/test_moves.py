"""Key groups of a keyed deployment move between its slots while a query runs: each event counts once, and a key's events stay in order."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from node_manager.servers import access
from tests.conftest import wait_until
from tests.support.cluster import Cluster
from tests.support.keyed_slots import COUNT, TIMED, Oracle, again_and_again, between, counted, deploy, events
from tests.support.recording import Recorder
from tests.support.split_attempt import Job
from udo_protocol import ranges
from udo_protocol.errors import Conflict, NotFound, ProtocolError, UdoError, Unavailable, UsageError
from udo_protocol.queue.frame import ADOPT, HANDOVER, PREPARE
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.state import group_map, moving
from udo_protocol.state.group_map import SlotGroups
from udo_protocol.state.moving import Intent

pytestmark = pytest.mark.long

STRATEGIES = ("cpal", "direct")


def slots(c: Cluster) -> list[int]:
    """Return the numbers of the deployment's slots."""
    return [s.slot for s in c.node.api.status().slots]


def where(c: Cluster) -> dict[int, list[int]]:
    """Return slot -> its key groups."""
    return {s.slot: ranges.parsed(s.groups, 128) for s in c.node.api.status().slots}


def move(c: Cluster, groups: Sequence[int], to: int, strategy: str = "") -> None:
    """Move the key groups; return when they are there."""
    *_, last = c.node.api.move_groups("d", groups, to, strategy)
    assert last.done and last.moved == last.total == len(groups)
    assert set(groups) <= set(where(c)[to])


@pytest.mark.short
def test_groups_that_move_in_the_middle_of_an_attempt_count_each_event_once_in_order(cluster: Cluster) -> None:
    job, oracle, orders = deploy(cluster), Oracle(), random.Random(3)
    first, second, third = slots(cluster)
    assert where(cluster) == {first: list(range(43)), second: list(range(43, 86)), third: list(range(86, 128))}
    moves = [(range(20), third, 0), (range(43, 86), first, 2), (range(10), second, 3), ([0, 50, 127], first, 4), ([3], third, 1)]
    for epoch, (groups, to, behind) in enumerate(moves):
        batches, strategy = events(orders), STRATEGIES[epoch % 2]
        answers = job.epoch(epoch, between(batches, lambda g=groups, t=to, s=strategy: move(cluster, g, t, s), behind))  # type: ignore[misc]
        assert counted(answers) == oracle.epoch(batches), f"epoch {epoch}"
    assert len(where(cluster)[second]) == 8 and sum(map(len, where(cluster).values())) == 128
    last = events(orders)
    assert counted(job.epoch(len(moves), last)) == oracle.epoch(last), "an attempt that begins with the map as it is now"
    (listed,) = cluster.node.api.sessions("d").sessions
    assert listed.keys == len(oracle.counts), "no key is in two slots"


def test_every_batch_may_find_its_groups_elsewhere(cluster: Cluster) -> None:
    job, oracle, orders = deploy(cluster, slots=2), Oracle(), random.Random(4)
    numbers = slots(cluster)
    for epoch in range(2):
        batches = events(orders, 6)

        def moved(batches: list[list[int]] = batches) -> Iterator[list[int]]:
            for batch in batches:
                yield batch
                move(cluster, orders.sample(range(128), 30), orders.choice(numbers))

        assert counted(job.epoch(epoch, moved())) == oracle.epoch(batches)


def test_an_attempt_that_dies_behind_a_move_is_taken_back_where_its_groups_are_now(cluster: Cluster) -> None:
    job, oracle, orders = deploy(cluster, slots=2), Oracle(), random.Random(5)
    first, second = slots(cluster)
    job.epoch(0, batches := events(orders))
    oracle.epoch(batches)
    for epoch, to in enumerate([second, first], 1):
        batches = events(orders)
        job.dies(epoch, batches, ())
        move(cluster, range(40, 90), to)
        assert counted(job.epoch(epoch, batches)) == (expected := oracle.epoch(batches))
        move(cluster, range(40, 90), first)
        job.restart()
        assert counted(job.epoch(epoch, batches)) == expected, "the query is restarted before Spark has committed the epoch"


def test_an_attempt_that_is_cut_short_waits_for_each_end_though_groups_move_between_two_of_them(cluster: Cluster, tmp_path: Path) -> None:
    deploy(cluster, slots=2)
    job, oracle, orders = Job(str(cluster.node.home / "node.sock"), store=tmp_path / "store"), Oracle(), random.Random(9)
    first, second = slots(cluster)
    job.epoch(0, batches := events(orders))
    oracle.epoch(batches)
    cut, batches = events(orders, 6), events(orders)
    job.is_cut_short(1, cut, lambda: move(cluster, range(100, 128), first))
    assert counted(job.epoch(2, batches)) == oracle.epoch(batches), "what is cut short leaves no trace"


def test_timers_of_moved_groups_are_due_by_the_watermark_of_all_events(cluster: Cluster) -> None:
    deploy(cluster, slots=2, source=TIMED, input={"a": "int64", "t": "timestamp[us]"}, event_time={"column": "t"})
    job, everywhere = Job(str(cluster.node.home / "node.sock"), times=True), list(range(128))
    first, second = slots(cluster)
    assert job.epoch(0, between([everywhere], lambda: move(cluster, range(30), second), 1)) == [0] * 128
    move(cluster, range(100, 128), first)
    assert job.epoch(1, [[1]], 60) == [0]
    move(cluster, range(60, 70), first)
    assert sorted(job.epoch(2, [], 0)) == everywhere


def test_dead_letters_move_with_their_groups(cluster: Cluster) -> None:
    fails = "        if event['a'] % 10 == 3: raise ValueError('unlucky')\n"
    before, after = COUNT.split("        n =")
    cluster.push("1", (before + fails + "        n =" + after).format(version=1), key=["a"])
    cluster.client.deploy("d", "t", "1", slots=2, policy="dead-letter")
    wait_until(lambda: cluster.state()[0] == "answering", 60, "the deployment to answer")
    job, api = Job(str(cluster.node.home / "node.sock")), cluster.node.api
    first, second = slots(cluster)
    assert counted(job.epoch(0, between([list(range(128))], lambda: move(cluster, [3, 5], second), 1))) == [1] * (128 - 13)
    assert {letter.slot for letter in api.dead_letters("d", whole=True) if letter.event == '{"a": 3}'} == {second}
    move(cluster, range(64), second)
    assert {letter.slot for letter in api.dead_letters("d")} == {second} and len(list(api.dead_letters("d"))) == 13
    move(cluster, range(128), first)
    cluster.push("2", COUNT.format(version=2), key=["a"])
    assert list(cluster.client.update("d", "2"))[-1]["phase"] == "done"
    api.replay_dead_letters("d", everything=True)
    assert sorted(job.epoch(1, [[3]])) == [*[2001] * 13, 2002], "the event, then the letters, that of the same key after it"


def test_a_manager_that_is_killed_between_any_two_steps_of_a_move_goes_on_with_it(cluster: Cluster) -> None:
    """The attempt under way sends the rest of its events while the manager is away, or waits for it."""
    job, oracle, orders = deploy(cluster, slots=2), Oracle(), random.Random(8)
    first, second = slots(cluster)
    source, to, groups = SlotKeys("d", first), SlotKeys("d", second), list(range(40))

    def begin_and_die(steps: int) -> None:
        """Begin a move, whose manager dies after this many steps."""
        with contextlib.closing(access.connect(cluster.node.home, "state")) as state:
            now = group_map.load(state, source) or SlotGroups.even([first, second], 128)
        new = now.moved(groups, first, second)
        home = cluster.node.home
        with contextlib.closing(access.connect(home, "state")) as state, contextlib.closing(access.connect(home, "queue")) as queue:
            cluster.node.kill()
            moving.note(state, source, Intent(tuple(groups), second, "direct", new.version if steps else 0))
            if steps > 0:
                moving.cut(queue, source, new.route(first, lambda n: SlotKeys("d", n)), groups)
            if steps > 1:
                wait_until(lambda: moving.is_handed_over(state, source, new.version), 20, "the groups to be handed over")
            if steps > 2:
                moving.deliver(state, source, to, source, new)
            if steps > 3:
                moving.cut(queue, to, new.route(second, lambda n: SlotKeys("d", n)), None)
            if steps > 4:
                moving.cut(queue, to, new.route(second, lambda n: SlotKeys("d", n)), None, again=True)
                wait_until(lambda: moving.is_adopted(state, to, new.version), 20, "the groups to be adopted")
        starting.append(threading.Timer(0.2, cluster.start_node))
        starting[-1].start()

    starting: list[threading.Timer] = []
    for steps in range(6):
        batches = events(orders)
        answers = job.epoch(steps, between(batches, lambda n=steps: begin_and_die(n), 2))  # type: ignore[misc]
        starting[-1].join()
        assert counted(answers) == oracle.epoch(batches), f"after {steps} steps"
        wait_until(lambda: where(cluster)[second] == list(range(40)) + list(range(64, 128)), 30, "the groups to be there")
        moved_at_last(cluster, groups, first)
        assert set(groups) <= set(where(cluster)[first])


def test_a_move_that_is_asked_for_while_another_one_ends_is_refused_or_carried_out(cluster: Cluster) -> None:
    deploy(cluster, slots=2)
    back, there = slots(cluster)  # the group is in the first slot
    with ThreadPoolExecutor(1) as behind:
        for turn in range(25):
            moving_there = behind.submit(move, cluster, [1], there)
            wait_until(lambda: 1 in where(cluster)[there], 20, "the group to be there")
            moved_at_last(cluster, [1], back)
            with contextlib.suppress(AssertionError):
                moving_there.result()  # it may be gone again by now
            assert 1 in where(cluster)[back], f"turn {turn}"


def test_a_server_that_is_lost_around_a_move_loses_no_group_and_no_event(cluster: Cluster) -> None:
    """Routes are lost with the queue server; a move that has begun is done again, and later attempts follow the map."""
    job, oracle, orders = deploy(cluster, slots=2), Oracle(), random.Random(6)
    first, second = slots(cluster)
    for epoch, role in enumerate(["queue", "state", "queue"]):
        batches = events(orders)
        to = second if epoch % 2 == 0 else first
        mover = threading.Thread(target=moved_at_last, args=(cluster, range(epoch * 10, 64), to))
        mover.start()
        os.kill(next(s.pid for s in cluster.node.api.status().servers if s.role == role), signal.SIGKILL)
        mover.join()
        assert counted(again_and_again(lambda: job.epoch(epoch, batches))) == oracle.epoch(batches)  # noqa: B023
    assert sum(map(len, where(cluster).values())) == 128


def moved_at_last(c: Cluster, groups: Sequence[int], to: int) -> None:
    """Move the key groups, repeating the command whatever dies meanwhile."""

    def done() -> bool:
        with contextlib.suppress(UdoError):
            return [e.done for e in c.node.api.move_groups("d", groups, to, wait_s=20)][-1]
        return False

    wait_until(done, 60, f"the groups to be in slot {to}")


def test_epochs_count_once_whatever_dies_while_groups_move(cluster: Cluster) -> None:
    job, oracle, orders = deploy(cluster), Oracle(), random.Random(1)
    numbers = slots(cluster)
    for epoch in range(8):
        batches = events(orders)
        expected = oracle.epoch(batches)
        groups, to = orders.sample(range(128), orders.randint(1, 60)), orders.choice(numbers)
        mover = threading.Thread(target=moved_at_last, args=(cluster, groups, to))

        def begin(mover: threading.Thread = mover, epoch: int = epoch, batches: list[list[int]] = batches) -> None:
            mover.start()
            what = orders.choice(["owner", "owner", "manager", "nothing"])
            if what == "owner":
                pids = [s.pid for s in cluster.node.api.status().slots if s.pid]
                os.kill(orders.choice(pids), signal.SIGKILL)
            elif what == "manager":
                cluster.node.kill()
                cluster.start_node()

        answers = again_and_again(lambda: job.epoch(epoch, between(batches, begin, orders.randint(0, 4)) if not mover.ident else batches))  # noqa: B023
        mover.join()
        assert counted(answers) == expected, f"epoch {epoch}"
        if orders.random() < 0.3:
            job.restart()
            assert counted(again_and_again(lambda: job.epoch(epoch, batches))) == expected  # noqa: B023
    assert sum(map(len, where(cluster).values())) == 128


def test_a_deployment_that_keeps_state_is_scaled_while_an_attempt_runs(cluster: Cluster) -> None:
    job, oracle, orders = deploy(cluster, slots=1), Oracle(), random.Random(7)

    def scale(count: int) -> None:
        cluster.client.scale("d", count)
        wait_until(lambda: cluster.state()[0] == "answering", 90, f"{count} slots")

    for epoch, count in enumerate([3, 2, 4, 1]):
        batches = events(orders)
        answers = job.epoch(epoch, between(batches, lambda n=count: scale(n), 2))  # type: ignore[misc]
        assert counted(answers) == oracle.epoch(batches), f"{count} slots"
        shares = sorted(len(groups) for groups in where(cluster).values() if groups)
        assert len(shares) == count and shares[-1] - shares[0] <= 1
        assert counted(job.epoch(epoch, batches)) == counted(answers), "the epoch is evaluated again, in the new slots"
    timed = events(orders)
    job.restart()
    assert counted(job.epoch(4, timed)) == oracle.epoch(timed)
    (listed,) = cluster.node.api.sessions("d").sessions
    assert listed.keys == len(oracle.counts)


def test_a_producer_that_forges_the_frames_of_a_move_gets_an_error_and_no_group_moves(cluster: Cluster) -> None:
    job, oracle, orders = deploy(cluster, slots=2), Oracle(), random.Random(9)
    for epoch, kind in enumerate([HANDOVER, ADOPT, PREPARE]):
        batches = events(orders)
        assert counted(job.epoch(epoch, batches)) == oracle.epoch(batches)
        with pytest.raises(ProtocolError, match="expected what the node manager wrote there, which alone moves key groups"):
            job.forges(epoch + 1, kind, range(128))
    assert counted(job.epoch(3, batches)) == oracle.epoch(batches), "every group is where it was, with its state"
    move(cluster, range(64), slots(cluster)[1])
    assert counted(job.epoch(4, batches)) == oracle.epoch(batches)


def test_a_map_that_names_a_slot_which_is_not_there_is_told_to_whoever_opens_a_lane(cluster: Cluster) -> None:
    job, oracle, batches = deploy(cluster, slots=2), Oracle(), events(random.Random(12))
    assert counted(job.epoch(0, batches)) == oracle.epoch(batches)
    numbers = slots(cluster)
    keys = SlotKeys("d", numbers[0])
    with contextlib.closing(access.connect(cluster.node.home, "state")) as state:
        state.call(*group_map.storing(keys, json.dumps(SlotGroups.even([numbers[0], 9], 128).document())))
        with pytest.raises(Unavailable, match="the group map of deployment 'd' on node .* names slot 9, which is not there"):
            job.epoch(1, batches)
        state.call("DEL", keys.groups)
    assert counted(job.epoch(1, batches)) == oracle.epoch(batches)


def test_a_node_that_stops_does_not_wait_for_a_move(cluster: Cluster) -> None:
    deploy(cluster, slots=2)
    first, _ = slots(cluster)
    os.kill(cluster.node.slot().pid, signal.SIGSTOP)  # so that it does not hand over its groups
    cluster.client.scale("d", 3)
    with contextlib.closing(access.connect(cluster.node.home, "state")) as state:
        wait_until(lambda: moving.noted(state, SlotKeys("d", first)) is not None, 30, "the move to begin")
    assert cluster.node.stop() == 0


def test_a_recording_ends_where_key_groups_move(cluster: Cluster, tmp_path: Path) -> None:
    job, oracle, batches = deploy(cluster, slots=1), Oracle(), events(random.Random(10))
    recording = Recorder(cluster.node.api, "d", tmp_path / "r")
    assert counted(job.epoch(0, batches)) == oracle.epoch(batches)
    cluster.client.scale("d", 2)
    assert recording.done().reason == "key groups were moved to other slots or from there"


def test_groups_of_an_instance_that_an_earlier_release_started_stay_until_it_is_replaced(cluster: Cluster) -> None:
    job, oracle, batches = deploy(cluster, slots=2), Oracle(), events(random.Random(11))
    first, second = slots(cluster)
    cluster.node.kill()
    for path in (cluster.node.home / "handles").glob("*.json"):
        record = json.loads(path.read_text())
        if record.get("slot") == first:
            assert record.pop("abilities") == ["moves groups 3", "reads copies"]
            path.write_text(json.dumps(record))
    cluster.start_node()
    with pytest.raises(Conflict, match=f"slot {first} of deployment 'd' was started by an earlier release, which cannot move key groups"):
        move(cluster, range(64), second)
    with pytest.raises(Conflict, match="was started by an earlier release"):
        move(cluster, range(64, 128), first)
    assert counted(job.epoch(0, batches)) == oracle.epoch(batches)
    cluster.push("2", COUNT.format(version=2), key=["a"])
    assert list(cluster.client.update("d", "2"))[-1]["phase"] == "done"
    move(cluster, range(64), second)
    assert counted(job.epoch(1, batches)) == oracle.epoch(batches)


def test_what_cannot_be_moved_is_refused_with_what_to_do(cluster: Cluster) -> None:
    deploy(cluster, slots=2)
    first, second = slots(cluster)
    api = cluster.node.api
    with pytest.raises(NotFound, match=f"no slot 7 on node .*; it has {first}, {second}"):
        list(api.move_groups("d", [1], 7))
    with pytest.raises(UsageError, match="has the key groups 0 to 127: expected some of these, got 5 to 128"):
        list(api.move_groups("d", [5, 128], second))
    with pytest.raises(UsageError, match="expected a strategy of cpal, direct, got 'teleport'"):
        list(api.move_groups("d", [5], second, "teleport"))
    with contextlib.closing(access.connect(cluster.node.home, "state")) as state:
        moving.note(state, SlotKeys("d", first), Intent((9,), second, "direct"))
        with pytest.raises(Conflict, match=f"are being moved to slot {second}"):
            list(api.move_groups("d", [5], second))
        with pytest.raises(Conflict, match="are being moved on node"):
            api.drop_state("d", "q")
        with pytest.raises(Conflict, match="are being moved on node"):
            list(api.export_state("d", "q"))
        move(cluster, [9], second, "direct")
        assert moving.noted(state, SlotKeys("d", first)) is None
    cluster.push("2", "def run(event):\n    yield {'b': 1}\n")
    cluster.client.deploy("plain", "t", "2")
    wait_until(lambda: cluster.state("plain")[0] == "answering", 60, "the deployment to answer")
    with pytest.raises(UsageError, match="'plain' keeps no state, so it has no key groups to move"):
        list(api.move_groups("plain", [5], 0))

"""Lanes with a state store against a real node: they restore state that the node still has, had once, or has in part."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.conftest import wait_until
from udo_interface.lane.opening import KeyedCall, Request, conversations
from udo_interface.lane.split import SplitExchange
from udo_interface.store.spark_partitions import groups_of
from udo_interface.store.store import SessionStore, StoreLocation
from udo_interface.store.store_lane import StoreLane
from udo_protocol.errors import PeerError, Stale, StateElsewhere, StateLost
from udo_protocol.formats.schema import GROUP_COLUMN
from udo_protocol.limits import KEY_GROUPS
from udo_protocol.node.api import connect_node
from udo_protocol.queue import frame

if TYPE_CHECKING:
    from tests.udo_interface.conftest import Platform

pytestmark = pytest.mark.long

COUNT = """
from udo_runtime import Operator
class Count(Operator):
    def process(self, event, ctx):
        n = ctx.state["n"] = ctx.state.get("n", 0) + 1
        yield {"k": event["k"], "n": n, "watermark": ctx.watermark}
"""
MANIFEST: dict[str, Any] = {
    "entry": "op:Count",
    "key": "k",
    "input": {"k": "int64", "t": "timestamp[us]"},
    "output": {"k": "int64", "n": "int64", "watermark": "timestamp[us, tz=UTC]"},
    "event_time": {"column": "t"},
}
SENT = pa.schema([("k", pa.int64()), ("t", pa.timestamp("us")), (GROUP_COLUMN, pa.int32())])
ANSWERS = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("watermark", pa.timestamp("us", "UTC"))])
BEGIN = dt.datetime(2026, 1, 1)
# Two keys for each group; every epoch has an event of each key.
KEYS = range(2 * KEY_GROUPS)


class Query:
    """One session of one deployment. In an epoch, the events of lower partitions are later."""

    def __init__(self, platform: Platform, operator: str, session: str, directory: Path) -> None:
        self.platform, self.operator, self.session = platform, operator, session
        self.stored = StoreLocation(str(directory), (("k", "int64"),), full_every=3)
        self.partitions, self.run = 2, 1
        self.latest: int | None = None  # the partition with the latest events; None: the lowest
        self._attempts = 0

    @contextmanager
    def lane(self, epoch: int, partition: int, *, stored: bool = True) -> Iterator[StoreLane]:
        """Open a new attempt at a partition's epoch."""
        self._attempts += 1
        keyed = KeyedCall(f"run{self.run}", "call", tuple(groups_of(partition, self.partitions)), plan=self.run, stored=stored)
        request = Request(self.operator, self.session, partition, self._attempts, epoch, keyed=keyed)
        with conversations(self.platform.node, request, SENT, ANSWERS) as (lanes, opened):
            split = SplitExchange(lanes, opened.group_slots or (0,), 4, open_lane=opened.open_lane)
            store = SessionStore(self.stored, self.operator, self.session)
            assert opened.stamp is not None
            yield StoreLane(store, split, opened.place, opened.stamp, self.partitions, self.run)

    def events(self, epoch: int, partition: int) -> Iterator[tuple[pa.RecordBatch, None]]:
        groups = set(groups_of(partition, self.partitions))
        keys = [k for k in KEYS if k % KEY_GROUPS in groups]
        first = min(p for p in range(self.partitions) if groups_of(p, self.partitions))
        behind_s = partition - first if self.latest is None else int(partition != self.latest)
        at = BEGIN + dt.timedelta(seconds=100 * epoch - behind_s)
        columns = [
            pa.array(keys, pa.int64()),
            pa.array([at] * len(keys), SENT.field(1).type),
            pa.array([k % KEY_GROUPS for k in keys], pa.int32()),
        ]
        if keys:
            yield pa.record_batch(columns, schema=SENT), None

    def exchange(self, lane: StoreLane, epoch: int, partition: int) -> None:
        """Exchange events; every key's count and the watermark must be those of an undisturbed query."""
        answers = lane.split.run(self.events(epoch, partition))
        watermark = BEGIN.replace(tzinfo=dt.UTC) + dt.timedelta(seconds=100 * (epoch - 1)) if epoch else None
        wanted = {(k, epoch + 1, watermark) for b, _ in self.events(epoch, partition) for k in b.column(0).to_pylist()}
        found = [(r["k"], r["n"], r["watermark"]) for _, answer in lane.around(answers) for r in answer.to_pylist()]
        assert set(found) == wanted
        assert len(found) == len(wanted)

    def attempt(self, epoch: int, partition: int) -> None:
        """Run a whole attempt, as a task does."""
        with self.lane(epoch, partition) as lane:
            self.exchange(lane, epoch, partition)

    def cut(self, epoch: int, partition: int) -> None:
        """Begin an attempt that a limit cuts short, so that it leaves no trace."""
        with self.lane(epoch, partition) as lane:
            answers = lane.around(lane.split.run(self.events(epoch, partition)))
            next(answers)
            answers.close()  # type: ignore[attr-defined]

    def epochs(self, first: int, last: int) -> None:
        for epoch in range(first, last + 1):
            for partition in range(self.partitions):
                self.attempt(epoch, partition)

    def restart(self, platform: Platform | None = None, partitions: int = 2) -> None:
        """Begin a new run of the query, possibly on another platform."""
        self.platform, self.partitions, self.run = platform or self.platform, partitions, self.run + 1


@pytest.fixture(scope="module", params=[1, 3], ids=["one slot", "three slots"])
def count(lossy: Platform, request: pytest.FixtureRequest) -> str:
    name = f"count-{request.param}"
    lossy.push(COUNT, name=name, **MANIFEST)
    lossy.deploy(name, slots=request.param)
    return name


@pytest.fixture
def query(lossy: Platform, count: str, tmp_path: Path, request: pytest.FixtureRequest) -> Query:
    return Query(lossy, count, request.node.name, tmp_path)


@pytest.mark.parametrize("order", [pytest.param((0, 1), marks=pytest.mark.short), (1, 0)])
def test_a_node_lost_within_an_epoch_gets_back_what_its_ended_and_its_unended_lanes_had(query: Query, order: tuple[int, int]) -> None:
    """Spark does not run the ended task again: its part of the epoch, with the highest event time, is in the store alone."""
    query.epochs(0, 4)
    query.attempt(5, order[0])
    query.platform.lose_node()
    query.attempt(5, order[1])
    for partition in (1, 0):
        query.attempt(6, partition)
    query.epochs(7, 7)


def test_lanes_that_restore_side_by_side_do_not_disturb_each_other(query: Query) -> None:
    query.epochs(0, 1)
    query.platform.lose_node()
    query.restart(partitions=3)
    with ExitStack() as stack:
        lanes = [stack.enter_context(query.lane(2, p)) for p in range(3)]
        for lane in lanes:
            lane.restore()
        for p in (2, 0, 1):
            query.exchange(lanes[p], 2, p)
    query.epochs(3, 3)


def test_an_attempt_that_dies_while_it_restores_is_followed_by_one_that_begins_anew(query: Query) -> None:
    query.epochs(0, 1)
    query.platform.lose_node()
    with query.lane(2, 0) as lane:
        lane.place = replace(lane.place, frame_bytes=2000)  # many frames
        ask, parts = lane.split.ask, itertools.count()

        def asked(slot: int, kind: frame.Kind, batch: pa.RecordBatch | None = None, **fields: Any) -> Any:
            return ask(slot, kind, batch, **fields) if batch is None or next(parts) < 1 else pytest.fail("dies here")

        lane.split.ask = asked  # type: ignore[method-assign]
        with pytest.raises(pytest.fail.Exception, match="dies here"):
            lane.restore()
    with query.lane(2, 0) as lane:
        lane.place = replace(lane.place, frame_bytes=2000)
        query.exchange(lane, 2, 0)
    query.attempt(2, 1)
    query.epochs(3, 3)


def test_a_node_that_has_older_state_of_the_session_takes_the_stores(query: Query, platform: Platform) -> None:
    """Also if the older state is of an epoch that was left midway and completed elsewhere."""
    first = query.platform
    platform.push(COUNT, name=query.operator + "-moved", **MANIFEST)
    platform.deploy(query.operator + "-moved")
    first.push(COUNT, name=query.operator + "-moved", **MANIFEST)
    first.deploy(query.operator + "-moved")
    query.operator += "-moved"
    query.epochs(0, 1)
    query.attempt(2, 0)
    with query.lane(2, 1) as lane:  # ENDs, but dies before its file is written
        for _ in lane.split.run(query.events(2, 1)):
            pass
    with query.lane(2, 1) as lane:  # dies midway
        dying = lane.split.run(query.events(2, 1))
        next(dying)
        for sender, _ in lane.split._lanes:
            sender._end.conn.close()
        with suppress(PeerError):
            dying.close()  # type: ignore[attr-defined]
    query.restart(platform)
    query.epochs(2, 2)
    query.restart(first)
    query.epochs(3, 3)
    query.restart(platform, partitions=4)
    query.epochs(4, 8)
    query.restart(first)
    query.epochs(9, 9)


def test_a_checkpoint_from_before_goes_on_from_the_state_of_its_time(query: Query) -> None:
    """Checkpoint and store were restored from a backup; the node is ahead of both."""
    query.epochs(0, 3)
    query.restart()
    query.epochs(2, 4)


PICKY = COUNT.replace("        n =", "        if event['k'] == 7: raise ValueError('seven')\n        n =", 1)


def test_dead_letters_stay_where_they_arose_and_wait_there_for_their_query(
    lossy: Platform, platform: Platform, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    for each in (lossy, platform):
        each.push(PICKY, name="picky-moved", **MANIFEST)
        each.push(COUNT, name="picky-moved", version="2", **MANIFEST)
        each.deploy("picky-moved", policy="dead-letter")
    query = Query(lossy, "picky-moved", request.node.name, tmp_path)

    def answers(epoch: int) -> list[int]:
        """Return the counts of key 7; all others must be as usual."""
        found = []
        for partition in range(query.partitions):
            with query.lane(epoch, partition) as lane:
                answered = lane.split.run(query.events(epoch, partition))
                found += [(r["k"], r["n"]) for _, answer in lane.around(answered) for r in answer.to_pylist()]
        assert sorted(f for f in found if f[0] != 7) == [(k, epoch + 1) for k in KEYS if k != 7]
        return [n for k, n in found if k == 7]

    def letters(where: Platform) -> list[tuple[int, str]]:
        return sorted((d.epoch, d.replay) for d in connect_node(where.node).dead_letters("picky-moved"))

    assert answers(0) + answers(1) == []
    query.restart(platform)
    assert answers(2) == []
    connect_node(lossy.node).replay_dead_letters("picky-moved", everything=True)
    assert letters(lossy) == [(0, "waiting"), (1, "waiting")]
    assert letters(platform) == [(2, "")]
    query.restart(lossy)
    assert lossy.update("picky-moved", "2") == "done"
    assert answers(3) == [1, 2, 3]  # the event of epoch 3, then the letters
    assert answers(4) == [4]
    assert (letters(lossy), letters(platform)) == ([], [(2, "")])


def test_more_partitions_than_key_groups_have_lanes_that_hold_nothing(query: Query) -> None:
    query.epochs(0, 1)
    query.platform.lose_node()
    query.restart(partitions=200)
    empty = [p for p in range(200) if not groups_of(p, 200)]
    for partition in empty[:3]:  # before all others
        query.attempt(2, partition)
    for partition in range(200):
        if partition not in empty:
            query.attempt(2, partition)
    query.restart()
    query.platform.lose_node()
    query.epochs(3, 3)


def test_a_lane_that_a_limit_kept_out_of_an_epoch_goes_on_and_writes_all_it_has(query: Query) -> None:
    query.epochs(0, 1)
    query.attempt(2, 0)  # the other partition is not evaluated
    with query.lane(3, 1) as lane:
        lane.restore()
        list(lane.split.run(query.events(3, 1)))
        lane.save()
    query.attempt(3, 0)
    here = {f.partition: f.full for f in lane.store.files(3)}
    assert here == {0: True, 1: True}  # 3 is a multiple of full_every
    query.attempt(4, 0)
    with query.lane(5, 1) as lane:
        lane.restore()
        list(lane.split.run(query.events(5, 1)))
        lane.save()
    assert {f.partition: f.full for f in lane.store.files(5)} == {1: True}


def test_a_partition_without_a_file_of_the_last_epoch_is_lost_when_the_node_is(query: Query) -> None:
    query.epochs(0, 1)
    query.attempt(2, 0)
    query.platform.lose_node()
    query.attempt(3, 0)
    with query.lane(3, 1) as lane, pytest.raises(StateLost, match="/2: no file holds key group .* after epoch 2.*continues with epoch 3"):
        lane.restore()


@pytest.mark.short
def test_an_attempt_that_a_newer_one_has_overtaken_writes_nothing(query: Query) -> None:
    query.epochs(0, 0)
    with query.lane(1, 0) as old:
        old.restore()
        list(old.split.run(query.events(1, 0)))
        query.attempt(1, 0)
        with pytest.raises(Stale):
            old.save()
        assert [f.attempt for f in old.store.files(1)] == [old.stamp.attempt + 1]


def test_an_update_between_two_partitions_of_an_epoch_leaves_state_that_one_partition_restores(
    lossy: Platform, count: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    name, renamed = f"{count}-updated", COUNT.replace('"n"]', '"m"]').replace('get("n"', 'get("m"')
    lossy.push(COUNT, name=name, **MANIFEST)
    migrating = renamed + "    def migrate(self, old, from_version): return {'m': old['n']}\n"
    lossy.push(migrating, name=name, version="2", state_version=1, migrates_from=[0], **MANIFEST)
    lossy.deploy(name, slots=int(count.removeprefix("count-")))
    query = Query(lossy, name, request.node.name, tmp_path)
    query.epochs(0, 3)
    query.attempt(4, 0)
    assert lossy.update(name, "2") == "done"
    query.attempt(4, 1)
    lossy.lose_node()
    query.restart(partitions=1)
    query.epochs(5, 6)


def test_without_its_store_a_restored_session_is_not_started_empty(query: Query) -> None:
    query.epochs(0, 1)
    query.platform.lose_node()
    query.attempt(2, 0)
    with pytest.raises(StateElsewhere, match="call the operator with the same store= as before"), query.lane(2, 1, stored=False):
        pass
    with query.lane(2, 1) as lane, pytest.raises(StateLost, match="Call the operator with the same store= as before"):
        list(lane.split.run(query.events(2, 1)))


@pytest.fixture(params=[(1, 1), (3, 2)], ids=["one slot each", "three slots and two"])
def two(lossy: Platform, platform: Platform, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Query, Platform, Platform]]:
    """A query, and two nodes with its operator. The query's next attempts go to the first node."""
    for each, slots in zip((lossy, platform), request.param, strict=True):
        each.push(COUNT, name="count-two", **MANIFEST)
        each.deploy("count-two", slots=slots)
    yield Query(lossy, "count-two", request.node.name, tmp_path), lossy, platform
    for each in (lossy, platform):
        each.api.undeploy("count-two", drop_state=True)


def test_a_node_that_saw_an_epoch_in_another_partitioning_takes_the_event_time_of_all_of_it(two: tuple[Query, Platform, Platform]) -> None:
    """Its own partition of the newer run has replaced what the older run's partition with that number had seen."""
    query, here, there = two
    query.restart(here, partitions=1)
    query.epochs(0, 2)
    query.restart(here, partitions=2)
    query.latest = 1
    query.attempt(2, 0)
    query.platform = there
    query.attempt(2, 1)
    query.platform = here
    query.epochs(3, 3)


@pytest.mark.parametrize("cut_first", [True, False])
def test_an_epoch_that_a_limit_cut_short_on_one_node_and_another_evaluated_in_full_counts_in_full(
    two: tuple[Query, Platform, Platform], cut_first: bool
) -> None:
    """As by df.show() and df.write in foreachBatch. The next epochs continue from the full one, on either node."""
    query, here, there = two
    query.epochs(0, 1)
    order = [(query.cut, here), (query.attempt, there)]
    for step, query.platform in order if cut_first else reversed(order):
        for partition in range(2):
            step(2, partition)
    query.platform = here
    query.attempt(3, 0)
    query.platform = there
    query.attempt(3, 1)
    query.platform = here
    query.epochs(4, 4)


def test_an_epoch_that_was_cut_short_on_every_node_leaves_no_trace(two: tuple[Query, Platform, Platform]) -> None:
    query, here, there = two
    query.epochs(0, 1)
    for query.platform in (here, there, here):
        for partition in range(2):
            query.cut(2, partition)
    for query.platform in (here, there):
        with query.lane(3, 0) as lane:
            answers = lane.around(lane.split.run(query.events(3, 0)))
            assert {n for _, answer in answers for n in answer.column("n").to_pylist()} == {3}


def move(platform: Platform, deployment: str, groups: Iterable[int], to: int) -> None:
    """Move the groups to the slot at that place among the deployment's slots on the node."""
    node = connect_node(platform.node)
    numbers = sorted(s.slot for s in node.status().slots if s.deployment == deployment)
    list(node.move_groups(deployment, list(groups), numbers[to % len(numbers)], "cpal", 20.0))


def test_a_slot_without_key_groups_follows_the_epochs_too_wherever_they_are_evaluated(two: tuple[Query, Platform, Platform]) -> None:
    """Its END would be refused otherwise, and groups that it is given later would have the event times of long ago."""
    query, here, there = two
    move(here, query.operator, range(KEY_GROUPS), 0)
    query.epochs(0, 1)
    query.platform = there
    query.epochs(2, 3)
    query.platform = here
    query.epochs(4, 4)
    query.platform = there
    query.attempt(5, 0)
    query.platform = here
    query.attempt(5, 1)
    move(here, query.operator, range(KEY_GROUPS), -1)
    query.epochs(6, 7)


class Moving(Query):
    """Key groups change slots before an attempt restores, before its events, and between END and the write to the store."""

    moves = 0

    def move(self) -> None:
        move(self.platform, self.operator, range(self.moves % 3, KEY_GROUPS, 3), self.moves)
        self.moves += 1

    def attempt(self, epoch: int, partition: int) -> None:
        with self.lane(epoch, partition) as lane:
            ask, at = lane.split.ask, itertools.count()

            def asked(*a: Any, **f: Any) -> Any:
                if next(at) in (1, 3, 8):
                    self.move()
                return ask(*a, **f)

            lane.split.ask = asked  # type: ignore[method-assign]
            self.exchange(lane, epoch, partition)


@pytest.mark.short
@pytest.mark.parametrize("slots", [3])
def test_key_groups_that_move_while_a_lane_restores_and_saves_are_in_the_store_once(
    lossy: Platform, tmp_path: Path, request: pytest.FixtureRequest, slots: int
) -> None:
    lossy.push(COUNT, name="count-moving", **MANIFEST)
    lossy.deploy("count-moving", slots=slots)
    query = Moving(lossy, "count-moving", request.node.name, tmp_path)
    query.epochs(0, 2)
    lossy.lose_node()
    query.epochs(3, 4)
    query.restart(partitions=3)
    query.epochs(5, 5)
    lossy.lose_node()
    query.epochs(6, 7)
    assert query.moves >= 12


def test_a_deployment_that_gets_more_slots_keeps_its_store_and_one_that_gets_fewer_does(
    lossy: Platform, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    lossy.push(COUNT, name="count-scaled", **MANIFEST)
    lossy.deploy("count-scaled")
    query = Query(lossy, "count-scaled", request.node.name, tmp_path)
    for first, slots in ((0, 1), (2, 3), (4, 2)):
        lossy.api.scale("count-scaled", slots)
        wait_until(lambda n=slots: sum(bool(s.groups) for s in lossy.slots("count-scaled")) == n, 60, f"{slots} slots")  # type: ignore[misc]
        query.epochs(first, first)
        lossy.lose_node()
        query.epochs(first + 1, first + 1)

"""The slot log's rules one by one, on real servers; tests/protocol/test_slot_model.py checks their combinations."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.conftest import Servers, wait_until
from tests.support.slots import BATCH, P, a_lane, answer, data, owner
from udo_protocol.errors import Fenced, LaneExpired, ProtocolError, ServerLost, SlotBroken, Stale, TwoProducers
from udo_protocol.limits import RUNS_OF_A_PLAN, SlotLimits
from udo_protocol.queue import lane_end, slot, slot_reader, untrusted
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.frame import Failure, decode
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.state import checkpoints


def test_an_event_goes_in_and_its_answer_comes_out(servers: Servers) -> None:
    lane, instance = a_lane(servers), owner(servers)
    assert lane.push(1, 0, data("l", 1)).status == lane_end.Push.ACCEPTED
    read = instance.read(1)
    assert decode(read.frames[0]).batch(BATCH.schema).equals(BATCH)
    assert instance.emit(1, answer(read)) is slot_reader.Emit.EMITTED
    assert [f.header.number for f in lane.collect(1000)] == [1]
    assert slot.slot_stats(servers.queue(), P) == slot.SlotStats(2, 1, 1, 0, 0, 1)


def test_a_large_frame_survives_the_way(servers: Servers) -> None:
    lane, instance = a_lane(servers), owner(servers)
    big = pa.record_batch({"a": list(range(200_000))})
    lane.push(1, 0, data("l", 1, big))
    assert decode(instance.read(1).frames[0]).batch(big.schema).equals(big)


def test_push_refuses_duplicates_gaps_other_routes_and_unknown_lanes(servers: Servers) -> None:
    lane = a_lane(servers)
    assert lane.push(1, 0, data("l", 1)).status == lane_end.Push.ACCEPTED
    assert lane.push(1, 0, data("l", 1)).status == lane_end.Push.DUPLICATE
    assert lane.push(3, 2, data("l", 3)) == lane_end.PushReply(lane_end.Push.GAP, 1)
    servers.queue().call("HSET", f"{P}route", "v", 1, "table", "[]")
    assert lane.push(2, 1, data("l", 2)) == lane_end.PushReply(lane_end.Push.MOVED, b"[]")
    assert lane_end.LaneEnd(servers.queue(), P, "nobody").push(1, 0, data("nobody", 1)).status == lane_end.Push.EXPIRED
    assert slot.slot_stats(servers.queue(), P).depth_frames == 1


def test_pipelined_pushes_behind_a_refused_one_are_refused_too(servers: Servers) -> None:
    lane = a_lane(servers)
    for n, prev in ((2, 1), (3, 2)):
        lane.send_push(n, prev, data("l", n))
    assert [lane.push_reply().status for _ in range(2)] == [lane_end.Push.GAP, lane_end.Push.GAP]


def test_an_older_attempt_is_refused_early(servers: Servers) -> None:
    new, old = a_lane(servers, "new"), a_lane(servers, "old")
    assert new.push(1, 0, data("new", 1), part="q:c:0", label="1:2:00005").status == lane_end.Push.ACCEPTED
    assert old.push(1, 0, data("old", 1), part="q:c:0", label="1:2:00004").status == lane_end.Push.STALE


def test_a_full_log_is_busy_but_keeps_room_for_control_frames(servers: Servers) -> None:
    lane = a_lane(servers, retained_bytes=300)
    statuses = [lane.push(n, n - 1, data("l", n)).status for n in range(1, 4)]
    assert lane_end.Push.BUSY in statuses
    n = statuses.index(lane_end.Push.BUSY) + 1
    assert lane.push(n, n - 1, data("l", n), control=True).status == lane_end.Push.ACCEPTED


def test_only_the_owner_answers_and_a_fenced_answer_leaves_no_trace(servers: Servers) -> None:
    lane, old = a_lane(servers), owner(servers)
    lane.push(1, 0, data("l", 1))
    read = old.read(1)
    new = owner(servers)
    with pytest.raises(Fenced, match="not the owner"):
        old.emit(1, answer(read))
    assert lane.poll() == []
    assert new.emit(1, answer(new.read(1))) is slot_reader.Emit.EMITTED
    assert len(lane.poll()) == 1


def test_answers_out_of_turn_are_refused(servers: Servers) -> None:
    lane, instance = a_lane(servers), owner(servers)
    for n in (1, 2, 3):
        lane.push(n, n - 1, data("l", n))
    read = instance.read(1)
    assert instance.emit(2, answer(read)[1:]) is slot_reader.Emit.GAP
    assert instance.emit(1, answer(read)) is slot_reader.Emit.EMITTED
    assert instance.emit(3, answer(read)[2:]) is slot_reader.Emit.DUPLICATE
    assert [f.header.number for f in lane.poll()] == [1, 2, 3]


def test_a_standby_never_sees_past_emitted(servers: Servers) -> None:
    lane, instance = a_lane(servers), owner(servers)
    standby = slot_reader.SlotReader(servers.queue(), P, "s", 99)
    for n in (1, 2):
        lane.push(n, n - 1, data("l", n))
    assert standby.read(1).frames == []
    instance.emit(1, answer(instance.read(1))[:1], trim=False)
    assert len(standby.read(1).frames) == 1


def test_a_token_older_than_the_owner_is_not_promoted(servers: Servers) -> None:
    owner(servers, 5)
    with pytest.raises(Fenced, match="older"):
        slot.promote(servers.state(), servers.queue(), P, 4)


def test_checkpoint_and_trim_stay_behind_emitted(servers: Servers) -> None:
    lane, instance, state = a_lane(servers), owner(servers), servers.state()
    for n in (1, 2):
        lane.push(n, n - 1, data("l", n))
    instance.emit(1, answer(instance.read(1))[:1], trim=False)
    owned = checkpoints.OwnedState(state, P, instance.token)
    assert checkpoints.checkpoint(owned, checkpoints.Checkpoint(2), 1, []) is slot_reader.Emit.AHEAD
    assert instance.trim(2) is slot_reader.Emit.AHEAD
    riding = checkpoints.Checkpoint(2, "run", [("l", b"answer")])
    assert checkpoints.checkpoint(owned, riding, 1, [("HSET", f"{P}m:s", 0, b"v")]) is slot_reader.Emit.STORED
    assert checkpoints.load_checkpoint(state, P) == riding
    assert checkpoints.checkpoint(owned, checkpoints.Checkpoint(1, "run"), 1, []) is slot_reader.Emit.STORED
    assert checkpoints.load_checkpoint(state, P) == checkpoints.Checkpoint(1, "run", [])
    assert instance.trim(1) is slot_reader.Emit.TRIMMED
    assert instance.read(1).first == 2
    owner(servers)
    with pytest.raises(Fenced):
        checkpoints.checkpoint(owned, checkpoints.Checkpoint(1), 1, [])


def test_a_pin_holds_the_trim_until_it_is_released(servers: Servers) -> None:
    lane, instance = a_lane(servers), owner(servers)
    for n in (1, 2, 3):
        lane.push(n, n - 1, data("l", n))
    instance.pin(2, 60_000)
    instance.emit(1, answer(instance.read(1)))
    assert slot.slot_stats(servers.queue(), P).base == 2
    instance.pin(2, 0)
    instance.trim(3)
    assert slot.slot_stats(servers.queue(), P).base == 4


def test_a_pin_never_fills_the_log(servers: Servers) -> None:
    bound = 4 * len(b"".join(map(bytes, data("l", 1))))
    lane, instance = a_lane(servers, retained_bytes=bound), owner(servers)
    instance.limits = SlotLimits(retained_bytes=bound)
    instance.pin(1, 60_000)
    for n in range(1, 20):
        assert lane.push(n, n - 1, data("l", n)).status is lane_end.Push.ACCEPTED
        instance.emit(n, answer(instance.read(n)))
    assert slot.slot_stats(servers.queue(), P).base > 10


def test_a_full_log_costs_the_pin_that_holds_most_and_no_other(servers: Servers) -> None:
    bound = 8 * len(b"".join(map(bytes, data("l", 1))))
    lane, instance = a_lane(servers, retained_bytes=bound), owner(servers)
    instance.limits = SlotLimits(retained_bytes=bound)
    queue = servers.queue()
    queue.call("FCALL", "udo_pin", 1, P.prefix, "far", 1, 60_000)
    for n in range(1, 20):
        queue.call("FCALL", "udo_pin", 1, P.prefix, "near", n, 60_000)
        assert lane.push(n, n - 1, data("l", n)).status is lane_end.Push.ACCEPTED
        instance.emit(n, answer(instance.read(n)))
        assert slot.slot_stats(queue, P).base <= n
    assert [bytes(k) for k in queue.call("HKEYS", f"{P}pins")] == [b"near"]
    assert slot.slot_stats(queue, P).base == 19


def test_a_full_log_costs_no_pin_that_holds_nothing(servers: Servers) -> None:
    bound = 4 * len(b"".join(map(bytes, data("l", 1))))
    lane, instance = a_lane(servers, retained_bytes=bound), owner(servers)
    instance.limits = SlotLimits(retained_bytes=bound)
    queue = servers.queue()
    for n in (1, 2, 3):
        lane.push(n, n - 1, data("l", n))
    queue.call("FCALL", "udo_pin", 1, P.prefix, "next", 4, 60_000)
    instance.emit(1, answer(instance.read(1)))
    assert slot.slot_stats(queue, P).base == 4
    assert [bytes(k) for k in queue.call("HKEYS", f"{P}pins")] == [b"next"]


def test_a_parked_reader_wakes_at_once_and_a_standby_at_its_promotion(servers: Servers) -> None:
    lane, instance = a_lane(servers), owner(servers)
    assert instance.park(1, 1) is False
    lane.push(1, 0, data("l", 1))
    assert instance.park(1, 60_000) is True
    standby = slot_reader.SlotReader(servers.queue(), P, "s", 7)
    assert standby.park(1, 1, standby=True) is False
    slot.promote(servers.state(), servers.queue(), P, 7)
    assert standby.park(1, 60_000, standby=True) is True
    assert standby.look() == slot_reader.Read(0, (), base=1, emitted=0, owner=7)
    assert servers.queue().call("LLEN", f"{P}bell:s") <= 1


def test_answers_for_a_closed_lane_are_dropped_and_an_expired_lane_says_so(servers: Servers) -> None:
    lane, other, instance = a_lane(servers), a_lane(servers, "m"), owner(servers)
    lane.push(1, 0, data("l", 1))
    other.push(1, 0, data("m", 1))
    lane.close()
    servers.queue().call("DEL", f"{P}lane:m")
    assert instance.emit(1, answer(instance.read(1))) is slot_reader.Emit.EMITTED
    assert servers.queue().call("EXISTS", f"{P}out:l", f"{P}out:m") == 0
    with pytest.raises(LaneExpired, match="idle"):
        other.collect(1000)


def test_what_is_left_behind_by_a_lane_that_is_not_used_any_more_expires(servers: Servers) -> None:
    """The lane's task died: before its first frame was answered, or with answers that it never collected."""
    unanswered, uncollected, instance = a_lane(servers, "l", lane_ttl_ms=300), a_lane(servers, "m", lane_ttl_ms=300), owner(servers)
    instance.limits = SlotLimits(lane_ttl_ms=300)
    uncollected.push(1, 0, data("m", 1))
    assert instance.emit(1, answer(instance.read(1))) is slot_reader.Emit.EMITTED
    unanswered.push(1, 0, data("l", 1))
    keys = [f"{P}lane:l", f"{P}lane:m", f"{P}out:m"]
    assert all(0 < servers.queue().call("PTTL", key) <= 300 for key in keys)
    wait_until(lambda: not any(servers.queue().call("EXISTS", key) for key in keys), 10, "what they left to expire")


def test_the_head_of_a_dead_operator_is_answered_with_its_failure(servers: Servers) -> None:
    lane, instance = a_lane(servers), owner(servers)
    lane.push(1, 0, [b"garbage"])
    assert slot_reader.fail_head(servers.state(), servers.queue(), P, Failure(code="operator", message="died"), "1")
    assert [f.header.failure.message for f in lane.collect(1000)] == ["died"]
    assert not slot_reader.fail_head(servers.state(), servers.queue(), P, Failure(), "1")
    with pytest.raises(Fenced):
        instance.emit(2, [("l", data("l", 2))])


def test_the_failed_frame_of_a_keyed_operator_stays_in_the_log_and_its_lane_is_known(servers: Servers) -> None:
    a_lane(servers).push(1, 0, data("l", 1))
    assert slot_reader.fail_head(servers.state(), servers.queue(), P, Failure(message="died"), "1", keyed=True)
    assert slot.failed_lanes(servers.queue(), P) == {"l"}
    assert slot.slot_stats(servers.queue(), P).base == 1


def test_runs_are_ordered_by_their_plans_and_a_late_one_of_an_earlier_plan_is_stale(servers: Servers) -> None:
    state = servers.state()
    first = checkpoints.run_order(state, P, "s", "first", "c", 1000)
    second = checkpoints.run_order(state, P, "s", "second", "c", 3000)
    assert 0 < first < second
    assert checkpoints.run_order(state, P, "s", "first", "c", 1000) == first
    assert checkpoints.run_order(state, P, "s", "first", "c", 2500) == first, "planned anew, as in foreachBatch: the same run"
    with pytest.raises(Stale, match="built later"):
        checkpoints.run_order(state, P, "s", "zombie", "c", 2000)
    with pytest.raises(TwoProducers, match="uid="):
        checkpoints.run_order(state, P, "s", "second", "another call", 3000)
    assert checkpoints.newest_run(state, P, "s") == second
    assert checkpoints.newest_run(state, P, "other") == 0


def test_every_slot_orders_runs_alike_whichever_of_them_it_has_seen(servers: Servers) -> None:
    state, now_ms = servers.state(), 1_795_000_000_000
    here = [checkpoints.run_order(state, P, "s", run, "c", now_ms + at) for run, at in (("a", 0), ("b", 1), ("c", 2))]
    there = checkpoints.run_order(state, SlotKeys("t", 1), "s", "c", "c", now_ms + 2)

    assert there == here[2] > here[1] > here[0], "a group that moves takes labels along that are compared there"


def test_runs_of_one_plan_follow_one_another_as_they_are_first_seen(servers: Servers) -> None:
    state, plan = servers.state(), 1_795_000_000_000
    orders = [checkpoints.run_order(state, P, "s", run, "c", plan) for run in ("b", "a", "b", "c")]
    assert orders[0] == orders[2] < orders[1] < orders[3] < checkpoints.run_order(state, P, "s", "d", "c", plan + 1) < 1 << 53


def test_a_run_follows_one_that_a_clock_set_ahead_had_ordered(servers: Servers) -> None:
    """That order is from a release in which each driver's clock gave it; since the upgrade of the format its plan has number 0."""
    state, plan = servers.state(), 1_795_000_000_000
    ahead = (plan + 86_400_000) * RUNS_OF_A_PLAN + 1
    state.call("HSET", f"{P}runs:s", "before", f"{ahead} 0 c")
    orders = [checkpoints.run_order(state, P, "s", run, "c", plan + at) for at, run in enumerate(("first", "second"))]
    assert orders == [ahead + 1, ahead + 2]
    with pytest.raises(Stale):
        checkpoints.run_order(state, P, "s", "zombie", "c", plan)


def test_a_status_wakes_waiting_lanes(servers: Servers) -> None:
    lane = a_lane(servers)
    slot.set_status(servers.queue(), P, {"code": "operator", "message": "cannot import"})
    assert lane.status() == {"code": "operator", "message": "cannot import"}
    slot.set_status(servers.queue(), P, None)
    assert lane.status() is None


def test_dropping_a_slot_leaves_nothing(servers: Servers) -> None:
    lane, instance = a_lane(servers), owner(servers)
    lane.push(1, 0, data("l", 1))
    instance.park(1, 1)
    slot.drop_slot(servers.state(), servers.queue(), P)
    assert servers.queue().call("DBSIZE") == servers.state().call("DBSIZE") == 0


def test_another_run_of_the_server_and_a_missing_server_are_server_lost(servers: Servers) -> None:
    with pytest.raises(ServerLost, match="restarted"):
        Connection(servers.queue_socket, run_id="another")
    with pytest.raises(ServerLost, match="no server answers"):
        Connection(servers.queue_socket + ".none")


@pytest.mark.parametrize(
    ("bytes_", "what"),
    [
        (b"UDOF", "truncated"),
        (b"XXXX" + b"\0" * 12, "expected a frame starting"),
        (b"UDOF\x09\0" + b"\0" * 10, "version 9"),
        (b"".join(map(bytes, data("l", 1)))[:-8], "truncated"),
        (b"UDOF\x01\0\0\0\x04\0\0\0\0\0\0\0\xff\xff\xff\xff\0\0\0\0", "not a FrameHeader"),
    ],
)
def test_bytes_that_are_no_frame_are_named(bytes_: bytes, what: str) -> None:
    with pytest.raises(ProtocolError, match=what):
        decode(bytes_)


def test_values_beyond_what_is_looked_at_are_read_past_and_their_key_is_named(servers: Servers) -> None:
    queue = servers.queue()
    queue.call("HSET", f"{P}h", "a", "x" * 10, "b", "y" * 100_000, "c", "z" * 10)
    queue.call("SET", f"{P}s", "1")

    with pytest.raises(SlotBroken, match=f"key {P}h is broken: it holds more than the 1000 bytes that are looked at"):
        untrusted.read(queue, ("GET", f"{P}s"), ("HGETALL", f"{P}h"), most_bytes=1000)

    # The connection is still in step: the next replies are those of the next commands.
    assert untrusted.read(queue, ("GET", f"{P}s"), ("HMGET", f"{P}h", "a", "c"), most_bytes=1000) == [b"1", [b"x" * 10, b"z" * 10]]
    assert len(queue.call("HGET", f"{P}h", "b")) == 100_000

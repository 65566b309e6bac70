"""What an emit leaves for a diff: copies of its answers, in order, within a bound; and nothing when there is none to take them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.conftest import Servers
from tests.support.slots import P, a_lane, answer, data, owner
from udo_protocol.errors import Fenced
from udo_protocol.queue import access, slot, slot_reader
from udo_protocol.queue.connection import Connection, Login, ReplyError
from udo_protocol.queue.frame import decode

BIG = pa.record_batch({"a": list(range(20_000))})


def diffed(queue: Connection) -> list[bytes]:
    return [bytes(x) for x in queue.call("LRANGE", f"{P}diffed", 0, -1)]


def begin(queue: Connection, bound: int = 1 << 20, name: str = "standby") -> None:
    """What the node manager does."""
    queue.transaction([("FCALL", "udo_pin", 1, P, name, 1, 10_000), ("SET", f"{P}diff", f"{bound} {name}", "PX", 10_000)])


@pytest.mark.parametrize("batch", [None, BIG])
def test_copies_of_small_and_large_answers_of_several_lanes_come_in_one_entry_per_emit(
    servers: Servers, batch: pa.RecordBatch | None
) -> None:
    queue, one, two, instance = servers.queue(), a_lane(servers, "one"), a_lane(servers, "two"), owner(servers)
    begin(queue)
    for lane, n in ((one, 1), (two, 1), (one, 2)):
        lane.push(n, n - 1, data(lane.lane, n))
    answers = answer(instance.read(1)) if batch is None else [(a.lane, data(a.lane, n, BIG)) for a, n in ((one, 1), (two, 1), (one, 2))]

    assert instance.emit(1, answers) is slot_reader.Emit.EMITTED

    marker, *copies = diffed(queue)
    assert marker.split()[:3] == [b"1", b"3", b"3"] and int(marker.split()[3]) == sum(map(len, copies))
    assert int(queue.call("GET", f"{P}diffbytes")) == sum(map(len, copies))
    assert {(h.lane, h.number) for h in (decode(c).header for c in copies)} == {("one", 1), ("one", 2), ("two", 1)}
    assert [f.header.number for f in one.collect(1000)] == [1, 2] and len(two.collect(1000)) == 1  # who asked gets them all the same
    assert slot.slot_stats(queue, P).base == 1  # the pin holds the frames
    assert all(0 < queue.call("PTTL", f"{P}{key}") <= 60_000 for key in ("diffed", "diffbytes"))


def test_without_a_diff_and_for_refused_answers_nothing_is_copied(servers: Servers) -> None:
    queue, lane, instance = servers.queue(), a_lane(servers), owner(servers)
    lane.push(1, 0, data("l", 1))
    first = answer(instance.read(1))
    assert instance.emit(1, first) is slot_reader.Emit.EMITTED
    assert diffed(queue) == []
    begin(queue)
    assert instance.emit(1, first) is slot_reader.Emit.DUPLICATE
    assert instance.emit(3, first) is slot_reader.Emit.GAP
    owner(servers)
    with pytest.raises(Fenced):
        instance.emit(2, first)
    assert diffed(queue) == []


def test_beyond_its_bound_a_diff_loses_answers_and_takes_them_again_later(servers: Servers) -> None:
    queue, lane, instance = servers.queue(), a_lane(servers), owner(servers)
    begin(queue, bound=1)
    for n in (1, 2, 3):
        lane.push(n, n - 1, data("l", n))
        instance.emit(n, answer(instance.read(n)))
        if n == 2:
            queue.call("SET", f"{P}diffbytes", 0)  # the first one was taken
    assert [x.split()[:3] for x in diffed(queue)[::2]] == [[b"1", b"1", b"1"], [b"3", b"3", b"1"]]


def test_the_pin_of_a_diff_gives_way_at_half_of_what_the_log_may_hold_so_that_no_push_is_refused(servers: Servers) -> None:
    queue, lane = servers.queue(), a_lane(servers, retained_bytes=10_000)
    instance = owner(servers)
    instance.limits = lane.limits
    begin(queue)
    bytes_held = []
    for n in range(1, 101):
        assert lane.push(n, n - 1, data("l", n)).status == "ACCEPTED"
        instance.emit(n, answer(instance.read(n)))
        bytes_held.append(slot.slot_stats(queue, P).retained_bytes)
    assert 4_000 < max(bytes_held) < 6_000


def test_who_compares_may_read_frames_and_copies_and_answer_nobody(servers: Servers) -> None:
    queue, lane, instance = servers.queue(), a_lane(servers), owner(servers)
    lane.push(1, 0, data("l", 1))
    queue.call("ACL", "SETUSER", "standby", "on", ">pw", *access.comparing(P, "standby"))
    try:
        begin(queue)
        instance.emit(1, answer(instance.read(1)))
        conn = Connection(queue.path, login=Login("standby", "pw"))
        reader = slot_reader.SlotReader(conn, P, "standby", 10**6)
        assert len(reader.read(1).frames) == 1 and len(diffed(conn)) == 2
        assert reader.pin(2, 1000) == 1
        for command in (("RPUSH", f"{P}out:l", "x"), ("SET", f"{P}emitted", "5"), ("SET", f"{P}owner", "9"), ("SET", f"{P}diff", "9 me")):
            with pytest.raises(ReplyError, match="NOPERM"):
                conn.call(*command)
        with pytest.raises(Fenced):
            reader.emit(2, [("l", data("l", 2))])
        conn.close()
    finally:
        queue.call("ACL", "DELUSER", "standby")


@pytest.mark.parametrize("garbage", [("SET", "x"), ("RPUSH", "x"), ("SADD", "x"), ("HSET", "x", "y")])
@pytest.mark.parametrize("key", ["pins", "diffed", "diffbytes"])
def test_whatever_who_compares_leaves_in_its_keys_the_serving_one_answers(servers: Servers, key: str, garbage: tuple[str, ...]) -> None:
    queue, lane, instance = servers.queue(), a_lane(servers), owner(servers)
    lane.push(1, 0, data("l", 1))
    begin(queue)
    queue.call("DEL", f"{P}{key}")
    queue.call(garbage[0], f"{P}{key}", *garbage[1:])

    assert instance.emit(1, answer(instance.read(1))) is slot_reader.Emit.EMITTED

    assert [f.header.number for f in lane.collect(1000)] == [1]
    assert slot.slot_stats(queue, P).depth_frames == 0
    assert instance.pin(1, 1000) >= 1  # and the key can be used again

"""Copies of answers that an emit leaves for a comparison: in order, within a bound, and none when nobody takes them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.conftest import Servers, wait_until
from tests.support.slots import P, a_lane, answer, data, owner
from udo_protocol.errors import Fenced
from udo_protocol.queue import access, slot, slot_reader
from udo_protocol.queue.connection import Connection, Login, ReplyError
from udo_protocol.queue.frame import decode

BIG = pa.record_batch({"a": list(range(20_000))})


def diffed(queue: Connection, name: str = "standby") -> list[bytes]:
    return [bytes(x) for x in queue.call("LRANGE", f"{P}served:{name}", 0, -1)]


def begin(queue: Connection, bound: int = 1 << 20, name: str = "standby") -> None:
    """Pin the log and begin to mirror, as the node manager does."""
    queue.transaction([("FCALL", "udo_pin", 1, P.prefix, name, 1, 10_000), ("FCALL", "udo_mirror", 1, P.prefix, name, bound, 10_000)])


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
    assert int(queue.call("GET", f"{P}servedbytes:standby")) == sum(map(len, copies))
    assert {(h.lane, h.number) for h in (decode(c).header for c in copies)} == {("one", 1), ("one", 2), ("two", 1)}
    assert [f.header.number for f in one.collect(1000)] == [1, 2] and len(two.collect(1000)) == 1  # the callers get them anyway
    assert slot.slot_stats(queue, P).base == 1  # the pin holds the frames
    assert all(0 < queue.call("PTTL", f"{P}{key}") <= 60_000 for key in ("served:standby", "servedbytes:standby"))


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
            queue.call("SET", f"{P}servedbytes:standby", 0)  # the first copy was taken
    assert [x.split()[:3] for x in diffed(queue)[::2]] == [[b"1", b"1", b"1"], [b"3", b"3", b"1"]]


def test_each_of_several_has_copies_of_its_own_and_its_own_bound_until_its_lease_ends(servers: Servers) -> None:
    queue, lane, instance = servers.queue(), a_lane(servers), owner(servers)
    begin(queue)
    begin(queue, bound=1, name="small")
    for n in (1, 2):
        lane.push(n, n - 1, data("l", n))
        instance.emit(n, answer(instance.read(n)))
    assert [x.split()[:3] for x in diffed(queue)[::2]] == [[b"1", b"1", b"1"], [b"2", b"2", b"1"]]
    assert [x.split()[:3] for x in diffed(queue, "small")[::2]] == [[b"1", b"1", b"1"]]
    assert queue.call("FCALL", "udo_mirror", 1, P.prefix, "standby", 0, 0) == 1
    lane.push(3, 2, data("l", 3))
    instance.emit(3, answer(instance.read(3)))
    assert len(diffed(queue)) == 4 and bytes(queue.call("GET", f"{P}mirrors")).startswith(b"small 1 ")
    assert queue.call("FCALL", "udo_mirror", 1, P.prefix, "small", 1, 1) == 1
    wait_until(lambda: queue.call("EXISTS", f"{P}mirrors") == 0, 5, "the end of the last lease")
    assert queue.call("FCALL", "udo_mirror", 1, P.prefix, "small", 1, 1000) == 0  # its lease had ended


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
        for command in (
            ("RPUSH", f"{P}out:l", "x"),
            ("SET", f"{P}emitted", "5"),
            ("SET", f"{P}owner", "9"),
            ("SET", f"{P}mirrors", "me 9 9"),
        ):
            with pytest.raises(ReplyError, match="NOPERM"):
                conn.call(*command)
        with pytest.raises(Fenced):
            reader.emit(2, [("l", data("l", 2))])
        conn.close()
    finally:
        queue.call("ACL", "DELUSER", "standby")


@pytest.mark.parametrize("garbage", [("SET", "x"), ("RPUSH", "x"), ("SADD", "x"), ("HSET", "x", "y")])
@pytest.mark.parametrize("key", ["pins", "served:standby", "servedbytes:standby"])
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

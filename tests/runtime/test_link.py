"""An instance's link to its slot, on real servers."""

from __future__ import annotations

from udo_runtime.drivers.link import Link

from tests.conftest import Servers
from tests.support.slots import P, a_lane, data, owner
from udo_protocol.limits import SlotLimits
from udo_protocol.queue import slot
from udo_protocol.queue.keys import HEARTBEAT
from udo_protocol.queue.slot_reader import SlotReader


def test_a_standby_does_its_housekeeping_while_it_waits_but_not_once_it_is_promoted(servers: Servers) -> None:
    owner(servers)
    a_lane(servers).push(1, 0, data("l", 1))
    servers.queue().call("SET", HEARTBEAT, 1)
    queue = servers.queue()

    def standby(name: str) -> tuple[Link, list[str]]:
        link, done = Link(queue, SlotReader(queue, P, name, slot.next_token(servers.state(), P)), SlotLimits()), list[str]()
        link.look_after = lambda: done.append(name)
        return link, done

    waiting, done = standby("waiting")
    waiting.park_standby(2, 1)
    assert done == ["waiting"]

    promoted, done = standby("promoted")
    slot.promote(servers.state(), servers.queue(), P, promoted.reader.token)
    promoted.park_standby(2, 60_000)
    assert done == [], "the frame that waits comes first"
    assert promoted.owns(promoted.await_promotion())
    promoted.housekeeping()
    assert done == ["promoted"]

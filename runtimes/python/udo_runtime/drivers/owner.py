"""The loop of a slot's owner: read at the cursor, answer, until fenced or told to stop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from udo_protocol.errors import Fenced
from udo_protocol.queue.backoff import LinearBackoff
from udo_runtime.drivers.link import Link


class Owner(Protocol):
    """Answers the frames that the loop has read."""

    def answer(self, seq: int, frames: Sequence[bytes | bytearray]) -> int:
        """Answer these frames, the first of which is number `seq`; returns the number to continue from."""

    def expected_base(self, cursor: int) -> int | None:
        """The base of the log at the next read, if it is known without asking."""

    def settle(self) -> None:
        """Receive outstanding replies on the connection."""


def serve(link: Link, owner: Owner, cursor: int) -> None:
    """Run until told to stop (returns), fenced (Fenced) or left without a node manager (Unavailable)."""
    limits, reader = link.limits, link.reader
    backoff = LinearBackoff(limits.backoff_increment_us, limits.backoff_ceiling_us)
    pinned = False  # a pin keeps frames before the cursor in the log
    while not link.stopping:
        park_ms = limits.park_ms if backoff.at_ceiling else None
        reader.send_read(cursor, None if pinned else owner.expected_base(cursor), park_ms)
        if park_ms is not None:
            with link.parking():
                reader.sleep()
        owner.settle()
        if park_ms is not None:
            reader.woken(park_ms)
        read = reader.receive_read(cursor) or reader.read(cursor)
        if read.owner != reader.token:
            raise Fenced(f"token {reader.token} is not the owner any more, {read.owner} is")
        pinned = read.base < read.first
        cursor = owner.answer(read.first, read.frames) if read.frames else read.first
        if read.frames:
            link.counters.bytes_in += sum(map(len, read.frames))
            backoff.reset()
        if read.frames or park_ms is not None:
            link.housekeeping(owner.settle)
        else:
            backoff.pause()

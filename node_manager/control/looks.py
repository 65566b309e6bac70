"""The figures of one look at a slot, and the rates that follow from the looks of the last seconds. No I/O, no clock.

A frame's number of events is known only once it is answered, so waiting and arriving events are estimated: frames, which the slot's log
counts exactly, times the recent number of events per frame. An instance publishes its counters about once a second, so the time in the
operator is estimated as its time per counted frame times the frames answered, which the log counts at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

# The numbers of a log that began anew, or was lost with its server, jump: no slot answers this many frames between two looks.
_MOST_FRAMES = 1 << 30
# A slot counts as measured once looks at it with an owner cover this share of the window.
_LEAST_SHARE = 0.5
# Frames answered longer ago than this are in the instance's published counters.
_COUNTED_S = 2.0
# Callers count as held back when this share of the frames that they may have under way waits: the others are in transit, or being made.
_FULL_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class SlotLook:
    """One look. at_s: monotonic. owner: the instance, '' while there is none. tail, emitted: numbers of the last accepted frame, and of the
    last answered one. published: whether there are counters; these and cpu_s are the owner's own. cores, memory_bytes: its limits. told:
    frames that the node manager wrote into the log, which are no work (a prepared scale-out, a move). most_frames: that all lanes together
    may have under way."""

    at_s: float
    owner: str
    tail: int
    emitted: int
    lanes: int
    retained_bytes: int
    events_in: float
    events_out: float
    frames: float
    busy_s: float
    cpu_s: float
    rss_bytes: int
    cores: float
    memory_bytes: int
    published: bool = True
    told: int = 0
    most_frames: int = 0

    @property
    def depth_frames(self) -> int:
        """Frames that have no answer yet."""
        return self.tail - self.emitted

    @property
    def full(self) -> bool:
        """Whether the callers are held back: they have about as many frames under way as they may."""
        return 0 < _FULL_SHARE * self.most_frames <= self.depth_frames


@dataclass(frozen=True)
class SlotRates:
    """A slot over the last `window_s` seconds.

    cpu, memory: shares of the owner's limits. busy: share of the time in the operator. arrivals, answers, outputs: events/s that arrived,
    were answered, and came out. backlog: events that wait. service_ms: time of a frame in the operator. response_ms: from push to answer,
    by Little's law; None without frames. lanes: the most that were open at once. held: share of the looks at which the callers were held
    back by answers that they waited for, so that more events may wait in them than `backlog` says.
    """

    window_s: float
    cpu: float
    memory: float
    busy: float
    arrivals: float
    answers: float
    outputs: float
    backlog: float
    service_ms: float
    response_ms: float | None
    lanes: int
    rss_bytes: int
    held: float

    @property
    def use(self) -> float:
        """Share of the time in which it worked: the higher of processor use and time in the operator."""
        return max(self.cpu, self.busy)

    @property
    def growth(self) -> float:
        """Events/s by which the queue grows; below 0 it shrinks."""
        return self.arrivals - self.answers


def rates(looks: Sequence[SlotLook], window_s: float) -> SlotRates | str:
    """The rates over the last window_s seconds of `looks`, oldest first; without rates, a text with the reason."""
    if not looks:
        return "it has not been looked at yet"
    last = looks[-1]
    if not last.owner:
        return "it has no owner"
    seen = [look for look in looks if look.at_s >= last.at_s - window_s]
    pairs = [(a, b) for a, b in pairwise(seen) if b.owner and _one_log(a, b)]
    took_s = sum(b.at_s - a.at_s for a, b in pairs)
    if not pairs or took_s < _LEAST_SHARE * window_s:
        return f"it has been looked at for {took_s:.0f} s of {window_s:.0f}"
    own = [(a, b) for a, b in pairs if a.owner == b.owner]
    arrived, answered = (sum(getattr(b, n) - getattr(a, n) for a, b in pairs) for n in ("tail", "emitted"))
    told = sum(max(0, b.told - a.told) for a, b in pairs)
    arrived, answered = max(0, arrived - told), max(0, answered - told)
    events, came_out, counted, busy_s = (
        sum(max(0.0, getattr(b, n) - getattr(a, n)) for a, b in own) for n in ("events_in", "events_out", "frames", "busy_s")
    )
    if not counted:  # nothing published within the window: the totals since the instance's start
        events, came_out, counted, busy_s = last.events_in, last.events_out, last.frames, last.busy_s
    before = [look.emitted for look in looks if look.owner == last.owner and look.at_s <= last.at_s - _COUNTED_S]
    if answered and not counted and not (last.published and before and before[-1] > before[0]):
        return "its instance has not published its counters"
    per_frame, out_of_frame, service_s = (x / counted if counted else 0.0 for x in (events, came_out, busy_s))
    unit = per_frame or (0.0 if answered else 1.0)  # no answered frame had events: ends of epochs, in a keyed slot without work
    stuck = not answered and all(look.depth_frames for pair in pairs for look in pair)
    own_s = sum(b.at_s - a.at_s for a, b in own)
    cpu_s = sum(max(0.0, b.cpu_s - a.cpu_s) for a, b in own)
    return SlotRates(
        window_s=took_s,
        cpu=min(1.0, cpu_s / own_s / last.cores) if own_s else 0.0,
        memory=last.rss_bytes / last.memory_bytes if last.memory_bytes else 0.0,
        busy=1.0 if stuck else min(1.0, service_s * answered / took_s),
        arrivals=arrived / took_s * unit,
        answers=answered / took_s * per_frame,
        outputs=answered / took_s * out_of_frame,
        backlog=last.depth_frames * unit,
        service_ms=1000 * service_s,
        response_ms=_response_ms(pairs, answered, took_s, service_s),
        lanes=max(look.lanes for look in seen),
        rss_bytes=last.rss_bytes,
        held=sum(look.full for _, look in pairs) / len(pairs),
    )


def _one_log(a: SlotLook, b: SlotLook) -> bool:
    return 0 <= b.tail - a.tail < _MOST_FRAMES and 0 <= b.emitted - a.emitted < _MOST_FRAMES


def _response_ms(pairs: Sequence[tuple[SlotLook, SlotLook]], answered: int, took_s: float, service_s: float) -> float | None:
    """Mean frames in the slot ÷ frames/s, but no less than a frame's time in the operator; without answers, the time that frames waited."""
    waiting = sum(b.depth_frames for _, b in pairs) / len(pairs)
    if answered:
        return 1000 * max(waiting * took_s / answered, service_s)
    return 1000 * took_s if waiting else None

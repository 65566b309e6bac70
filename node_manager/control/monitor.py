"""Looks at each slot of this node once a second, and keeps the looks of the last minutes.

It reads existing figures: the log's numbers and the owner's counters on the queue server, over one connection, and the driver's samples of
the owner. `cpu_s` is the cost of that. A slot that cannot be read is not looked at, nor is any while a server is away: missing figures are
not figures of 0.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Event, Lock, Thread

import psutil

from node_manager.control.group_loads import GroupLoads
from node_manager.control.looks import SlotLook, SlotRates, rates
from node_manager.control.metering import Meter
from node_manager.deployments.deployments import Deployments
from node_manager.drivers.base import Allowance, Driver
from node_manager.servers.embedded import Servers
from node_manager.slots.slot import SlotView
from udo_protocol import supervised
from udo_protocol.errors import ServerLost, SlotBroken
from udo_protocol.limits import DEFAULT
from udo_protocol.queue import route, slot
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.state import session_record

# The interval at which counters are published, too; a look costs some 0.2 ms of processor time.
LOOK_S = 1.0
# Looks kept of a slot: five minutes, some 100 KB.
KEPT_LOOKS = 300
# The shortest window of rates: a few looks, some of which may come late.
LEAST_WINDOW_S = 3.0
# A round under way ends with the server's answers, within a few seconds.
_STOP_S = 5.0


class Monitor:
    """The looks of one node. Methods may be called from any thread; `listeners` get the time after each round, in its thread."""

    def __init__(self, servers: Servers, driver: Driver, deployments: Deployments, meter: Meter, window_s: float) -> None:
        self._servers, self._driver, self._deployments, self._meter = servers, driver, deployments, meter
        self.window_s = max(window_s, LEAST_WINDOW_S)
        self.groups = GroupLoads(self.window_s)
        self.listeners: list[Callable[[float], object]] = [meter.save]
        self.cpu_s, self._begun_s = 0.0, time.monotonic()
        self.node_use = 0.0
        self._cores, self._memory_bytes = psutil.cpu_count() or 1, psutil.virtual_memory().total
        self._looks: dict[tuple[str, int], deque[SlotLook]] = {}
        self._queue: Connection | None = None
        self._over, self._lock = Event(), Lock()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Begin."""
        self._meter.load()
        self._thread = supervised.keep("monitor", self._run, self._over)

    def stop(self) -> None:
        """End; the metered usage is then on disk."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(_STOP_S)
        else:
            self._disconnect()
        self._meter.save(time.monotonic(), force=True)

    @property
    def cores(self) -> int:
        """The cores of this node."""
        return self._cores

    @property
    def watched_s(self) -> float:
        """Seconds since it began to watch, in which it has used `cpu_s`."""
        return time.monotonic() - self._begun_s

    def rates(self, deployment: str, number: int) -> SlotRates | str:
        """The rates of a slot over the window; without rates, a text with the reason."""
        return rates(self.looks(deployment, number), self.window_s)

    def looks(self, deployment: str, number: int) -> tuple[SlotLook, ...]:
        """The looks kept of a slot, oldest first."""
        with self._lock:
            return tuple(self._looks.get((deployment, number), ()))

    def _run(self) -> None:
        try:
            while not self._over.wait(LOOK_S):
                before = time.thread_time()
                try:
                    self.look(time.monotonic())
                finally:
                    self.cpu_s += time.thread_time() - before
        finally:
            self._disconnect()

    def look(self, now_s: float) -> None:
        """One round over all slots."""
        self.node_use = psutil.cpu_percent() / 100
        views = [s.view() for s in self._deployments.slots()]
        with contextlib.suppress(ServerLost):
            for v, seen in self._seen(views, now_s):
                with self._lock:
                    self._looks.setdefault((v.deployment, v.number), deque(maxlen=KEPT_LOOKS)).append(seen)
        there = {(v.deployment, v.number) for v in views}
        with self._lock:
            for gone in self._looks.keys() - there:
                del self._looks[gone]
        self._meter.gone(there)
        self.groups.forget(there)
        self._measure_state(now_s)
        for listener in self.listeners:
            try:
                listener(now_s)
            except Exception:  # a listener that fails does not end the looks
                supervised.failed("monitor", "what follows a look")

    def _seen(self, views: list[SlotView], now_s: float) -> Iterator[tuple[SlotView, SlotLook]]:
        if not views:
            return
        queue = self._connected()
        try:
            for v in views:
                with contextlib.suppress(SlotBroken):
                    yield v, self._look_at(queue, v, now_s)
        except BaseException:  # replies may still arrive
            self._disconnect()
            raise

    def _look_at(self, queue: Connection, v: SlotView, now_s: float) -> SlotLook:
        keys = SlotKeys(v.deployment, v.number)
        log = slot.slot_stats(queue, keys)
        now = slot.read_stats(queue, keys, v.owner.name) if v.owner else {}
        seen = self._driver.inspect(v.owner.handle) if v.owner and v.owner.handle else None
        self._count(queue, v, now, seen.cpu_s if seen else 0.0)
        if v.owner and v.wanted and v.wanted.image.manifest.key:
            packed = slot.read_group_events(queue, keys, v.owner.name)
            self.groups.look(v.deployment, v.number, now_s, v.owner.name, packed)
        allowed = v.owner.assigned.allowance if v.owner else Allowance()
        limits = v.wanted.config.slot_limits if v.wanted else DEFAULT
        owner = v.owner.name if v.owner and seen and seen.running else ""
        return SlotLook(
            now_s,
            owner,
            log.emitted + log.depth_frames,
            log.emitted,
            log.lanes,
            log.retained_bytes,
            events_in=now.get("events_in", 0.0),
            events_out=now.get("events_out", 0.0),
            frames=now.get("frames", 0.0),
            busy_s=now.get("busy_s", 0.0),
            cpu_s=seen.cpu_s if seen else 0.0,
            rss_bytes=seen.rss_bytes if seen else 0,
            cores=allowed.cpus or 1.0,  # without a limit one core: the most that an operator in Python can use
            memory_bytes=allowed.memory_bytes or self._memory_bytes,
            published=bool(now),
            told=route.frames_told(queue, keys),
            most_frames=log.lanes * limits.share(log.lanes),
        )

    def _count(self, queue: Connection, v: SlotView, now: Mapping[str, float], cpu_s: float) -> None:
        """Meter the counts of the owner, and those of former owners to their end."""
        at = time.time()
        if v.owner:
            self._meter.count(v.deployment, v.number, v.owner.name, {**now, "cpu_s": cpu_s}, at)
        for name in self._meter.former(v.deployment, v.number, v.owner.name if v.owner else ""):
            self._meter.count_former(name, slot.read_stats(queue, SlotKeys(v.deployment, v.number), name), at)

    def _measure_state(self, now_s: float) -> None:
        """Meter the bytes of each keyed session, if that is due."""
        seconds = self._meter.state_due_s(now_s)
        keyed = [d for d in self._deployments.all() if d.slot.wanted and d.slot.wanted.image.manifest.key]
        if seconds is None or not keyed:
            return
        with contextlib.suppress(ServerLost), contextlib.closing(self._servers.glance("state")) as state:
            for d in keyed:
                with contextlib.suppress(SlotBroken):
                    self._meter.hold(d.name, _sessions(state, [own.keys for own in d.own]), seconds, time.time())

    def _connected(self) -> Connection:
        if self._queue is None:
            self._queue = self._servers.glance("queue")
        return self._queue

    def _disconnect(self) -> None:
        if self._queue is not None:
            self._queue.close()
            self._queue = None


def _sessions(state: Connection, slots: Iterable[SlotKeys]) -> dict[str, int]:
    """The bytes of each session over these slots."""
    found: dict[str, int] = {}
    for keys in slots:
        for session, record in session_record.read(state, keys).items():
            found[session] = found.get(session, 0) + record.bytes
    return found

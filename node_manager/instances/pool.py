"""Warm instances: the runtime is loaded and waits for an operator, so that an update does not wait for an interpreter."""

from __future__ import annotations

import time
from threading import Event, Lock, Thread

import structlog

from node_manager.instances.instances import Instance, Instances
from udo_protocol import supervised
from udo_protocol.errors import UdoError

_log = structlog.get_logger()
# The next warm instance is started this long after one was taken, or was loading state: that one has the processor until then.
_REFILL_AFTER_S = 0.5
# A runtime that dies is started again after this time, not in a tight loop.
_RETRY_S = 10.0


class Pool:
    """Keeps `size` warm instances; `engines`: engines for operators in a process of their own, from the first request on."""

    def __init__(self, instances: Instances, size: int, stop_grace_s: float, *, engines: bool = False) -> None:
        self._instances, self._most, self._stop_grace_s, self._engines = instances, size, stop_grace_s, engines
        self._size = 0 if engines else size
        self._warm: list[Instance] = []
        self._lock = Lock()
        self._wake, self._stopping = Event(), Event()
        self._thread: Thread | None = None
        self._not_before = 0.0

    def start(self, adopted: list[Instance]) -> None:
        """Take over warm instances of a former manager and keep the pool filled."""
        for instance in adopted:
            self._size = self._most
            self._add(instance)
        self._thread = supervised.keep("warm-pool", self._refill, self._stopping)

    def take(self) -> Instance:
        """A warm instance, or a new one when there is none; it may still be loading its runtime."""
        with self._lock:
            self._size = self._most
            self.hold()
            self._wake.set()
            while self._warm:
                instance = self._warm.pop()
                if not instance.exited.is_set():
                    return instance
        return self._instances.start(engine=self._engines)

    def hold(self) -> None:
        """Start no warm instance for a moment, since an instance is being loaded."""
        self._not_before = max(self._not_before, time.monotonic() + _REFILL_AFTER_S)

    def stop(self) -> None:
        """Stop them all."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(5)
        with self._lock:
            warm, self._warm = self._warm, []
        for instance in warm:
            self._instances.stop(instance, self._stop_grace_s)

    def _add(self, instance: Instance) -> None:
        with self._lock:
            self._warm.append(instance)
        instance.listen(self._died)

    def _died(self, instance: Instance) -> None:
        with self._lock:
            if instance not in self._warm:
                return
            self._warm.remove(instance)
            self._not_before = time.monotonic() + _RETRY_S
        _log.warning("warm instance died", instance=instance.name, how=str(instance.exit))
        self._instances.remove(instance)
        self._wake.set()

    def _refill(self) -> None:
        while not self._stopping.is_set():
            with self._lock:
                missing = self._size - len(self._warm)
            if missing <= 0:
                self._wake.wait()
                self._wake.clear()
                continue
            if (pause_s := self._not_before - time.monotonic()) > 0:
                self._stopping.wait(pause_s)
                continue
            try:
                self._warm_up()
            except (UdoError, OSError) as e:
                _log.error("no warm instance could be started", error=str(e))
                self._not_before = time.monotonic() + _RETRY_S

    def _warm_up(self) -> None:
        instance = self._instances.start(engine=self._engines)
        try:
            with self._lock:  # a reader of its record on disk may rely on it
                self._instances.move(instance, "warm")
                self._warm.append(instance)
        except BaseException:  # nobody else knows it
            self._instances.stop(instance, self._stop_grace_s)
            raise
        instance.listen(self._died)

"""Mirrors: a new version answers the same frames as the serving one, and the differences are reported. It never serves.

Two uses: a diff, whose caller gets the findings, and the canary of a keyed operator (keyed_canaries.py), on which the registry decides. The
instance compares (udo_runtime.drivers.mirror); this side starts it, renews its lease in `mirrors`, without which nothing is kept for it,
fetches its findings, and removes every trace. Without this manager the lease ends within seconds, and the instance leaves. Comparisons of
one deployment do not know of one another, nor of an update's standby.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from threading import Event, Lock

import structlog

from node_manager.instances.instances import Instance
from node_manager.servers.embedded import ROLES
from node_manager.slots import loading
from node_manager.slots.loading import Load, NodeParts, Wanted, log_end
from node_manager.slots.slot import Slot
from node_manager.slots.watching import LOOK_MOST_S
from udo_protocol.assignment import MirrorRole
from udo_protocol.clock import ObservedTime
from udo_protocol.diff_report import DiffReport, Findings, FrameTimes
from udo_protocol.errors import Conflict, SchemaError, ServerLost, SlotBroken, Unavailable
from udo_protocol.formats.manifest import Manifest, update_refusals
from udo_protocol.node import diff_reports
from udo_protocol.queue import slot as log
from udo_protocol.queue import untrusted
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.keys import SlotKeys

_log = structlog.get_logger()
# Without a manager that renews it, the owner stops keeping copies after this time.
_LEASE_MS = 10_000
_LOOK_S = 0.5
# Answers still kept when the diff ends are compared within this time, or count as missed.
_DRAIN_S = 10.0
# Bytes of answers kept for the comparison: many frames, a small part of what the log may hold.
_KEPT_BYTES = 64 << 20
# The comparing instance runs at this niceness: everything else that wants the processor goes first (measured: benchmarks diff).
_NICE = 19
# Examples handed on at once: fewer than a message may hold.
_FETCHED = 100


@dataclass(frozen=True)
class MirrorFindings:
    """The findings so far; `examples` are JSON, each handed on once."""

    report: DiffReport
    examples: list[str]


@dataclass(eq=False)
class MirrorTrial:
    """One diff of one slot, or one try of a `canary`."""

    slot: Slot
    wanted: Wanted
    load: Load
    over: Event
    report: DiffReport
    canary: bool


def _findings(text: bytes, key: str) -> DiffReport:
    """A report with the findings of a comparing instance; SlotBroken unless they have the form of udo_protocol.diff_report.Findings."""
    with untrusted.reading(key, "the findings of a comparison"):
        found = diff_reports.parse(text)
    numbers = [v for v in vars(found).values() if isinstance(v, (int, float))]
    for number in (*numbers, *found.columns.values(), *found.served_by.values()):
        untrusted.measure(number, key)
    return DiffReport(**{f.name: getattr(found, f.name) for f in fields(Findings)})  # only this side sets the other fields


class Mirrors:
    """The mirrors of a node."""

    def __init__(self, node: NodeParts) -> None:
        self._node = node
        self._running: list[MirrorTrial] = []
        self._stopping = False
        self._lock = Lock()

    def describe(self, deployment: str, number: int) -> str:
        """The findings of this slot's running diffs, in a few words; '' if there are none."""
        with self._lock:
            diffs = [c for c in self._running if (c.slot.deployment, c.slot.number) == (deployment, number) and not c.canary]
        return "; ".join(f"{c.wanted.reference}: {c.report.frames} frames compared, {c.report.different} different" for c in diffs)

    def end(self, deployment: str = "", *, serving: Manifest | None = None) -> None:
        """End the comparisons of this deployment and wait for that; by default those of all, for good. With `serving`, which a keyed
        deployment is about to serve, end only those whose version cannot read its state."""
        with self._lock:
            self._stopping |= not deployment
            ending = [c for c in self._running if deployment in ("", c.slot.deployment)]
        if serving is not None:
            readable = ((c.wanted.image.manifest.state_version, *c.wanted.image.manifest.migrates_from) for c in ending)
            ending = [c for c, versions in zip(ending, readable, strict=True) if serving.state_version not in versions]
        for comparison in ending:
            comparison.load.cancelled.set()
        for comparison in ending:
            comparison.over.wait(self._node.settings.stop_grace_s + 5)

    def run(
        self, slot: Slot, wanted: Wanted, for_s: float, examples: int, stop: Event, canary: Sequence[int] | None = None
    ) -> Iterator[MirrorFindings]:
        """Compare for that long, or until `stop`; yield the findings, at the end with the outcome.

        `canary`: the key groups that it tries; None for a diff. SchemaError if the version cannot be compared, OperatorError if
        it does not load, Conflict if it could not keep up through no fault of the version.
        """
        self._require_comparable(slot, wanted)
        role = MirrorRole(examples, _NICE, None if canary is None or len(canary) == wanted.config.key_groups else tuple(canary))
        serving = slot.wanted.image.manifest.state_version if slot.wanted else 0
        load = Load(wanted, follow=True, serving=serving, cancelled=stop, mirror=role)
        comparison = MirrorTrial(slot, wanted, load, Event(), DiffReport(), canary is not None)
        with self._lock:
            if self._stopping:
                raise Unavailable(f"node {self._node.settings.node} is stopping")
            self._running.append(comparison)
        try:
            yield from self._steps(comparison, for_s)
        finally:
            with self._lock:
                self._running.remove(comparison)
            comparison.over.set()

    def _require_comparable(self, slot: Slot, wanted: Wanted) -> None:
        new, old = wanted.image.manifest, slot.wanted.image.manifest if slot.wanted else None
        if old and (why := update_refusals(old, new)):
            raise SchemaError(f"{new.reference} cannot answer in the place of {old.reference}: {'; '.join(why)}")

    def _steps(self, c: MirrorTrial, for_s: float) -> Iterator[MirrorFindings]:
        try:
            loading.run(c.load, self._node, c.slot.deployment, c.slot.number)
            assert c.load.instance is not None
            self._node.instances.move(c.load.instance, "standby")
            with contextlib.closing(self._node.servers.connect("queue")) as queue:
                yield from self._compare(c, queue, for_s)
        finally:
            self._remove(c)

    def _compare(self, c: MirrorTrial, queue: Connection, for_s: float) -> Iterator[MirrorFindings]:
        instance, keys, p = c.load.instance, c.slot.keys, c.slot.keys.prefix
        assert instance is not None
        bound = min(_KEPT_BYTES, c.wanted.config.slot_limits.retained_bytes // 4)
        runs = self._runs()
        began = time.monotonic()
        looks, still_s, observed = 0, 0.0, ObservedTime(LOOK_MOST_S)
        start, *_ = queue.transaction(
            [
                ("GET", keys.emitted),
                ("FCALL", "udo_pin", 1, p, instance.name, 1, _LEASE_MS),
                ("FCALL", "udo_mirror", 1, p, instance.name, bound, _LEASE_MS),
            ]
        )
        while not c.load.cancelled.wait(min(_LOOK_S, max(began + for_s - time.monotonic(), 0))):
            now = time.monotonic()
            if instance.exited.is_set() or now >= began + for_s:
                break
            still_s += observed.lap()
            if c.report.looks != looks:
                looks, still_s = c.report.looks, 0.0
            elif still_s > c.wanted.silence_s:
                break
            if not queue.call("FCALL", "udo_mirror", 1, p, instance.name, bound, _LEASE_MS):
                raise Conflict(f"the diff of {c.slot.deployment!r} lost its lease: its node manager was held up for {_LEASE_MS / 1000:g} s")
            yield MirrorFindings(self._report(c, queue), self._examples(c, queue))
        end, _ = queue.transaction([("GET", keys.emitted), ("FCALL", "udo_mirror", 1, p, instance.name, 0, 0)])
        lasted_s = time.monotonic() - began
        deadline = time.monotonic() + (0 if c.canary else _DRAIN_S)
        while not instance.exited.wait(0.05) and time.monotonic() < deadline:
            pass
        report = self._report(c, queue)
        answered = untrusted.number(end, keys.emitted) - untrusted.number(start, keys.emitted)
        report.missed = max(answered - report.seen, 0)
        report.lasted_s = round(lasted_s, 3)
        report.died = "" if c.canary and c.load.cancelled.is_set() else self._death(c, report)
        if report.died and instance.exited.is_set():
            self._require_own_fault(c, report, runs)
        while more := self._examples(c, queue):
            yield MirrorFindings(report, more)
        yield MirrorFindings(replace(report, final=True), [])

    def _death(self, c: MirrorTrial, report: DiffReport) -> str:
        """Why the comparison ended too early; '' if it did not."""
        instance = c.load.instance
        assert instance is not None
        if not instance.exited.is_set():
            return f"{c.wanted.reference} hangs, or is too slow: it did not finish its comparison in time"
        if report.ended:
            return ""
        return f"the instance of {c.wanted.reference} died: {instance.exit}{log_end(instance)}"

    def _runs(self) -> list[str]:
        """The run ids of both servers; ServerLost while one is away."""
        found = []
        for role in ROLES:
            with contextlib.closing(self._node.servers.connect(role)) as conn:
                found.append(conn.run_id)
        return found

    def _require_own_fault(self, c: MirrorTrial, report: DiffReport, runs: list[str]) -> None:
        if report.left:
            raise Conflict(f"{c.wanted.reference} can no longer be compared: {report.left}")
        if self._runs() != runs:
            raise ServerLost(f"a server of node {self._node.settings.node} was lost while {c.wanted.reference} was compared")

    def _report(self, c: MirrorTrial, queue: Connection) -> DiffReport:
        assert c.load.instance is not None
        key = c.slot.keys.compared(c.load.instance.name)
        (text,) = untrusted.read(queue, ("GET", key))
        found = _findings(text, key) if text else c.report
        view = c.slot.view()
        serving: dict[str, float] = {}
        with contextlib.suppress(SlotBroken):
            serving = log.read_stats(queue, c.slot.keys, view.owner.name) if view.owner else {}
        manifest = view.wanted.image.manifest if view.wanted else None
        times = FrameTimes(serving.get("p50_ms", 0.0), serving.get("p99_ms", 0.0))
        serving_version = manifest.version if manifest else ""
        c.report = replace(found, serving=times, version=c.wanted.image.manifest.version, serving_version=serving_version)
        return replace(c.report)

    def _examples(self, c: MirrorTrial, queue: Connection) -> list[str]:
        assert c.load.instance is not None
        key = c.slot.keys.differ(c.load.instance.name)
        (found,) = untrusted.read(queue, ("LPOP", key, _FETCHED))
        with untrusted.reading(key, "a list of JSON"):
            return [bytes(e).decode() for e in found or ()]

    def _remove(self, c: MirrorTrial) -> None:
        if c.load.instance is not None:
            self.remove(c.load.instance, c.slot.keys)

    def remove(self, instance: Instance, keys: SlotKeys) -> None:
        """Stop a comparing instance of the slot with these keys, and leave nothing of it on the server."""
        try:
            with contextlib.closing(self._node.servers.connect("queue")) as queue:
                queue.call("FCALL", "udo_mirror", 1, keys.prefix, instance.name, 0, 0)
                self._node.instances.stop(instance, min(self._node.settings.stop_grace_s, 2.0))
                pin = ("FCALL", "udo_pin", 1, keys.prefix, instance.name, 0, 0)
                queue.transaction([pin, ("DEL", *keys.of_mirror(instance.name))])
        except ServerLost as e:  # its keys are gone with the server
            _log.warning("server lost during a diff", slot=keys.prefix, error=str(e))
            self._node.instances.stop(instance, 0.0)

"""The log of a deployment: the output of its former instances, then that of the running one as it is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, Full, Queue
from threading import Event

from node_manager.deployments.deployments import NodeDeployment
from node_manager.drivers import logfile
from node_manager.manager import Manager
from node_manager.slots.slot import Slot
from udo_protocol import supervised

# A follower looks for a new instance this often.
_NEXT_S = 0.25
# Lines that wait for a slow reader: the rest stays in the log files.
_WAITING = 1000


@dataclass(frozen=True)
class Line:
    """One line; `at` is its own time stamp, or that of the last line before it that has one."""

    at: str
    instance: str
    version: str
    text: str


class _Stamp:
    def __init__(self) -> None:
        self.at = ""

    def line(self, instance: str, version: str, text: str) -> Line:
        at, text = logfile.split_stamp(text)
        self.at = at or self.at
        return Line(self.at, instance, version, text)


def _former(manager: Manager, slot: Slot) -> Iterator[Line]:
    directory = manager.settings.logs / f"{slot.deployment}-{slot.number}"
    for path in sorted(directory.glob("*.log")):
        _, instance, version = path.stem.split("-", 2)
        stamp = _Stamp()
        for text in logfile.tail(path, 0):
            yield stamp.line(instance, version, text)


def read(manager: Manager, deployment: NodeDeployment, *, tail_lines: int, follow: bool, stop: Event) -> Iterator[Line]:
    """Yield the last lines (0 = all that are kept) of all its slots, then with `follow` new ones until `stop` or its undeployment."""
    lines: list[Line] = []
    shown: dict[str, int] = {}
    for each in deployment.slots:
        lines += _former(manager, each)
        owner = each.view().owner
        if owner is not None:
            stamp, path = _Stamp(), owner.directory / "log"
            shown[owner.name] = logfile.whole(path)
            lines += [stamp.line(owner.name, owner.assigned.version, text) for text in logfile.tail(path, 0, shown[owner.name])]
    yield from lines[-tail_lines:] if tail_lines else lines
    if follow:
        yield from _following(manager, deployment, shown, stop)


def _following(manager: Manager, deployment: NodeDeployment, shown: dict[str, int], stop: Event) -> Iterator[Line]:
    """Yield the lines that instances of its own slots write after those already shown, including slots that it gets meanwhile."""
    told: Queue[Line] = Queue(_WAITING)
    followed: set[int] = set()
    while not stop.is_set():
        there = manager.deployments.get(deployment.name) is deployment
        for slot in [s for s in deployment.own if s.number not in followed]:
            followed.add(slot.number)
            supervised.keep("logs", partial(_follow, slot, shown, told, stop), stop, f"{slot.deployment}:{slot.number}")
        try:
            yield told.get(timeout=_NEXT_S)
        except Empty:
            if not there:
                return


def _follow(slot: Slot, shown: dict[str, int], told: Queue[Line], stop: Event) -> None:
    """Put the new lines of one slot into `told`, instance by instance."""
    over = ""
    while not stop.is_set():
        owner = slot.view().owner
        if owner is None or owner.name == over:
            stop.wait(_NEXT_S)
            continue
        over = owner.name
        stamp, ended = _Stamp(), owner.exited
        for text in logfile.follow(owner.directory / "log", shown.get(owner.name, 0), stop, lambda ended=ended: not ended.is_set()):  # type: ignore[misc]
            _tell(told, stamp.line(owner.name, owner.assigned.version, text), stop)


def _tell(told: Queue[Line], line: Line, stop: Event) -> None:
    while not stop.is_set():
        with suppress(Full):
            told.put(line, timeout=_NEXT_S)
            return

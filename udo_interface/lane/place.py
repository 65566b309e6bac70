"""The place that a lane leads to, the marks of its frames, and the deadline of its answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from udo_protocol.clock import Clock, SystemClock
from udo_protocol.cut import cut
from udo_protocol.errors import OperatorError, WaitTimeout, by_code
from udo_protocol.limits import MESSAGE_CHARS, TRACEBACK_CHARS
from udo_protocol.queue import frame
from udo_protocol.queue.lane_end import LaneEnd
from udo_protocol.queue.slot import last_emitted

# The node manager answers for a dead or hung operator after the answer time-out; it gets this long to do so.
GRACE_MS = 15_000
# How often a waiting lane checks that the slot still serves.
LOOK_MS = 1_000


@dataclass(frozen=True)
class Place:
    """The place that a lane leads to, as errors name it, and the bounds that hold there."""

    operator: str
    version: str
    node: str
    slot: str
    deployment: str
    partition: int = 0
    epoch: int | None = None
    session: str = ""
    window_frames: int = 8
    answer_timeout_ms: int = 60_000
    frame_bytes: int = 64 << 20
    policy: str = ""
    timed: bool = False  # the operator is keyed and uses event time

    def __str__(self) -> str:
        epoch = "" if self.epoch is None else f", epoch {self.epoch}"
        where = f"node {self.node}, slot {self.slot}{epoch}, partition {self.partition}"
        return f"operator {self.operator}@{self.version} (deployment {self.deployment}, {where})"


@dataclass(frozen=True)
class Stamp:
    """The marks of a keyed attempt's frames: its run, epoch and attempt, and the key groups it answers for.

    `run` is the run's ordinal number in its session, by the time of planning: the same number on every slot.
    """

    run: int
    epoch: int
    attempt: int
    groups: tuple[int, ...]
    start_empty: bool = False
    job: bool = False
    since: int | None = None  # the last epoch before this one in which anything happened; None: the one before

    def header(self) -> dict[str, Any]:
        """Header fields of every frame."""
        label = frame.Label(run=self.run, epoch=self.epoch, attempt=self.attempt)
        return {"label": label, "start_empty": self.start_empty, "job": self.job, "since": self.since}

    def order(self) -> str:
        """The label by which the slot refuses older attempts early; compares as text."""
        return f"{self.run:019d}:{self.epoch:019d}:{self.attempt:019d}"


@dataclass
class ProgressDeadline:
    """Bounds a wait by the slot's progress: it ends when the slot does not serve, or has answered nothing for too long."""

    end: LaneEnd
    place: Place
    clock: Clock = field(default_factory=SystemClock)

    def __post_init__(self) -> None:
        self.progress()

    def progress(self) -> None:
        """Restart the deadline, since there was progress."""
        self._since = self._looked = self.clock.monotonic()
        self._emitted = -1

    def check(self, awaited: str) -> None:
        """Raise if waiting any longer is pointless; cheap, since it looks at the slot only once a second."""
        now = self.clock.monotonic()
        if (now - self._looked) * 1000 < LOOK_MS:
            return
        self._looked = now
        self.look()
        emitted = last_emitted(self.end.conn, self.end.keys)
        if emitted != self._emitted:  # other lanes' frames are being answered
            self._emitted, self._since = emitted, now
        bound_ms = self.place.answer_timeout_ms + GRACE_MS
        if (now - self._since) * 1000 > bound_ms:
            raise WaitTimeout(
                f"{self.place}: waited for {awaited}, but the slot has answered nothing for {bound_ms / 1000:g} s; "
                f"look at `udo status` and `udo logs {self.place.deployment}`"
            )

    def look(self) -> None:
        """Raise an error with the reason if the slot does not serve."""
        if why := self.end.status():
            text = f"{self.place} does not serve: {cut(str(why.get('message', 'no reason given')), MESSAGE_CHARS)}"
            if why.get("traceback"):
                text += f"\nThe operator's traceback:\n{cut(str(why['traceback']), TRACEBACK_CHARS).rstrip()}"
            raise by_code(str(why.get("code", OperatorError.code)), text)

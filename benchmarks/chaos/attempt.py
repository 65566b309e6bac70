"""One attempt at a partition's epoch, as a Spark task makes it: with udo_interface's own lane code, one answer per step."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pyarrow as pa

from benchmarks.chaos.kinds import ANSWERS
from benchmarks.chaos.oracle import Event
from udo_interface.lane.lane import Collector, Sender
from udo_interface.lane.opening import KeyedCall, Request, conversations
from udo_interface.lane.split import SplitExchange
from udo_protocol.formats.schema import GROUP_COLUMN

EVENTS = pa.schema([("k", pa.string()), ("id", pa.int64()), ("kind", pa.string()), ("t", pa.timestamp("us"))])
SENT = EVENTS.append(pa.field(GROUP_COLUMN, pa.int32()))
Rows = list[Event]


@dataclass(frozen=True)
class Identity:
    """The position of an attempt in the query."""

    deployment: str
    session: str
    run: str
    epoch: int
    partition: int
    number: int
    groups: tuple[int, ...]
    start_empty: bool = False

    def __str__(self) -> str:
        return f"{self.run} e{self.epoch} p{self.partition} a{self.number}"


def batches(frames: Sequence[Sequence[tuple[Event, int]]]) -> Iterator[tuple[pa.RecordBatch, None]]:
    """Make record batches from frames of (event, key group)."""
    for frame in frames:
        columns = [pa.array([e[f.name] for e, _ in frame], f.type) for f in EVENTS]
        yield pa.record_batch([*columns, pa.array([g for _, g in frame], pa.int32())], schema=SENT), None


class Attempt:
    """An attempt: `step` it until it is `complete`; any error ends it. `rows`: its answers so far, in order. It has a lane in each slot."""

    def __init__(
        self,
        node: str,
        who: Identity,
        frames: Sequence[Sequence[tuple[Event, int]]],
        window: int,
        *,
        late: bool = False,
        answers: pa.Schema = ANSWERS,
    ) -> None:
        keyed = KeyedCall(who.run, "c", who.groups, who.start_empty)
        request = Request(who.deployment, who.session, who.partition, who.number, who.epoch, window=window, keyed=keyed)
        self.who, self.frames, self.rows = who, len(frames), Rows()
        self._opened = ExitStack()
        self._lanes, opened = self._opened.enter_context(conversations(node, request, SENT, answers))
        open_another = opened.open_lane
        assert open_another is not None

        def used(lane: tuple[Sender, Collector]) -> tuple[Sender, Collector]:
            if late:  # without its label, as if its frames had long been under way: correctness must not rest on the early refusal
                lane[0]._part = lane[0]._label = ""
            return lane

        for lane in self._lanes:
            used(lane)
        split = SplitExchange(self._lanes, opened.group_slots or (0,), window, open_lane=lambda prefix: used(open_another(prefix)))
        self._answers = split.run(batches(frames))
        self.steps, self.complete = 0, False

    def step(self) -> bool:
        """Push as many frames as the window takes and collect one answer; True when the last answer, that of END, has come."""
        got = list(itertools.islice(self._answers, 1))
        self.steps += 1
        for _, batch in got:
            self.rows += batch.to_pylist()
        if not got:
            self.complete = True
        return self.complete

    @property
    def repeated(self) -> int:
        """The number of frames answered again. A caller drops these answers; within a node there are none."""
        return sum(collector._answers.dropped for _, collector in self._lanes)

    def cut_short(self) -> None:
        """End without END, as when a limit downstream wants no more rows."""
        self._answers.close()  # type: ignore[attr-defined]
        self.complete = True

    def close(self) -> None:
        """End the task, whether or not it succeeded, and clean up what its lanes left behind."""
        with contextlib.suppress(Exception):
            self._opened.close()
        self.die()

    def die(self) -> None:
        """Close the connections abruptly, as kill -9 of the worker does."""
        for sender, _ in self._lanes:
            sender._end.conn.close()
        for left in (self._answers, self._opened):
            with contextlib.suppress(Exception):
                left.close()  # type: ignore[union-attr]

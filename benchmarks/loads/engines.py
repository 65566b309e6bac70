"""Paper 2's set-up on real engines: slots of a keyed deployment, one client that sends as fast as it can, moves of key groups.

A slot's operator takes a fixed time per event. The client sends in order and waits once its window of frames is full, so that the busiest
slot bounds the throughput of all. Each key k has a key group of its own, which starts on slot k mod engines. After each epoch the policy
sees the load of the last two; the moves that it decides run during the next epochs. Every answer is compared with a plain count.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.harness.bringup import Platform
from benchmarks.harness.rules import InvalidRun, check_sequence
from benchmarks.simulated.engines import Policy
from elasticity.balance.view import BalanceLimits, LoadView, eng_load, imb_score
from udo_interface.lane.opening import KeyedCall, Request, conversations
from udo_interface.lane.split import SplitExchange
from udo_protocol.formats.schema import GROUP_COLUMN

OPERATOR = "paced"
KEYS = 4096
EPOCH_S = 1.0
WINDOW_EPOCHS = 2
BATCH = 250
MOVE_TIMEOUT_S = 120.0
SENT = pa.schema([("id", pa.int64()), ("key", pa.int64()), (GROUP_COLUMN, pa.int32())])
BACK = pa.schema([("id", pa.int64()), ("key", pa.int64()), ("n", pa.int64())])
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Phase:
    """A part of the stream: keys in order, over and over, for `seconds`."""

    keys: Ints
    seconds: float
    skewed: bool


@dataclass
class Outcome:
    """The result of one policy. Loads: events of the skewed phases per engine, by the assignment in force, and per key."""

    seconds: dict[bool, float] = field(default_factory=lambda: defaultdict(float))  # by `skewed`
    events: dict[bool, int] = field(default_factory=lambda: defaultdict(int))
    engine_load: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    key_load: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(KEYS))
    imbalance: dict[bool, list[float]] = field(default_factory=lambda: defaultdict(list))
    timeline: list[list[float]] = field(default_factory=list)  # per epoch: seconds since the start, events/s, imbScore in percent
    moved: list[int] = field(default_factory=list)  # keys per rebalance
    events_moved: int = 0  # events counted in the state of the moved keys
    moves_s: list[float] = field(default_factory=list)  # per rebalance, from the decision until all its keys are in their new slots

    def rate(self, skewed: bool) -> float:
        """The events per second of the skewed or of the even phases."""
        return self.events[skewed] / self.seconds[skewed]


def phases(exponent: float, even: float, seconds: Sequence[float], most_per_s: float, seed: int) -> list[Phase]:
    """Make alternately even and skewed phases of these lengths; Zipf by rank = key number + 1."""
    rng, made = np.random.default_rng(seed), []
    for i, s in enumerate(seconds):
        weights = np.arange(1, KEYS + 1) ** -(exponent if i % 2 else even)
        drawn = np.searchsorted(np.cumsum(weights / weights.sum()), rng.random(int(s * most_per_s)), side="right")
        made.append(Phase(np.minimum(drawn, KEYS - 1), s, bool(i % 2)))
    return made


def play(p: Platform, name: str, stream: Sequence[Phase], engines: int, policy: Policy | None, limits: BalanceLimits) -> Outcome:
    """Send the stream through a new deployment of `engines` slots. InvalidRun if an answer is lost, doubled, out of order or wrong."""
    p.deploy(name, OPERATOR, slots=engines, limits={"key_groups": KEYS})
    try:
        with ThreadPoolExecutor(1, "moves") as mover:
            return _Run(p, name, engines, policy, limits, mover).play(stream)
    finally:
        with p.registry() as registry:
            registry.undeploy(name, drop_state=True)


class _Run:
    def __init__(
        self, p: Platform, name: str, engines: int, policy: Policy | None, limits: BalanceLimits, mover: ThreadPoolExecutor
    ) -> None:
        self._p, self._name, self._engines, self._policy, self._limits, self._mover = p, name, engines, policy, limits, mover
        self._epoch, self._sent = -1, 0
        self._keys_map: Ints = np.arange(KEYS) % engines
        self._group: Ints = np.arange(KEYS)
        self._window: deque[Ints] = deque(maxlen=WINDOW_EPOCHS)
        self._seen = np.zeros(KEYS, np.int64)
        self._moving: Future[float] | None = None

    def play(self, stream: Sequence[Phase]) -> Outcome:
        out = Outcome(engine_load=np.zeros(self._engines))
        for _ in self._exchange(iter(())):  # the first epoch shows which slots have the groups, and warms up
            pass
        for phase in stream:
            self._phase(phase, out)
        self._collect(out)
        return out

    def _phase(self, phase: Phase, out: Outcome) -> None:
        at, ends = 0, time.perf_counter() + phase.seconds
        while (began := time.perf_counter()) < ends:
            sent: list[Ints] = []
            answers = list(self._exchange(self._batches(phase.keys, at, min(began + EPOCH_S, ends), sent)))
            took, keys = time.perf_counter() - began, np.concatenate(sent)
            at += len(keys)
            self._check(keys, answers)
            self._note(keys, took, phase.skewed, out)
            self._review(out)

    def _batches(self, keys: Ints, at: int, until: float, sent: list[Ints]) -> Iterator[pa.RecordBatch]:
        while not sent or time.perf_counter() < until:
            some = keys[np.arange(at, at + BATCH) % len(keys)]
            at += BATCH
            ids = np.arange(self._sent, self._sent + BATCH)
            self._sent += BATCH
            sent.append(some)
            yield pa.record_batch([ids, some, self._group[some].astype(np.int32)], schema=SENT)

    def _exchange(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        self._epoch += 1
        keyed = KeyedCall("r1", "balance", tuple(range(KEYS)), key_groups=KEYS)
        request = Request(self._name, "balance", 0, self._epoch, self._epoch, keyed=keyed)
        with conversations(self._p.node_socket, request, SENT, BACK) as (lanes, opened):
            if self._epoch == 0:
                self._slots = [part.keys.number for part in opened.each()]
                self._place(opened.group_slots)
            exchange = SplitExchange(lanes, opened.group_slots or (0,), opened.place.window_frames, open_lane=opened.open_lane)
            for _, answer in exchange.run((batch, None) for batch in batches):
                yield answer

    def _place(self, group_slots: Sequence[int]) -> None:
        """Give each key k a group on slot k mod engines; if slots have unequal numbers of groups, the last keys take the remaining ones."""
        free = {slot: deque(np.flatnonzero(np.array(group_slots) == slot).tolist()) for slot in range(self._engines)}
        for key in range(KEYS):
            slot = key % self._engines
            slot = slot if free[slot] else next(s for s in free if free[s])
            self._group[key], self._keys_map[key] = free[slot].popleft(), slot

    def _check(self, keys: Ints, answers: Sequence[pa.RecordBatch]) -> None:
        table = pa.Table.from_batches(answers, BACK)
        ids = table.column("id").to_numpy() - (self._sent - len(keys))
        check_sequence(ids, len(keys)).require_clean(f"epoch {self._epoch}")
        # The number of events of the key up to each event: the count of a plain process.
        order = np.argsort(keys, kind="stable")
        counts = np.bincount(keys, minlength=KEYS)
        rank = np.empty(len(keys), np.int64)
        rank[order] = np.arange(len(keys)) - np.repeat(np.cumsum(counts) - counts, counts)
        expected = self._seen[keys] + rank + 1
        if (wrong := np.flatnonzero(table.column("n").to_numpy() != expected)).size:
            raise InvalidRun(
                f"{wrong.size} wrong counts in epoch {self._epoch}, first of key {keys[wrong[0]]}: expected {expected[wrong[0]]}"
            )
        self._seen += counts

    def _note(self, keys: Ints, took_s: float, skewed: bool, out: Outcome) -> None:
        counts = np.bincount(keys, minlength=KEYS)
        load = eng_load(self._keys_map, counts, self._engines)
        out.events[skewed] += len(keys)
        out.seconds[skewed] += took_s
        out.imbalance[skewed].append(imb_score(load))
        out.timeline.append([round(sum(out.seconds.values()), 2), round(len(keys) / took_s), round(imb_score(load), 1)])
        if skewed:
            out.engine_load += load
            out.key_load += counts
        self._window.append(counts)

    def _review(self, out: Outcome) -> None:
        """Let the policy decide, unless its last decision is still being carried out."""
        if self._policy is None or (self._moving is not None and not self._moving.done()):
            return
        self._collect(out)
        decision = self._policy(LoadView(self._keys_map, np.sum(self._window, axis=0), self._engines), self._limits)
        if not len(decision.keys):
            return
        out.moved.append(len(decision.keys))
        out.events_moved += int(self._seen[decision.keys].sum())
        targets = {
            int(slot): self._group[decision.keys[decision.keys_map[decision.keys] == slot]]
            for slot in set(decision.keys_map[decision.keys])
        }
        self._keys_map = decision.keys_map.astype(np.int64)
        self._moving = self._mover.submit(self._move, targets)

    def _move(self, targets: dict[int, Ints]) -> float:
        began = time.perf_counter()
        for engine, groups in targets.items():
            for _ in self._p.node().move_groups(self._name, groups.tolist(), self._slots[engine], wait_s=MOVE_TIMEOUT_S):
                pass
        return time.perf_counter() - began

    def _collect(self, out: Outcome) -> None:
        if self._moving is not None:
            out.moves_s.append(self._moving.result())
            self._moving = None

"""A keyed streaming query without Spark: epochs over partitions, tasks that fail, linger and run again, drivers that restart.

Everything it does comes from the seed and is logged in `trace`. A query must give the oracle's result whatever was done to it: its
answers epoch by epoch, and the durable state at its end.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import random
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence

from benchmarks.chaos.attempt import Attempt, Identity, Rows
from benchmarks.chaos.carried import CARRIED, DROPPED, carry
from benchmarks.chaos.faults import Faults
from benchmarks.chaos.judge import Mismatch, Stuck, judge
from benchmarks.chaos.node import ChaosNode
from benchmarks.chaos.oracle import Event
from benchmarks.chaos.outcome import NotNeeded
from udo_protocol.errors import ProtocolError, SchemaError, StateLost, TwoProducers, UdoError
from udo_protocol.limits import KEY_GROUPS
from udo_protocol.queue.connection import ReplyError

START = dt.datetime(2020, 1, 1)
# A task that fails this often fails its query, as in Spark.
MAX_FAILURES = 4
# A query that has not ended by STUCK_S is stuck; faults stop well before, at QUIET_S.
STUCK_S, QUIET_S = 120.0, 60.0
# The rough time that a driver takes to restart a query; the node recovers meanwhile.
_RESTART_S = 0.3
# The probability of a platform fault per step of the scheduler.
_FAULTS = 0.06
# The greatest pause between epochs, as with a trigger, so that the platform also changes while queries are idle.
_PAUSE_S = 0.8
# The probability, per epoch, that an administrator carries the state of the stopped query through a file.
_CARRY = 0.06
# Errors that a query must never see, whatever happens to the platform.
_ILLEGAL = (ProtocolError, SchemaError, StateLost, TwoProducers)
# The evaluations of an epoch: a limit may cut its answers short, alone or in addition to a full evaluation.
FULL, CUT, CUT_THEN_FULL, FULL_THEN_CUT = "full", "cut", "cut, then full", "full, then cut"


class QueryFailed(Exception):
    """The query failed as in Spark, and is to be restarted."""


def group_of(key: str) -> int:
    """The key group by a hash other than Spark's, which makes no difference."""
    return zlib.crc32(key.encode()) % KEY_GROUPS


def events_of(rng: random.Random, epoch: int, keys: Sequence[str]) -> list[Event]:
    """Draw the events of an epoch: mostly in order of time, a few late ones."""
    count = rng.choice((0, 1, 5, 20, 40, 60)) if epoch else 30
    made = []
    for i in range(count):
        second = epoch * 15 + rng.randrange(15) - (rng.randrange(40) if rng.random() < 0.1 else 0)
        made.append({"k": rng.choice(keys), "id": epoch * 1000 + i, "kind": rng.choice("AABBC"), "t": START + dt.timedelta(seconds=second)})
    return made


def keys_of(rng: random.Random) -> list[str]:
    """Draw the keys of a query. In some queries each event has one answer: only there can a canary compare a share of the keys."""
    return [f"{kind}{i}" for kind in rng.choice(("clsp", "clsp", "clsp", "cl")) for i in range(rng.randrange(1, 5))]


class Query:
    """One seed's query against one deployment of a node. It draws `faults`, which happen alongside it, and is given up after `enough`."""

    def __init__(self, node: ChaosNode, deployment: str, seed: int, faults: Faults, enough: Callable[[], bool]) -> None:
        self._node, self._deployment, self._kind = node, deployment, node.deployed[deployment]
        self._node_faults, self._enough = faults, enough
        self.session = f"seed-{seed}"
        self.rng = rng = random.Random(seed)
        keys = keys_of(rng)
        self._epochs = [events_of(rng, e, keys) for e in range(rng.randrange(6, 13))]
        modes = [rng.choices((FULL, CUT, CUT_THEN_FULL, FULL_THEN_CUT), (12, 1, 1, 1))[0] for _ in self._epochs]
        self._modes = [FULL, *modes[1:-1], FULL]
        self.trace: list[str] = []
        self.faults: Counter[str] = Counter()
        self._attempt = self._run = 0
        self._lingering: list[Attempt] = []
        self._answers: dict[int, Rows] = {}
        self._new_run()

    # -- the query ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run all epochs, then judge; Mismatch says what differs."""
        self._started = time.monotonic()
        epoch = 0
        try:
            while epoch < len(self._epochs):
                try:
                    rows = self._evaluate(epoch)
                    if self._modes[epoch] == CUT:
                        rows = Rows()
                except QueryFailed as e:
                    self._did("query failed", str(e))
                    time.sleep(_RESTART_S)
                    self._new_run()
                    continue
                if self._chance(0.15):
                    self._did("driver killed between END and commit")
                    self._new_run()
                    continue
                self._answers[epoch] = rows
                epoch += 1
                time.sleep(self.rng.random() * _PAUSE_S)
                if self._chance(0.1):
                    self._did("driver killed after commit")
                    self._new_run()
                elif self._chance(_CARRY):
                    self._carry(epoch - 1)
        finally:
            for zombie in self._lingering:
                zombie.die()
        self._judge()

    @property
    def runs(self) -> int:
        """The number of starts of the driver."""
        return self._run

    def _new_run(self) -> None:
        """Start the driver again, maybe with another number of partitions; tasks of the former run may linger on."""
        self._run += 1
        if self.rng.random() < 0.5:
            self._attempt = 0
        self._partitions = self.rng.randrange(1, 5)
        self._log(f"run {self._run} with {self._partitions} partitions")

    def _carry(self, epoch: int) -> None:
        """Between two runs of the driver, carry the session's state through a file."""
        drop = self._chance(0.5)
        while self._lingering:
            self._lingering.pop().die()
        with self._node_faults.changes.alone(self._deployment) as alone:
            why = carry(self._node, self._deployment, self.session, epoch, drop=drop) if alone else "the version is being changed"
        if why:
            self._log(f"state not carried: {why}")
        else:
            self._did(DROPPED if drop else CARRIED)
        self._new_run()

    def _evaluate(self, epoch: int) -> Rows:
        mode = self._modes[epoch]
        if mode in (CUT, CUT_THEN_FULL):
            if not self._pass(epoch, cut=True):
                self._log(f"e{epoch}: nothing to cut")
                self._modes[epoch] = mode = FULL
            elif mode == CUT:
                self._did("limit")
                return Rows()
            else:
                self._did("limit, then a full evaluation")
        rows = self._pass(epoch)
        if mode == FULL_THEN_CUT and self._pass(epoch, cut=True):
            self._did("full evaluation, then a limit")
        elif self._chance(0.1):
            self._did("evaluated twice")
            rows = self._pass(epoch)
        elif self._chance(0.2):
            again = self.rng.sample(range(self._partitions), self.rng.randrange(1, self._partitions + 1))
            self._did("stage re-run after END", f"of {again}")
            for partition, new in self._pass(epoch, only=again).items():
                rows[partition] = new
        # Not in the last epoch, whose state after END is judged.
        if epoch + 1 < len(self._epochs) and self._chance(0.15):
            self._unfinished_rerun(epoch)
        return [row for partition in sorted(rows) for row in rows[partition]]

    def _unfinished_rerun(self, epoch: int) -> None:
        self._did("stage re-run after END, not finished")
        with contextlib.suppress(UdoError, ReplyError):
            late = self._start(epoch, self.rng.randrange(self._partitions), full=True)
            if late.frames > 1:
                late.step()
            # Should it reach END after all, its answers would be the valid ones. For a chain that would be a mismatch, so none lingers.
            lingers = late.frames > 1 and not self._kind.chained and self._chance(0.3)
            self._lingering.append(late) if lingers else late.die()

    # -- tasks -------------------------------------------------------------------------------------------------------

    def _pass(self, epoch: int, *, cut: bool = False, only: Sequence[int] | None = None) -> dict[int, Rows]:
        """Evaluate the epoch's plan once: all (or some) partitions, each until an attempt has succeeded."""
        wanted = list(range(self._partitions)) if only is None else list(only)
        if cut:  # a task of one frame cannot be cut short: a limit that has enough would not start it
            wanted = [p for p in wanted if len(self._events(epoch, p)) > 1]
        live: dict[int, Attempt] = {}
        failures: Counter[int] = Counter()
        done: dict[int, Rows] = {}
        while len(done) < len(wanted):
            if time.monotonic() - self._started - self._node_faults.stops.stood_still_s > STUCK_S:
                raise Stuck(f"stuck in epoch {epoch} for {STUCK_S:g} s")
            if self._enough():
                for left in live.values():
                    left.die()
                raise NotNeeded
            self._maybe_fault()
            partition = self.rng.choice([p for p in wanted if p not in done])
            try:
                if self._lingering and self._chance(0.25):
                    self._step_zombie()
                attempt = live.get(partition)
                if attempt is None:
                    live[partition] = attempt = self._start(epoch, partition, cut=cut)
                elif not cut and self._chance(0.04):
                    live[partition] = self._lose(attempt, epoch, partition)
                elif _step(attempt):
                    if self._chance(0.05):
                        self._did("task failed after END")
                        raise UdoError("a step downstream failed after the last answer")
                    attempt.close() if self._chance(0.8) else attempt.die()
                    done[partition] = attempt.rows
                elif cut:
                    attempt.cut_short()
                    attempt.close()
                    done[partition] = attempt.rows
            except (UdoError, ReplyError) as e:
                self._failed(e, epoch, partition, live.pop(partition, None))
                failures[partition] += 1
                if failures[partition] == MAX_FAILURES:
                    for rest in live.values():
                        self._lingering.append(rest) if self._chance(0.3) else rest.die()
                    raise QueryFailed(f"partition {partition} of epoch {epoch} failed {MAX_FAILURES} times; the last time: {e}") from e
        return done

    def _events(self, epoch: int, partition: int) -> list[tuple[Event, int]]:
        return [(e, g) for e in self._epochs[epoch] if (g := group_of(e["k"])) % self._partitions == partition]

    def _start(self, epoch: int, partition: int, *, cut: bool = False, full: bool = False) -> Attempt:
        events, frames = self._events(epoch, partition), []
        size = 1 if cut or full else self.rng.randrange(1, 9)
        while events:
            frames.append(events[:size])
            events = events[size:]
            size = self.rng.randrange(1, 9)
        self._attempt += 1
        groups = tuple(g for g in range(KEY_GROUPS) if g % self._partitions == partition)
        who = Identity(self._deployment, self.session, f"{self.session}-r{self._run}", epoch, partition, self._attempt, groups)
        window = 1 if cut or full else self.rng.choice((1, 2, 8))
        late = self._chance(0.2)
        self._log(f"start {who}: {len(frames)} frames, window {window}{', late' if late else ''}")
        return Attempt(str(self._node.api.path), who, frames, window, late=late, answers=self._kind.answers)

    def _lose(self, attempt: Attempt, epoch: int, partition: int) -> Attempt:
        """Start a newer attempt, as when the executor is thought dead; the old one is dead, or lives on."""
        if self._chance(0.5):
            self._did("worker killed", str(attempt.who))
            attempt.die()
        else:
            self._did("two attempts alive", str(attempt.who))
            self._lingering.append(attempt)
        return self._start(epoch, partition)

    def _step_zombie(self) -> None:
        zombie = self.rng.choice(self._lingering)
        try:
            over = _step(zombie)
            self._log(f"zombie {zombie.who} step {zombie.steps}{' complete' if over else ''}")
        except (UdoError, ReplyError) as e:
            if not isinstance(e, StateLost):  # expected of an attempt that comes after the next epoch's END
                self._require_legal(e)
            self._log(f"zombie {zombie.who}: {type(e).__name__}")
            over = True
        if over:
            self._lingering.remove(zombie)
            zombie.close()

    def _failed(self, error: Exception, epoch: int, partition: int, attempt: Attempt | None) -> None:
        self._require_legal(error)
        self._log(f"failed e{epoch} p{partition} {attempt.who if attempt else ''}: {type(error).__name__}: {str(error)[:200]}")
        if attempt is not None:
            attempt.close()

    @staticmethod
    def _require_legal(error: Exception) -> None:
        if isinstance(error, _ILLEGAL):
            raise Mismatch(f"{type(error).__name__}: {error}") from error

    # -- chance and record -------------------------------------------------------------------------------------------

    def _chance(self, p: float) -> bool:
        return self.rng.random() < p and time.monotonic() - self._started < QUIET_S

    def _maybe_fault(self) -> None:
        if self._chance(_FAULTS):
            self._node_faults.draw(self._deployment, self.session, self.rng)

    def _did(self, kind: str, detail: str = "") -> None:
        self.faults[kind] += 1
        self._log(f"{kind} {detail}".rstrip())

    def _log(self, text: str) -> None:
        since = time.monotonic() - getattr(self, "_started", time.monotonic())
        self.trace.append(f"{since:7.3f} {text}")

    # -- judgement ---------------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        epochs = self._epochs
        skipped = {epoch for epoch, mode in enumerate(self._modes) if mode == CUT}
        judge(self._kind, epochs, self._answers, self._node.home, self._deployment, self.session, skipped)


def _step(attempt: Attempt) -> bool:
    """Take a step of an attempt; Mismatch if a frame was answered again."""
    over = attempt.step()
    if attempt.repeated:
        raise Mismatch(f"{attempt.who}: expected one answer to each frame, {attempt.repeated} came again")
    return over

"""Live updates under load through the registry's endpoint: their durations, and their effects on events.

An open-loop client sends numbered events all the while; every answer carries the version that gave it. So the switch is measured
where it matters, at the client: the last answer of the old version, the first of the new one, and every event in order.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from functools import partial

import click
import numpy as np
import numpy.typing as npt
import psutil

from benchmarks.harness.bringup import Platform, import_ms, platform, say, wait_until
from benchmarks.harness.openloop import Arrivals, Sent, send
from benchmarks.harness.quantiles import Quantiles, quantiles
from benchmarks.harness.record import Record
from benchmarks.harness.rules import InvalidRun, Sequence, check_sequence
from benchmarks.harness.tables import Section
from benchmarks.loads.keyed_load import KeyedLoad, rows_of_frame
from udo_interface import connect

OPERATOR, KEYED = "stamp", "hoard"
# The state of each key: a million keys make a gigabyte.
BLOB_BYTES = 1_000
UPDATE_TIMEOUT_S = 600.0
RATE = 10_000
VERSIONS = ("1", "2")
SETTLE_S = 0.3
WARM_TIMEOUT_S = 30.0
# An interpreter that has loaded Arrow is larger than this, one that has just started is not.
LOADED_BYTES = 40 << 20


OPTIONS = [
    click.option("--state-mb", type=click.IntRange(0), default=0, show_default=True, help="MB of keyed state; 0: a stateless operator."),
    click.option("--updates", "count", type=click.IntRange(1), help="Number of updates (default: 200, with --quick 12)."),
    click.option("--rate", type=click.IntRange(200), default=RATE, show_default=True, help="Events/s; others than these make no table."),
]


@dataclass
class Update:
    """One update to `version`: the times of its request and of its progress events (perf_counter), and the import time of its code."""

    version: str
    asked: float
    ready: float
    done: float
    import_ms: float = 0.0


@dataclass(frozen=True)
class Switches:
    """Figures in ms of each update, as the client saw it; `epoch_end_pause_ms`: of each epoch's end without an update near it."""

    request_to_answer_ms: list[float] = field(default_factory=list)
    gap_ms: list[float] = field(default_factory=list)
    gap_within_epoch_ms: list[float] = field(default_factory=list)
    preparation_ms: list[float] = field(default_factory=list)
    pause_ms: list[float] = field(default_factory=list)
    epoch_end_pause_ms: list[float] = field(default_factory=list)
    import_ms: list[float] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The updates of one run. more: runs with more state."""

    updates: int
    state_mb: int
    request_to_answer_ms: Quantiles
    gap_ms: Quantiles
    gap_within_epoch_ms: Quantiles | None = None
    preparation_ms: Quantiles
    pause_ms: Quantiles
    epoch_end_pause_ms: Quantiles | None = None
    import_ms: Quantiles | None = None
    gaps_ms: list[float]
    lost: int
    duplicated: int
    reordered: int
    rate: int
    events: int
    driver: str
    more: tuple[Figures, ...] = ()


def one(p: Platform, version: str, name: str = OPERATOR) -> Update:
    """Request an update at the endpoint and follow its progress; InvalidRun if it is refused or fails."""
    with p.registry() as registry:
        asked, ready, last = time.perf_counter(), 0.0, {}
        for last in registry.update(name, version, timeout_s=UPDATE_TIMEOUT_S):
            if last["phase"] == "ready":
                ready = time.perf_counter()
        if last.get("phase") != "done":
            raise InvalidRun(f"the update to {version} ended with {last}")
        return Update(version, asked, ready, time.perf_counter())


def updates(p: Platform, count: int, made: list[Update], name: str = OPERATOR) -> None:
    """Make `count` updates, back and forth, each with a warm instance ready and the former one gone."""
    served: set[int] = set()
    for i in range(count):
        settle(p, served)
        if made:
            made[-1].import_ms = import_ms(p.node(), name)
        made.append(one(p, VERSIONS[(i + 1) % 2], name))
        time.sleep(SETTLE_S)  # the longest pause counts until then: looking for processes must not prolong it
        if (i + 1) % 20 == 0:
            say(f"{i + 1} of {count} updates")


def settle(p: Platform, served: set[int], warm: int = 1) -> None:
    """Wait until `warm` warm instances are ready and the former one is gone; `served`: the pids that have served, extended here."""
    served |= {q.pid for q in p.processes()["instance"]}
    wait_until(partial(warm_waits, p, served, warm), WARM_TIMEOUT_S, "a warm instance and the end of the former one")
    time.sleep(SETTLE_S)


def warm_waits(p: Platform, served: set[int], warm: int) -> bool:
    """Whether exactly `warm` instances wait beside the serving ones, which have never served and have loaded their runtime: large, and
    using no processor time."""
    beside = p.processes().get("warm", [])
    if len(beside) != warm or served & {q.pid for q in beside}:
        return False
    try:
        each = [[q, *q.children(recursive=True)] for q in beside]  # including children of a sandbox or of a container's init
        before = [q.cpu_times() for everything in each for q in everything]
        time.sleep(0.1)
        loaded = all(max(q.memory_info().rss for q in everything) > LOADED_BYTES for everything in each)
        return loaded and [q.cpu_times() for everything in each for q in everything] == before
    except psutil.NoSuchProcess:
        return False


def switches(made: list[Update], at: npt.NDArray[np.float64], versions: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> Switches:
    """Return figures per update in ms, such as the time to the first answer of the new version, and the gap between answers at the switch.

    A keyed stream pauses at the `ends` of its epochs, while they are written to disk: these pauses are reported separately, and so are
    the switches that were not at an epoch's end.
    """
    changes = np.flatnonzero(np.diff(versions))
    if len(changes) != len(made):
        raise InvalidRun(f"the answers change their version {len(changes)} times, expected {len(made)}, once per update")
    found = Switches(import_ms=[u.import_ms for u in made[:-1]])  # known once an update has settled, so not for the last one
    beside = np.ones(len(ends), bool)
    for update, i in zip(made, changes, strict=True):
        if versions[i + 1] != int(update.version):
            raise InvalidRun(f"expected answers of version {update.version} after its update, got {versions[i + 1]}")
        found.request_to_answer_ms.append((at[i + 1] - update.asked) * 1000)
        found.preparation_ms.append((update.ready - update.asked) * 1000)
        found.gap_ms.append((at[i + 1] - at[i]) * 1000)
        if i not in ends:
            found.gap_within_epoch_ms.append(found.gap_ms[-1])
        beside &= (at[ends] < update.asked - SETTLE_S) | (at[ends] > update.done + SETTLE_S)
        around = at[(at >= update.asked) & (at <= update.done + SETTLE_S)]
        found.pause_ms.append(float(np.diff(around).max()) * 1000)
    found.epoch_end_pause_ms.extend((at[ends + 1] - at[ends])[beside] * 1000)
    return found


def load(p: Platform, count: int, rate: int) -> tuple[list[Update], Arrivals, Sent]:
    """Run the updates in one thread and the load in this one, until the last update is done."""
    made: list[Update] = []
    failed: list[Exception] = []
    finished = threading.Event()

    def work() -> None:
        try:
            time.sleep(1.0)
            updates(p, count, made)
            time.sleep(SETTLE_S)
        except Exception as e:  # any failure of the updates makes the run invalid
            failed.append(e)
        finally:
            finished.set()

    thread = threading.Thread(target=work, daemon=True)
    arrivals = Arrivals()
    with connect(OPERATOR, node=p.node_socket) as client:
        client.add_listener(arrivals.add, batches=True)
        thread.start()
        sent = send(client, rate, rate * 3600, lambda i: {"id": i}, finished)
    thread.join()
    if failed:
        raise InvalidRun(f"after {len(made)} updates: {type(failed[0]).__name__}: {failed[0]}") from failed[0]
    return made, arrivals, sent


def keyed_load(p: Platform, count: int, state_mb: int, seed: int, rate: int) -> tuple[list[Update], KeyedLoad]:
    """Run the updates under a keyed stream, once its state has `state_mb` MB."""
    stream = KeyedLoad(p.node_socket, KEYED, max(state_mb * 1_000_000 // BLOB_BYTES, 1), BLOB_BYTES, rate)
    say(f"filling {state_mb} MB of state")
    stream.fill()
    made: list[Update] = []
    failed: list[Exception] = []
    stop = threading.Event()

    def work() -> None:
        try:
            stream.run(stop, seed)
        except Exception as e:  # makes the run invalid
            failed.append(e)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    time.sleep(1.0)
    updates(p, count, made, KEYED)
    time.sleep(SETTLE_S)
    stop.set()
    thread.join()
    if failed:
        raise InvalidRun(f"after {len(made)} updates: {type(failed[0]).__name__}: {failed[0]}") from failed[0]
    return made, stream


def run(*, quick: bool, driver: str, seed: int, state_mb: int = 0, count: int | None = None, rate: int = RATE) -> Figures:
    """Run the whole suite. Without state the seed changes nothing: events are numbered."""
    count = count or (12 if quick else 200)
    if state_mb:
        return _with_state(driver, count, state_mb, seed, rate)
    with platform(driver) as p:
        for version in VERSIONS:
            p.push(OPERATOR, version)
        p.deploy(OPERATOR, OPERATOR)
        made, arrivals, sent = load(p, count, rate)
    sequence = check_sequence(arrivals.column("id"), sent.events)
    sequence.require_clean(f"{count} updates")
    found = switches(made, arrivals.at(), arrivals.column("version"), np.array([], np.int64))
    return _figures(found, sequence, sent.events, 0, driver, rate)


def _with_state(driver: str, count: int, state_mb: int, seed: int, rate: int) -> Figures:
    rows_of_frame(rate)
    with platform(driver) as p:
        for version in VERSIONS:
            p.push(KEYED, version)
        p.deploy(KEYED, KEYED)
        made, stream = keyed_load(p, count, state_mb, seed, rate)
    sequence = check_sequence(stream.column("id"), stream.sent)
    sequence.require_clean(f"{count} updates")
    stream.require_counts()
    found = switches(made, stream.arrivals(), stream.column("version"), stream.ends())
    return _figures(found, sequence, stream.sent, state_mb, driver, rate)


def _figures(found: Switches, sequence: Sequence, events: int, state_mb: int, driver: str, rate: int) -> Figures:
    return Figures(
        updates=len(found.gap_ms),
        state_mb=state_mb,
        request_to_answer_ms=quantiles(found.request_to_answer_ms),
        gap_ms=quantiles(found.gap_ms),
        gap_within_epoch_ms=quantiles(found.gap_within_epoch_ms) if found.gap_within_epoch_ms else None,
        preparation_ms=quantiles(found.preparation_ms),
        pause_ms=quantiles(found.pause_ms),
        epoch_end_pause_ms=quantiles(found.epoch_end_pause_ms) if found.epoch_end_pause_ms else None,
        import_ms=quantiles(found.import_ms) if found.import_ms else None,
        gaps_ms=[round(gap, 1) for gap in found.gap_ms],
        **vars(sequence),
        rate=rate,
        events=events,
        driver=driver,
    )


def together(records: list[Record]) -> Record | None:
    """Join the newest full (else quick) run of each size of state into one record: the one with the least state, the others in `more`."""
    newest: dict[int, Record] = {}
    for r in (*(r for r in records if r["arguments"]["quick"]), *(r for r in records if not r["arguments"]["quick"])):
        if r["driver"] == "process" and r["rate"] == RATE:
            newest[r["state_mb"]] = r
    if not newest:
        return None
    first, *more = (newest[mb] for mb in sorted(newest))
    return {**first, "more": more}


def sections(f: Figures) -> list[Section]:
    """The tables of a run."""
    found = []
    for r in (f, *f.more):
        measured = (
            ("request to ready (standby loaded)", r.preparation_ms),
            ("of this, the import of the operator's code", r.import_ms),
            ("request to first answer of the new version", r.request_to_answer_ms),
            ("gap at the switch: last old to first new answer", r.gap_ms),
            ("the same, of the switches that did not fall on an epoch's end", r.gap_within_epoch_ms),
            ("pause at an epoch's end, no update near", r.epoch_end_pause_ms),
            ("longest pause between answers from request to settled", r.pause_ms),
        )
        rows = [[text, f"{q.p50:.1f}", f"{q.p99:.1f}", f"{q.max:.1f}"] for text, q in measured if q is not None]
        state = f"{r.state_mb:,} MB of state" if r.state_mb else "stateless"
        remark = (
            f"{r.updates} updates under {r.rate:,} events/s, warm pool, {state}: {r.events:,} events, "
            f"{r.lost} lost, {r.duplicated} duplicated, {r.reordered} reordered."
        )
        found.append(Section(f"Live update under load, {state}", ("ms", "p50", "p99", "max"), rows, remark))
    return found

"""Recordings that begin or continue while the operator is updated or rolled back: the replay gives the served answers, or is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Shell
from tests.conftest import bound, wait_until
from tests.node_manager.conftest import Daemon, put_image
from tests.support.attempt import Attempt
from tests.support.recorded_query import COUNT as TIMED
from tests.support.recorded_query import KEYED, T0, Query, by_lane, stats
from tests.support.recording import Recorder
from udo_cli import recorder

pytestmark = pytest.mark.long

COUNT = TIMED.format(step=1)
CENTS = (
    COUNT.replace('.get("n", 0) + 1', '.get("n", 0) + 100').replace("n == 1:", "n == 100:").replace('"n": n}', '"n": n // 100}')
    + "    def migrate(self, old, from_version): return {'n': old['n'] * 100}\n"
).replace('-ctx.state["n"]', '-ctx.state["n"] // 100')
NEWER: dict[str, Any] = {**KEYED, "state_version": 1, "migrates_from": [0]}
Local = Callable[..., Path]


class Running:
    """A deployment `d` with a running query, whose attempt at epoch 1 is under way."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.former = daemon.deploy(COUNT, **KEYED)
        self.query = Query(daemon, "q")
        self.query.run(0, [1, 2, 1])
        self.under_way = self.query.attempt(1)
        self.send([1, 4])

    def send(self, keys: list[int]) -> None:
        """Send a frame in the attempt under way."""
        self.under_way.send(keys, [T0] * len(keys))
        self.query.collect(self.under_way)

    def end(self) -> None:
        """End the attempt under way, then run two more epochs."""
        self.under_way.end()
        self.query.collect(self.under_way)
        self.under_way.close()
        self.query.run(2, [1, 3])
        self.query.run(3, [2])

    def update(self, version: str, digest: str) -> None:
        """Update to that version."""
        assert list(self.daemon.api.update("d", version, digest))[-1].phase == "done"

    def served(self) -> dict[str, list[Any]]:
        """Return the answers since the checkpoint of epoch 0."""
        return {n: rows for n, rows in self.query.served.items() if n.split(".")[2] != "0"}

    def complete(self, recording: Recorder) -> recorder.Recorded:
        """End the recording after the last answered frame."""
        return recording.stop(stats(self.daemon).emitted)


@pytest.fixture
def running(daemon: Daemon) -> Iterator[Running]:
    r = Running(daemon)
    yield r
    r.under_way.close()


@pytest.mark.short
def test_a_recording_that_begins_during_an_update_and_goes_on_over_it(
    running: Running,
    udo: Shell,
    local: Local,
    tmp_path: Path,
) -> None:
    slow = "import time\ntime.sleep(2)\n" + CENTS
    digest = put_image(running.daemon.home, slow, version="2", **NEWER)
    with ThreadPoolExecutor(1) as pool:
        updating = pool.submit(running.update, "2", digest)
        recording = Recorder(running.daemon.api, "d", tmp_path / "r")
        running.send([2])
        assert running.daemon.slot().version == "1"
        updating.result(bound(30))
    running.send([1, 2])
    running.end()
    made = running.complete(recording)
    assert (made.gaps, made.reason) == ([], recorder.INTERRUPTED)
    for operator in (local(COUNT, **KEYED), local(CENTS, **NEWER)):  # the recorded state is from before the update
        assert by_lane(udo, operator, tmp_path / "r")[1] == running.served()


def test_a_recording_that_begins_before_the_new_version_has_written_anything(
    running: Running,
    udo: Shell,
    local: Local,
    tmp_path: Path,
) -> None:
    running.update("2", put_image(running.daemon.home, CENTS, version="2", **NEWER))
    recording = Recorder(running.daemon.api, "d", tmp_path / "r")
    running.send([2, 1])
    running.end()
    made = running.complete(recording)
    assert made.gaps == []
    assert by_lane(udo, local(CENTS, **NEWER), tmp_path / "r")[1] == running.served()


@pytest.mark.parametrize("begins", ["before", "after"])
def test_a_recording_over_a_rollback_and_one_right_behind_it(
    running: Running,
    udo: Shell,
    local: Local,
    tmp_path: Path,
    begins: str,
) -> None:
    running.update("2", put_image(running.daemon.home, CENTS, version="2", **NEWER))
    running.send([2, 1])
    running.under_way.end()
    running.query.collect(running.under_way)
    if begins == "before":  # records the newer version's state
        recording = Recorder(running.daemon.api, "d", tmp_path / "r")
        since = set(running.query.served)
    running.under_way.close()
    running.under_way = running.query.attempt(2)
    running.send([1])
    running.update("1", running.former)
    if begins == "after":  # records the state of the version that came back, which covers all answers before
        running.send([4])
        recording = Recorder(running.daemon.api, "d", tmp_path / "r")
        since = set(running.query.served) - {"q.r1.2.3"}
    running.send([2])
    running.under_way.end()
    running.query.collect(running.under_way)
    running.query.run(3, [1, 2, 4])
    made = running.complete(recording)
    assert made.gaps == []
    served = {n: rows for n, rows in running.query.served.items() if n not in since}
    if begins == "after":
        served["q.r1.2.3"] = served["q.r1.2.3"][1:]
    assert by_lane(udo, local(CENTS, **NEWER), tmp_path / "r")[1] == served
    former = local(COUNT, **KEYED)
    if begins == "before":
        err = udo("test", former, "--replay", tmp_path / "r", code=4).err
        assert "reads state of version 0; the recorded state of t@2 is of version 1" in err
    else:
        assert by_lane(udo, former, tmp_path / "r")[1] == served


def test_a_recording_ends_where_dead_letters_are_sent_again(daemon: Daemon, tmp_path: Path) -> None:
    source = "from udo_runtime import Operator\nclass Count(Operator):\n    def process(self, event, ctx):\n"
    picky = source + "        {}\n        yield {{'b': 1}}\n"
    keyed: dict[str, Any] = {"entry": "op:Count", "key": ["a"]}
    daemon.deploy(picky.format("1 / (event['a'] - 13)"), config_json='{"policy": "dead-letter"}', **keyed)
    assert Attempt.at_node(daemon.api, "d", "q", 0, 1).run([1, 13]) == [1]
    mended = put_image(daemon.home, picky.format("pass"), version="2", **keyed)
    assert list(daemon.api.update("d", "2", mended))[-1].phase == "done"
    recording = Recorder(daemon.api, "d", tmp_path / "r")
    assert Attempt.at_node(daemon.api, "d", "q", 1, 2).run([1]) == [1]
    wait_until(lambda: recording.last_seq >= stats(daemon).emitted, 20, "epoch 1 to be recorded")
    daemon.api.replay_dead_letters("d", everything=True)
    assert Attempt.at_node(daemon.api, "d", "q", 2, 3).run([1]) == [1, 1]
    made = recording.done()
    assert (made.frames, "dead letters are sent again" in made.reason) == (2, True)
    # The letters are done with the next micro-batch; their effects are part of the state.
    after = Recorder(daemon.api, "d", tmp_path / "after")
    assert Attempt.at_node(daemon.api, "d", "q", 3, 4).run([1]) == [1]
    assert after.stop(stats(daemon).emitted).reason == recorder.INTERRUPTED

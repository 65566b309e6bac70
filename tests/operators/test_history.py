"""The operator that the chaos runs use is the same in another language: its answers, states and timers are those of one plain process, also
under fire. Many more seeds: python -m benchmarks exactly_once --runtime rust, java."""

from __future__ import annotations

import datetime as dt
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from udo_runtime.child.process import Launch
from udo_runtime.child.processor import ChildProcessor
from udo_runtime.execution.keyed_processor import KeyedConfig
from udo_runtime.sdk.api import Context
from udo_runtime.state.codec import TIMERS, unpack, unpack_key
from udo_runtime.state.session import Session

from benchmarks.chaos.attempt import EVENTS
from benchmarks.chaos.judge import require_answers
from benchmarks.chaos.kinds import HISTORY
from benchmarks.chaos.oracle import Event, Oracle
from benchmarks.chaos.runtimes import in_language
from tests.operators.sdks import Sdk
from tests.support.under_fire import require_right_while_processes_change
from udo_protocol.proto.frame_pb2 import Label
from udo_protocol.queue.frame import Header

T0 = dt.datetime(2024, 1, 1)
KEYED = {"columns": ["k"], "time_column": "t", "delay_us": 5_000_000}
KEYS = ("c1", "l1", "s1", "s2", "p1", "p2", "p3")


def epochs(rng: random.Random, count: int) -> Iterator[list[Event]]:
    """Events that use all features: sessions end, patterns come in time, late and not at all, states expire."""
    for epoch in range(count):
        yield [
            {
                "k": rng.choice(KEYS),
                "id": 1000 * epoch + n,
                "kind": rng.choice("ABC"),
                "t": T0 + dt.timedelta(seconds=15 * epoch + rng.random() * 20),
            }
            for n in range(rng.randrange(0, 20))
        ]


@pytest.mark.long
@pytest.mark.parametrize("sdk", ["rust", "java"], indirect=True)
@pytest.mark.parametrize("version", ["1", "3"])
def test_it_answers_as_one_plain_process_does(sdk: Sdk, version: str, tmp_path: Path) -> None:
    kind = in_language(sdk.name, sdk.bin)
    argv = tuple(word.replace("bin/", f"{sdk.bin}/") for word in kind.versions[version]["command"])
    launch = Launch(argv, str(tmp_path), str(tmp_path), {"PATH": os.environ["PATH"]})
    processor = ChildProcessor(launch, (EVENTS, kind.answers), KEYED, Context("history", version))
    processor.open()
    try:
        run, session, oracle = processor.keyed(KeyedConfig.of(KEYED)), Session("s"), Oracle(HISTORY)
        for epoch, events in enumerate(epochs(random.Random(7), 60)):
            header = Header(label=Label(run=1, epoch=epoch, attempt=1), groups=[0])
            rows: list[dict[str, Any]] = []
            if events:
                batch = pa.RecordBatch.from_pylist(events, schema=EVENTS)
                rows += run.events(session, header, batch, pa.array([0] * len(events), pa.int32())).answer.to_pylist()  # type: ignore[union-attr]
            rows += run.end(session, header).answer.to_pylist()  # type: ignore[union-attr]
            run.complete(session, header)
            require_answers(epoch, oracle.epoch(events), rows)
    finally:
        processor.close()
    stored = {key: unpack(raw) for key, raw in session.groups[0].values.items()}
    timers = stored.pop(TIMERS, {})
    states, pending = oracle.final()
    assert {k: {n: v for n, v in kind.plain(s).items() if not n.startswith("\0")} for k, s in stored.items()} == states
    assert {(unpack_key(k), at) for k, times in timers.get("t", {}).items() for at in times} == {
        (k, (at - T0) // dt.timedelta(microseconds=1) + 1_704_067_200_000_000) for at, what, k in pending if what == "t"
    }


@pytest.mark.long
@pytest.mark.parametrize("sdk", ["rust", "java"], indirect=True)
def test_queries_under_fire_whose_operator_changes_its_language_come_out_as_one_plain_process_says(
    sdk: Sdk, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_right_while_processes_change([in_language(sdk.name, sdk.bin)], monkeypatch)

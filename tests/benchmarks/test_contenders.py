"""The contenders' own code, as far as it runs without Spark."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.contenders import languages
from benchmarks.contenders.functions import FUNCTIONS
from benchmarks.contenders.http_batch import pack, unpack, wsgi
from benchmarks.harness.openloop import Arrivals, Sent
from benchmarks.harness.rules import InvalidRun
from benchmarks.suites import latency, throughput

BATCH = pa.RecordBatch.from_pydict({"id": [1, 2, 3], "card": [1, 1, 1], "amount": [100.0, 600.0, 500.0], "at": [0, 0, 0]})


@pytest.mark.parametrize(("name", "ids"), [("filter", [2]), ("forward", [1, 2, 3])])
def test_http_answers_what_the_function_answers(name: str, ids: list[int]) -> None:
    body = pack(BATCH).to_pybytes()
    environ = {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body)), "PATH_INFO": f"/{name}"}
    answer = unpack(b"".join(wsgi(environ, lambda *_: None)))
    assert answer.equals(FUNCTIONS[name](BATCH))
    assert answer.column("id").to_pylist() == ids


def test_latency_counts_from_the_intended_time_not_from_the_sending() -> None:
    # given ten events a second from t0 = 100 s on, in two batches, the second of which is late
    arrivals = Arrivals([100.05, 100.5], [BATCH.slice(0, 1), BATCH.slice(1, 2)])
    due = Sent(events=4, rate=10.0, started=100.0, ended=100.4).due(arrivals.column("id"))
    assert arrivals.at() - due == pytest.approx(np.array([-0.05, 0.3, 0.2]))


class LateEcho:
    """A client whose echo answers nothing until it is waited for the first time, and then at once."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals, self._waiting, self._started = arrivals, list[dict[str, Any]](), False

    def send(self, event: dict[str, Any]) -> None:
        self._waiting.append(event)
        if self._started:
            self.flush(0)

    def flush(self, timeout_s: float) -> None:
        self._started = True
        if self._waiting:
            self._arrivals.add(pa.RecordBatch.from_pylist(self._waiting))
            self._waiting = []


def test_an_echo_that_starts_late_does_not_show_in_the_latencies(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def late(_: object, arrivals: Arrivals) -> Iterator[LateEcho]:
        yield LateEcho(arrivals)

    monkeypatch.setattr(latency, "CONTENDERS", {"late": late})
    monkeypatch.setattr(latency, "WARM_S", 0.01)

    found = latency.measure(None, "late", 1000, 0.02)  # type: ignore[arg-type]

    assert found.events_per_frame == 1.0, "the load began before the first answer, so that events waited for the echo to start"
    assert found.first_answer_ms is not None


class Columns:
    """A record batch of which only whole columns can be taken."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.column = batch.column


def test_the_count_by_batches_gives_the_same_rows_and_makes_no_row_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    # given Spark's part of the call: the function over the batches of one partition
    monkeypatch.setattr(languages, "repartitioned", lambda df, *_: df)
    batches = [pa.record_batch({"id": [1, 2, 3], "card": [7, 8, 7]}), pa.record_batch({"id": [4, 5], "card": [8, 7]})]

    def answers(operation: str, given: list[Any]) -> pa.Table:
        class FakeFrame:
            def mapInArrow(self, function: Any, _: object) -> pa.Table:  # noqa: N802
                return pa.Table.from_batches(list(function(iter(given))))

        return languages.inside(FakeFrame(), operation)  # type: ignore[arg-type]

    by_event = answers("keyed_count", batches)
    by_batch = answers("keyed_count_batches", [Columns(b) for b in batches])
    assert by_batch.equals(by_event)
    assert by_batch["n"].to_pylist() == [1, 1, 2, 2, 3]


class FakeSession:
    """A Spark session of which only the settings are used; a contender's DataFrame notes the byte limit under which it is collected."""

    def __init__(self) -> None:
        self.conf, self._set, self.seen = self, dict[str, Any](), dict[str, Any]()

    def set(self, name: str, value: Any) -> None:
        self._set[name] = value

    def unset(self, name: str) -> None:
        del self._set[name]

    def called(self, name: str) -> Any:
        session = self

        class FakeFrame:
            columns = ("id",)

            def toArrow(self) -> pa.Table:  # noqa: N802
                session.seen[name] = session._set.get(throughput._BATCH_BYTES)
                return pa.table({"id": [1]})

        return FakeFrame()

    def digest(self, df: Any) -> tuple[int]:
        df.toArrow()
        return (1,)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> FakeSession:
    made = FakeSession()
    for name in ("events", "oracle"):
        monkeypatch.setattr(throughput, name, lambda *_: made.called("oracle"))
    monkeypatch.setattr(throughput, "digest", made.digest)
    return made


@pytest.mark.parametrize("check", ["rows", "digests"])
def test_each_contender_is_checked_with_its_own_settings(session: FakeSession, check: str) -> None:
    def way(name: str) -> throughput.Call:
        return lambda df, operator: session.called(name)

    ways = {name: way(name) for name in ("native", "native_unchecked")}
    if check == "rows":
        throughput.check_rows(session, ways, 1)  # type: ignore[arg-type]
    else:
        throughput.check_digests(session, ways, dict.fromkeys(ways, 10), 1)  # type: ignore[arg-type]

    assert session.seen["native"] is None
    assert int(session.seen["native_unchecked"]) > 1 << 30


def test_contenders_with_wide_events_are_compared_before_they_are_timed(session: FakeSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: Any) -> Any:
        df = session.called("udo")
        df.toArrow = lambda: pa.table({"id": [2]})
        return df

    monkeypatch.setattr(throughput, "wide", lambda df: df)
    monkeypatch.setattr(throughput, "written_s", lambda _: 1.0)
    monkeypatch.setattr(throughput.native, "first_columns", lambda df, _: df)
    ways: dict[str, throughput.Call] = {"udo": wrong, "udo_jvm": lambda df, _: df}

    with pytest.raises(InvalidRun, match="udo differs in row 0"):
        throughput.measure_wide(session, ways, 10, 1, 1)  # type: ignore[arg-type]
    assert set(throughput.measure_wide(session, {**ways, "udo": ways["udo_jvm"]}, 10, 1, 1)) == {"native", "udo", "udo_jvm"}  # type: ignore[arg-type]

"""The benchmark of a second state store: the ways take turns, the first round is dropped, and each median says its number of values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.harness.rules import InvalidRun
from benchmarks.suites import second_store

BATCHES = second_store.QUICK.batches


class FakeRun:
    """The suite without a platform and Spark: a query's micro-batches take as many ms as there were queries before it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stored: list[bool] = []
        self.counts: dict[bool, list[tuple[int, int]]] = {False: [(1, 1)], True: [(1, 1)]}
        fakes = {"platform": self._platform, "spark_session": self._spark, "write": lambda *_: None, "durations": self._durations}
        for name, fake in {**fakes, "spark_of": self._session, "counted": self._counted, "udo": self._udo}.items():
            monkeypatch.setattr(second_store, name, fake, raising=False)

    @contextmanager
    def _platform(self, _: str) -> Iterator[Any]:
        yield SimpleNamespace(push=lambda *_: None, deploy=lambda *_: None, node_socket="", registry_url="")

    def _spark(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(sparkContext=SimpleNamespace(setLogLevel=lambda _: None), stop=lambda: None)

    @contextmanager
    def _session(self, _: Any) -> Iterator[Any]:
        yield self._spark()

    def _udo(self, _: str, *, store: str | None, **__: Any) -> bool:
        return store is not None

    def _counted(self, _spark: Any, call: Any, _source: Path) -> list[tuple[int, int]]:
        return self.counts[call]

    def _durations(self, _spark: Any, _registry: str, _source: Path, stored: bool) -> tuple[list[float], dict[str, list[int]]]:
        self.stored.append(stored)
        return [float(len(self.stored))] * (BATCHES + 1), {"full": [2], "delta": [1]} if stored else {}

    def run(self) -> second_store.Figures:
        return second_store.run(quick=True, driver="process", seed=1)


def test_both_ways_take_turns_and_the_first_round_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    scale = second_store.Scale((5,), 10, BATCHES, 3)
    monkeypatch.setattr(second_store, "QUICK", scale)
    fake = FakeRun(monkeypatch)

    [found] = fake.run().scales

    assert fake.stored == [False, True] * (scale.rounds + 1)
    # the counted queries without a store were the 3rd, 5th and 7th; those with one were the 4th, 6th and 8th
    assert (found.without, found.delta, found.full) == (
        second_store.MedianOf(5, 3 * BATCHES),
        second_store.MedianOf(6, 3 * (BATCHES - 1)),
        second_store.MedianOf(6, 3),
    )


def test_each_column_names_the_number_of_its_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    [section] = second_store.sections(FakeRun(monkeypatch).run())

    rounds = second_store.QUICK.rounds
    assert [cell for cell, of in zip(section.rows[0], section.header, strict=True) if of == "of"] == [
        str(n * rounds) for n in (BATCHES, BATCHES - 1, 1)
    ]


def test_a_store_with_which_the_counts_differ_makes_the_run_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRun(monkeypatch)
    fake.counts[True] = [(1, 2)]

    with pytest.raises(InvalidRun, match="differ"):
        fake.run()

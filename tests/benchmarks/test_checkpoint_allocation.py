"""The simulated job: its parts, and the known facts about its best answer."""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.harness.rules import InvalidRun
from benchmarks.simulated import airline, migration
from benchmarks.suites.checkpoint_allocation import LIMIT, PEAK, STATISTICS_STEPS, setup, two_operators
from elasticity.allocation.planning import pair


@pytest.fixture(scope="module")
def job() -> migration.Setup:
    flights = airline.generate(1)
    return replace(setup(airline.events(flights, airline.rates(flights, 1.5) / 20, 32, 1), 32, PEAK), planner=pair)


def test_with_two_operators_of_correlation_minus_one_twice_as_many_checkpoints_are_usable_as_under_even_distribution() -> None:
    assert two_operators() == 2.0


def test_three_operators_follow_the_stream_and_the_sampling_one_does_not(job: migration.Setup) -> None:
    by_operator = job.loads.reshape(airline.OPERATORS, -1, airline.STEPS).sum(axis=1)

    correlations = np.corrcoef(by_operator)
    assert correlations[:3, :3].min() > 0.95
    assert by_operator[3] == pytest.approx(by_operator[3].mean())


def test_no_node_is_overloaded_while_statistics_are_collected(job: migration.Setup) -> None:
    loads = migration.node_loads(job.loads, job.owner, job.nodes)

    assert loads[:, :STATISTICS_STEPS].max() <= LIMIT
    assert loads.max() > LIMIT


def test_optimised_checkpoints_are_used_more_than_evenly_distributed_ones(job: migration.Setup) -> None:
    found = {name: migration.run(job, getattr(migration, name), 1) for name in ("optimised", "even")}
    lazy = migration.run(job, migration.even, 1, lazy=True)

    share = {name: (o.assisted / o.moves, o.usable / o.considered) for name, o in found.items()}
    assert share["optimised"][0] > share["even"][0]
    assert share["optimised"][1] > 1.5 * share["even"][1]
    assert lazy.assisted == lazy.moves > 0
    assert found["optimised"].usable <= found["optimised"].could_move <= found["optimised"].considered


def test_flights_are_read_with_their_gaps(tmp_path: Path) -> None:
    noon = datetime.datetime(2013, 1, 2, 12, 30)  # a Wednesday
    rows = {
        "sched_dep_local": pa.array([None, noon, None], pa.timestamp("ms")),
        "dep_local": pa.array([noon, None, None], pa.timestamp("ms")),
        "carrier": ["AA", "UA", "UA"],
        "flight": pa.array([1, 2, 3], pa.int16()),
        "tailnum": ["N1", None, "N3"],
        "dep_delay": pa.array([5, None, None], pa.int16()),
        "air_time": pa.array([100, None, None], pa.int16()),
    }
    pq.write_table(pa.table(rows), tmp_path / "flights.parquet")

    flights = airline.read(tmp_path / "flights.parquet")

    assert flights.minute.tolist() == [2 * 24 * 60 + 12 * 60 + 30] * 2
    assert flights.delayed.tolist() == flights.flown.tolist() == [True, False]
    pq.write_table(pa.table({"carrier": ["AA"]}), tmp_path / "other.parquet")
    with pytest.raises(InvalidRun, match="has no columns sched_dep_local, dep_local"):
        airline.read(tmp_path / "other.parquet")

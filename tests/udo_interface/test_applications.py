"""The applications in examples/applications, through Spark and the platform: their answers are those of their oracles, and can be drawn.

Real data is used where the environment variable UDO_DATA names a folder with the files of REAL.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from examples.applications import common
from examples.applications.first_stories import run as first_stories
from tests.udo_interface.conftest import Platform
from udo_cli import events as samples
from udo_cli.options.given import OperatorConfig
from udo_cli.packing import build, tried

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = Path(__file__).parents[2] / "examples" / "applications"
APPLICATIONS = ("first_stories", "json_patterns", "airline_delays", "taxi_routes")
# Micro-batches and rows. The rankings of routes lag four micro-batches behind the trips, so they need more.
BATCHES = {"first_stories": 6, "json_patterns": 5, "airline_delays": 3, "taxi_routes": 7}
ROWS = {"first_stories": 1_800, "json_patterns": 1_500, "airline_delays": 1_500, "taxi_routes": 2_100}
# The file, and a step: every step-th row is taken, to sample the whole file. Successive tweets are taken, since their neighbours matter.
REAL = {
    "first_stories": ("tweets_stocknet.parquet", 1),
    "airline_delays": ("airline_ontime.parquet", 480),
    "taxi_routes": ("nyc_taxi_ride_events.parquet", 40),
}
REAL_ROWS = 2_500
# The least number of windows that have closed when the stream ends, for applications that answer windows.
LEAST_WINDOWS = {"json_patterns": 3, "taxi_routes": 8}
MOST_DRAWN_BYTES = 60_000
# Operator -> answers to its sample events. A sample of one flight in ten depends on hashes.
SAMPLED = sum(zlib.crc32(str(flight_id).encode()) % 10 == 0 for flight_id in range(1, 31))
ANSWERS = {
    **{"story_key": 5, "first_story": 5, "patterns": 7, "frequent": 1},
    **{"delays": 2, "plane_years": 4, "time_in_air": 3, "delay_sample": SAMPLED},
    **{"parser": 1, "area": 1, "route": 2, "counts": 6, "partial_rank": 3, "global_rank": 3},
}


def real() -> list[Any]:
    """Return the test cases whose file is there."""
    data = Path(os.environ.get("UDO_DATA") or os.devnull)
    return [pytest.param(name, data / file, step, id=name) for name, (file, step) in REAL.items() if (data / file).is_file()]


@pytest.fixture(scope="module")
def deployed(request: pytest.FixtureRequest, platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An application with all its operators, on the platform of the session."""
    name = str(request.param)
    names = common.deploy(platform.api, FOLDER / name, tmp_path_factory.mktemp("dependencies"))
    yield name
    for operator in names:
        platform.api.undeploy(operator, drop_state=True)


def check(name: str, spark: SparkSession, table: pa.Table, work: Path) -> None:
    """Check that the application's answers to `table` are the oracle's, and can be drawn."""
    run, oracle = (import_module(f"examples.applications.{name}.{part}") for part in ("run", "oracle"))
    found = run.answers(spark, table, work, batch_rows=-(-table.num_rows // BATCHES[name]))
    assert found
    if name in LEAST_WINDOWS:
        answers = run.comparable(found)
        assert len({window for window, *_ in answers}) >= LEAST_WINDOWS[name]
        assert answers == oracle.expected(table, answers[-1][0])
    else:
        answers = run.comparable(found, table) if name == "first_stories" else found
        assert answers == oracle.expected(table)
    check_drawn(run, found, work)


def check_drawn(run: ModuleType, found: Any, work: Path) -> None:
    """Check that the application draws its answers into a file that a page can show."""
    run.draw(found, work / "drawn.svg")
    drawn = (work / "drawn.svg").read_text("utf-8")
    assert "</svg>" in drawn and len(drawn) < MOST_DRAWN_BYTES


@pytest.mark.long
@pytest.mark.parametrize("deployed", [name for name in APPLICATIONS if name != "first_stories"], indirect=True)
def test_an_application_answers_generated_input_as_its_oracle(deployed: str, spark: SparkSession, tmp_path: Path) -> None:
    source = import_module(f"examples.applications.{deployed}.source")
    check(deployed, spark, source.generated(ROWS[deployed], 1), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(("deployed", "path", "step"), real(), indirect=["deployed"])
def test_an_application_answers_real_data_as_its_oracle(deployed: str, path: Path, step: int, spark: SparkSession, tmp_path: Path) -> None:
    table = import_module(f"examples.applications.{deployed}.source").read(path, None)
    check(deployed, spark, table.take(list(range(0, table.num_rows, step))[:REAL_ROWS]), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("deployed", ["first_stories"], indirect=True)
def test_first_stories_are_those_of_the_oracle_though_the_keyed_operator_is_updated_in_the_middle_of_the_stream(
    deployed: str, spark: SparkSession, platform: Platform, tmp_path: Path
) -> None:
    oracle, source = (import_module(f"examples.applications.{deployed}.{part}") for part in ("oracle", "source"))
    tweets = source.generated(ROWS[deployed], 1)
    with first_stories.updating(platform.api, tmp_path, BATCHES[deployed]) as after:
        rows = first_stories.answers(spark, tweets, tmp_path, -(-tweets.num_rows // BATCHES[deployed]), after)
    assert {row["version"] for row in rows} == {"1", "2"}
    assert first_stories.comparable(rows, tweets) == oracle.expected(tweets)
    assert 0.1 < sum(row["is_first"] for row in rows) / len(rows) < 0.9
    check_drawn(first_stories, rows, tmp_path)


@pytest.mark.parametrize(
    "operator", [path for name in APPLICATIONS for path in common.operators(FOLDER / name)], ids=lambda path: path.name
)
def test_each_operator_answers_its_sample_events(operator: Path, tmp_path: Path) -> None:
    folder = build.load(operator, None, build.Target.of(None, None))
    packed = build.build(folder, tmp_path, tmp_path, lambda _: None)
    trial = tried.answer(packed, samples.read(operator / "events.json", folder.manifest.input_schema, 10_000), OperatorConfig())
    assert trial.answers.num_rows == ANSWERS[operator.name] > 0

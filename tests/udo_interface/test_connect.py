"""Spark Connect: operators called by a client of a real Connect server; calls that need a JVM are refused with the remedy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import bound
from tests.support.connect_server import connect_server
from tests.support.keyed_stream import COUNT, MANIFEST, key_of
from tests.udo_interface.connect_calls import ROWS

if TYPE_CHECKING:
    from tests.udo_interface.conftest import Platform

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
CALLS_S = 150
DOUBLE = """
import pyarrow.compute as pc
from udo_runtime import operator
@operator
def run(batch):
    return {"id": batch.column("id"), "twice": pc.multiply(batch.column("id"), 2)}
"""
FAILS = """
from udo_runtime import operator
@operator
def run(batch):
    raise ValueError("it cannot be")
"""


@pytest.fixture(scope="module")
def found(platform: Platform, java: None, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The results of the client (connect_calls.py), and the names of its deployments."""
    folder = tmp_path_factory.mktemp("connect")
    names = {
        "double": platform.operator(DOUBLE, output={"id": "int64", "twice": "int64"}),
        "count": platform.operator(COUNT, **MANIFEST),
        "fails": platform.operator(FAILS),
    }
    with connect_server(folder, {"spark.udo.registry": platform.url, "spark.udo.node": platform.node}) as url:
        command = [sys.executable, "-m", "tests.udo_interface.connect_calls", url, *names.values(), str(folder / "streams")]
        # The client gets the registry's address from the session, and has no Java.
        env = {k: v for k, v in os.environ.items() if not k.startswith("UDO_") and k != "JAVA_HOME"}
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=bound(CALLS_S), check=False)
    for name in names.values():
        platform.api.undeploy(name, drop_state=True)
    assert done.returncode == 0, done.stderr[-6000:]
    return {**json.loads(done.stdout.splitlines()[-1]), "names": names}


def test_a_batch_job_through_connect_answers_as_any_other(found: Any) -> None:
    batch = found["batch"]
    assert batch["columns"] == ["id", "twice", "k"]
    assert batch["sum"] == ROWS * (ROWS - 1) and batch["view"] == ROWS
    assert batch["counted"] == Counter(key_of(i) for i in range(ROWS))
    assert set(found["names"].values()) <= set(batch["listed"])


def test_a_stream_through_connect_keeps_its_state_over_a_restart(found: Any) -> None:
    streams, counts = found["streams"], Counter[str]()
    expected = []
    for i in range(3 * ROWS):
        counts[key_of(i)] += 1
        expected.append([i, key_of(i), counts[key_of(i)]])
    for answers in (streams["counted"], streams["coalesced"]):
        assert [(i, k) for i, k, _ in answers] == [(i, k) for i, k, _ in expected]
        assert Counter((k, n) for _, k, n in answers) == Counter((k, n) for _, k, n in expected)
    assert streams["doubled"] == streams["inside"] == 3 * ROWS * (3 * ROWS - 1)


def test_what_a_connect_session_cannot_promise_is_refused_with_the_remedy(found: Any) -> None:
    streams, batch = found["streams"], found["batch"]
    assert "UsageError" in streams["refused"] and "spark.conf.set('spark.udo.synchronousProgress', 'true')" in streams["refused"]
    assert "inside of foreachBatch Spark Connect tells a call neither its query nor its epoch" in streams["keyed inside"]
    assert batch["rdd"].startswith("UsageError: ") and "Spark Connect has none" in batch["rdd"]
    assert batch["sql"].startswith("UsageError: ") and "createOrReplaceTempView" in batch["sql"]


def test_errors_reach_a_connect_client_as_any_other(found: Any) -> None:
    batch = found["batch"]
    assert batch["wrong column"].startswith("SchemaError: ") and "near names: idd" in batch["wrong column"]
    assert batch["no key"].startswith("UsageError: ") and "call it with key='k'" in batch["no key"]
    assert "OperatorError" in batch["failed"] and "it cannot be" in batch["failed"]

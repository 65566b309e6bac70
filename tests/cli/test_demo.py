"""`udo demo` itself, with real Spark, registry and node: its report is exact and it leaves nothing behind, also after Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import bound, require, wait_until
from tests.support.docker_daemon import Daemon
from udo_interface.java import java_home
from udo_protocol.errors import Unavailable

DEMO_TIMEOUT_S = 240


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A short temporary folder for all files of the demo; it must be empty afterwards."""
    try:
        java_home()
    except Unavailable as e:
        require("Java", str(e))
    with tempfile.TemporaryDirectory(prefix="udo-d-") as name:
        yield Path(name)


def start(scratch: Path, *args: str, program: str = "udo_cli", **more: str) -> subprocess.Popen[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("UDO_")} | {"TMPDIR": str(scratch)} | more
    command = [sys.executable, "-m", program, "demo", *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True)


def left(scratch: Path) -> list[str]:
    """Return processes and files of the demo that are still there."""
    found = [str(p) for p in scratch.iterdir() if p.name.startswith("udo-")]
    for process in psutil.process_iter(["cmdline", "cwd", "status"]):
        words = [*(process.info["cmdline"] or ()), process.info["cwd"] or ""]
        if process.info["status"] != "zombie" and any(str(scratch) in w for w in words):
            found.append(" ".join(words))
    return found


def spark_defaults(scratch: Path, line: str) -> str:
    """Return a folder with Spark's configuration, for SPARK_CONF_DIR."""
    (folder := scratch / "conf").mkdir()
    (folder / "spark-defaults.conf").write_text(line)
    return str(folder)


@pytest.mark.timeout(DEMO_TIMEOUT_S + 60)
def test_every_event_is_answered_once_and_in_order_through_a_live_update(scratch: Path) -> None:
    # A bound below the size of the payments: they are not collected in Spark's driver, whose memory would bound the length of the demo.
    conf = spark_defaults(scratch, "spark.driver.maxResultSize 256k")
    demo = start(scratch, "--rows", "12000", "--rate", "3000", "--update-at", "5000", "--json", SPARK_CONF_DIR=conf)
    out, err = demo.communicate(timeout=DEMO_TIMEOUT_S)
    assert demo.returncode == 0, err
    report = json.loads(out)
    assert (report["events_in"], report["events_out"]) == (12_000, 12_000)
    assert [report[k] for k in ("lost", "duplicated", "reordered", "unknown", "mixed_rows")] == [0] * 5
    assert report["micro_batches"] >= 10
    assert 0 < report["micro_batch_ms"]["steps"]["addBatch"] <= report["micro_batch_ms"]["p50"]
    assert 5_000 <= report["update"]["requested_row"] <= report["update"]["first_row"] < 12_000
    assert 0 < report["update"]["took_ms"] < 10_000
    assert report["round_trip_ms"]["samples"] > 100
    before, after = report["quality"]["v1"], report["quality"]["v2"]
    assert before["rows"] + after["rows"] == 12_000
    assert after["recall"] > before["recall"] + 0.2
    assert left(scratch) == []


@pytest.mark.long
@pytest.mark.timeout(DEMO_TIMEOUT_S + 60)
def test_the_same_holds_in_containers(docker: Daemon, runtime_image: str, scratch: Path) -> None:
    if runtime_image != (wanted := f"udo-runtime-python:cp{sys.version_info.major}{sys.version_info.minor}"):
        require(wanted, f"Debian's Python made {runtime_image}; run the tests with that Python")
    demo = start(scratch, "--driver", "docker", "--rows", "15000", "--rate", "3000", "--update-at", "6000", "--json", **docker.environment)
    out, err = demo.communicate(timeout=DEMO_TIMEOUT_S)
    assert demo.returncode == 0, err
    report = json.loads(out)
    assert (report["events_in"], report["events_out"]) == (15_000, 15_000)
    assert [report[k] for k in ("lost", "duplicated", "reordered", "unknown", "mixed_rows")] == [0] * 5
    assert 6_000 <= report["update"]["requested_row"] <= report["update"]["first_row"] < 15_000
    assert report["quality"]["v1"]["rows"] + report["quality"]["v2"]["rows"] == 15_000
    assert left(scratch) == []


LATER = ("starting the node manager", "starting Spark", "computing", "streaming")


@pytest.mark.parametrize("stage", ["pushed", *(pytest.param(stage, marks=pytest.mark.long) for stage in LATER)])
def test_ctrl_c_leaves_nothing_running_and_no_file(scratch: Path, stage: str) -> None:
    demo = start(scratch, "--rows", "30000")
    watchdog = threading.Timer(DEMO_TIMEOUT_S, demo.kill)
    watchdog.start()
    try:
        assert demo.stderr is not None
        told: list[str] = []
        while not told or not told[-1].startswith(stage):
            told.append(demo.stderr.readline())
            assert told[-1], f"the demo ended before {stage!r}: {''.join(told)}"
        os.killpg(demo.pid, signal.SIGINT)
        _, err = demo.communicate(timeout=bound(60))
    finally:
        watchdog.cancel()
        demo.kill()
        demo.communicate()
    assert demo.returncode == 130
    assert "Traceback" not in err
    assert err.rstrip().endswith("interrupted")
    assert left(scratch) == []


@pytest.mark.long
def test_the_benchmark_of_the_demo_leaves_nothing_running_when_it_is_stopped(scratch: Path) -> None:
    benchmark = start(scratch, "--quick", program="benchmarks")
    try:
        wait_until(lambda: any("node_manager" in words for words in left(scratch)), 60, "the demo's node manager")
        benchmark.terminate()
        _, err = benchmark.communicate(timeout=bound(60))
    finally:
        benchmark.kill()
        benchmark.communicate()
    assert "Traceback" not in err
    assert left(scratch) == []


def test_a_demo_that_cannot_start_says_why_and_leaves_nothing(scratch: Path) -> None:
    demo = start(scratch, "--data", str(scratch / "none.parquet"))
    _, err = demo.communicate(timeout=bound(60))
    assert demo.returncode == 3
    assert "there is no file" in err
    assert left(scratch) == []


@pytest.mark.long
def test_a_failure_of_spark_is_told_in_its_words_and_leaves_nothing(scratch: Path) -> None:
    demo = start(scratch, "--rows", "12000", SPARK_CONF_DIR=spark_defaults(scratch, "spark.driver.maxResultSize 100"))
    _, err = demo.communicate(timeout=DEMO_TIMEOUT_S)
    assert demo.returncode == 6
    assert "Spark failed:" in err
    assert "is bigger than spark.driver.maxResultSize" in err
    assert "unexpected error" not in err
    assert left(scratch) == []

"""Runs the snippets of the documentation: every `sh` and `python` block of a document, in order, on one fresh platform.

Blocks after a line `<!-- with Docker -->` or `<!-- with Kafka -->` run only with a daemon or a broker. A block after
`<!-- not run: reason -->` never runs, and is in NOT_RUN with the test that shows it instead.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import bound, require
from tests.support.docker_daemon import DEBIAN, PATH, Daemon
from tests.support.kafka import Broker, connector, jars
from tests.support.selection import long

ROOT = Path(__file__).parents[2]
DOCUMENTS = ["README.md", *(f"docs/{p.name}" for p in sorted((ROOT / "docs").glob("*.md")))]
# The login for snippets with a bare Redis client: the node manager's.
SERVER = """export UDO_QUEUE_SOCKET="$UDO_HOME/node/run/queue.sock"
export UDO_QUEUE_PASSWORD="$(python -c "import json; print(json.load(open('$UDO_HOME/node/servers/access.json'))['manager'])")"
"""
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Blocks that cannot run as they are: (document, reason) -> the test that does the same.
NOT_RUN = {
    ("docs/connect.md", "takes a Connect server"): "udo_interface/test_connect.py::test_a_batch_job_through_connect_answers_as_any_other",
    ("docs/deploying.md", "takes a cluster"): "docs/test_kubernetes.py::test_the_daemons_understand_what_the_chart_tells_them",
    ("docs/docker.md", "takes the ports of a whole cluster"): "cli/test_compose.py::"
    "test_a_job_on_the_standalone_cluster_calls_an_operator_in_a_container",
    ("docs/docker.md", "takes an image of Docker Hub"): "operators/test_static.py::"
    "test_a_program_that_needs_the_systems_runs_in_the_image_that_the_node_names",
    ("docs/executors.md", "takes three hosts"): "udo_interface/test_three_hosts.py::"
    "test_a_client_a_spark_job_and_a_keyed_stream_on_one_host_use_the_slots_of_three",
    ("docs/first_steps.md", "the tests run inside such an environment"): "packaging/test_wheel.py::"
    "test_the_wheel_installed_into_a_fresh_environment_runs_the_demo",
    (
        "docs/operators.md",
        "takes a worker",
    ): "operators/test_spark_worker.py::test_a_worker_runs_unchanged_however_it_takes_and_answers_batches",
    ("docs/record.md", "typed by a person"): "node_manager/test_recording.py::"
    "test_a_breakpoint_in_the_operator_opens_the_debugger_in_this_terminal",
    ("docs/registry.md", "takes two hosts and a database"): "node_manager/test_two_registries.py::"
    "test_a_node_goes_on_with_the_other_process_and_updates_reach_it",
    (
        "docs/spark.md",
        "takes a session of its own",
    ): "udo_interface/test_local_files.py::test_a_query_starts_no_process_for_the_files_it_makes",
    ("docs/state.md", "takes two nodes"): "node_manager/test_homes.py::test_a_session_moves_by_export_drop_and_import",
    ("docs/state.md", "takes a bucket, and Spark's own libraries for it"): "udo_interface/test_store_s3.py::"
    "test_after_both_servers_lost_their_data_and_then_elsewhere_the_query_goes_on_from_the_bucket",
}
# The time for all blocks of one document on a quiet machine, and pytest's own limit, which is above any `bound`.
RUN_S = 240
MOST_S = 1000
WITH_DOCKER, WITH_KAFKA = "<!-- with Docker -->", "<!-- with Kafka -->"


def marked(text: str) -> list[tuple[str, str, str]]:
    """(language, body, the line before it if that is a mark) of all blocks that could run."""
    found = []
    for m in _FENCE.finditer(text):
        before = (text[: m.start()].rstrip().splitlines() or [""])[-1]
        if m[1] in ("sh", "python"):
            found.append((m[1], m[2], before if before.startswith("<!--") else ""))
    return found


def blocks(document: str, also: str = "") -> list[tuple[str, str]]:
    """(language, body) of the blocks to run: those without a mark, and `also` those with this one."""
    return [(language, body) for language, body, mark in marked((ROOT / document).read_text("utf-8")) if mark in ("", also)]


def script(document: str, also: str) -> str:
    """One bash script with all blocks: consecutive python blocks share a process, since they share names."""
    lines: list[str] = ["set -euo pipefail"]
    python: list[str] = []

    def flush() -> None:
        if python:
            lines.append("python - <<'END_OF_SNIPPET'\n" + "\n".join(python) + "\nEND_OF_SNIPPET")
            python.clear()

    for language, body in blocks(document, also):
        if language == "python":
            python.append(body)
        else:
            flush()
            lines.append(body)
    flush()
    return "\n".join(lines)


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a platform of the test's own; programs that the snippets left running are stopped at the end."""
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("UDO_", "SPARK_", "PYSPARK_")) or k == "SPARK_SUBMIT_OPTS"}
    binaries = str(Path(sys.executable).parent)
    env = {**keep, "UDO_HOME": str(tmp_path / "home"), "PATH": f"{binaries}{os.pathsep}{keep['PATH']}"}
    yield env
    subprocess.run([f"{binaries}/udo", "down"], env=env, timeout=bound(60), check=False, capture_output=True)


def run(document: str, platform: dict[str, str], work: Path, also: str = "", broker: str = "") -> None:
    """Run the selected blocks of this document, in the folder `work`; `broker`: the address in place of the guide's."""
    text = script(document, also).replace("broker:9092", broker)
    if "udo up" not in text:
        text = text.replace("set -euo pipefail", f"set -euo pipefail\nudo up\n{SERVER}", 1)
    work.mkdir(exist_ok=True)
    (work / "examples").symlink_to(ROOT / "examples")
    done = subprocess.run(["bash", "-c", text], cwd=work, env=platform, capture_output=True, text=True, timeout=bound(RUN_S), check=False)
    assert done.returncode == 0, f"{document}:\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"


def chosen(first: Sequence[str], documents: Sequence[str]) -> list[Any]:
    """The documents for newcomers as they are, and the others, which run with all tests (`make deep`)."""
    return [document if document in first else long(document) for document in documents]


@pytest.mark.timeout(MOST_S)
@pytest.mark.parametrize("document", chosen(("README.md",), [d for d in DOCUMENTS if blocks(d)]))
def test_the_snippets_run(document: str, platform: dict[str, str], tmp_path: Path) -> None:
    run(document, platform, tmp_path / "work")


@pytest.mark.timeout(MOST_S)
@pytest.mark.parametrize("document", chosen((), [d for d in DOCUMENTS if blocks(d) != blocks(d, WITH_DOCKER)]))
def test_the_snippets_run_with_docker(document: str, docker: Daemon, runtime_image: str, platform: dict[str, str], tmp_path: Path) -> None:
    if runtime_image != "udo-runtime-python:cp311":
        require("Python 3.11", f"the documents name it, and Debian's made {runtime_image}")
    if not docker("images", "--quiet", "python:3.11-slim").strip():  # on a machine that cannot reach Docker Hub
        docker("tag", DEBIAN, "python:3.11-slim")
    command = tmp_path / "work" / "docker" / "runtime.sh"
    command.parent.mkdir(parents=True)
    command.write_text(f'#!/bin/sh\nexec {ROOT}/docker/runtime.sh "$@"\n')
    command.chmod(0o755)
    platform |= {**docker.environment, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{PATH}", "PYTHON": sys.executable}
    run(document, platform, tmp_path / "work", WITH_DOCKER)


@pytest.mark.long
@pytest.mark.timeout(MOST_S)
@pytest.mark.parametrize("document", [d for d in DOCUMENTS if blocks(d) != blocks(d, WITH_KAFKA)])
def test_the_snippets_run_with_kafka(document: str, platform: dict[str, str], tmp_path: Path) -> None:
    """In a session that is started with the connector, as a user's is."""
    folder = jars(tmp_path)
    platform["PYSPARK_SUBMIT_ARGS"] = f"--jars {','.join(map(str, connector(folder)))} pyspark-shell"
    broker = Broker(folder, tmp_path)
    try:
        run(document, platform, tmp_path / "work", WITH_KAFKA, broker.address)
    finally:
        broker.stop()


def test_a_block_that_does_not_run_is_shown_by_a_test_instead() -> None:
    marks = {(d, mark) for d in DOCUMENTS for _, _, mark in marked((ROOT / d).read_text("utf-8"))} - {(d, "") for d in DOCUMENTS}
    assert {(d, m) for d, m in marks if m not in (WITH_DOCKER, WITH_KAFKA)} == {(d, f"<!-- not run: {why} -->") for d, why in NOT_RUN}
    for test in NOT_RUN.values():
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / "tests" / file).read_text("utf-8")

"""Three hosts with addresses of their own and a network between them: operators are called across it, over TLS."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from tests.conftest import wait_until
from tests.registry.conftest import image
from tests.support.hosts import ROOT, START_TIMEOUT_S, Hosts, platform
from udo_interface.java import prepare
from udo_protocol.node.api import connect_node

pytestmark = pytest.mark.long
SCHEMAS: dict[str, Any] = {"entry": "op:run", "input": {"a": "int64"}, "output": {"b": "int64"}}
ADD = """
from udo_runtime import operator
@operator
def run(batch):
    return {"b": [a + 1 for a in batch.column("a").to_pylist()]}
"""
COUNT = """
from udo_runtime import Operator
class run(Operator):
    def process(self, event, ctx):
        n = ctx.state["n"] = ctx.state.get("n", 0) + 1
        yield {"b": n}
"""
EVENTS = 600
JOB_TIMEOUT_S = "240"


def test_a_client_a_spark_job_and_a_keyed_stream_on_one_host_use_the_slots_of_three(java: None) -> None:
    """The stream goes on when one of the hosts loses power and comes back."""
    with tempfile.TemporaryDirectory(prefix="udo-") as top, platform(Path(top), "a", "b", "c", delay_ms=1) as hosts:
        image("add", "1", ADD, **SCHEMAS).push(hosts.client, hosts.top)
        image("count", "1", COUNT, **SCHEMAS, key=["a"]).push(hosts.client, hosts.top)
        hosts.client.deploy("add", "add", "1")
        hosts.client.deploy("count", "count", "1", slots=3, over_nodes=True)
        for name in ("add", "count"):
            wait_until(lambda name=name: hosts.answering(name) == set(hosts.net.hosts), START_TIMEOUT_S, "all nodes to answer")  # type: ignore[misc]

        env = hosts.environment("c")
        prepare(env)
        command = ["timeout", JOB_TIMEOUT_S, sys.executable, "-m", "tests.udo_interface.remote_calls", hosts.url("b"), str(EVENTS)]
        with (hosts.top / "job").open("w+") as err:
            job = hosts.net.hosts["c"].popen(command, env=env, cwd=ROOT, stdin=PIPE, stdout=PIPE, stderr=err, text=True)
            with job:
                assert job.stdin is not None and job.stdout is not None
                told = [job.stdout.readline()]
                assert told[0], (hosts.top / "job").read_text()[-3000:]
                hosts.lose("b")  # the next epoch begins without it, and goes on when it is back
                job.stdin.write("on\n")
                job.stdin.flush()
                hosts.start("b")
                told.append(job.stdout.readline())
                out, _ = job.communicate("on\n")
            assert job.returncode == 0, "".join(told) + (hosts.top / "job").read_text()[-3000:] + (hosts.top / "log").read_text()[-3000:]
        answers = {"sum": sum(range(1, EVENTS + 1)), "count": EVENTS}
        assert json.loads(out.splitlines()[-1]) == {
            "client": {**answers, "in order": True},
            "job": answers,
            "stream": {str(epoch): (epoch + 1) * EVENTS for epoch in range(3)},
        }
        wait_until(lambda: _events(hosts, "add") == {"a": 0, "b": 2 * EVENTS, "c": 0}, 20, "the host that was named to have had all")
        # If the slots of other hosts were not used, all of the stream's state would be on c, and no other host could go on with it.
        wait_until(lambda: min(_events(hosts, "count").values()) > EVENTS / 4, 20, "events of the stream on all hosts")


def _events(hosts: Hosts, deployment: str) -> dict[str, int]:
    """Return node -> the number of events that its slots have taken."""
    return {n: sum(s.events_in for s in connect_node(hosts.socket(n)).stats(deployment).slots) for n in hosts.net.hosts}

"""The command can start Java by a fork after it has used gRPC: the child must not abort."""

from __future__ import annotations

import subprocess
import sys

from tests.conftest import bound

# Each child runs a function between fork and exec, as in Spark's launch of Java; without the remedy one in fifty aborts.
FORKS = """
import udo_cli
import signal, subprocess, sys, tempfile
from concurrent import futures
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
with tempfile.TemporaryDirectory() as d:
    channel = grpc.insecure_channel(f"unix:{d}/nobody.sock")
    ends = []
    for _ in range(300):
        try:
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=1)
        except grpc.RpcError:
            pass
        ends.append(subprocess.run(["/bin/true"], preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)).returncode)
sys.exit(f"{sum(e != 0 for e in ends)} of {len(ends)} children aborted" if any(ends) else 0)
"""


def test_a_process_that_has_used_grpc_can_start_others() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=bound(120))
    assert done.returncode == 0, done.stderr[-2000:]

"""Operators that misbehave: each failure becomes an error that says what happened, and the next event is served."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import pytest

from tests.conftest import patience, wait_until
from tests.node_manager.conftest import Daemon, Lane, add, put_image
from tests.support.selection import long
from udo_interface import connect
from udo_protocol.errors import OperatorError, SchemaError
from udo_protocol.queue.frame import ANSWER, ERROR

Open = Callable[..., Lane]
# Answers a + 1, but misbehaves on the negative events.
BAD = """
import os, sys, time
from udo_runtime import operator
@operator
def run(batch):
    a = batch.column("a").to_pylist()
    if -1 in a: os._exit(7)
    if -4 in a: os.kill(os.getpid(), 9)
    if -2 in a: time.sleep(600)
    if -3 in a:
        kept = []
        while True: kept.append(bytearray(os.urandom(1 << 16) * 64)); time.sleep(0.002)
    print("garbage \\xff", a, flush=True)
    return {"b": [x + 1 for x in a]}
"""


def test_an_operator_that_cannot_be_imported_fails_the_deployment_with_its_traceback(daemon: Daemon, lane: Open) -> None:
    with pytest.raises(OperatorError, match="no_such_module"):
        daemon.deploy("import no_such_module\n")

    assert daemon.slot().state == "failed"
    with pytest.raises(OperatorError, match="ModuleNotFoundError"):
        lane()


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import os; os._exit(5)\n", "exit status 5"),
        ("import sys; sys.exit(3)\n", "SystemExit"),
        ("x = 1\n", "has no 'run'"),
        ("from udo_runtime import Operator\nclass run(Operator):\n    def open(self, ctx): raise ValueError('no model')\n", "no model"),
    ],
)
def test_an_operator_that_fails_to_start_says_why(daemon: Daemon, source: str, why: str) -> None:
    with pytest.raises(OperatorError, match=why):
        daemon.deploy(source)


def test_an_operator_that_hangs_in_open_is_given_up_in_time(daemon: Daemon) -> None:
    source = "import time\nfrom udo_runtime import Operator\nclass run(Operator):\n    def open(self, ctx): time.sleep(600)\n"

    with pytest.raises(OperatorError, match="open_timeout_s = 1"):
        daemon.deploy(source, limits={"open_timeout_s": 1})


@pytest.mark.long
def test_a_failed_deployment_can_be_deployed_anew_after_undeploy(daemon: Daemon, lane: Open) -> None:
    with pytest.raises(OperatorError):
        daemon.deploy("import no_such_module\n")
    daemon.api.undeploy("d")

    daemon.deploy(add(1))

    assert lane().ask(1) == 2


@pytest.mark.parametrize(("event", "how"), [(-1, "exit status 7"), long(-4, "SIGKILL")])
def test_a_frame_an_operator_dies_of_again_and_again_is_answered_with_an_error(daemon: Daemon, lane: Open, event: int, how: str) -> None:
    daemon.deploy(BAD)
    good, bad = lane(), lane()
    assert good.ask(1) == 2

    bad.send([event])
    failed = bad.receive(30)

    assert failed.header.kind == ERROR
    assert "3 instances in a row died on this frame" in failed.header.failure.message
    assert how in failed.header.failure.message
    assert failed.header.failure.operator == "t@1"
    assert good.ask(2, 30) == 3
    assert daemon.slot().restarts >= 3
    wait_until(lambda: daemon.api.stats("d").slots[0].errors == 1, 10, "the frame to be counted as an error")


def test_an_operator_that_hangs_is_killed_and_the_frame_answered_with_an_error(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(BAD, limits={"answer_timeout_s": 3.0})
    good, bad = lane(), lane()

    bad.send([-2])
    failed = bad.receive(30)

    assert "did not answer a frame within 3 s" in failed.header.failure.message
    assert good.ask(2, 30) == 3
    wait_until(lambda: daemon.api.stats("d").slots[0].errors == 1, 10, "the frame to be counted as an error")


def test_an_operator_that_exhausts_its_memory_is_killed_and_the_limit_named(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(BAD, limits={"memory_mb": 200})
    good, bad = lane(), lane()

    bad.send([-3])
    failed = bad.receive(60)

    assert "memory limit of 200 MiB exceeded" in failed.header.failure.message
    assert good.ask(2, 30) == 3
    wait_until(lambda: daemon.api.stats("d").slots[0].errors == 1, 10, "the frame to be counted as an error")


def test_garbage_on_standard_output_lands_in_the_log_only(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(BAD)

    assert lane().ask(1) == 2

    wait_until(lambda: any("garbage" in line.text for line in daemon.api.logs("d")), 5, "line in the log")


def test_a_death_while_nothing_waits_loses_nothing(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(BAD)
    caller = lane()
    caller.ask(1)

    os.kill(daemon.slot().pid, signal.SIGKILL)

    assert [caller.ask(i, 30) for i in range(20)] == [i + 1 for i in range(20)]
    wait_until(lambda: "SIGKILL" in daemon.slot().last_error, 20, "the cause")


@pytest.mark.parametrize(
    ("image", "why"),
    [
        ({"source": "import no_such_module\n"}, "no_such_module"),
        long({"source": add(2), "output": {"c": "int64"}}, "output: column 'b' .* is missing"),
        ({"source": "import os; os._exit(5)\n"}, "exit status 5"),
    ],
)
def test_an_update_that_does_not_become_ready_leaves_the_old_one_serving(
    daemon: Daemon, lane: Open, image: dict[str, str], why: str
) -> None:
    daemon.deploy(add(1))
    caller, before = lane(), daemon.slot().instance
    digest = put_image(daemon.home, version="2", **image)  # type: ignore[arg-type]

    last = list(daemon.api.update("d", "2", digest))[-1]

    assert last.phase == "failed"
    assert re.search(why, last.detail)
    assert last.error_code in (OperatorError.code, SchemaError.code)
    assert caller.ask(1) == 2
    assert (daemon.slot().instance, daemon.slot().version) == (before, "1")


LIB = "__version__ = {v!r}\ndef answer(): return {n}\n"
USES = """
import msgpack, structlog
from udo_runtime import operator
@operator
def run(batch):
    print("msgpack", msgpack.__version__, "structlog", structlog.__version__, flush=True)
    return {"b": [structlog.answer() + msgpack.answer()] * batch.num_rows}
"""


def test_an_operator_brings_its_own_version_of_a_library_that_the_platform_has_too(daemon: Daemon, lane: Open) -> None:
    # The platform has both, and warm instances have even loaded msgpack: the operator sees its own version of each.
    assert version("structlog") != "0.0.1" and version("msgpack") != "0.0.2"
    own = {"structlog.py": LIB.format(v="0.0.1", n=40), "msgpack/__init__.py": LIB.format(v="0.0.2", n=2)}

    daemon.deploy(USES, dependencies=own)

    assert lane().ask(0) == 42
    wait_until(lambda: any("msgpack 0.0.2 structlog 0.0.1" in line.text for line in daemon.api.logs("d")), 5, "line in the log")


def test_an_operator_sees_nothing_of_the_environment_the_node_manager_runs_in(daemon: Daemon) -> None:
    with pytest.raises(OperatorError, match="No module named 'grpc'"):
        daemon.deploy("import grpc\n")


@pytest.mark.long
def test_a_slow_warm_start_and_limits_of_the_deployment_are_honoured(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(BAD, config_json=json.dumps({"limits": {"answer_timeout_ms": 1000}}))
    caller = lane()

    caller.send([-2])

    assert "within 1 s" in caller.receive(30).header.failure.message
    caller2 = lane()
    caller2.send([1])
    assert caller2.receive(30).header.kind == ANSWER


# Opens for longer than callers wait for an answer, once the time that its variable names has come.
SLOW_LATER = """
import os, time
from udo_runtime import Operator
class Slow(Operator):
    def open(self, ctx):
        if time.time() > float(os.environ["SLOW_FROM"]):
            time.sleep(20)
    def process(self, event, ctx):
        yield {"b": event["a"]}
"""


@pytest.mark.long
@pytest.mark.parametrize("isolation", ["none", "process"])
def test_callers_wait_for_an_instance_that_opens_for_longer_than_it_may_take_to_answer(daemon: Daemon, isolation: str) -> None:
    own = {"isolation": isolation} if isolation != "none" else {}
    config = json.dumps({"env": {"SLOW_FROM": str(time.time() + 10 * patience())}})
    daemon.deploy(SLOW_LATER, entry="op:Slow", config_json=config, limits={"answer_timeout_s": 2}, **own)
    time.sleep(10 * patience())
    got: list[Any] = []
    with connect("d", node=str(daemon.home / "node.sock")) as client:
        client.add_listener(got.append)
        client.send({"a": 1})
        client.flush()
        os.kill(daemon.slot().pid, signal.SIGKILL)
        client.send({"a": 2})
    assert got == [{"b": 1}, {"b": 2}]

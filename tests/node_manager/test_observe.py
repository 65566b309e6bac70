"""Observing a node: status, statistics, logs, metrics, health; looking and idling cost little."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
import urllib.request
from collections.abc import Callable

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import bound, wait_until
from tests.node_manager.conftest import Daemon, Lane, add, put_image
from tests.support.keyed_node import COUNT, KEYED

Open = Callable[..., Lane]
CHATTY = """
import logging
from udo_runtime import operator
@operator
def run(batch):
    logging.getLogger("op").info("saw %s {n}", batch.column("a").to_pylist())
    return {{"b": batch.column("a")}}
"""


PICKY = """
from udo_runtime import operator
@operator
def run(batch):
    values = batch.column("a").to_pylist()
    if 13 in values: raise ValueError("unlucky")
    return {"b": values}
"""


SLOW_TO_LOAD = """
import time
from udo_runtime import Operator
class Slow(Operator):
    def open(self, ctx):
        time.sleep(0.3)
    def process(self, event, ctx):
        yield {"b": event["a"]}
time.sleep(0.1)
run = Slow()
"""


def _metrics(daemon: Daemon, deployment: str = "d") -> dict[str, float]:
    with urllib.request.urlopen(daemon.api.status().metrics_address, timeout=bound(10)) as reply:
        text = reply.read().decode()
    return {
        s.name + "".join(f",{v}" for k, v in sorted(s.labels.items()) if k in ("quantile", "part", "le")): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
        if s.labels.get("deployment") == deployment
    }


def test_status_names_servers_slots_versions_and_addresses(daemon: Daemon) -> None:
    digest = daemon.deploy(add(1))

    status = daemon.api.status()

    assert (status.node, status.driver) == ("n1", "process")
    assert [s.role for s in status.servers] == ["queue", "state"]
    assert all(s.used_bytes and s.run_id for s in status.servers)
    assert status.metrics_address.startswith("http://127.0.0.1:")
    d = daemon.slot()
    assert (d.operator, d.version, d.digest, d.state) == ("t", "1", digest, "owner")
    assert psutil.Process(d.pid).is_running() and d.rss_bytes > 10 << 20


def test_statistics_and_metrics_count_events_over_an_update(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(add(1))
    caller = lane()
    for _ in range(10):
        caller.send([1, 2, 3])
        caller.receive()
    wait_until(lambda: daemon.api.stats("d").slots[0].events_in == 30, 10, "30 events counted")
    list(daemon.api.update("d", "2", put_image(daemon.home, add(100), version="2")))
    caller.send([1, 2, 3])
    caller.receive()

    wait_until(lambda: daemon.api.stats("d").slots[0].events_in == 33, 10, "33 events counted")

    seen = _metrics(daemon)
    assert seen["udo_events_in_total"] == seen["udo_events_out_total"] == 33
    assert seen["udo_frames_total"] == 11
    assert {"udo_queue_depth_frames", "udo_retained_bytes", "udo_events_per_second", "udo_restarts_total"} <= seen.keys()
    assert {"udo_frame_milliseconds,0.5", "udo_frame_milliseconds,0.99"} <= seen.keys()
    assert seen["udo_operator_info"] == 1
    buckets = [value for name, value in seen.items() if name.startswith("udo_frame_seconds_bucket,")]
    assert buckets == sorted(buckets) and len(buckets) == 15
    assert seen["udo_frame_seconds_bucket,+Inf"] == seen["udo_frame_seconds_bucket,10"] == seen["udo_frame_seconds_count"] == 11
    assert seen["udo_frame_seconds_sum"] == seen["udo_busy_seconds_total"] > 0
    wait_until(lambda: "udo_queue_wait_seconds" in _metrics(daemon), 30, "the monitor to have seen the slot")
    seen = _metrics(daemon)
    assert 0 <= seen["udo_queue_wait_seconds"] <= seen["udo_response_seconds"] and 0 <= seen["udo_busy_ratio"] <= 1
    assert {"udo_backlog_events", "udo_open_lanes"} <= seen.keys()


def test_the_page_tells_of_the_node_its_servers_and_its_disk(daemon: Daemon) -> None:
    with urllib.request.urlopen(daemon.api.status().metrics_address, timeout=bound(10)) as reply:
        samples = [s for family in text_string_to_metric_families(reply.read().decode()) for s in family.samples]
    (info,) = [s.labels for s in samples if s.name == "udo_node_info"]
    assert info == {"node": "n1", "driver": "process"}
    found = {(s.name, *s.labels.values()): s.value for s in samples}
    assert found["udo_server_used_bytes", "queue"] > 1 << 16 and found["udo_server_used_bytes", "state"] > 1 << 16
    assert 0 < found["udo_disk_free_bytes",] < found["udo_disk_bytes",]


def test_each_metric_has_the_value_of_what_it_is_named_after(daemon: Daemon, lane: Open) -> None:
    """Over both deployments no two counters have the same values, so none can stand in for another."""
    policies = {"d": {"policy": "dead-letter", "limits": {"retries": 3}}, "e": {"policy": "fail"}}
    for name, config in policies.items():
        daemon.deploy(f"{PICKY}# {name}\n", name=name, config_json=json.dumps(config))
    for deaths in (1, 2):
        os.kill(daemon.slot("e").pid, signal.SIGKILL)
        wait_until(lambda n=deaths: (daemon.slot("e").restarts, daemon.slot("e").state) == (n, "owner"), 30, "the next owner")  # type: ignore[misc]
    unlucky = [[13]]  # the failing frame is the last in its lane
    lanes = {"d": [[[1, 2, 3, 4], [13, 5, 13]]], "e": [[[1, 2], [3, 4, 5], [6]], unlucky, unlucky, unlucky]}
    for name, each in lanes.items():
        for frames in each:
            caller = lane(name)
            for values in frames:
                caller.send(values)
                caller.receive()

    expected = {
        "events_in": (7, 6),  # without the events of failed frames
        "events_out": (5, 6),
        "frames": (2, 3),
        "errors": (0, 3),
        "dead_letters": (2, 0),
        "retries": (3, 0),
        "restarts": (0, 2),
    }

    def counted() -> dict[str, tuple[float, float]]:
        d, e = _metrics(daemon, "d"), _metrics(daemon, "e")
        return {n: (d[f"udo_{n}_total"], e[f"udo_{n}_total"]) for n in expected}

    wait_until(lambda: counted()["errors"] == expected["errors"], 20, "the last frame to be counted")
    assert counted() == expected
    assert len(set(expected.values())) == len(expected)
    seen, stats = _metrics(daemon), daemon.api.stats("d").slots[0]
    assert seen["udo_busy_seconds_total"] == stats.busy_s > 0
    assert seen["udo_resident_bytes"] > 10 << 20
    assert seen["udo_frame_milliseconds,0.5"] == stats.p50_ms <= stats.p99_ms == seen["udo_frame_milliseconds,0.99"]
    assert seen["udo_queue_depth_frames"] == seen["udo_retained_bytes"] == 0


def test_the_time_that_an_operator_takes_to_import_and_to_open_is_told_apart(daemon: Daemon) -> None:
    daemon.deploy(SLOW_TO_LOAD)
    seen = _metrics(daemon)
    assert seen["udo_load_seconds,import"] >= 0.1
    assert seen["udo_load_seconds,open"] >= 0.3


def test_it_is_told_as_well_of_a_keyed_operator_that_was_a_standby_first(home_daemon: Daemon) -> None:
    home_daemon.start()
    home_daemon.deploy(COUNT, **KEYED)
    slow = put_image(home_daemon.home, COUNT + "import time\ntime.sleep(0.1)\n", version="2", **KEYED)
    assert [e.phase for e in home_daemon.api.update("d", "2", slow)][-1] == "done"
    assert _metrics(home_daemon)["udo_load_seconds,import"] >= 0.1


def test_logs_follow_an_operator_over_an_update_and_show_former_instances(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(CHATTY.format(n="v1"))
    caller = lane()
    caller.ask(1)
    wait_until(lambda: any("saw [1] v1" in line.text for line in daemon.api.logs("d")), 10, "first line")

    lines = daemon.api.logs("d", follow=True, tail_lines=1, timeout_s=bound(30))
    first = next(lines)
    assert ("saw [1] v1" in first.text, first.version, first.stream) == (True, "1", "log")
    assert first.at.startswith("20")
    list(daemon.api.update("d", "2", put_image(daemon.home, CHATTY.format(n="v2"), version="2")))
    caller.ask(2)
    later = next(line for line in lines if "saw [2]" in line.text)
    lines.close()  # type: ignore[attr-defined]

    assert (later.version, "v2" in later.text) == ("2", True)
    wait_until(lambda: {"1", "2"} <= {line.version for line in daemon.api.logs("d")}, 10, "lines of both versions")


def test_whoever_follows_the_log_of_a_deployment_is_told_when_it_goes(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(CHATTY.format(n="v1"))
    lines = daemon.api.logs("d", follow=True, timeout_s=bound(30))
    lane().ask(1)
    next(line for line in lines if "saw [1]" in line.text)
    daemon.api.undeploy("d")
    daemon.deploy(CHATTY.format(n="anew"))
    lane().ask(2)
    assert not [line.text for line in lines if "saw [2]" in line.text]


PRINTING = """
import sys
from udo_runtime import operator
@operator
def run(batch):
    print("on stderr", file=sys.stderr)
    print("saw", *batch.column("a").to_pylist())
    print("two\\nlines, ", end="")
    print("and the end")
    return {"b": batch.column("a")}
"""


def test_a_short_print_is_in_the_log_at_once_with_one_time_stamp_a_line(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(PRINTING)
    caller = lane()
    caller.ask(7)

    wait_until(lambda: any(line.text == "lines, and the end" for line in daemon.api.logs("d")), 10, "what was printed last")

    lines = [line for line in daemon.api.logs("d") if not line.text.startswith(("INFO", "WARNING"))]
    assert [line.text for line in lines] == ["on stderr", "saw 7", "two", "lines, and the end"]
    assert all(line.at.startswith("20") for line in lines)


@pytest.mark.long
def test_an_idle_node_costs_almost_nothing(home_daemon: Daemon) -> None:
    daemon = home_daemon.start("--warm", "1")
    daemon.deploy(add(1))
    caller = Lane(daemon.api, "d")
    caller.ask(1)
    caller.conn.close()
    mine = [psutil.Process(daemon.process.pid), *daemon.processes()]  # type: ignore[union-attr]
    quiet = time.monotonic() + 2.0  # meanwhile the warm pool fills up again
    wait_until(lambda: time.monotonic() > quiet, 5, "quiet")

    def spent() -> float:
        return sum(sum(p.cpu_times()[:2]) for p in mine if p.is_running())

    start, begun = spent(), time.monotonic()
    until = begun + 4.0
    wait_until(lambda: time.monotonic() > until, 10, "measurement")
    used = (spent() - start) / (time.monotonic() - begun)

    # Manager, two servers, watchdog, owner and warm instance together; 1.0 is a core.
    assert used < 0.04, f"{used:.3f} cores"


def test_the_manager_is_healthy_only_while_it_serves(daemon: Daemon) -> None:
    assert daemon.api.healthy()

    daemon.stop()

    assert not daemon.api.healthy()


def test_two_hundred_events_around_every_update_are_answered_in_order(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(add(0))
    caller = lane()
    numbers = itertools.count()
    expected: list[int] = []
    for update in range(1, 6):
        sent = [next(numbers) for _ in range(100)]
        for n in sent[:8]:
            caller.send([n])
        expected += sent[:8]
        digest = put_image(daemon.home, add(0) + f"# {update}\n", version=f"v{update}")
        steps = list(daemon.api.update("d", f"v{update}", digest))
        assert steps[-1].phase == "done", steps[-1]
        for n in sent[8:]:
            caller.send([n])
            expected.append(n)
            assert caller.values(caller.receive())[0] == expected.pop(0)
    while expected:
        assert caller.values(caller.receive())[0] == expected.pop(0)

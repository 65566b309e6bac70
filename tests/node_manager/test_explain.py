"""`udo explain`: O(x), the rules that fired with their inputs, and a user's own rule table, from a real node's signals."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from elasticity.bottleneck import fuzzy
from tests.conftest import wait_until
from tests.node_manager.conftest import Daemon, add
from udo_cli.commands.explain import explained
from udo_cli.exits import ExitCode
from udo_cli.main import cli
from udo_protocol.proto import node_manager_pb2 as pb

SATURATED = pb.SlotSignals(
    deployment="d", slot=0, cpu=0.5, busy=0.99, memory=0.1, arrivals=200, answers=100, backlog=500, service_ms=10, lanes=2
)
IDLE = pb.SlotSignals(deployment="d", slot=1000, cpu=0.01, busy=0.02, memory=0.6, arrivals=1, answers=1, service_ms=10, lanes=1)


def reply(*slots: pb.SlotSignals) -> pb.SignalsReply:
    return pb.SignalsReply(node="n", window_s=10, watched_s=100, monitor_cpu_s=0.2, slots=slots)


def test_the_worst_slot_decides_each_input_and_is_named() -> None:
    found = explained(reply(SATURATED, IDLE), "d", fuzzy.shipped(), "shipped")
    assert found["verdict"] == "scale out" and found["load"] > 75
    assert found["worst"] == {"use": 0, "memory": 1000, "queue": 0}
    assert found["inputs"]["use"] == pytest.approx(0.99) and found["inputs"]["memory"] == pytest.approx(0.6)
    assert sum(f["strength"] for f in found["fired"]) == pytest.approx(1)
    assert {f["if"]["use"] for f in found["fired"]} == {"high"}
    assert [round(s["load"]) for s in found["slots"]][1] < 20 <= found["thresholds"]["scale_in"]
    assert found["monitor_cpu_share"] == pytest.approx(0.002)


def test_a_slot_without_figures_leaves_nothing_to_say_of_the_deployment() -> None:
    lost = pb.SlotSignals(deployment="d", slot=1000, missing="it has no owner")
    found = explained(reply(SATURATED, lost), "d", fuzzy.shipped(), "shipped")
    assert found["load"] is found["verdict"] is found["fired"] is None
    assert found["missing"] == [{"slot": 1000, "why": "it has no owner"}]
    assert found["slots"][1]["cpu"] is None
    json.dumps(found, allow_nan=False)


def test_the_shipped_rules_are_printed_to_be_changed() -> None:
    shown = CliRunner().invoke(cli, ["explain", "--print-rules"])
    assert shown.exit_code == ExitCode.OK
    assert fuzzy.read(shown.output) == fuzzy.shipped()


@pytest.mark.long
def test_a_real_deployment_is_explained_by_the_shipped_rules_and_by_ones_own(daemon: Daemon, tmp_path: Path) -> None:
    daemon.deploy(add(1))
    node = ["--node", str(daemon.home / "node.sock")]
    idle = lambda s: not s.missing and s.cpu < 0.1  # noqa: E731
    wait_until(lambda: idle(daemon.api.signals("d").slots[0]), 60, "figures of an idle slot")

    found = json.loads(CliRunner().invoke(cli, ["explain", "d", "--json", *node]).output)
    assert found["verdict"] == "scale in" and found["load"] < 20 and found["node"] == "n1"
    text = CliRunner().invoke(cli, ["explain", "d", *node]).output
    assert "d on node n1: load 10 of 100 from use" in text
    assert "use low and memory low and queue low → idle" in text
    assert "scale in below 20, prepare from 60, scale out from 75: scale in" in text

    mine = tmp_path / "mine.toml"
    mine.write_text(fuzzy.shipped_text().replace('"low low low" = "idle"', '"low low low" = "overloaded"'))
    assert tomllib.loads(mine.read_text())["rules"]["low low low"] == "overloaded"
    own = json.loads(CliRunner().invoke(cli, ["explain", "d", "--rules", str(mine), "--json", *node]).output)
    assert own["verdict"] == "scale out" and own["rules"] == str(mine)

    config = {"elasticity": {"settings": {"rules": mine.read_text()}}}
    daemon.deploy(add(2), name="e", config_json=json.dumps(config))
    wait_until(lambda: idle(daemon.api.signals("e").slots[0]), 60, "its figures")
    its = json.loads(CliRunner().invoke(cli, ["explain", "e", "--json", *node]).output)
    assert its["verdict"] == "scale out" and its["rules"] == "the deployment's"

    mine.write_text(fuzzy.shipped_text().replace('"low low low" = "idle"\n', ""))
    wrong = CliRunner().invoke(cli, ["explain", "d", "--rules", str(mine), *node])
    assert wrong.exit_code == ExitCode.USAGE and "[rules] 'low low low': expected one of idle" in wrong.output
    gone = CliRunner().invoke(cli, ["explain", "nothing", *node])
    assert gone.exit_code == ExitCode.NOT_FOUND

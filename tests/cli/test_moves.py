"""`udo scale`, `udo move` and `udo rebalance` on a deployment that keeps state."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Shell
from tests.conftest import bound
from udo_cli.exits import ExitCode
from udo_protocol import ranges
from udo_protocol.node.api import NodeClient


def groups(platform: Shell) -> dict[int, str]:
    """Return slot -> its key groups, as `udo status` shows them."""
    return {
        s["slot"]: s["groups"] for s in platform("status", "--json").json["node"]["slots"] if s["deployment"] == "visits" and s["groups"]
    }


@pytest.mark.long
@pytest.mark.usefixtures("visits")
def test_key_groups_are_spread_and_moved_by_command_and_status_shows_where_they_are(platform: Shell, visits: NodeClient) -> None:
    assert groups(platform) == {0: "0-127"}
    platform("scale", "visits", "2")
    first, second = groups(platform)
    assert groups(platform) == {first: "0-63", second: "64-127"}
    moved = platform("move", "visits", "--groups", "3, 100-127", "--to", str(second), "--json").json
    assert (moved["to"], moved["moved"], moved["groups"][:2]) == (second, 29, [3, 100])
    assert groups(platform) == {first: "0-2, 4-63", second: "3, 64-127"}
    shown = [(m["slot"], m["number"], m["groups"], m["map_version"]) for m in platform("inspect", "visits", "--json").json["key_groups"]]
    assert shown == [(first, 63, "0-2, 4-63", 3), (second, 65, "3, 64-127", 3)]
    line = next(line for line in platform("inspect", "visits").out.splitlines() if "3, 64-127" in line)
    assert line.split()[1:3] == [str(second), "65"] and line.split()[-1] == "3"
    assert "2 of 2 key groups are in slot 0" in platform("move", "visits", "--groups", "3,70", "--to", "0").err
    assert "KEY GROUPS" in platform("status").out and "0-63, 70" in platform("status").out
    wrong = platform("move", "visits", "--groups", "5-3", "--to", "0", code=ExitCode.USAGE)
    assert "expected numbers below 32768 or ranges of them" in wrong.err
    assert "has no slot 9 on node" in platform("move", "visits", "--groups", "5", "--to", "9", code=ExitCode.NOT_FOUND).err
    platform("scale", "visits", "1")
    assert groups(platform) == {0: "0-127"}


def _whole(platform: Shell) -> dict[int, list[int]]:
    """Return slot -> its key groups, all of which must be in exactly one slot."""
    found = {slot: ranges.parsed(shown, 128) for slot, shown in groups(platform).items()}
    assert sorted(g for slot in found.values() for g in slot) == list(range(128))
    return found


@pytest.mark.long
@pytest.mark.usefixtures("visits")
def test_a_plan_runs_in_rounds_and_goes_on_where_it_was_stopped(platform: Shell, tmp_path: Path) -> None:
    platform("scale", "visits", "2")
    first, second = groups(platform)
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"0-19": second, "100": second, "120-127": first}))
    done = platform("rebalance", "visits", "--plan", plan, "--moves-under-way", "8", "--json").json
    assert (done["groups"], done["moved"], done["rounds"]) == (29, 28, 4)
    assert [(m["round"], len(m["groups"]), m["to"]) for m in done["moves"]] == [
        (1, 8, second), (2, 8, second), (3, 4, first), (3, 4, second), (4, 4, first)
    ]  # fmt: skip
    assert groups(platform) == {first: "20-63, 120-127", second: "0-19, 64-119"}
    assert "all 29 key groups of the plan are in place" in platform("rebalance", "visits", "--plan", plan).err

    plan.write_text(json.dumps({"0-127": first}))
    words = platform.command("rebalance", "visits", "--plan", plan, "--moves-under-way", "1")
    env = platform.environment(PYTHONFAULTHANDLER="1")
    with subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=env) as process:
        assert process.stderr is not None
        try:
            assert process.stderr.readline().startswith("round 1 of 76: ")
            process.send_signal(signal.SIGINT)
            try:
                told = process.communicate(timeout=bound(60))[1]
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGABRT)  # prints where it hangs
                told = process.communicate(timeout=bound(60))[1]
        finally:
            process.kill()  # otherwise leaving the block would wait for it
    assert process.returncode == ExitCode.INTERRUPTED, told
    assert "the same command again goes on with the rest" in told
    assert _whole(platform)[second], "it was stopped before its end"
    platform("rebalance", "visits", "--plan", plan, "--moves-under-way", "64")
    assert _whole(platform) == {first: list(range(128))}
    platform("scale", "visits", "1")


@pytest.mark.long
@pytest.mark.usefixtures("visits")
def test_a_plan_that_cannot_be_carried_out_is_refused_before_anything_moves(platform: Shell, tmp_path: Path) -> None:
    platform("scale", "visits", "2")
    before, plan = groups(platform), tmp_path / "plan.json"
    for text, code, why in [
        ("[]", ExitCode.USAGE, "expected an object such as"),
        ("{", ExitCode.USAGE, "expected JSON such as"),
        ('{"0": "1"}', ExitCode.USAGE, "expected key groups and the number of a slot"),
        ('{"0-3": 0, "3": 0}', ExitCode.USAGE, "expected each key group once, got 3 twice"),
        ('{"3": 0, "3": 1}', ExitCode.USAGE, "expected each key group once, got 3 twice"),
        ('{"1": 0, "128": 0}', ExitCode.USAGE, "there are the key groups 0-127, got 128"),
        ('{"127": 0, "1": 7}', ExitCode.NOT_FOUND, "got 7; look at: udo status"),
    ]:
        plan.write_text(text)
        assert why in platform("rebalance", "visits", "--plan", plan, code=code).err
    assert groups(platform) == before
    plan.write_text('{"0": 0}')
    assert "no deployment 'visit' on node" in platform("rebalance", "visit", "--plan", plan, code=ExitCode.NOT_FOUND).err
    platform("scale", "visits", "1")

"""`udo state` and `udo undeploy` on the sessions of a real keyed deployment."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Shell
from tests.support.attempt import Attempt
from tests.support.visits import ONE, TWO, run, sessions, show, write
from udo_cli import state_file
from udo_cli.text.state_text import entries
from udo_protocol.errors import StateElsewhere, UsageError
from udo_protocol.limits import KEY_GROUPS
from udo_protocol.node.api import NodeClient, connect_node
from udo_protocol.registry.api import Registry


def test_a_session_is_listed_and_shown(platform: Shell, visits: NodeClient) -> None:
    [one] = sessions(platform).values()
    assert (one["session"], one["last_epoch"], one["keys"], one["run"], one["lanes"]) == (ONE, 1, 3, 1, 0)
    text = platform("state", "ls").out
    assert all(word in text for word in ("visits", ONE, "LAST EPOCH", "in use"))
    assert show(platform, "1111") == {1: 2, 2: 1, 7: 1}
    assert show(platform, ONE, "--limit", "1").keys() < {1, 2, 7}
    [line] = platform("state", "show", "visits", ONE, "--key", "7").out.splitlines()
    assert json.loads(line) == {"key": 7, "state": {"n": 1}, "group": 3, "expires": "2030-01-01T00:00:00+00:00"}
    assert "2 of 3 keys" in platform("state", "show", "visits", ONE, "--limit", "2").err


REMINDERS = """
import datetime as dt
from udo_runtime import Operator
class Remind(Operator):
    def process(self, event, ctx):
        ctx.timer(event["t"] + dt.timedelta(hours=1))
        if event["a"] < 10: ctx.state["n"] = 1
        return ()
"""


def test_a_key_that_waits_for_a_timer_and_has_no_state_is_counted_and_shown(platform: Shell, tmp_path: Path) -> None:
    folder = write(tmp_path / "reminders")
    manifest = (folder / "operator.toml").read_text().replace("visits", "reminders").replace("Count", "Remind")
    (folder / "operator.toml").write_text(manifest.replace("[output]", 't = "timestamp[us]"\n[event_time]\ncolumn = "t"\n[output]'))
    (folder / "op.py").write_text(REMINDERS)
    platform("push", folder)
    platform("deploy", "reminders")
    node = connect_node(platform.home / "node" / "node.sock")

    Attempt.at_node(node, "reminders", ONE, 0, 1).run([1, 2, 10, 11, 14])
    assert platform("state", "ls", "reminders", "--json").json[0]["keys"] == 5
    shown = {e["key"]: e for e in platform("state", "show", "reminders", ONE, "--json").json["entries"]}
    assert {k: e["state"] for k, e in shown.items()} == {1: {"n": 1}, 2: {"n": 1}, 10: {}, 11: {}, 14: {}}
    assert {tuple(e["timers"]) for e in shown.values()} == {("2020-01-01T01:00:00+00:00",)}
    Attempt.at_node(node, "reminders", ONE, 1, 2).run([1], 3600)
    Attempt.at_node(node, "reminders", ONE, 2, 3).run([1], 3601)  # the timers of epoch 0 fire
    assert [s.keys for s in node.sessions("reminders").sessions] == [2]
    platform("undeploy", "reminders", "--drop-state")


def test_names_that_do_not_exist_are_answered_with_those_that_do(platform: Shell, visits: NodeClient) -> None:
    assert ONE in platform("state", "show", "visits", "nobody", code=3).err
    assert "no key 99" in platform("state", "show", "visits", ONE, "--key", "99", code=3).err
    assert "no deployment" in platform("state", "ls", "nothing", code=3).err
    assert "there is no file" in platform("state", "import", "none.state", "visits", TWO, code=2).err


@pytest.mark.long
def test_an_export_shows_the_last_complete_epoch_and_is_imported_under_another_name(
    platform: Shell, visits: NodeClient, tmp_path: Path
) -> None:
    file = tmp_path / "visits.state"
    platform("state", "export", "visits", ONE, file)
    platform("state", "import", file, "visits", "again")
    assert run(visits, "again", 1, [1, 2]) == [2, 2]  # the query replays its last epoch
    assert run(visits, "again", 2, [1, 2]) == [3, 3]

    under_way = Attempt.at_node(visits, "visits", ONE, 2, 9)
    under_way.send([1, 1, 5])
    under_way.answers()
    run(visits, TWO, 0, [3])  # makes them durable
    made = platform("state", "export", "visits", ONE, file, "--force", "--json").json
    assert (made["keys"], made["last_ended"], made["key"]) == (3, 1, [["a", "int64"]])
    assert file.stat().st_mode & 0o777 == 0o600
    assert platform("state", "export", "visits", ONE, file, code=4).err.count("--force") == 1
    under_way.lane.close()
    under_way.close()

    assert "continues with epoch 2" in platform("state", "import", file, "visits", "copy").out
    assert show(platform, "copy") == {1: 2, 2: 1, 7: 1}
    assert run(visits, "copy", 2, [1, 2]) == [3, 2]
    assert platform("state", "import", file, "visits", "copy", code=4).err.count("in use") == 1

    platform("state", "import", file, "visits", "fresh", "--start-epoch", "0")
    assert run(visits, "fresh", 0, [1, 4]) == [3, 1]


def test_a_file_from_the_middle_of_a_micro_batch_says_so_and_is_for_its_own_query_only(
    platform: Shell, visits: NodeClient, tmp_path: Path
) -> None:
    """Two partitions, of which only the first has completed epoch 2."""
    even, odd = (Attempt.at_node(visits, "visits", ONE, 2, 9 + p, groups=range(p, KEY_GROUPS, 2)) for p in (0, 1))
    assert even.run([2, 2]) == [2, 3]
    file = tmp_path / "visits.state"
    done = platform("state", "export", "visits", ONE, file)
    behind = "64 of 128 key groups have not completed epoch 2"
    assert f"{behind}: the file is for the same query" in done.err
    assert platform("state", "export", "visits", ONE, file, "--force", "--json").json["groups_behind"] == 64
    refused = platform("state", "import", file, "visits", "fresh", "--start-epoch", "0", code=2)
    assert behind in refused.err and "--force" in refused.err and "fresh" not in sessions(platform)

    platform("state", "import", file, "visits", "again")
    assert run(visits, "again", 2, [1, 2, 2]) == [3, 2, 3], "epoch 2 is processed again, and counts once for either partition"
    assert odd.run([1]) == [3]
    done = platform("state", "export", "visits", ONE, file, "--force")
    assert "have not completed" not in done.err
    platform("state", "import", file, "visits", "fresh", "--start-epoch", "0")
    assert run(visits, "fresh", 0, [1, 2]) == [4, 4]


@pytest.mark.long
def test_state_of_another_version_is_refused(platform: Shell, visits: NodeClient, tmp_path: Path) -> None:
    file = tmp_path / "visits.state"
    platform("state", "export", "visits", ONE, file)
    platform("push", write(tmp_path / "next", "2", state_version=1))
    platform("deploy", "visits@2", "--name", "next")
    assert "reads state of version 1; the file's is of version 0" in platform("state", "import", file, "next", "x", code=4).err
    platform("undeploy", "next")


@pytest.mark.long
def test_a_damaged_file_is_refused(platform: Shell, visits: NodeClient, tmp_path: Path) -> None:
    file = tmp_path / "visits.state"
    platform("state", "export", "visits", ONE, file)
    whole = file.read_bytes()
    file.write_bytes(whole[:-12])
    assert "damaged" in platform("state", "import", file, "visits", TWO, code=2).err
    file.write_bytes(gzip.compress(gzip.decompress(whole)[:-20]))
    with pytest.raises(UsageError, match="damaged|cut off"):
        state_file.check(file)
    file.write_text("{}")
    assert "not a file of `udo state export`" in platform("state", "import", file, "visits", TWO, code=2).err


@pytest.mark.long
def test_a_drop_is_refused_while_in_use_and_asks_before_it_acts(platform: Shell, visits: NodeClient) -> None:
    assert "use --yes" in platform("state", "drop", "visits", ONE, code=2).err
    refused = platform("state", "drop", "visits", ONE, "--yes", code=4)
    assert "a task used it" in refused.err
    assert "--force" in refused.err
    assert platform("state", "drop", "visits", "1111", "--yes", "--force", "--json").json["dropped"] == ONE
    assert ONE not in sessions(platform)
    assert run(visits, ONE, 0, [1], run="r2") == [1]
    alone = {"UDO_NODE": str(platform.home / "node" / "node.sock"), "UDO_HOME": str(platform.home / "nothing")}
    dropped = platform("state", "drop", "visits", ONE, "--yes", "--force", **alone)
    assert "not asked: other nodes" in dropped.err and "repeat the command" in dropped.err
    assert run(visits, ONE, 0, [1], run="r3") == [1]


def test_undeploying_says_what_state_would_be_lost(platform: Shell, visits: NodeClient) -> None:
    refused = platform("undeploy", "visits", code=4)
    assert "1 sessions with 3 keys" in refused.err
    assert "--drop-state" in refused.err
    platform("undeploy", "visits", "--drop-state")


@pytest.mark.long
def test_a_home_that_is_released_gives_its_state_up(platform: Shell, visits: NodeClient) -> None:
    name = connect_node(platform.home / "node" / "node.sock").status().node
    assert f"node {name}, the home of session {ONE}" in platform("state", "release", "visits", "1111", code=4).err
    assert "there are: 11111111" in platform("state", "release", "visits", "9", code=3).err

    assert platform("state", "release", "visits", "1111", "--force", "--json").json["node"] == name

    with pytest.raises(StateElsewhere, match="was released"):
        run(visits, ONE, 2, [1])
    assert run(visits, TWO, 0, [1]) == [1]


def test_deploying_a_keyed_operator_on_several_nodes_says_that_a_session_has_one(platform: Shell, visits: NodeClient) -> None:
    home = platform.home / "registry"
    with Registry((home / "address").read_text().strip(), (home / "token").read_text().strip()) as api:
        api.heartbeat("elsewhere")
        try:
            made = platform("deploy", "visits@1", "--name", "two", "--wait-s", "0", "--json").json
            said = platform("deploy", "visits@1", "--name", "two", "--wait-s", "0").err
        finally:
            api.leave("elsewhere")
    [notice] = made["notices"]
    for part in ("2 nodes are live", "elsewhere", "store=", "run the query's executors on one node"):
        assert part in notice
        assert part in said
    assert platform("deploy", "visits@1", "--name", "two", "--wait-s", "0", "--json").json["notices"] == []
    platform("undeploy", "two", "--drop-state")


def test_every_sub_command_has_help_with_examples(udo: Callable[..., object]) -> None:
    for name in ("ls", "show", "export", "import", "drop", "release"):
        assert f"udo state {name}" in udo("state", name, "--help").out  # type: ignore[attr-defined]


def test_times_bytes_and_composite_keys_have_a_text_form() -> None:
    import datetime as dt

    from udo_runtime.state.codec import PACKED_TIMERS, pack

    at = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
    values = {pack(["a", 7]): pack({"t": at, "b": b"\x01", "m": {1: 2}}), PACKED_TIMERS: pack({"t": {pack(["a", 7]): [1_000_000]}})}
    settled = state_file.EndedGroup(3, 0, True, values, {})
    [entry] = entries([settled], '["a", 7]')
    assert entry["key"] == ["a", 7]
    assert entry["state"] == {"t": "2030-01-01T00:00:00+00:00", "b": "01", "m": {"1": 2}}
    assert entry["timers"] == ["1970-01-01T00:00:01+00:00"]

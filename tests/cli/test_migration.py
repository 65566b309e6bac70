"""A new state version, from the first try on a copy to the rollback: `udo push --check`, `udo update`, `udo state`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Shell
from tests.support.visits import MANIFEST, ONE, TWO, run, sessions, show, write
from udo_protocol.node.api import NodeClient

NEXT = """
from udo_runtime import Operator
class Count(Operator):
    def process(self, event, ctx):
        ctx.state["seen"] = [*ctx.state.get("seen", []), event["a"]]
        yield {"b": len(ctx.state["seen"])}
    def migrate(self, old, from_version):
        if old.get("n") == %d: raise ValueError("nobody has seen that")
        return {"seen": [0] * old["n"]}
"""


def following(folder: Path, version: str, migrates_from: str = "[0]", bad: int = -1) -> Path:
    write(folder, version, state_version=1)
    text = MANIFEST.format(version=version, state_version=1)
    (folder / "operator.toml").write_text(text.replace("[input]", f"migrates_from = {migrates_from}\n[input]", 1))
    (folder / "op.py").write_text(NEXT % bad)
    return folder


@pytest.mark.long
def test_a_new_state_version_is_tried_then_updated_to_and_state_goes_on(platform: Shell, visits: NodeClient, tmp_path: Path) -> None:
    checked = platform("push", following(tmp_path / "good", "2"), "--check", "visits")
    assert "3 keys migrate from state version 0 to 1" in checked.err
    assert run(visits, TWO, 0, [5, 5]) == [1, 2]
    platform("update", "visits", "2")
    assert run(visits, ONE, 2, [1, 9]) == [3, 1]
    assert run(visits, TWO, 1, [5]) == [3]
    shown = platform("state", "show", "visits", ONE, "--json").json["entries"]
    assert {e["key"]: len(e["state"]["seen"]) for e in shown} == {1: 3, 2: 1, 7: 1, 9: 1}
    assert [e["expires"] for e in shown if e["key"] == 7] == ["2030-01-01T00:00:00+00:00"]
    exported = platform("state", "export", "visits", ONE, tmp_path / "visits.state", "--json").json
    assert exported["state_version"] == 1
    # The former version cannot read it, but the state from before the update and the input since then are kept.
    platform("rollback", "visits")
    assert run(visits, ONE, 3, [1, 9]) == [4, 2]
    assert run(visits, TWO, 2, [5]) == [4]
    assert show(platform, ONE) == {1: 4, 2: 1, 7: 1, 9: 2}
    # And forward again; a change of the state from outside discards what was kept.
    platform("update", "visits", "2")
    assert run(visits, ONE, 4, [1]) == [5]
    platform("state", "drop", "visits", TWO, "--yes", "--force")
    late = platform("rollback", "visits", code=4)
    assert "state of version 1 is on the state server, and the operator reads 0" in late.err
    assert run(visits, ONE, 5, [1]) == [6]
    assert set(sessions(platform)) == {ONE}


@pytest.mark.long
def test_state_that_an_update_has_not_migrated_yet_is_shown_as_it_is_stored_with_its_version(
    platform: Shell, visits: NodeClient, tmp_path: Path
) -> None:
    platform("push", following(tmp_path / "good", "2"))
    platform("update", "visits", "2")
    shown = platform("state", "show", "visits", ONE, "--json").json["entries"]
    assert {e["key"]: (e["state"], e["state_version"]) for e in shown} == {1: ({"n": 2}, 0), 2: ({"n": 1}, 0), 7: ({"n": 1}, 0)}
    assert [e["expires"] for e in shown if e["key"] == 7] == ["2030-01-01T00:00:00+00:00"]
    assert run(visits, ONE, 2, [1]) == [3]
    [one] = platform("state", "show", "visits", ONE, "--key", "1", "--json").json["entries"]
    assert (len(one["state"]["seen"]), "state_version" in one) == (3, False)


@pytest.mark.long
def test_state_that_does_not_migrate_is_told_before_the_push_and_by_the_update(platform: Shell, visits: NodeClient, tmp_path: Path) -> None:
    bad = following(tmp_path / "bad", "3", bad=2)
    refused = platform("push", bad, "--check", "visits", code=6)
    assert "nobody has seen that" in refused.err
    assert '"n": 2' in refused.err  # the key's state
    assert "3" not in platform("inspect", "visits", "--json").json.get("versions", {})
    platform("push", bad)
    failed = platform("update", "visits", "3", code=6)
    assert "migrate() from state version 0 to 1: ValueError: nobody has seen that" in failed.err
    assert run(visits, ONE, 2, [1]) == [3]
    assert show(platform, ONE)[1] == 3


@pytest.mark.long
def test_the_copy_is_migrated_by_what_was_packed(platform: Shell, visits: NodeClient, tmp_path: Path) -> None:
    folder = following(tmp_path / "lacking", "2")
    (folder / "dist").mkdir()
    (folder / "dist" / "__init__.py").write_text("LIMIT = 7\n")
    (folder / "op.py").write_text((NEXT % -1).replace("        return {", "        from dist import LIMIT\n        return {"))
    assert "No module named 'dist'" in platform("push", folder, "--check", "visits", "--dry-run", code=6).err


@pytest.mark.long
def test_a_version_that_does_not_migrate_from_the_present_one_is_refused_at_once(
    platform: Shell, visits: NodeClient, tmp_path: Path
) -> None:
    other = following(tmp_path / "other", "4", migrates_from="[7]")
    assert "migrates from 7" in platform("push", other, "--check", "visits", code=4).err
    platform("push", other)
    assert "the new version reads 1 and migrates from 7" in platform("update", "visits", "4", code=4).err

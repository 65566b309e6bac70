"""The controllers' loop over a simulated deployment and clock: decisions are made, carried out, recorded, and continued after a restart."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from elasticity.scaling import journal
from elasticity.scaling.modes import ADVISE, OFF, Elasticity
from node_manager.control import journals
from node_manager.control.controllers import Controllers
from node_manager.control.journals import DeploymentJournal
from tests.support.plants import SimulatedPlant, automatic
from tests.support.selection import long

HOUR_S = 3600
POLICIES = ("fuzzy", "ds2", "accept_all")
Load = Callable[[float], float]


def controllers(plant: SimulatedPlant, folder: Path) -> Controllers:
    return Controllers(plant, folder, lambda: 1_000_000.0 + plant.now_s, every_s=10.0)


def run(plant: SimulatedPlant, folder: Path, seconds: int) -> Controllers:
    """Run the loop for this many seconds, with a round each second, as the monitor runs it."""
    made = controllers(plant, folder)
    for _ in range(seconds):
        plant.second()
        made.tick(plant.now_s)
    return made


def swinging(period_s: float) -> Load:
    """A load of 20 to 280 events/s, which needs one to three slots."""
    return lambda at_s: 150 + 130 * math.sin(2 * math.pi * at_s / period_s)


def entries(folder: Path) -> list[journal.JournalEntry]:
    return [entry for _, _, lines in journals.lines(folder, "d") for entry in journal.read(lines)[1]]


def replays(folder: Path) -> bool:
    """Return whether every segment's decisions replay the same."""
    read = [journal.read(lines) for _, _, lines in journals.lines(folder, "d")]
    return bool(read) and all(not list(journal.replay(header, there)) for header, there in read)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_load_is_followed_up_and_given_back(tmp_path: Path, policy: str) -> None:
    plant = SimulatedPlant(lambda at_s: 250 if at_s < HOUR_S else 10, automatic(policy))
    run(plant, tmp_path, 2 * HOUR_S)
    assert 3 <= max(slots for _, slots in plant.steps) <= 6
    assert len(plant.slots) == 1, "when little is left to do, one slot does it"
    assert replays(tmp_path)
    under_load = [slots for at_s, slots in plant.steps if at_s < HOUR_S]
    most = under_load.index(max(under_load))
    assert under_load[: most + 1] == sorted(under_load[: most + 1]), "up, while the backlog is worked off"
    assert under_load[most:] == sorted(under_load[most:], reverse=True) and under_load[-1] >= 3, "and what that took alone is given back"


@pytest.mark.parametrize("policy", [p if p == "fuzzy" else long(p) for p in POLICIES])
@pytest.mark.parametrize("period_s", [40, long(240)])
def test_an_oscillating_load_never_makes_it_flap(tmp_path: Path, policy: str, period_s: float) -> None:
    plant = SimulatedPlant(swinging(period_s), automatic(policy))
    run(plant, tmp_path, 4 * HOUR_S)
    directions = [(at_s, after > before) for (_, before), (at_s, after) in zip([(0, 1), *plant.steps], plant.steps, strict=False)]
    turns = [(b[0] - a[0]) for a, b in zip(directions, directions[1:], strict=False) if a[1] != b[1]]
    assert all(apart_s >= 300 for apart_s in turns)
    assert len(directions) >= 1, "so that something was decided at all"
    if policy != "accept_all":  # accept_all has no guards of its own
        late = [at_s for at_s, _ in plant.steps if at_s > HOUR_S]
        assert late == [], f"after the first hour nothing changes any more: {plant.steps}"
    assert replays(tmp_path)


def test_a_load_is_given_back_also_when_the_clock_was_set_back(tmp_path: Path) -> None:
    plant = SimulatedPlant(lambda at_s: 250 if at_s < 900 else 10, automatic("fuzzy"))
    made = Controllers(plant, tmp_path, lambda: 1_000_000.0 + plant.now_s - (HOUR_S if plant.now_s > 900 else 0), every_s=10.0)
    for _ in range(2700):  # once set back, the clock stays behind its first reading
        plant.second()
        made.tick(plant.now_s)
    assert len(plant.slots) == 1 < max(slots for _, slots in plant.steps) and replays(tmp_path)


def test_in_mode_advise_the_same_is_decided_and_nothing_is_done(tmp_path: Path) -> None:
    plant = SimulatedPlant(lambda _: 250, replace(automatic("fuzzy"), mode=ADVISE))
    run(plant, tmp_path, 600)
    assert plant.steps == [] and len(plant.slots) == 1
    assert any(entry.decision.granted for entry in entries(tmp_path)) and replays(tmp_path)


def test_in_mode_off_nothing_is_decided(tmp_path: Path) -> None:
    plant = SimulatedPlant(lambda _: 250, Elasticity(OFF))
    run(plant, tmp_path, 600)
    assert plant.steps == [] and entries(tmp_path) == []


def test_a_deployment_that_must_not_be_changed_here_is_advised_only_and_the_journal_says_why(tmp_path: Path) -> None:
    plant = SimulatedPlant(lambda _: 250, automatic("fuzzy"))
    plant.controlled = replace(plant.controlled, obstacle="its slots are spread over nodes")
    run(plant, tmp_path, 600)
    [(_, _, lines)] = journals.lines(tmp_path, "d")
    header, _ = journal.read(lines)
    assert plant.steps == []
    assert (header.about["mode"], header.about["not_auto"]) == (ADVISE, "its slots are spread over nodes")


def test_no_more_slots_than_lanes_are_asked_for(tmp_path: Path) -> None:
    """A lane stays in one slot, so a further slot would have nothing to do."""
    plant = SimulatedPlant(lambda _: 400, automatic("fuzzy"), lanes=1)
    run(plant, tmp_path, HOUR_S)
    assert plant.steps == []
    assert {why for entry in entries(tmp_path) for _, why in entry.decision.declined} == {"it has its 1 replicas"}


def test_nothing_is_decided_while_a_step_is_carried_out_or_an_update_runs(tmp_path: Path) -> None:
    plant = SimulatedPlant(lambda _: 250, automatic("fuzzy"))
    plant.held = []
    made = controllers(plant, tmp_path)

    def pass_s(seconds: int) -> int:
        for _ in range(seconds):
            plant.second()
            made.tick(plant.now_s)
        return len(entries(tmp_path))

    decided = pass_s(120)
    assert len(plant.held) == 1 and pass_s(600) == decided
    plant.held.pop()()
    plant.held = None
    after = pass_s(60)
    assert after > decided and plant.steps[0][1] == 2
    plant.controlled = replace(plant.controlled, paused=True)
    assert pass_s(60) == after


def test_a_step_that_fails_is_written_down_and_tried_again(tmp_path: Path) -> None:
    plant = SimulatedPlant(lambda _: 250, automatic("fuzzy"))
    plant.failing = "it does not load"
    run(plant, tmp_path, 600)
    plant.failing = ""
    run(plant, tmp_path, 600)
    [(_, _, lines)] = journals.lines(tmp_path, "d")
    _, there, done = journal.read_all(lines)
    granted = [entry.number for entry in there if entry.decision.granted]
    assert sorted(done) == granted
    assert (done[granted[0]].error, done[granted[0]].replicas) == ("it does not load", 1)
    assert (done[granted[-1]].error, done[granted[-1]].replicas) == ("", len(plant.slots)) and len(plant.slots) > 1


@pytest.mark.parametrize("policy", POLICIES)
def test_a_node_manager_that_starts_again_goes_on_as_if_it_had_not_ended(tmp_path: Path, policy: str) -> None:
    once, often = (SimulatedPlant(lambda at_s: 250 if at_s < 900 else 10, automatic(policy)) for _ in range(2))
    run(once, tmp_path / "once", 2700)
    for _ in range(9):
        run(often, tmp_path / "often", 300)  # each time with new controllers, which know the journal only
    assert often.steps == once.steps != []
    assert [e.decision for e in entries(tmp_path / "often")] == [e.decision for e in entries(tmp_path / "once")]
    assert len(list(journals.lines(tmp_path / "often"))) == 1 and replays(tmp_path / "often")


def test_another_setting_begins_another_segment(tmp_path: Path) -> None:
    plant = SimulatedPlant(lambda _: 250, automatic("fuzzy"))
    made = run(plant, tmp_path, 60)
    plant.controlled = replace(plant.controlled, wish=automatic("ds2", target_use=0.5))
    for _ in range(60):
        plant.second()
        made.tick(plant.now_s)
    headers = [journal.read(lines)[0] for _, _, lines in journals.lines(tmp_path)]
    assert [(h.settings["policy"], h.about["mode"]) for h in headers] == [("fuzzy", "auto"), ("ds2", "auto")]
    assert replays(tmp_path)


def test_a_decision_has_the_time_at_which_it_is_made_unless_the_clock_was_set_back(tmp_path: Path) -> None:
    plant, walls = SimulatedPlant(lambda _: 250, automatic("fuzzy")), [1000.0, 1019.5, 1025.0, 500.0, 512.0]
    wall = iter(walls)
    made = Controllers(plant, tmp_path, lambda: next(wall), every_s=10.0)
    for now_s in (10.0, 20.0, 30.0, 40.0, 52.0):  # when a round began; the second one took 9.5 s until the decision
        made.tick(now_s)
    assert [e.sample.at_s for e in entries(tmp_path)] == [1000, 1019.5, 1025, 1035, 1047]


def _journal(folder: Path, **options: int) -> DeploymentJournal:
    return DeploymentJournal(folder, journal.Header("local", {"policy": "ds2", "most": 4}, 1), **options)


def _fill(written: DeploymentJournal, first: int, n: int) -> None:
    plant = SimulatedPlant(lambda _: 150, automatic("ds2"))
    for i in range(first, first + n):
        plant.second()
        written.decide(plant.sample("d", float(i), 4))


def test_a_line_that_a_crash_cut_off_is_removed_and_the_next_one_follows(tmp_path: Path) -> None:
    _fill(_journal(tmp_path / "d"), 0, 5)
    [path] = journals.segments(tmp_path / "d")
    os.truncate(path, path.stat().st_size - 20)
    _fill(_journal(tmp_path / "d"), 10, 2)
    assert [e.sample.at_s for e in entries(tmp_path)] == [0, 1, 2, 3, 10, 11] and replays(tmp_path)
    assert path.stat().st_mode & 0o077 == 0


def test_a_damaged_segment_is_left_and_another_one_begins(tmp_path: Path) -> None:
    _fill(_journal(tmp_path / "d"), 0, 5)
    [path] = journals.segments(tmp_path / "d")
    path.write_text(path.read_text().replace('"number": 2', '"number": 7'))
    _fill(_journal(tmp_path / "d"), 10, 2)
    assert len(journals.segments(tmp_path / "d")) == 2
    assert journal.read(list(journals.lines(tmp_path))[1][2])[1][0].sample.at_s == 10


def test_what_cannot_be_written_down_is_not_decided_and_leaves_no_gap(tmp_path: Path) -> None:
    written = _journal(tmp_path / "d")
    _fill(written, 0, 3)
    [path] = journals.segments(tmp_path / "d")
    aside = path.rename(tmp_path / "aside")
    path.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        _fill(written, 3, 1)
    path.unlink()
    aside.rename(path)
    _fill(written, 4, 2)
    assert [e.sample.at_s for e in entries(tmp_path)] == [0, 1, 2, 4, 5] and replays(tmp_path)

    (tmp_path / "full" / "journals").mkdir(parents=True)
    (tmp_path / "full" / "journals" / "d").touch()  # a file in place of the folder
    plant = SimulatedPlant(lambda _: 250, automatic("fuzzy"))
    run(plant, tmp_path / "full" / "journals", 120)
    assert plant.steps == []


def test_a_journal_is_bounded(tmp_path: Path) -> None:
    _fill(_journal(tmp_path / "d", segment_bytes=2000), 0, 100)
    assert len(journals.segments(tmp_path / "d")) == journals.KEPT_SEGMENTS and replays(tmp_path)
    assert entries(tmp_path)[-1].sample.at_s == 99
    for i in range(6):
        _fill(_journal(tmp_path / f"e{i}"), 0, 1)
        os.utime(journals.segments(tmp_path / f"e{i}")[0], (i, i))
    journals.prune(tmp_path, {"d", "e0"}, kept=4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "e0", "e4", "e5"]

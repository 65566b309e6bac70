"""Chaos runs catch an instance that lacks any one of its rules: some seed's answers or state differ."""

from __future__ import annotations

import os

import pytest

from benchmarks.chaos import lanes
from benchmarks.chaos.changes import UPDATE
from benchmarks.chaos.faults import FORMER, KILL, KILL_AT
from benchmarks.chaos.inside import LACKS, OF_MOVES
from benchmarks.chaos.kinds import CHAIN, HISTORY
from benchmarks.chaos.moves import MOVE
from benchmarks.chaos.node import NodeSetup
from node_manager.servers.binaries import find_server
from tests.conftest import require
from udo_protocol.errors import Unavailable

# The kinds of operators that meet a rule sooner than the mixture of all kinds.
KINDS = {"commit_frame": (CHAIN, CHAIN)}
# The weights of faults that show a missing rule sooner than the usual mixture.
FAULTS = {
    "fence": {FORMER: 1.0},
    "emit": {KILL_AT: 1.0},
    "riding": {KILL_AT: 1.0},
    "commit_frame": {KILL: 1.0, KILL_AT: 1.0},
    "changelog": {UPDATE: 1.0},
    **dict.fromkeys(OF_MOVES, {MOVE: 3.0, KILL: 1.0}),
}
# The points in the runtime at which these faults show a missing rule.
POINTS = {"riding": ("after_checkpoint", "before_emit")}
# A missing rule is found within seconds on a quiet machine, within minutes on a busy one; the run ends with the first seed that differs.
DEADLINE_S = 480
# The callers of a broken build may be left with open sockets.
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]


@pytest.mark.parametrize("rule", LACKS)
def test_a_build_that_lacks_a_rule_is_caught(rule: str) -> None:
    try:
        find_server(os.environ.get("UDO_SERVER"))
    except Unavailable as e:
        require("queue server", str(e))
    outcome = lanes.run(
        range(200),
        NodeSetup(KINDS.get(rule, (HISTORY, HISTORY)), slots=2 if rule in OF_MOVES else 1, broken=rule),
        lanes.Until(DEADLINE_S, mismatch=True),
        weights=FAULTS.get(rule),
        points=POINTS.get(rule, ()),
    )
    assert outcome.mismatched, f"a build without {rule} differed in none of {outcome.seeds} seeds: {outcome.faults}, {outcome.reports}"
    assert any("expected" in r or "goes on from" in r for r in outcome.reports.values()), outcome.reports

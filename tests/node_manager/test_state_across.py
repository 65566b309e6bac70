"""The export of a session over nodes, with made-up exports of the nodes: it is from one moment, and it ends as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from node_manager.rpc import state_across
from node_manager.rpc.state_across import export_across
from udo_protocol.errors import Conflict
from udo_protocol.proto import node_manager_pb2 as pb
from udo_protocol.state.placement import Placement

ACROSS: Any = SimpleNamespace(find=lambda name: Placement(1, ("a", "b", "a"), keyed=True))


class Broken(Exception):
    """Raised in the middle of an export."""


class Exports:
    """The exports of two nodes, each with 64 groups and one for event times; each of b's first `changes` headers shows a new checkpoint."""

    def __init__(self, changes: int = 0, *, breaks: str = "") -> None:
        self._changes, self._breaks = changes, breaks
        self.asked: Counter[str] = Counter()

    def __call__(self, node: str) -> Iterator[pb.StatePart]:
        self.asked[node] += 1
        seq = min(self.asked[node], self._changes) if node == "b" else 0
        yield pb.StatePart(header=pb.StateHeader(session="q", covers=[f"{seq} run"], last_ended=4 + (node == "b"), keys=2, bytes=10))
        yield pb.StatePart(piece=pb.StatePiece(group=-1, data=node.encode()))
        for n in range(0 if node == "a" else 64, 64 if node == "a" else 128):
            for more in (True, False):
                yield pb.StatePart(piece=pb.StatePiece(group=n, data=node.encode(), more=more))
            if node == self._breaks and n % 64 == 20:
                raise Broken


@pytest.mark.parametrize("changes", [0, 3])
def test_nodes_pin_anew_until_no_checkpoint_came_between(changes: int) -> None:
    exports = Exports(changes)
    header, *pieces = export_across(ACROSS, "d", "q", exports)
    assert (header.header.keys, header.header.bytes, header.header.last_ended) == (4, 20, 5)
    assert exports.asked["b"] == (2 if changes == 0 else 4)
    groups = [part.piece.group for part in pieces]
    assert Counter(groups) == {-1: 1, **dict.fromkeys(range(128), 2)}, "event times once, of the first node"
    assert [part.piece.data for part in pieces if part.piece.group == -1] == [b"a"]
    assert all(groups[at] == groups[at + 1] for at, part in enumerate(pieces) if part.piece.more), "a group's pieces stay together"


def test_checkpoints_that_come_too_often_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_across, "_TRIED_S", 0.2)
    with pytest.raises(Conflict, match="make checkpoints too often for session q"):
        list(export_across(ACROSS, "d", "q", Exports(1000)))


def test_what_one_nodes_part_raises_ends_the_export_with_it() -> None:
    with pytest.raises(Broken):
        list(export_across(ACROSS, "d", "q", Exports(breaks="b")))

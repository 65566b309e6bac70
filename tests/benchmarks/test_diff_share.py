"""The diff benchmark reports the share compared of the frames sent, not of those that the diff has got round to."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.suites import diff
from tests.conftest import bound

FRAMES = 55


class FakeNode:
    """A platform and its node: a diff reports these numbers of compared frames; the later ones only once `idle` is set, and the last one
    again and again."""

    node_socket = ""

    def __init__(self, *compared: int) -> None:
        self._compared, self.closed, self.idle = compared, False, threading.Event()

    def node(self) -> FakeNode:
        return self

    def push(self, *_: str) -> None: ...

    def deploy(self, *_: str) -> None: ...

    def diff(self, *_: str, for_s: float) -> Iterator[SimpleNamespace]:
        self.closed = False
        try:
            for n in itertools.chain(self._compared, itertools.repeat(self._compared[-1])):
                yield SimpleNamespace(report_json=json.dumps({"frames": n, "different": 0, "seen": n, "missed": 0}))
                assert self.idle.wait(bound(10))
        finally:
            self.closed = True

    def status(self) -> SimpleNamespace:
        return SimpleNamespace(slots=[SimpleNamespace(diff="" if self.closed else "each 2: 1 frames compared")])


@pytest.fixture(autouse=True)
def _without_a_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def connect(*_: str, **__: str) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(add_listener=lambda *_, **__: None)

    def flow(_client: Any, _tally: Any, sent: int, _seconds: float) -> tuple[int, float]:
        return sent + FRAMES * diff.BATCH, 1.0

    monkeypatch.setattr(diff, "SETTLE_S", 0.0)
    monkeypatch.setattr(diff, "connect", connect)
    monkeypatch.setattr(diff, "flow", flow)


def test_a_diff_that_stops_at_one_of_all_frames_has_compared_one_of_them() -> None:
    node = FakeNode(1)
    node.idle.set()
    found = diff._operator(node, "each", 2, 0.0)  # type: ignore[arg-type]

    assert found.frames_compared_share == round(1 / FRAMES, 3)


def test_frames_that_wait_when_the_flow_ends_are_compared_and_the_diff_is_over_before_the_next_round() -> None:
    node, reports = FakeNode(0, 20, 40, FRAMES), list[diff.Report]()

    with diff.diff(node, "each", reports):  # type: ignore[arg-type]
        assert not node.closed
        node.idle.set()

    assert reports == [diff.Report(frames=FRAMES, different=0, seen=FRAMES, missed=0)]
    assert node.closed

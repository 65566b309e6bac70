"""Two nodes whose start fails leave nothing running."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.chaos import pair
from benchmarks.harness.rules import InvalidRun


def test_a_registry_that_does_not_come_up_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[str] = []

    class FakeProcess:
        def __init__(self, *_: Any, **__: Any) -> None:
            did.append("start")

        def terminate(self) -> None:
            did.append("terminate")

        def wait(self, _: float) -> int:
            did.append("wait")
            return 0

    @contextmanager
    def network(*_: str) -> Iterator[Any]:
        yield SimpleNamespace(address="127.0.0.1", hosts={})

    def fails(*_: Any) -> None:
        raise InvalidRun("waited for the registry to listen")

    tls = SimpleNamespace(ca=Path("certs") / "ca.pem")
    monkeypatch.setattr(pair, "network", network)
    monkeypatch.setattr(pair, "Authority", SimpleNamespace(of=lambda _: SimpleNamespace(sign_host=lambda _: tls)))
    monkeypatch.setattr(pair.subprocess, "Popen", FakeProcess)
    monkeypatch.setattr(pair, "wait_until", fails)

    with pytest.raises(InvalidRun), pair.pair():
        pass
    assert did == ["start", "terminate", "wait"]

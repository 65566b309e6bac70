"""Round trips beside the stream: an engine-free client sends one event at a time and waits for its answer."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import Any

import numpy as np

from udo_interface import connect
from udo_protocol.errors import UdoError, WaitTimeout

INTERVAL_S = 0.02
ANSWER_TIMEOUT_S = 30.0


class Probe:
    """Measures until it is closed; `error` is set when it had to give up."""

    def __init__(self, deployment: str, node: str) -> None:
        self._client = connect(deployment, node=node)
        self._client.add_listener(self._answered)
        self._answer, self._stop = threading.Event(), threading.Event()
        self._trips: list[tuple[float, float]] = []
        self.error: UdoError | None = None
        self._thread = threading.Thread(target=self._run, name="probe", daemon=True)
        self._thread.start()

    def _answered(self, _: Any) -> None:
        self._answer.set()

    def _run(self) -> None:
        number = 0
        try:
            while not self._stop.wait(INTERVAL_S):
                number -= 1  # ids below zero: never mistaken for a row of the stream
                self._answer.clear()
                sent = time.monotonic()
                self._client.send(_event(number))
                if not self._answer.wait(ANSWER_TIMEOUT_S):
                    self._client.flush(1.0)
                    raise WaitTimeout(f"the probe's event {number} got no answer within {ANSWER_TIMEOUT_S:.0f} s")
                self._trips.append((sent, (time.monotonic() - sent) * 1000))
        except UdoError as e:
            self.error = e

    @property
    def answered(self) -> int:
        """Number of the probe's own events answered by now."""
        return len(self._trips)

    def close(self) -> None:
        """Stop measuring; bounded, and silent about an operator that is gone already."""
        self._stop.set()
        self._thread.join(ANSWER_TIMEOUT_S + 5)
        try:
            self._client.close(5.0)
        except UdoError as e:
            self.error = self.error or e

    def trips_ms(self, since: float = 0.0, until: float = float("inf")) -> np.ndarray:
        """Round trips of events sent between two times of time.monotonic()."""
        return np.array([ms for sent, ms in list(self._trips) if since <= sent <= until])


def _event(number: int) -> dict[str, Any]:
    return {
        "tx_id": number,
        "timestamp": datetime.now(UTC),
        "card_id": 0,
        "terminal_id": 0,
        "amount": 1.0,
        "card_mean_amount": 1.0,
        "card_count": 1,
        "terminal_frauds": 0,
    }

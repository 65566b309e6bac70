"""Epochs that a version coming back by a rollback could not complete, though the newer one did: they block the rollback, which would
lose an event.

It processes again what has been answered since the update. If it fails there and no policy puts the event aside, the event would be
neither in its state nor among the dead letters, and nobody would be told, since the answer is out already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

from udo_protocol.errors import UdoError
from udo_protocol.queue.frame import END, Header
from udo_runtime.execution.failure import ProcessingError
from udo_runtime.state.groups import Label


@dataclass(frozen=True)
class _Incomplete:
    seq: int  # of the END
    session: str
    attempt: tuple[int, ...]  # partition, *label

    def counts(self, covered: int, failed: Mapping[str, Set[tuple[int, ...]]]) -> bool:
        """Whether the serving version completed it: an END is covered before it is answered, and failures before it are durable then."""
        return self.seq <= covered and self.attempt not in failed.get(self.session, ())


class Missed:
    """What the version `reference` missed, by session and key group: a later attempt that completes the epoch makes up for it."""

    def __init__(self, reference: str) -> None:
        self._reference = reference
        self._errors: dict[tuple[str, tuple[int, ...]], UdoError] = {}
        self._incomplete: dict[tuple[str, int], _Incomplete] = {}

    def failed(self, seq: int, header: Header, error: UdoError) -> None:
        """A frame met an error."""
        self._errors.setdefault((header.session, _attempt(header)), error)
        self.skipped(seq, header)

    def skipped(self, seq: int, header: Header) -> None:
        """A frame behind one that did, maybe. Batch jobs do not count: their state goes with them."""
        if header.kind == END and not header.job and (header.session, _attempt(header)) in self._errors:
            self._incomplete |= dict.fromkeys(
                [(header.session, n) for n in header.groups], _Incomplete(seq, header.session, _attempt(header))
            )

    def ended(self, header: Header) -> None:
        """An attempt is complete."""
        for n in header.groups if self._incomplete else ():
            self._incomplete.pop((header.session, n), None)

    def check(self, durable: Callable[[], tuple[int, Mapping[str, Set[tuple[int, ...]]]]]) -> None:
        """ProcessingError if the serving version completed what is incomplete here.

        `durable` answers what its last checkpoint covers and, by session, the attempts in which it met an error itself.
        """
        if not self._incomplete:
            return
        covered, failed = durable()
        for found in set(self._incomplete.values()):
            if found.counts(covered, failed):
                error = self._errors[found.session, found.attempt]
                raise ProcessingError(
                    f"{self._reference} fails on events that have been answered since the update, in epoch {found.attempt[2]} of session "
                    f"{found.session}, so the rollback is refused: {error}",
                    getattr(error, "traceback", ""),
                    getattr(error, "event", ""),
                )


def _attempt(header: Header) -> tuple[int, ...]:
    return header.partition, *Label(header.label.run, header.label.epoch, header.label.attempt)

"""Epochs that the newer version completed and the version of a rollback cannot complete: they block the rollback, which would lose events.

The version of the rollback processes again the frames answered since the update. If it fails on an event and no policy makes that a
dead letter, the event would be neither in the state nor a dead letter, and no query would see an error, since the answer has been sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

from udo_protocol.errors import UdoError
from udo_protocol.queue.frame import END, Header
from udo_runtime.failure import ProcessingError
from udo_runtime.state.label import label_of


@dataclass(frozen=True)
class _Incomplete:
    seq: int  # the END's number in the log
    session: str
    attempt: tuple[int, ...]  # partition, *label

    def counts(self, covered: int, failed: Mapping[str, Set[tuple[int, ...]]]) -> bool:
        """Whether the serving version completed it: its END is covered, and the attempt is not among those that met an error."""
        return self.seq <= covered and self.attempt not in failed.get(self.session, ())


class Missed:
    """Epochs that the version `reference` has not completed, by session and key group, until a later attempt completes them."""

    def __init__(self, reference: str) -> None:
        self._reference = reference
        self._errors: dict[tuple[str, tuple[int, ...]], UdoError] = {}
        self._incomplete: dict[tuple[str, int], _Incomplete] = {}

    def failed(self, seq: int, header: Header, error: UdoError) -> None:
        """Note that frame `seq` met an error."""
        self._errors.setdefault((header.session, _attempt(header)), error)
        self.skipped(seq, header)

    def skipped(self, seq: int, header: Header) -> None:
        """Note that frame `seq` was skipped, maybe after an error of its attempt. Ignores batch jobs, whose state ends with them."""
        if header.kind == END and not header.job and (header.session, _attempt(header)) in self._errors:
            self._incomplete |= dict.fromkeys(
                [(header.session, n) for n in header.groups], _Incomplete(seq, header.session, _attempt(header))
            )

    def ended(self, header: Header) -> None:
        """Note that the attempt of this END is complete."""
        for n in header.groups if self._incomplete else ():
            self._incomplete.pop((header.session, n), None)

    def check(self, durable: Callable[[], tuple[int, Mapping[str, Set[tuple[int, ...]]]]]) -> None:
        """Raise ProcessingError if the serving version has completed an epoch that is incomplete in this one.

        `durable` returns (seq that its last checkpoint covers, session -> attempts in which it met an error).
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
    return header.partition, *label_of(header)

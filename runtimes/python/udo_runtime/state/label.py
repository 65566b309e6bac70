"""Labels: which attempt a frame belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from udo_protocol.queue.frame import Header


class Label(NamedTuple):
    """The attempt that a frame belongs to. Attempts at one epoch are ordered by (run, attempt)."""

    run: int
    epoch: int
    attempt: int


def label_of(header: Header) -> Label:
    """The attempt that this frame belongs to."""
    return Label(header.label.run, header.label.epoch, header.label.attempt)

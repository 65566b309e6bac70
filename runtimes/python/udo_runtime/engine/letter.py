"""A bad event as a dead letter, and the error when there is no room for it."""

from __future__ import annotations

from udo_protocol.limits import SlotLimits
from udo_protocol.queue.frame import Header
from udo_protocol.state.dead_letters import Letter
from udo_runtime.execution.bad_events import BadEvent
from udo_runtime.failure import ProcessingError


def letter(bad: BadEvent, header: Header, reference: str, instance: str, at: float) -> Letter:
    """The dead letter of a frame's bad event; `at`: seconds since 1970."""
    return Letter(
        operator=reference,
        instance=instance,
        session=header.session,
        epoch=header.label.epoch,
        partition=header.partition,
        attempt=header.label.attempt,
        lane=header.lane,
        number=header.number,
        row=bad.row,
        at=round(at, 3),
        code=bad.error.wire_code,
        reason=str(bad.error),
        traceback=bad.traceback,
        event=bad.event,
        arrow=bad.arrow,
        timer=bad.timer,
    )


def full(error: ProcessingError, deployment: str, limits: SlotLimits) -> ProcessingError:
    """`error`, with the reason why the event could not be kept as a dead letter."""
    return ProcessingError(
        f"{error} (not kept as a dead letter: {deployment} may keep {limits.dead_letters} of {limits.dead_letter_bytes} bytes in all, "
        f"limits dead_letters and dead_letter_bytes. Send them again or drop them: udo dead replay {deployment}, udo dead drop "
        f"{deployment})",
        error.traceback,
        error.event,
        error.wire_code,
    )

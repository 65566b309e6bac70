"""Dead letters as messages of the gRPC service."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from node_manager.admin.dead_letters import DeadLetters, FoundLetter
from udo_protocol.proto import node_manager_pb2 as pb
from udo_protocol.queue import untrusted
from udo_protocol.state.dead_letters import Letter


def listed(node: str, letters: DeadLetters, request: pb.DeadListRequest) -> Iterator[pb.DeadLetter]:
    """The reply to DeadList."""
    for kept in letters.letters(request.deployment, request.ids, unfinished=request.unfinished):
        try:
            message = _message(kept, whole=request.whole)
        except (ValueError, TypeError) as e:  # numbers that do not fit the message
            message = _message(replace(kept, letter=Letter.unreadable(untrusted.broken(kept.key, "dead letters", e))), whole=request.whole)
        message.node = node
        yield message


def _message(kept: FoundLetter, *, whole: bool) -> pb.DeadLetter:
    letter = kept.letter
    message = pb.DeadLetter(
        id=kept.id,
        deployment=kept.keys.deployment,
        slot=kept.keys.number,
        operator=letter.operator,
        instance=letter.instance,
        session=letter.session,
        epoch=letter.epoch,
        partition=letter.partition,
        attempt=letter.attempt,
        lane=letter.lane,
        number=letter.number,
        row=letter.row,
        at=letter.at,
        code=letter.code,
        reason=letter.reason,
        timer=letter.timer,
        keyed=kept.keyed,
        unfinished=kept.unfinished,
        bytes=kept.bytes,
        replays=letter.replays,
        replay=kept.replay,
    )
    if whole:
        message.traceback, message.event, message.arrow = letter.traceback, letter.event, letter.arrow
    return message

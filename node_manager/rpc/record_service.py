"""A recording as messages of the gRPC service: frames gathered, or cut into pieces, so that they fit a message."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import singledispatch

from node_manager.admin import recording
from node_manager.rpc.state_service import pieces
from udo_protocol.proto import node_manager_pb2 as pb

# gRPC's own bound is 4 MiB a message.
_PART_BYTES = 1 << 20


def parts(recorded: Iterable[recording.Part]) -> Iterator[pb.RecordPart]:
    """The stream of Record."""
    for part in recorded:
        yield from _messages(part)


@singledispatch
def _messages(part: recording.Part) -> Iterator[pb.RecordPart]:
    raise TypeError(f"no message for a {type(part).__name__}")


@_messages.register
def _(part: recording.RecordingBegin) -> Iterator[pb.RecordPart]:
    m, config = part.manifest, part.config
    header = pb.RecordHeader(
        deployment=part.slot.deployment,
        node=part.slot.node.settings.node,
        operator=m.name,
        version=m.version,
        digest=part.digest,
        manifest_json=m.model_dump_json(),
        env=sorted(config.env),
        secrets=sorted(config.secrets),
        files=sorted(config.files),
        config_json=json.dumps({"limits": dict(config.limits), "policy": config.policy}),
        first_seq=part.first_seq,
        failed=part.failed,
        cuts=part.cuts,
        keyed=bool(m.key),
        slot=part.slot.number,
    )
    yield pb.RecordPart(header=header)


@_messages.register
def _(part: recording.RecordedSession) -> Iterator[pb.RecordPart]:
    yield pb.RecordPart(session=pb.RecordSession(session=part.session, record_json=json.dumps(part.record.document())))


@_messages.register
def _(part: recording.RecordedGroup) -> Iterator[pb.RecordPart]:
    values = [(pb.StatePiece.META, part.group.meta), *((pb.StatePiece.DELTA, d) for d in part.group.deltas)]
    if part.group.base is not None:
        values.insert(1, (pb.StatePiece.BASE, part.group.base))
    for kind, value in values:
        for piece in pieces(part.number, kind, value):
            yield pb.RecordPart(piece=piece.piece)


@_messages.register
def _(part: recording.Schema) -> Iterator[pb.RecordPart]:
    yield pb.RecordPart(schema=pb.RecordSchema(id=part.id, ipc=part.ipc))


@_messages.register
def _(part: recording.Frames) -> Iterator[pb.RecordPart]:
    gathered: list[bytes] = []
    size = 0
    for seq, frame in enumerate(part.frames, part.first_seq):
        if gathered and size + len(frame) > _PART_BYTES:
            yield _frames(seq - len(gathered), gathered)
            gathered, size = [], 0
        if len(frame) > _PART_BYTES:
            yield from _cut(seq, memoryview(frame).cast("B"))
        else:
            gathered.append(bytes(frame))
            size += len(frame)
    if gathered:
        yield _frames(part.first_seq + len(part.frames) - len(gathered), gathered)


def _frames(seq: int, frames: Sequence[bytes], *, more: bool = False) -> pb.RecordPart:
    return pb.RecordPart(frames=pb.RecordFrames(first_seq=seq, frames=frames, more=more))


def _cut(seq: int, frame: memoryview) -> Iterator[pb.RecordPart]:
    for at in range(0, len(frame), _PART_BYTES):
        yield _frames(seq, [bytes(frame[at : at + _PART_BYTES])], more=at + _PART_BYTES < len(frame))


@_messages.register
def _(part: recording.Gap) -> Iterator[pb.RecordPart]:
    yield pb.RecordPart(gap=pb.RecordGap(first_seq=part.first_seq, last_seq=part.last_seq))


@_messages.register
def _(part: recording.Tick) -> Iterator[pb.RecordPart]:
    yield pb.RecordPart()


@_messages.register
def _(part: recording.End) -> Iterator[pb.RecordPart]:
    yield pb.RecordPart(end=pb.RecordEnd(reason=part.reason))

"""Sessions as messages of the gRPC service: lists, and values cut into pieces that fit a message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from node_manager.admin.state import Info, States, keyed, require_fit
from node_manager.deployments.across import Across
from node_manager.manager import Manager
from udo_protocol.errors import ProtocolError, UsageError
from udo_protocol.formats.manifest import Manifest
from udo_protocol.proto import node_manager_pb2 as pb
from udo_protocol.state.pieces import StoredGroup
from udo_protocol.state.placement import Placement
from udo_protocol.state.session_record import SessionRecord

# gRPC's own bound is 4 MiB a message.
_PIECE_BYTES = 1 << 20
# Bound on an import, as a multiple of limits.state_mb: undo may add to the values.
_OVERHEAD = 3
Parts = Iterator[pb.StatePart]
Step = Callable[[Parts], pb.StateImportReply]
# (nodes, placement, header, groups, this node's steps)
OverNodes = Callable[[Across, Placement, pb.StateHeader, Mapping[int, StoredGroup], Step], None]


def listed(node: str, sessions: Iterable[Info]) -> pb.StateListReply:
    """The reply to StateList."""
    return pb.StateListReply(node=node, sessions=[_session(s) for s in sessions])


def _session(s: Info) -> pb.StateSession:
    return pb.StateSession(
        deployment=s.deployment,
        slot=s.slot,
        session=s.session,
        last_ended=s.record.last_ended,
        run=s.record.run,
        keys=s.record.keys,
        bytes=s.record.bytes,
        changed_at=s.record.at,
        lanes=s.lanes,
        used_at=s.used_at,
        in_use=s.in_use,
        broken=s.broken,
    )


def exported(states: States, deployment: str, session: str) -> Iterator[pb.StatePart]:
    """Yield the parts of a session."""
    with states.pinned(deployment, session) as (info, manifest, covers, groups):
        yield _header(info, manifest, covers)
        for number, group in groups:
            yield from group_parts(number, group)


def _header(info: Info, manifest: Manifest, covers: Sequence[str]) -> pb.StatePart:
    header = pb.StateHeader(
        deployment=info.deployment,
        session=info.session,
        operator=manifest.name,
        version=manifest.version,
        state_version=manifest.state_version,
        key=[pb.KeyColumn(name=n, type=manifest.input[n]) for n in manifest.key],
        key_groups=info.record.key_groups,
        last_ended=info.record.last_ended,
        keys=info.record.keys,
        bytes=info.record.bytes,
        covers=covers,
    )
    return pb.StatePart(header=header)


def group_parts(number: int, group: StoredGroup) -> Iterator[pb.StatePart]:
    """The values of a key group, as parts."""
    yield from pieces(number, pb.StatePiece.META, group.meta)
    if group.base is not None:
        yield from pieces(number, pb.StatePiece.BASE, group.base)
    for delta in group.deltas:
        yield from pieces(number, pb.StatePiece.DELTA, delta)


def pieces(group: int, kind: pb.StatePiece.Kind, data: bytes) -> Iterator[pb.StatePart]:
    """One value as one or more parts."""
    view = memoryview(data)
    for at in range(0, max(len(view), 1), _PIECE_BYTES):
        more = at + _PIECE_BYTES < len(view)
        yield pb.StatePart(piece=pb.StatePiece(group=group, kind=kind, data=bytes(view[at : at + _PIECE_BYTES]), more=more))


def imported(manager: Manager, states: States, parts: Parts, over_nodes: OverNodes) -> pb.StateImportReply:
    """Gather the parts and write the session, or carry out one node's step of an import; refuse at the header a state that cannot fit.

    `over_nodes` imports into the slots of several nodes.
    """
    first = next(parts, None)
    if first is None or not first.HasField("header"):
        raise UsageError("an import begins with a header")
    header, across = first.header, manager.across
    placed = across.find(header.deployment)
    if placed is not None and header.step == pb.StateHeader.WHOLE and across.node not in placed.nodes:
        return across.connect(placed.nodes[0]).import_state(chain([first], parts))
    slot, manifest = keyed(manager.deployments.find(header.deployment))
    assert slot.wanted is not None
    key, wanted_groups = [(c.name, c.type) for c in header.key], slot.wanted.config.key_groups
    require_fit(manifest, key, header.state_version, header.key_groups, wanted_groups)
    bound = _OVERHEAD * (manifest.limits.state_mb << 20)
    if header.step == pb.StateHeader.BEGIN:
        run = states.begin_import(header.deployment, header.session, header.number, header.bytes, replace=header.replace)
        return pb.StateImportReply(run=run)
    if header.step == pb.StateHeader.END:
        states.end_import(header.deployment, header.session, header.number)
        return pb.StateImportReply()
    groups: dict[int, StoredGroup] = {}
    total = 0
    for number, kind, data in _values(parts):
        total += len(data)
        if total > bound:
            raise UsageError(f"the state takes more than {bound} bytes; {manifest.reference} may keep {manifest.limits.state_mb} MiB")
        group = groups.setdefault(number, StoredGroup())
        if kind == pb.StatePiece.META:
            group.meta = data
        elif kind == pb.StatePiece.BASE:
            group.base = data
        else:
            group.deltas.append(data)
    last_ended = header.last_ended if header.HasField("last_ended") else None
    record = SessionRecord(last_ended, header.run, header.keys, header.bytes, header.key_groups)
    if header.step == pb.StateHeader.PUT:
        states.put_part(header.deployment, header.session, header.number, record, groups)
    elif placed is not None:
        over_nodes(across, placed, header, groups, lambda step: imported(manager, states, step, over_nodes))
    else:
        states.put(header.deployment, header.session, record, groups, replace=header.replace)
    return pb.StateImportReply(groups=len(groups), bytes=total)


def _values(parts: Iterator[pb.StatePart]) -> Iterator[tuple[int, int, bytes]]:
    begun: list[bytes] = []
    last: tuple[int, int] | None = None
    for part in parts:
        piece = part.piece
        if last is not None and last != (piece.group, piece.kind):
            raise ProtocolError(f"a value of group {last[0]} breaks off: its next piece belongs to group {piece.group}")
        begun.append(piece.data)
        last = (piece.group, piece.kind) if piece.more else None
        if last is None:
            yield piece.group, piece.kind, b"".join(begun)
            begun = []
    if last is not None:
        raise ProtocolError(f"a value of group {last[0]} breaks off at the end")

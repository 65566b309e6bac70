"""A session's state as a file, readable in any language: gzip of a MessagePack stream. Form: docs/state.md, "The file".

First a header, then one map per key group, then a trailer that counts them. Values are as each group's last ENDed epoch left them, with
the changes back to the epoch before, so that the query may replay its last epoch. In the middle of a micro-batch some partitions have ENDed
it and others have not: the trailer says how many key groups are behind.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgpack
from udo_runtime.state.codec import PACKED_TIMERS, TIMER, unpack
from udo_runtime.state.groups import Group
from udo_runtime.state.versions import Versions

from udo_protocol.errors import Conflict, ProtocolError, UsageError
from udo_protocol.files import replacing
from udo_protocol.proto import node_manager_pb2 as pb
from udo_protocol.state.pieces import StoredGroup

FORMAT, FORMAT_VERSION = "udo-state", 1
_PIECE_BYTES = 1 << 20
_LEVEL = 1  # of gzip: state is written once and read once
# Bound of one key group, which is read into memory; all groups of a session together have at most limits.state_mb, 256 by default.
_GROUP_BYTES = 1 << 30
# Key of the state version within a state that is given as it is stored.
STORED_VERSION = "\0state_version"


@dataclass(frozen=True)
class EndedGroup:
    """One key group as its last ENDed epoch left it; keys and values are packed. See Group.last_ended."""

    group: int
    epoch: int | None
    ended: bool
    values: dict[bytes, bytes]
    undo: dict[bytes, bytes | None]

    @property
    def keys(self) -> int:
        """Number of keys that have state, or only a timer."""
        if self.group < 0:
            return 0
        packed = self.values.get(PACKED_TIMERS)
        timed = unpack(packed).get(TIMER, {}) if packed else {}
        return len(self.values.keys() | timed) - (packed is not None)

    @property
    def bytes(self) -> int:
        """Size of keys and values."""
        return sum(len(k) + len(v) for k, v in self.values.items())

    def at(self, epoch: int) -> EndedGroup:
        """The same group, as the state after `epoch`."""
        return replace(self, epoch=epoch, ended=True, undo={})


@dataclass(frozen=True)
class Summary:
    """The contents of a state file. `behind`: the number of key groups that had not completed epoch `last_ended` when it was written."""

    header: dict[str, Any]
    keys: int
    bytes: int
    behind: int


def ended_groups(parts: Iterable[pb.StatePart], version: int, *, former: bool = False) -> Iterator[EndedGroup]:
    """The groups of an export, whose header has been read; `version`: the header's state version.

    State that another version stored is a Conflict or, with `former`, given as it is stored, with its version under STORED_VERSION.
    """
    number: int | None = None
    values: dict[int, list[bytes]] = {}
    begun: list[bytes] = []
    for part in parts:
        piece = part.piece
        if number is not None and piece.group != number:
            yield _ended_group(number, values, version, former)
            values = {}
        number = piece.group
        begun.append(piece.data)
        if not piece.more:
            values.setdefault(piece.kind, []).append(b"".join(begun))
            begun = []
    if begun:
        raise ProtocolError(f"the state of group {number} breaks off")
    if number is not None:
        yield _ended_group(number, values, version, former)


def _ended_group(number: int, values: dict[int, list[bytes]], version: int, former: bool) -> EndedGroup:
    [meta], base = values[pb.StatePiece.META], values.get(pb.StatePiece.BASE)
    read = Versions(version, range(128), lambda state, of: {**state, STORED_VERSION: of}) if former else Versions(version)
    versions = read if number >= 0 else None
    group = Group.restore(StoredGroup(meta, base[0] if base else None, values.get(pb.StatePiece.DELTA, [])), versions)
    if group.former and not former:
        raise Conflict(
            f"key group {number} still holds state from before the update to state version {version}; it is written anew with "
            "the next epochs: let the query continue, then try again"
        )
    return EndedGroup(number, *group.last_ended())


def write(path: Path, header: pb.StateHeader, groups: Iterable[EndedGroup]) -> Summary:
    """Write the file, for its owner only; it appears under its name when it is complete."""
    described = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "deployment": header.deployment,
        "session": header.session,
        "operator": header.operator,
        "version": header.version,
        "state_version": header.state_version,
        "key": [[c.name, c.type] for c in header.key],
        "key_groups": header.key_groups,
        "last_ended": header.last_ended,
        "exported_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    keys = size = count = complete = 0
    with replacing(path) as new, gzip.open(new, "wb", compresslevel=_LEVEL) as file:
        file.write(msgpack.packb(described))
        for g in groups:
            file.write(msgpack.packb({"group": g.group, "epoch": g.epoch, "ended": g.ended, "undo": g.undo, "values": g.values}))
            keys, size, count = keys + g.keys, size + g.bytes, count + 1
            complete += g.group >= 0 and g.epoch is not None and g.epoch >= header.last_ended + (not g.ended)
        behind = header.key_groups - complete
        file.write(msgpack.packb({"groups": count, "keys": keys, "bytes": size, "behind": behind}))
    return Summary(described, keys, size, behind)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield header, groups and trailer as they are stored; UsageError if the file is no state file, damaged or cut off."""
    try:
        with gzip.open(path, "rb") as file:
            unpacker = msgpack.Unpacker(file, max_buffer_size=_GROUP_BYTES, strict_map_key=False)
            header = next(unpacker, None)
            if not isinstance(header, dict) or header.get("format") != FORMAT:
                raise UsageError(f"{path} is not a file of `udo state export`")
            if header.get("format_version") != FORMAT_VERSION:
                raise UsageError(f"{path} has format version {header.get('format_version')}; this udo reads {FORMAT_VERSION}")
            yield header
            for item in unpacker:
                if not isinstance(item, dict):
                    raise UsageError(f"{path} is damaged: expected a key group, got {type(item).__name__}")
                yield item
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}") from None
    except msgpack.BufferFull:
        raise UsageError(f"{path} is damaged: a key group has more than {_GROUP_BYTES >> 20} MiB") from None
    except (OSError, EOFError, zlib.error, ValueError, msgpack.UnpackException) as e:
        raise UsageError(f"{path} is damaged or not a file of `udo state export`: {e}") from e


def check(path: Path) -> Summary:
    """Read the file to its end; return a summary of its contents."""
    header: dict[str, Any] | None = None
    trailer: dict[str, Any] = {}
    count = 0
    for item in read(path):
        if header is None:
            header = item
        elif "group" in item:
            count += 1
        else:
            trailer = item
    assert header is not None, "read yields a header or raises"
    if trailer.get("groups") != count:
        raise UsageError(f"{path} is cut off: it names {trailer.get('groups', 'no number of')} groups and has {count}")
    return Summary(header, trailer["keys"], trailer["bytes"], trailer.get("behind", 0))  # files of former releases do not say it


def parts(path: Path, found: Summary, deployment: str, session: str, start_epoch: int | None, replace: bool) -> Iterator[pb.StatePart]:
    """Yield the file as an import, for a query whose next epoch is the one after the last ENDed epoch, or `start_epoch`."""
    header = found.header
    yield pb.StatePart(
        header=pb.StateHeader(
            deployment=deployment,
            session=session,
            state_version=header["state_version"],
            key=[pb.KeyColumn(name=n, type=t) for n, t in header["key"]],
            key_groups=header["key_groups"],
            last_ended=header["last_ended"] if start_epoch is None else start_epoch - 1,
            keys=found.keys,
            bytes=found.bytes,
            replace=replace,
        )
    )
    for item in read(path):
        if "group" in item:
            g = EndedGroup(**item)
            if start_epoch is not None:
                g = g.at(start_epoch - 1)
            group = Group.imported(g.epoch, g.ended, g.values, g.undo, header["state_version"])
            yield from _pieces(g.group, ((pb.StatePiece.META, group.meta()), (pb.StatePiece.BASE, group.snapshot())))


def _pieces(group: int, values: Sequence[tuple[pb.StatePiece.Kind, bytes]]) -> Iterator[pb.StatePart]:
    for kind, data in values:
        for at in range(0, len(data), _PIECE_BYTES):
            piece = pb.StatePiece(group=group, kind=kind, data=data[at : at + _PIECE_BYTES], more=at + _PIECE_BYTES < len(data))
            yield pb.StatePart(piece=piece)

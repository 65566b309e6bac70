"""Puts the members of a layer below its prefix into an empty directory, or raises TarRefused. Standard library only.

Nothing is ever written through a link: parents are directories made here; links come last, once each was found to lead to something in the
layer itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from udo_protocol.formats.strict_tar import DIRECTORY, FILE, LINK, Member, Readable, Reader, TarRefused, shown

# As many links as Linux follows.
_HOPS = 40
Path = tuple[str, ...]


def unpack(
    source: Readable, prefix: str, into: str, most_bytes: int, most_entries: int, alive: Callable[[], None] = lambda: None
) -> tuple[int, int]:
    """Unpack; return (bytes of the tar, entries). `alive` is called now and then, and raises if the parent no longer waits."""
    reader = Reader(source, most_bytes, most_entries)
    found: dict[Path, str] = {(): DIRECTORY}  # path -> kind
    links: dict[Path, str] = {}
    for member in reader:
        alive()
        path = _inside(member, tuple(prefix.split("/")))
        if not path:
            continue
        _claim_parents(path, member, found, into, reader)
        if (there := found.get(path)) is not None and not there == member.kind == DIRECTORY:
            raise TarRefused(f"{member.name} is there twice")
        if member.kind == LINK:
            links[path] = member.target
        elif member.kind == FILE:
            _write(os.path.join(into, *path), member, reader, alive)
        elif there is None:
            os.mkdir(os.path.join(into, *path), 0o755)
        found[path] = member.kind
    for path in links:
        alive()
        _follow(path, found, links)
    for path, target in links.items():
        os.symlink(target, os.path.join(into, *path))
    return reader.read_bytes, reader.entries


def _inside(member: Member, prefix: Path) -> Path:
    """The member's path below the prefix; empty for the prefix itself and the directories above it."""
    n = len(prefix)
    if member.path[:n] != prefix[: len(member.path)]:
        raise TarRefused(f"it holds {member.name}; expected only paths below {'/'.join(prefix)}")
    if len(member.path) <= n and member.kind != DIRECTORY:
        raise TarRefused(f"{member.name} is a {member.kind}, expected a directory")
    return member.path[n:]


def _claim_parents(path: Path, member: Member, found: dict[Path, str], into: str, reader: Reader) -> None:
    for end in range(1, len(path)):
        kind = found.get(path[:end])
        if kind is None:
            reader.count()
            os.mkdir(os.path.join(into, *path[:end]), 0o755)
            found[path[:end]] = DIRECTORY
        elif kind != DIRECTORY:
            raise TarRefused(f"{member.name} lies below a {kind}")


def _write(path: str, member: Member, reader: Reader, alive: Callable[[], None]) -> None:
    # Readable by whichever user an instance runs as; the home of the node is closed to all others.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o755 if member.executable else 0o644)
    with os.fdopen(fd, "wb") as file:
        for piece in reader.content():
            file.write(piece)
            alive()


def _follow(path: Path, found: dict[Path, str], links: dict[Path, str]) -> None:
    """Resolve a link as the kernel would: TarRefused if it leads out of the layer or to nothing, or does not end."""
    at, hops = list(path[:-1]), 1
    todo = links[path].split("/")[::-1]
    if links[path].startswith("/"):
        raise TarRefused(_link(path, links, "leads out of the layer"))
    while todo:
        part = todo.pop()
        if part in ("", "."):
            continue
        if part == "..":
            if not at:
                raise TarRefused(_link(path, links, "leads out of the layer"))
            at.pop()
            continue
        at.append(part)
        kind = found.get(tuple(at))
        if kind is None or (kind == FILE and todo):
            raise TarRefused(_link(path, links, "leads to nothing in the layer"))
        if kind == LINK:
            hops += 1
            target = links[tuple(at)]
            if hops > _HOPS or target.startswith("/"):
                raise TarRefused(_link(path, links, f"leads over more than {_HOPS} links" if hops > _HOPS else "leads out of the layer"))
            at.pop()
            todo += target.split("/")[::-1]


def _link(path: Path, links: dict[Path, str], why: str) -> str:
    return f"the symbolic link {shown('/'.join(path))} -> {shown(links[path])} {why}"

"""Hostile layers: each is an attack on the node that unpacks it. Bytes only; nothing here touches a file."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterable, Mapping

BLOCK = 512
END = bytes(2 * BLOCK)
CODE = "opt/udo/code"
GIB = 1 << 30


def header(
    name: str | bytes,
    size: int = 0,
    kind: bytes = b"0",
    *,
    link: str = "",
    mode: int = 0o644,
    size_field: bytes | None = None,
    magic: bytes = b"ustar\x0000",
) -> bytes:
    """Make a header block with the right checksum."""
    block = bytearray(BLOCK)
    raw = name.encode() if isinstance(name, str) else name
    for at, field in (
        (0, raw[:100]),
        (100, b"%07o\0" % mode),
        (108, b"0000000\0"),
        (116, b"0000000\0"),
        (124, size_field or b"%011o\0" % size),
        (136, b"00000000000\0"),
        (156, kind),
        (157, link.encode()[:100]),
        (257, magic),
    ):
        block[at : at + len(field)] = field
    return bytes(with_checksum(block))


def with_checksum(block: bytearray) -> bytearray:
    """Correct the checksum of a block, and return it."""
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return block


def file(name: str | bytes, content: bytes = b"", **more: int) -> bytes:
    """Make a whole member."""
    return header(name, len(content), **more) + padded(content)  # type: ignore[arg-type]


def padded(content: bytes) -> bytes:
    """Pad content to a whole number of blocks."""
    return content + bytes(-len(content) % BLOCK)


def link(name: str, target: str) -> bytes:
    """Make a symbolic link."""
    return header(name, kind=b"2", link=target)


def pax(records: Mapping[str, str | bytes]) -> bytes:
    """Make an extended header for the next member."""
    data = b""
    for key, value in records.items():
        rest = b" " + key.encode() + b"=" + (value.encode() if isinstance(value, str) else value) + b"\n"
        length = len(rest) + 1
        while len(str(length)) + len(rest) != length:
            length = len(str(length)) + len(rest)
        data += str(length).encode() + rest
    return header("pax", len(data), b"x") + padded(data)


def zeros(begin: bytes, size: int, end: bytes = END) -> bytes:
    """Make the gzip of `begin`, `size` zeros, and `end`, as fast as one of a few MiB, since deflated zeros can be repeated."""
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    packed = packer.compress(begin) + packer.flush(zlib.Z_FULL_FLUSH)
    piece = 4 << 20
    once = zlib.compressobj(9, zlib.DEFLATED, -15)
    repeated = once.compress(bytes(piece)) + once.flush(zlib.Z_FULL_FLUSH)
    tail = packer.compress(bytes(size % piece) + end) + packer.flush()
    # The checksum is wrong, but only a reader that has reached the end finds that out: too late to prevent the attack.
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + packed + repeated * (size // piece) + tail + bytes(8)


def packed(members: Iterable[bytes]) -> bytes:
    """Make the gzip of a tar of these members."""
    return gzip.compress(b"".join(members) + END, 6, mtime=0)


def _many(count: int) -> bytes:
    return packed(file(f"{CODE}/m{n}.py") for n in range(count))


OPERATOR = file(f"{CODE}/op.py", b"x = 1\n")
# name -> (the attack in words, the layer, a phrase from the reason of its refusal)
HOSTILE: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "negative_size": (
        "a size of -1536 by a pax header",
        lambda: packed([OPERATOR, pax({"size": "-1536"}), header(f"{CODE}/b.py")]),
        "size",
    ),
    "link_circle": (
        "symbolic links in a circle",
        lambda: packed([OPERATOR, *(link(f"{CODE}/{a}", b) for a, b in ("ab", "ba", "ca"))]),
        "40 links",
    ),
    "nul_in_path": ("a NUL in a path", lambda: packed([pax({"path": f"{CODE}/a\0b"}), header(f"{CODE}/op.py")]), "control characters"),
    "pax_zeros": ("a pax header of 1 GiB", lambda: zeros(header("pax", GIB, b"x"), GIB), "extended header has 1073741824 bytes"),
    "long_name_zeros": ("a long name of 1 GiB", lambda: zeros(header("././@LongLink", GIB, b"L"), GIB), "extended header has 1073741824"),
    "prefix_file": ("2 GiB as the member `opt`", lambda: zeros(header("opt", 2 * GIB), 2 * GIB), "unpacks to more than 256 MiB"),
    "many_files": ("30,000 files", lambda: _many(30_000), "more than 20000 entries"),
    "code_is_file": ("a file in place of the code's folder", lambda: packed([file(CODE, b"x")]), "is a file, expected a directory"),
    "link_chain_out": (
        "a chain of links that leaves the folder",
        lambda: packed([OPERATOR, file(f"{CODE}/c/d/f"), link(f"{CODE}/a", "b/c/d/../../../x"), link(f"{CODE}/b", ".")]),
        "leads out of the layer",
    ),
    "write_through_link": (
        "a file below a link to outside",
        lambda: packed([link(f"{CODE}/out", "../../../.."), file(f"{CODE}/out/written", b"x")]),
        "lies below a link",
    ),
    "bomb": ("5 GiB from 5 MB", lambda: zeros(header(f"{CODE}/op.py", 5 * GIB), 5 * GIB), "unpacks to more than"),
    "outside": ("a path with `..`", lambda: packed([file(f"{CODE}/../../../../written", b"x")]), "not a path inside"),
    "device": ("a device", lambda: packed([header(f"{CODE}/null", kind=b"3")]), "is a device"),
    "hard_link": ("a hard link to outside", lambda: packed([header(f"{CODE}/shadow", kind=b"1", link="/etc/shadow")]), "is a hard link"),
    "set_user_id": ("a set-user-ID file", lambda: packed([file(f"{CODE}/su", b"x", mode=0o4755)]), "mode 4755"),
    "twice": (
        "one path twice, as a link and a file",
        lambda: packed([link(f"{CODE}/a", "op.py"), OPERATOR, file(f"{CODE}/a")]),
        "there twice",
    ),
    "deep": ("folders 400 deep", lambda: packed([pax({"path": f"{CODE}/{'d/' * 400}f"}), header("f")]), "nested deeper"),
}

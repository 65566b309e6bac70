"""Seeded layers: honest ones, and ones broken in some of a dozen ways, mostly with corrected checksums.

The same seed gives the same bytes. fuzz_worker judges the results.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from random import Random

from benchmarks.verification.hostile_layers import BLOCK, CODE, END, file, header, link, padded, pax, with_checksum

HONEST_SHARE = 0.1
_MOST_BYTES = 3000
_NAMES = ["a", "b.py", "größe", "x" * 90, "y" * 120, "日本", "lib", "d e", "-", "z.so.1"]
_NASTY_NAMES = ["../out", "/etc/x", "a/../../x", "a//b", "", ".", "..", "./a", "a/", "a\0b", "a\nb", "\x1b[2J", "n" * 300, "d/" * 60 + "f"]
_NASTY_TARGETS = ["..", "../..", "/", "a", "b.py", "lib/../..", "./../lib", "lib/lib/lib", "nothing", "a/../../../canary", ""]
_NASTY_SIZES = ["-1", "-512", "-1536", "99999999999999999999", "0x10", "1e3", " 5", "+5", "", "5\0", "٣", "1_0"]
_SIZE_FIELDS = [
    b"\xff" * 12,
    b"\x80" + b"\0" * 10 + b"\x05",
    b"77777777777\0",
    b"-0000000005\0",
    b"           \0",
    b"0000000001_5",
    b"\0" * 12,
]
_TYPES = b"0123456789\0xgLKSDNVXMA"


def layer(seed: int, canary: str) -> tuple[bytes, bool]:
    """Make a layer: (gzip, whether it is honest). `canary`: a file outside that hostile members aim at."""
    random = Random(seed)
    blocks = _honest(random)
    if random.random() < HONEST_SHARE:
        return gzip.compress(b"".join(blocks) + END, 1, mtime=0), True
    for _ in range(random.randint(1, 3)):
        random.choice(_MUTATIONS)(random, blocks, canary)
    plain = b"".join(blocks) + random.choice([END, END, END, END, b"", bytes(BLOCK), END + b"more", END + bytes(8192)])
    packed = bytearray(gzip.compress(plain, 1, mtime=0))
    if random.random() < 0.1:
        _spoil(random, packed)
    return bytes(packed), False


def _honest(random: Random) -> list[bytes]:
    """Make members as packers write them: folders before their contents, sometimes without the outer folders."""
    blocks = [header(p, kind=b"5", mode=0o755) for p in ("opt", "opt/udo", CODE)] if random.random() < 0.7 else []
    seen, folders, files = set[str](), [CODE], list[str]()
    for _ in range(random.randint(1, 8)):
        path = f"{random.choice(folders)}/{random.choice(_NAMES)}"
        if path in seen:
            continue
        seen.add(path)
        kind = random.choice("ffffdl")
        long = [pax({"path": path, "mtime": "1.5"})] if len(path.encode()) > 100 or not path.isascii() else []
        name = "long" if long else path
        if kind == "d":
            folders.append(path)
            blocks += [*long, header(name, kind=b"5", mode=0o755)]
        elif kind == "l" and files:
            target = random.choice(files)
            up = "../" * (path.count("/") - CODE.count("/") - 1)
            blocks += [pax({"path": path, "linkpath": up + target.removeprefix(f"{CODE}/")}), header("link", kind=b"2", link="-")]
        else:
            files.append(path)
            content = random.randbytes(random.choice([0, 1, 511, 512, 513, random.randrange(_MOST_BYTES)]))
            blocks += [*long, file(name, content, mode=random.choice([0o644, 0o755]))]
    return blocks


def _spoil(random: Random, data: bytearray) -> None:
    """Damage the compressed bytes: flip a bit, cut the end off, or insert a part a second time."""
    at = random.randrange(len(data))
    match random.randrange(3):
        case 0:
            data[at] ^= 1 << random.randrange(8)
        case 1:
            del data[at:]
        case _:
            data[at:at] = data[: random.randrange(len(data))]


def _headers(blocks: list[bytes]) -> list[int]:
    return [n for n, b in enumerate(blocks) if b]


def _change_header(random: Random, blocks: list[bytes], at: int, value: bytes) -> None:
    n = random.choice(_headers(blocks))
    block = bytearray(blocks[n][:BLOCK])
    block[at : at + len(value)] = value
    blocks[n] = bytes(with_checksum(block)) + blocks[n][BLOCK:]


def _bytes_in_header(random: Random, blocks: list[bytes], _: str) -> None:
    _change_header(random, blocks, random.randrange(BLOCK - 4), random.randbytes(random.randint(1, 4)))


def _byte_anywhere(random: Random, blocks: list[bytes], _: str) -> None:
    n = random.choice(_headers(blocks))
    data = bytearray(blocks[n])
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    blocks[n] = bytes(data)


def _size(random: Random, blocks: list[bytes], _: str) -> None:
    _change_header(random, blocks, 124, random.choice([*_SIZE_FIELDS, b"%011o\0" % random.choice([1, 512, 513, 4096, 1 << 20])]))


def _kind(random: Random, blocks: list[bytes], _: str) -> None:
    _change_header(random, blocks, 156, bytes([random.choice(_TYPES)]))


def _mode(random: Random, blocks: list[bytes], _: str) -> None:
    _change_header(random, blocks, 100, b"%07o\0" % random.choice([0o4755, 0o2755, 0o1777, 0o777777, 0, 0o777]))


def _name(random: Random, blocks: list[bytes], canary: str) -> None:
    name = random.choice([*_NASTY_NAMES, *(f"{CODE}/{n}" for n in _NASTY_NAMES), canary]).encode()[:99] + b"\0"
    _change_header(random, blocks, 0, name)


def _prefix(random: Random, blocks: list[bytes], canary: str) -> None:
    _change_header(random, blocks, 345, random.choice([b"opt/udo", b"..", b"/", canary.encode()[:150], b"\xff"]) + b"\0")


def _magic(random: Random, blocks: list[bytes], _: str) -> None:
    _change_header(random, blocks, 257, random.choice([b"ustar  \0", b"ustar\x0011", bytes(8), b"ustar\0  "]))


def _link(random: Random, blocks: list[bytes], canary: str) -> None:
    path = f"{CODE}/{random.choice(_NAMES[:3] + ['l'])}"
    blocks.insert(random.randint(0, len(blocks)), link(path, random.choice([*_NASTY_TARGETS, canary, "/" + canary])))


def _below(random: Random, blocks: list[bytes], _: str) -> None:
    blocks.append(file(f"{CODE}/{random.choice(_NAMES[:3] + ['l'])}/canary", b"written"))


def _extended(random: Random, blocks: list[bytes], canary: str) -> None:
    key = random.choice(["path", "linkpath", "size", "size", "GNU.sparse.size", "hdrcharset", "SCHILY.xattr.user.a", "mtime", "comment"])
    values = {"size": [*_NASTY_SIZES, "1", "600"], "path": [*_NASTY_NAMES, f"{CODE}/p", canary], "linkpath": [*_NASTY_TARGETS, canary]}
    value = random.choice(values.get(key, ["1", ""])).encode()
    made = bytearray(pax({key: random.choice([value, value, value + b"\xff"])}))
    if random.random() < 0.3:
        made[BLOCK + random.randrange(12)] = random.choice(b"0123456789 =\n\0")
    blocks.insert(random.randint(0, len(blocks)), bytes(made))


def _long_name(random: Random, blocks: list[bytes], canary: str) -> None:
    name = random.choice([*_NASTY_NAMES, f"{CODE}/{'l' * 150}", canary]).encode() + random.choice([b"", b"\0", b"\0\0"])
    kind = random.choice([b"L", b"K"])
    blocks.insert(random.randint(0, len(blocks)), header("././@LongLink", len(name), kind) + padded(name))


def _shuffle(random: Random, blocks: list[bytes], _: str) -> None:
    a, b = random.randrange(len(blocks)), random.randrange(len(blocks))
    match random.randrange(4):
        case 0:
            blocks[a], blocks[b] = blocks[b], blocks[a]
        case 1:
            blocks.insert(a, blocks[b])
        case 2:
            blocks[a] = blocks[a][: random.randrange(len(blocks[a]) + 1)]
        case _:
            blocks.insert(a, bytes(BLOCK))


_MUTATIONS: list[Callable[[Random, list[bytes], str], None]] = [
    _bytes_in_header,
    _byte_anywhere,
    _size,
    _kind,
    _mode,
    _name,
    _prefix,
    _magic,
    _link,
    _link,
    _below,
    _extended,
    _extended,
    _long_name,
    _shuffle,
]

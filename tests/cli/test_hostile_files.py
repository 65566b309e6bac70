"""Files from strangers: image archives, recordings, state. Whatever their content, `udo` soon says that they are damaged."""

from __future__ import annotations

import gzip
import io
import json
import resource
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import msgpack
import pytest

from benchmarks.verification.hostile_layers import END, file, header, packed, pax, zeros
from tests.cli import images
from udo_cli import state_file
from udo_cli.packing import archive
from udo_protocol.errors import UsageError
from udo_protocol.formats.recording_file import Recording

INDEX = file("index.json", b"{}")
# Limits of the child process that reads each file: the point is that it ends.
MEMORY_BYTES, WITHIN_S = 1 << 30, 60
READ = {
    "archive": "from udo_cli.packing import archive; archive.read(sys.argv[1], pathlib.Path('.'))",
    "recording": "from udo_protocol.formats.recording_file import Recording; Recording(pathlib.Path(sys.argv[1]))",
    "state": "from udo_cli import state_file; state_file._GROUP_BYTES = 1 << 24; state_file.check(pathlib.Path(sys.argv[1]))",
}


def _zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out, out.open("recording.json", "w") as entry:
        for _ in range(64):
            entry.write(bytes(1 << 20))


def _state(path: Path) -> None:
    begun = msgpack.packb({"format": state_file.FORMAT, "format_version": 1}) + b"\xc6\xff\xff\xff\xff"  # 4 GiB of bytes follow
    path.write_bytes(zeros(begun, 4 << 30, b""))


HOSTILE: list[tuple[str, Callable[[Path], object], str]] = [
    ("archive", lambda p: p.write_bytes(INDEX + pax({"size": "-1536"}) + header("b") + END), "has the size '-1536'"),
    ("archive", lambda p: p.write_bytes(zeros(header("pax", 1 << 31, b"x"), 1 << 31)), "extended header has 2147483648 bytes"),
    ("archive", lambda p: p.write_bytes(pax({"GNU.sparse.major": "1"}) + header("a") + END), "'GNU.sparse.major'"),
    ("archive", lambda p: p.write_bytes(packed([file("index.json", bytes(17 << 20))])), "more than 16 MiB"),
    ("archive", lambda p: p.write_bytes(packed([file("index.json", b'{"a":' * 100_000)])), "is not JSON"),
    ("recording", _zip, "compressed entries"),
    ("state", _state, "a key group has more than 16 MiB"),
]


@pytest.mark.parametrize(("kind", "make", "why"), HOSTILE)
def test_a_hostile_file_is_refused_in_bounded_time_and_memory(tmp_path: Path, kind: str, make: Callable[[Path], object], why: str) -> None:
    make(tmp_path / "f")
    program = f"import sys, pathlib, resource; {READ[kind]}"

    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "f")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES)),
        check=False,
    )

    last = done.stderr.strip().splitlines()[-1]
    assert "UsageError" in last and why in last, done.stderr[-2000:]


@pytest.mark.parametrize("zipped", [False, True])
def test_an_archive_of_another_tool_is_read_over_its_links_and_headers(tmp_path: Path, zipped: bool) -> None:
    base, made = images.tar(bin__run="#!"), io.BytesIO()
    entry = {"Config": "config.json", "Layers": ["one/layer.tar", "two/layer.tar", "three/layer.tar"]}
    members = {"config.json": json.dumps(images.config(base, base, base)).encode(), "one/layer.tar": base}
    members["manifest.json"] = json.dumps([entry]).encode()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "a global header"}) as tar:
        root = tarfile.TarInfo("./")
        root.type = tarfile.DIRTYPE
        tar.addfile(root)
        for name, data in members.items():
            info = tarfile.TarInfo(f"./{name}")
            info.size, info.pax_headers = len(data), {"SCHILY.xattr.user.x": "1", "LIBARCHIVE.creationtime": "1"}
            tar.addfile(info, io.BytesIO(data))
        for name, kind, target in (("two", tarfile.SYMTYPE, "../one/layer.tar"), ("three", tarfile.LNKTYPE, "./two/layer.tar")):
            info = tarfile.TarInfo(f"{name}/layer.tar")
            info.type, info.linkname = kind, target
            tar.addfile(info)
    path = tmp_path / "other.tar"
    path.write_bytes(gzip.compress(made.getvalue()) if zipped else made.getvalue())

    found = archive.read(str(path), tmp_path)

    assert [gzip.decompress(layer.path.read_bytes()) for layer in found.layers] == [base] * 3


def test_damaged_recordings_and_states_are_named_whatever_is_in_them(tmp_path: Path) -> None:
    for name, content in (("recording.json", b"[1]"), ("recording.json", b"[" * 100_000)):
        with zipfile.ZipFile(tmp_path / "r", "w") as out:
            out.writestr(name, content)
        with pytest.raises(UsageError, match="no JSON object"):
            Recording(tmp_path / "r")
    (tmp_path / "s").write_bytes(gzip.compress(msgpack.packb({"format": state_file.FORMAT, "format_version": 1}) + b"\x07"))
    with pytest.raises(UsageError, match="expected a key group, got int"):
        state_file.check(tmp_path / "s")

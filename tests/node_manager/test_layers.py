"""Layers are unpacked by a child with limits: an honest layer as it was packed; a hostile one is refused and harms nothing."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from benchmarks.verification.hostile_layers import CODE, HOSTILE, OPERATOR, file, header, link, packed
from node_manager.images.unpack import UnpackLimits, require_space, unpack
from tests.conftest import bound, wait_until
from udo_cli.packing.layers import CODE_ROOT, files_of, pack
from udo_protocol.errors import Refused, Unavailable

SMALL = UnpackLimits(bytes=1 << 20, entries=100, cpu_s=60)
# A layer that takes far longer to unpack than anyone waits: gzip members without content.
ENDLESS = gzip.compress(b"", mtime=0) * 500_000
LARGE = packed([file(f"{CODE}/op.py", bytes(900_000))])


def tree(directory: Path) -> dict[str, tuple[int, bytes] | str]:
    """Return path -> (mode, content), or the target of a link."""
    found: dict[str, tuple[int, bytes] | str] = {}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_file():
            found[name] = (path.stat().st_mode & 0o7777, path.read_bytes())
    return found


def unpacked(tmp_path: Path, blob: bytes, limits: UnpackLimits | None = None) -> Path:
    """Unpack the layer; return the folder."""
    (tmp_path / "layer").write_bytes(blob)
    into = tmp_path / "draft" / "code"
    into.mkdir(parents=True)
    unpack(tmp_path / "layer", "code", into, limits)
    return into


def test_what_udo_push_packs_is_unpacked_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "operator"
    names = ["op.py", "empty", "größe/日本.txt", f"{'long' * 30}/{'name' * 50}.py", "a/b/c/run.sh"]
    for n, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(n * 700))
        path.chmod(0o755 if name.endswith(".sh") else 0o644)

    layer = pack("code", CODE_ROOT, files_of(folder), tmp_path / "packed")

    assert tree(unpacked(tmp_path, layer.path.read_bytes())) == tree(folder)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_layers_of_other_tars_are_taken_with_links_that_stay_inside(tmp_path: Path, form: int) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz", format=form) as tar:
        for name in ("./opt", "opt/udo", f"{CODE}/", f"{CODE}/lib"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(folder)
        long = f"{CODE}/{'folder/' * 12}{'n' * 60}"
        for name in (f"{CODE}/lib/op.so.1", long):
            info = tarfile.TarInfo(name)
            info.size, info.mtime = 3, 7
            tar.addfile(info, io.BytesIO(b"abc"))
        for name, target in ((f"{CODE}/lib/op.so", "./op.so.1"), (f"{CODE}/l", "lib/../lib/op.so"), (f"{CODE}/d", "lib")):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)

    into = unpacked(tmp_path, made.getvalue())

    assert (into / "l").resolve() == into / "lib" / "op.so.1"
    assert (into / "d" / "op.so").read_bytes() == (into / long.removeprefix(f"{CODE}/")).read_bytes() == b"abc"


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_layer_is_refused_with_its_reason_and_leaves_nothing_outside(tmp_path: Path, name: str) -> None:
    _, make, why = HOSTILE[name]

    with pytest.raises(Refused, match="^refused: layer code: ") as refused:
        unpacked(tmp_path, make())

    assert why in str(refused.value) and len(str(refused.value)) < 500
    assert sorted(p.name for p in tmp_path.iterdir()) == ["draft", "layer"]
    assert [p.name for p in (tmp_path / "draft").iterdir()] == ["code"]
    assert not any(p.is_symlink() for p in tmp_path.rglob("*"))


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (packed([OPERATOR])[:-9], "damaged"),
        (gzip.compress(OPERATOR, mtime=0), "truncated"),
        (gzip.compress(OPERATOR + bytes(512), mtime=0), "truncated"),
        (packed([OPERATOR]) + b"more", "Not a gzipped file"),
        (packed([OPERATOR, bytes(512), OPERATOR]), "one empty block"),
        (packed([OPERATOR, bytes(1024), OPERATOR]), "data follows"),
        (packed([b"x" * 512]), "octal"),
        (b"no gzip", "Not a gzipped file"),
        (packed([file("etc/passwd")]), "only paths below"),
        (packed([file(f"/{CODE}/op.py")]), "not a path inside"),
        (packed([file("opt/udo/deps/op.py")]), "only paths below"),
        (packed([file(f"{CODE}/\xe9".encode("latin-1"))]), "not UTF-8"),
        (packed([link(f"{CODE}/a", "/etc/passwd")]), "leads out"),
        (packed([link(f"{CODE}/a", "../../out")]), "leads out"),
        (packed([link(f"{CODE}/a", "nothing")]), "leads to nothing"),
        (packed([OPERATOR, link(f"{CODE}/a", "op.py/..")]), "leads to nothing"),
        (packed([OPERATOR, file(f"{CODE}/op.py/below")]), "lies below a file"),
        (packed([header(f"{CODE}/a", 5, b"5"), bytes(512)]), "directory with 5 bytes"),
        (packed([header(f"{CODE}/a", kind=b"S")]), "a sparse file"),
        (packed([header(f"{CODE}/a", kind=b"Z")]), "of type b'Z'"),
        (packed([header(f"{CODE}/a", size_field=b"\xff" * 12)]), "size is"),
    ],
)
def test_what_is_no_layer_in_every_point_is_refused(tmp_path: Path, layer: bytes, why: str) -> None:
    with pytest.raises(Refused, match="^refused: layer code: ") as refused:
        unpacked(tmp_path, layer)

    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("limits", "blob", "why"),
    [
        (UnpackLimits(bytes=1 << 20, entries=100, cpu_s=1), ENDLESS, "1 s of processor time"),
        (UnpackLimits(bytes=1 << 20, entries=100, cpu_s=60, memory_bytes=1 << 20), LARGE, "more than 1 MiB of memory"),
    ],
)
def test_a_layer_that_takes_too_much_time_or_memory_is_refused(tmp_path: Path, limits: UnpackLimits, blob: bytes, why: str) -> None:
    with pytest.raises(Refused, match=why):
        unpacked(tmp_path, blob, limits)


@pytest.mark.parametrize(("entries", "why"), [(101, "more than 100 entries"), (2, "more than 1 MiB")])
def test_bounds_of_bytes_and_entries_count_everything_in_the_layer(tmp_path: Path, entries: int, why: str) -> None:
    members = [file(f"{CODE}/{n}", bytes(600_000 if entries == 2 else 0)) for n in range(entries)]

    with pytest.raises(Refused, match=why):
        unpacked(tmp_path, packed(members), SMALL)


def test_a_disk_that_would_be_full_is_the_nodes_fault_and_does_not_become_full(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot be unpacked here: less than 1073741824 MiB would be left"):
        unpacked(tmp_path, LARGE, replace(SMALL, reserve_bytes=1 << 50))
    with pytest.raises(Unavailable, match="make room on this node"):
        require_space(tmp_path, 1 << 50)


def test_unpacking_ends_with_the_node_manager_that_asked_for_it(tmp_path: Path) -> None:
    (tmp_path / "layer").write_bytes(packed(file(f"{CODE}/{n}") for n in range(19_000)))
    (tmp_path / "into").mkdir()
    asks = "import sys, pathlib; from node_manager.images.unpack import unpack; p = pathlib.Path(sys.argv[1])\n"
    asks += "unpack(p / 'layer', 'code', p / 'into')"
    parent = subprocess.Popen([sys.executable, "-c", asks, str(tmp_path)])
    wait_until(lambda: any((tmp_path / "into").iterdir()), 30, "the first file")
    children = psutil.Process(parent.pid).children()

    parent.kill()
    parent.wait()

    _, alive = psutil.wait_procs(children, timeout=bound(30))
    assert children and not alive
    assert len(list((tmp_path / "into").iterdir())) < 19_000
